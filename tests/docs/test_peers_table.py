"""What is told of the peers: nothing that failed is left out.

No peer is run here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.peers import ledger
from benchmarks.peers.figures import Crash, Figures, Rate, Report, read
from benchmarks.peers.tables import brief, into, render

ROOT = Path(__file__).parent.parent.parent


def figures(**fields: object) -> Figures:
    fixed = {
        "key": "other-sqlite",
        "title": "Other, SQLite",
        "versions": "other 1.2",
        "settings": "all synced",
        "once": "no",
    }
    return Figures(**{"is_named": False, "no_takeover": "", **fixed, **fields})  # type: ignore[arg-type]


def report(*peers: Figures) -> Report:
    return Report("3.12.1", 8, 5, 3, 200, 200, 3000.0, 0, list(peers))


def test_figures_are_read_as_they_were_kept(tmp_path: Path) -> None:
    kept = report(figures(sequential=Rate(700, 0.2), restart=Crash([8, 9], None), beside=[9], failed={"rates": "no"}))
    kept.write(tmp_path / "figures.json")
    assert read(tmp_path / "figures.json") == kept


def test_a_peer_has_a_row_with_its_rates_beside_the_bare_database() -> None:
    told = render(report(figures(sequential=Rate(712.4, 0.237), together=Rate(1900.0, 0.61), bytes=455.2)))
    assert "| Other, SQLite | 712 (0.24 of bare) | 1,900 (0.61 of bare) | 455 |" in told
    assert "Bare: 3,000 commits/s on SQLite.\nVersions: other 1.2." in told
    assert "Not measured" not in told


def test_a_crash_is_told_by_what_ran_again_and_by_who_went_on() -> None:
    lucky = figures(restart=Crash([9], 1.24), takeover=Crash([9], 0.04), beside=[])
    named = figures(title="Named", is_named=True, no_takeover="no workers", restart=Crash([7, 8, 9], 2.0))
    lost = figures(title="Lost", restart=Crash([], None), takeover=Crash([], None), beside=[9, 10])
    told = render(report(lucky, named, lost))
    assert "| Other, SQLite | the one in flight (9) | yes | 1.2 | 0.04 | none |" in told
    assert "| Named | 7 to 9 | no: the run is named | 2.0 | – | – |" in told
    assert "| Lost | none | no | never | never | 9, 10 |" in told


def test_in_brief_a_crash_is_told_by_what_it_takes_to_go_on() -> None:
    lucky = figures(restart=Crash([9], 1.24), takeover=Crash([9], 0.04), beside=[])
    started = figures(title="Started", no_takeover="only at start", restart=Crash([9], 0.5), beside=[9])
    named = figures(title="Named", is_named=True, no_takeover="no workers", restart=Crash([7, 8, 9], 2.0))
    lost = figures(title="Lost", restart=Crash([], None), takeover=Crash([], None), beside=[])
    told = brief(report(lucky, started, named, lost))
    assert "| Other, SQLite | – | – | the one in flight (9) | by itself, 0.04 s | none |" in told
    assert "| Started | – | – | the one in flight (9) | when a process starts | the one in flight (9) |" in told
    assert "| Named | – | – | 7 to 9 | when somebody names the run | – |" in told
    assert "| Lost | – | – | none | never | none |" in told


def test_a_rate_that_is_nearly_nothing_beside_the_bare_database_is_not_told_as_nothing() -> None:
    assert "| Other, SQLite | 20 (less than 0.01 of bare) |" in render(report(figures(sequential=Rate(20, 0.004))))


@pytest.mark.parametrize(("page", "told"), [("docs/benchmarks.md", render), ("README.md", brief)])
def test_the_pages_hold_the_peers_as_they_were_measured(page: str, told: Callable[[Report], str]) -> None:
    text = (ROOT / page).read_text()
    tables = told(read(ROOT / "benchmarks" / "peers" / "figures.json"))
    assert tables in text
    assert into(text, tables) == text


def test_what_could_not_be_measured_is_told_with_the_reason() -> None:
    absent = figures(title="Absent", failed={"installed": "`pip install absent`: no such package"})
    broken = figures(title="Broken", sequential=Rate(10, 0.1), failed={"rates": "197 of 200 runs\nfailed"})
    told = render(report(absent, broken))
    assert "| Absent |" not in told
    assert "- Absent, not installed: `pip install absent`: no such package" in told
    assert "| Broken | 10 (0.10 of bare) | failed | failed |" in told
    assert "- Broken, rates: 197 of 200 runs failed" in told


def test_the_ledger_tells_which_steps_began_twice_and_when_the_last_one_did(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    assert ledger.read(path) == []
    path.write_text("8 100 1.0\n9 100 2.0\n9 101 3.5\n10 101 4.0\n")
    assert ledger.again(ledger.read(path)) == [9]
    assert ledger.wait(path, 10, patience=0) == ledger.Entry(10, 101, 4.0)
    assert ledger.wait(path, 12, patience=0) is None


def test_a_line_that_is_still_being_written_is_left_for_the_next_look(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_text("8 100 1.0\n9 100 2")
    assert [entry.number for entry in ledger.read(path)] == [8]
