"""The page on drills: its tables come from the measured figures, and it has every drill."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.drills.__main__ import DRILLS, FIGURES_PATH
from benchmarks.figures_page import insert_figures, read_figures

PAGE = (Path(__file__).parents[2] / "docs" / "drills.md").read_text()


def test_the_page_has_the_figures_of_the_file() -> None:
    assert insert_figures(PAGE, read_figures(FIGURES_PATH)) == PAGE


def test_the_page_has_a_table_and_a_command_for_each_drill() -> None:
    tables = set(" ".join(re.findall(r"<!-- benchmarks: ([\w -]+) -->", PAGE)).split())
    assert tables == {f"{name}-{store}" for name, (stores, _) in DRILLS.items() for store in stores}
    commands = set(re.findall(r"`python -m benchmarks\.drills ([\w -]+)`", PAGE))
    assert {name for command in commands for name in command.split()} == set(DRILLS)
