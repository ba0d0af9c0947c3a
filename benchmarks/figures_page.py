"""The measured figures in the documentation.

``benchmarks/figures.json`` has the figures of each benchmark. The page has a table for them between
``<!-- benchmarks: NAMES -->`` and ``<!-- end -->``, which ``--into`` fills in. A test checks that both agree.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.sqlite_benchmarks import Measurement

FIGURES_PATH = Path(__file__).parent / "figures.json"
_TABLE = re.compile(r"(<!-- benchmarks: ([\w -]+) -->\n\n).*?(<!-- end -->)", re.DOTALL)
_MICROSECONDS = re.compile(r"\bus\b")
_HEAD = "| | measured | compared with | target |\n|---|---|---|---|\n"

Figures = Mapping[str, Sequence[Measurement]]
"""The measurements of each benchmark."""


def read_figures(path: Path) -> Figures:
    """Read a file of figures; a file that does not exist has none."""
    stored: dict[str, Any] = json.loads(path.read_text())["benchmarks"] if path.exists() else {}
    return {name: [Measurement(**fields) for fields in lines] for name, lines in stored.items()}


def write_figures(path: Path, figures: Figures, round_count: int) -> None:
    """Write these figures; benchmarks that were not measured this time keep those of the file."""
    merged = {**read_figures(path), **figures}
    stored = {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "core_count": os.cpu_count(),
        "round_count": round_count,
        "benchmarks": {name: [asdict(line) for line in merged[name]] for name in sorted(merged)},
    }
    path.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")


def insert_figures(page: str, figures: Figures) -> str:
    """The page with each of its tables made from these figures."""

    def replace_table(match: re.Match[str]) -> str:
        rows = [render_row(line) for name in match[2].split() for line in figures[name]]
        return f"{match[1]}{_HEAD}{''.join(rows)}\n{match[3]}"

    return _TABLE.sub(replace_table, page)


def render_row(line: Measurement) -> str:
    missed = {True: "", False: ": **missed**", None: ""}[line.is_met]
    value = f"{line.value:,.0f}" if abs(line.value) >= 100 else f"{line.value:.3g}"
    cells = (line.title, f"{value} {line.unit}", line.comparison, line.target + missed)
    row = "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|\n"
    return _MICROSECONDS.sub("µs", row.replace(">= ", "≥ ").replace("<= ", "≤ "))
