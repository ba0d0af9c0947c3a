"""The invariant that the other tests rely on notices what it is there for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ledger import AttemptRow, Journal, LedgerLine, RecordRow, Snapshot, check_crash, check_end

VICTIM, PEER = 100, 200
PIDS = {1: VICTIM, 2: PEER}


def record(position: int, worker: int, *, ok: bool = True, payload: bytes = b"1", attempts: int = 1) -> RecordRow:
    return RecordRow(position, 1, position, f"s{position}", ok, payload, 0.0, attempts, worker, worker)


def journal(*records: RecordRow, attempts: dict[int, AttemptRow] | None = None, state: str = "completed") -> Journal:
    return Journal("r", "w", state, 0, 2, None, None, "", b"seed", records, attempts or {}, ())


def line(position: int, phase: str, pid: int, attempt: int = 1) -> LedgerLine:
    return LedgerLine(f"s{position}", "r", journal().derive_key(position, f"s{position}"), phase, attempt, pid, 0.0, "")


def make_snapshot(lines: list[LedgerLine], run: Journal) -> Snapshot:
    return Snapshot(lines, {"r": run}, PIDS)


def done(position: int, pid: int) -> list[LedgerLine]:
    return [line(position, "start", pid), line(position, "finish", pid)]


CRASHED = make_snapshot([*done(0, VICTIM), *done(1, VICTIM)], journal(record(0, 1), state="running"))
"""Step 0 is recorded, step 1 was in flight: its effect has happened, and nobody knows."""
RECOVERED = make_snapshot(
    [*CRASHED.lines, *done(1, PEER), *done(2, PEER)], journal(record(0, 1), record(1, 2), record(2, 2))
)


def test_a_recovery_that_repeats_only_what_was_in_flight_is_right():
    check_crash(CRASHED, RECOVERED)
    check_end(RECOVERED, killed=[VICTIM])


def test_a_recorded_step_that_is_carried_out_again_is_noticed():
    again = replace(RECOVERED, lines=[*CRASHED.lines, *done(0, PEER), *done(1, PEER), *done(2, PEER)])
    with pytest.raises(AssertionError, match="recorded before the crash, and carried out again"):
        check_crash(CRASHED, again)
    with pytest.raises(AssertionError, match="after it was recorded"):
        check_end(again, killed=[VICTIM])


def test_a_record_that_is_lost_or_changed_is_noticed():
    for records in ((), (record(0, 1, payload=b"2"), record(1, 2), record(2, 2))):
        with pytest.raises(AssertionError, match="changed or lost"):
            check_crash(CRASHED, make_snapshot(RECOVERED.lines, journal(*records)))


def test_more_steps_in_flight_than_there_can_be_are_noticed():
    with pytest.raises(AssertionError, match="in flight"):
        check_crash(CRASHED, RECOVERED, max_in_flight=0)


def test_a_step_begun_in_two_processes_of_which_none_died_is_noticed():
    with pytest.raises(AssertionError, match="which did not die"):
        check_end(RECOVERED)


def test_an_effect_without_a_record_is_noticed():
    with pytest.raises(AssertionError, match="no journal knows"):
        check_end(make_snapshot([*RECOVERED.lines, line(3, "start", PEER)], RECOVERED.journals["r"]), killed=[VICTIM])


def test_a_record_without_an_effect_is_noticed():
    with pytest.raises(AssertionError, match="never carried out"):
        check_end(make_snapshot(RECOVERED.lines[:-2], RECOVERED.journals["r"]), killed=[VICTIM])


def test_an_effect_that_ends_twice_in_one_process_is_noticed():
    twice = [*done(0, PEER), line(0, "finish", PEER)]
    with pytest.raises(AssertionError, match="ended twice"):
        check_end(make_snapshot(twice, journal(record(0, 2))))


def test_a_once_step_that_is_started_again_is_noticed():
    before = make_snapshot(
        [line(0, "start", VICTIM)], journal(attempts={0: AttemptRow(1, True, None)}, state="running")
    )
    lines = [*before.lines, *done(0, PEER)]
    with pytest.raises(AssertionError, match="nobody may start it again"):
        check_crash(before, make_snapshot(lines, journal(record(0, 2))))
    with pytest.raises(AssertionError, match="started twice"):
        check_end(make_snapshot(lines, journal(record(0, 2, ok=False, payload=b"StepOutcomeUnknown"))), killed=[VICTIM])


def test_attempts_that_are_counted_from_the_beginning_again_are_noticed():
    lines = [line(0, "start", VICTIM), line(0, "fail", VICTIM)]
    before = make_snapshot(lines, journal(attempts={0: AttemptRow(1, False, None)}, state="running"))
    with pytest.raises(AssertionError, match="next after"):
        check_crash(before, make_snapshot([*lines, *done(0, PEER)], journal(record(0, 2))))


def test_two_outcomes_of_one_step_are_noticed():
    with pytest.raises(AssertionError, match="two outcomes"):
        check_end(make_snapshot(done(0, PEER), journal(record(0, 2), record(0, 2)._replace(seq=1))))


def test_a_record_written_under_an_older_lease_is_noticed():
    with pytest.raises(AssertionError, match="older lease"):
        check_end(make_snapshot([*done(0, PEER), *done(1, VICTIM)], journal(record(0, 2), record(1, 1))))
