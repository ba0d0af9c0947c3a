"""The page on choosing a store: its figures are those of the benchmarks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "choosing-a-store.md").read_text()
FIGURES = dict(re.findall(r"^\| +([^|]+?) \| ([\d.,]+)[^|]*\|", (DOCS / "benchmarks.md").read_text(), re.M))
CITED = {
    "many runs at once": [
        "200 runs x 10 steps, one process", "100 runs x 10 steps in each of two", "Postgres: 200 runs x 10 steps",
        "temporal: 40 runs x 10, steps",
    ],
    "one run, step after step": [
        "200 sequential steps in one run", "Postgres: 200 sequential steps", "temporal: one run, steps a second",
    ],
    "start to result in another process, p50": [
        "start to result in another process, p50", "Postgres: one-step run in another process, p50",
    ],
    "takeover after SIGKILL, p50": ["takeover after SIGKILL, p50", "Postgres: takeover after SIGKILL, p50"],
    "bytes for each step with 200 bytes of output": [
        "bytes a step, 200-byte outputs", "Postgres: bytes a step", "temporal: history of a step, bytes",
    ],
    "a long run": ["resume of a run with 5,000 steps"],
}  # fmt: skip
"""The benchmarks of each row, in the order of its figures."""


@pytest.mark.parametrize("row", CITED)
def test_a_row_has_the_figures_of_the_benchmarks(row: str):
    [cells] = re.findall(rf"^\| {re.escape(row)} \|(.*)\|$", PAGE, re.M)
    found = [cells.find(FIGURES[title]) for title in CITED[row]]
    assert -1 not in found, f"{[FIGURES[title] for title in CITED[row]]} in {cells}"
    assert found == sorted(found)


def test_the_stores_were_tried_with_as_many_parked_runs_as_the_page_says():
    assert "| 1,000,000 | 1,000,000 | |" in PAGE
    assert {"1,000,000 runs parked: memory", "Postgres: 1,000,000 runs parked"} <= FIGURES.keys()
