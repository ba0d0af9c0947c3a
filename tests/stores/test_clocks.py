"""What time it is on a database server, without asking it each time."""

from __future__ import annotations

import time

import pytest

from holdfast.stores import clocks
from holdfast.stores.clocks import DatabaseClock


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """A machine's two clocks; the wall clock is an hour behind."""
    shown = {"wall": 1_000_000.0, "elapsed": 50.0}
    monkeypatch.setattr(clocks, "monotonic", lambda: shown["elapsed"])
    monkeypatch.setattr(time, "time", lambda: shown["wall"])
    return shown


def test_before_the_server_reports_its_time_the_clock_is_the_machines(machine: dict[str, float]):
    assert DatabaseClock("postgresql://db").now() == 1_000_000.0


def test_the_servers_time_advances_whatever_happens_to_the_machines_wall_clock(machine: dict[str, float]):
    clock = DatabaseClock("postgresql://db")
    clock.sync(1_003_600.0, sent_at=49.9, received_at=50.1)
    assert clock.now() == pytest.approx(1_003_600.0)
    machine["elapsed"] += 5.0
    machine["wall"] += 5.0 + 86400.0
    assert clock.now() == pytest.approx(1_003_605.0)


def test_slow_answers_do_not_move_it_and_quick_ones_make_it_more_precise(machine: dict[str, float]):
    clock = DatabaseClock("postgresql://db")
    clock.sync(1000.0, sent_at=49.0, received_at=51.0)
    assert clock.now() == 1000.0
    clock.sync(1000.0, sent_at=40.0, received_at=50.5)
    assert clock.now() == 1000.0
    clock.sync(1000.4, sent_at=50.0, received_at=50.1)
    assert clock.now() == pytest.approx(1000.3)


@pytest.mark.parametrize("seconds", [60.0, -60.0])
def test_it_follows_a_server_whose_clock_is_set(machine: dict[str, float], seconds: float):
    clock = DatabaseClock("postgresql://db")
    clock.sync(1000.0, sent_at=50.0, received_at=50.0)
    clock.sync(1000.0 + seconds, sent_at=50.0, received_at=50.0)
    assert clock.now() == 1000.0 + seconds


@pytest.mark.parametrize(("ahead", "said"), [(3600.0, "3600.0 s ahead of"), (-30.0, "30.0 s behind"), (1.5, "")])
def test_a_wall_clock_that_is_wrong_is_warned_of_once(machine: dict[str, float], ahead: float, said: str, caplog):
    clock = DatabaseClock("postgresql://db")
    clock.sync(machine["wall"] - ahead, sent_at=50.0, received_at=50.0)
    clock.warn_if_skewed()
    clock.warn_if_skewed()
    assert len(caplog.records) == bool(said)
    assert not said or f"the clock of this machine is {said} the clock of postgresql://db." in caplog.text


def test_time_that_has_passed_does_not_follow_the_wall_clock(monkeypatch: pytest.MonkeyPatch):
    before = clocks.monotonic()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert clocks.monotonic() >= before > 0.0
