"""The page on benchmarks: its tables come from the measured figures."""

from __future__ import annotations

from pathlib import Path

from benchmarks.figures_page import FIGURES_PATH, insert_figures, read_figures, render_row, write_figures
from benchmarks.sqlite_benchmarks import Measurement


def test_a_table_is_filled_with_the_figures_of_its_benchmarks() -> None:
    page = "Before.\n\n<!-- benchmarks: fast slow-one -->\n\nold rows\n<!-- end -->\n\nAfter.\n"
    figures = {
        "fast": [Measurement("steps", 12345.6, "steps/s", "bare 3,000 commits/s: 4.1", ">= 2 times bare", True)],
        "slow-one": [Measurement("wait", 1.234, "ms", target="< 1 ms", is_met=False)],
        "other": [Measurement("not here", 1, "ms")],
    }
    filled = insert_figures(page, figures)
    assert filled == (
        "Before.\n\n<!-- benchmarks: fast slow-one -->\n\n"
        "| | measured | compared with | target |\n|---|---|---|---|\n"
        "| steps | 12,346 steps/s | bare 3,000 commits/s: 4.1 | ≥ 2 times bare |\n"
        "| wait | 1.23 ms | | < 1 ms: **missed** |\n"
        "\n<!-- end -->\n\nAfter.\n"
    )
    assert insert_figures(filled, figures) == filled


def test_a_figure_without_a_comparison_or_target_leaves_its_cells_empty() -> None:
    assert render_row(Measurement("memory", 15, "MB")) == "| memory | 15 MB | | |\n"


def test_a_second_run_keeps_the_figures_of_benchmarks_it_did_not_measure(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    assert read_figures(path) == {}
    first, second = Measurement("one", 1, "ms"), Measurement("two", 2, "ms", "bare", "< 3 ms", True)
    write_figures(path, {"first": [first], "second": [first]}, 5)
    write_figures(path, {"second": [second]}, 5)
    assert read_figures(path) == {"first": [first], "second": [second]}


def test_the_page_has_the_figures_of_the_file() -> None:
    page = (FIGURES_PATH.parent.parent / "docs" / "benchmarks.md").read_text()
    assert "<!-- benchmarks:" in page
    assert insert_figures(page, read_figures(FIGURES_PATH)) == page
