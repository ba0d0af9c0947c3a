"""What is told of the peers: nothing that failed is left out.

No peer is run here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.peers import ledger
from benchmarks.peers.figures import CrashFigures, PeerFigures, PeerReport, Rate, read_report
from benchmarks.peers.plot import render_plot
from benchmarks.peers.tables import insert_tables, render_report, render_summary

ROOT = Path(__file__).parent.parent.parent


def figures(**fields: object) -> PeerFigures:
    fixed = {
        "key": "other-sqlite",
        "title": "Other, SQLite",
        "versions": "other 1.2",
        "settings": "all synced",
        "once_support": "no",
    }
    return PeerFigures(**{"needs_explicit_resume": False, "no_takeover_reason": "", **fixed, **fields})  # type: ignore[arg-type]


def report(*peers: PeerFigures) -> PeerReport:
    return PeerReport("3.12.1", 8, 5, 3, 200, 200, 3000.0, 0, list(peers))


def test_figures_are_read_as_they_were_written(tmp_path: Path) -> None:
    written = report(
        figures(
            sequential=Rate(700, 0.2), restart=CrashFigures([8, 9], None), overlap_repeats=[9], failures={"rates": "no"}
        )
    )
    written.write(tmp_path / "figures.json")
    assert read_report(tmp_path / "figures.json") == written


def test_a_peer_has_a_row_with_its_rates_next_to_the_bare_database() -> None:
    output = render_report(
        report(figures(sequential=Rate(712.4, 0.237), concurrent=Rate(1900.0, 0.61), bytes_per_step=455.2))
    )
    assert "| Other, SQLite | 712 (0.24 of bare) | 1,900 (0.61 of bare) | 455 |" in output
    assert "Bare: 3,000 commits/s on SQLite.\nVersions: other 1.2." in output
    assert "Not measured" not in output


def test_a_crash_is_described_by_what_ran_again_and_what_continued() -> None:
    lucky = figures(restart=CrashFigures([9], 1.24), takeover=CrashFigures([9], 0.04), overlap_repeats=[])
    named = figures(
        title="Named", needs_explicit_resume=True, no_takeover_reason="no workers", restart=CrashFigures([7, 8, 9], 2.0)
    )
    lost = figures(
        title="Lost", restart=CrashFigures([], None), takeover=CrashFigures([], None), overlap_repeats=[9, 10]
    )
    output = render_report(report(lucky, named, lost))
    assert "| Other, SQLite | the one in flight (9) | yes | 1.2 | 0.04 | none |" in output
    assert "| Named | 7 to 9 | no: a client must name the run | 2.0 | – | – |" in output
    assert "| Lost | none | no | never | never | 9, 10 |" in output


def test_the_short_description_of_a_crash_is_what_it_takes_to_continue() -> None:
    lucky = figures(restart=CrashFigures([9], 1.24), takeover=CrashFigures([9], 0.04), overlap_repeats=[])
    started = figures(
        title="Started", no_takeover_reason="only at start", restart=CrashFigures([9], 0.5), overlap_repeats=[9]
    )
    named = figures(
        title="Named", needs_explicit_resume=True, no_takeover_reason="no workers", restart=CrashFigures([7, 8, 9], 2.0)
    )
    lost = figures(title="Lost", restart=CrashFigures([], None), takeover=CrashFigures([], None), overlap_repeats=[])
    output = render_summary(report(lucky, started, named, lost))
    assert "| Other, SQLite | – | – | the one in flight (9) | by itself, 0.04 s | none |" in output
    assert "| Started | – | – | the one in flight (9) | when a process starts | the one in flight (9) |" in output
    assert "| Named | – | – | 7 to 9 | when a client names the run | – |" in output
    assert "| Lost | – | – | none | never | none |" in output


def test_a_rate_far_below_the_bare_database_is_not_shown_as_zero() -> None:
    assert "| Other, SQLite | 20 (less than 0.01 of bare) |" in render_report(
        report(figures(sequential=Rate(20, 0.004)))
    )


@pytest.mark.parametrize(("page", "render"), [("docs/benchmarks.md", render_report), ("README.md", render_summary)])
def test_the_pages_have_the_measured_peers(page: str, render: Callable[[PeerReport], str]) -> None:
    text = (ROOT / page).read_text()
    tables = render(read_report(ROOT / "benchmarks" / "peers" / "figures.json"))
    assert tables in text
    assert insert_tables(text, tables) == text


def test_the_plot_is_drawn_from_the_measured_figures() -> None:
    drawn = render_plot(read_report(ROOT / "benchmarks" / "peers" / "figures.json"))
    assert (ROOT / "docs" / "images" / "peers.svg").read_text() == drawn


def test_the_plot_shows_a_reason_where_a_peer_has_no_figure() -> None:
    measured = figures(key="holdfast-sqlite", concurrent=Rate(2000, 1.0), takeover=CrashFigures([9], 0.05))
    slower = figures(title="Slower", concurrent=Rate(1000, 0.5), takeover=CrashFigures([9], 12.2))
    named = figures(title="Named", needs_explicit_resume=True, no_takeover_reason="no workers")
    lost = figures(title="Lost", takeover=CrashFigures([], None), failures={"rates": "no"})
    absent = figures(title="Absent", failures={"installed": "no such package"})
    drawn = render_plot(report(measured, slower, named, lost, absent))
    widths = [int(width) for width in re.findall(r'class="bar[^"]*"[^>]* width="(\d+)"', drawn)]
    assert widths[0] == 2 * widths[2]
    assert 0 < widths[1] < widths[3]
    texts = re.findall(r">([^<>]+)</text>", drawn)
    assert {"2,000", "0.05 s", "12 s", "none: a client must name the run", "never", "failed"} <= set(texts)
    assert "Absent" not in texts


def test_what_could_not_be_measured_is_listed_with_the_reason() -> None:
    absent = figures(title="Absent", failures={"installed": "`pip install absent`: no such package"})
    broken = figures(title="Broken", sequential=Rate(10, 0.1), failures={"rates": "197 of 200 runs\nfailed"})
    output = render_report(report(absent, broken))
    assert "| Absent |" not in output
    assert "- Absent, not installed: `pip install absent`: no such package" in output
    assert "| Broken | 10 (0.10 of bare) | failed | failed |" in output
    assert "- Broken, rates: 197 of 200 runs failed" in output


def test_the_ledger_shows_which_steps_started_twice_and_when_the_last_one_did(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    assert ledger.read_entries(path) == []
    path.write_text("8 100 1.0\n9 100 2.0\n9 101 3.5\n10 101 4.0\n")
    assert ledger.list_repeated(ledger.read_entries(path)) == [9]
    assert ledger.wait_for_step(path, 10, timeout_s=0) == ledger.LedgerEntry(10, 101, 4.0)
    assert ledger.wait_for_step(path, 12, timeout_s=0) is None


def test_a_line_that_is_still_being_written_is_left_for_the_next_look(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_text("8 100 1.0\n9 100 2")
    assert [entry.number for entry in ledger.read_entries(path)] == [8]
