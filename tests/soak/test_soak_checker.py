"""The soak's checker sees what it is there to see: made-up ledgers of one step, each with one thing wrong."""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from types import SimpleNamespace
from typing import Any

import pytest
from ledger import SIGNAL, STEP, Journal, LedgerLine, RecordRow
from soak_checker import Checker, Sample
from soak_expectations import check_result, check_signals
from soak_reader import WorkerRow
from soak_workers import Fault

KILLED, ALIVE, STOPPED, LEFT, STOPPED_AND_KILLED = 1, 2, 3, 4, 5
WORKER_COUNT = {
    KILLED: WorkerRow(KILLED, 101, "dead", 0.0),
    ALIVE: WorkerRow(ALIVE, 102, "live", 0.0),
    STOPPED: WorkerRow(STOPPED, 103, "dead", 0.0),
    LEFT: WorkerRow(LEFT, 104, "retired", 0.0),
    STOPPED_AND_KILLED: WorkerRow(STOPPED_AND_KILLED, 105, "dead", 0.0),
}
STRIKES = {
    101: [Fault("kill", 101, 5.0, math.inf)],
    103: [Fault("stop", 103, 5.0, 9.0)],
    104: [Fault("term", 104, 5.0, math.inf)],
    105: [Fault("stop", 105, 5.5, 9.0), Fault("kill", 105, 9.2, math.inf)],
}


def checker() -> Checker:
    made: Any = object.__new__(Checker)  # without the files and processes of a soak
    made.counts, made.late = Counter(), deque()
    made.takeovers = {kind: Sample() for kind in ("kill", "stop", "hurry")}
    made._workers, made._by_pid = WORKER_COUNT, {row.pid: [row.id] for row in WORKER_COUNT.values()}
    made._fleet = SimpleNamespace(get_process=lambda pid, _: SimpleNamespace(faults=STRIKES.get(pid, [])))
    return made


def line(worker: int, phase: str, at: float, attempt: int = 1, step: str = "call") -> LedgerLine:
    return LedgerLine(step, "sequence-1", "key", phase, attempt, WORKER_COUNT[worker].pid, at, "")


def recorded(worker: int, at: float, *, ok: bool = True, attempts: int = 1, name: str = "call") -> RecordRow:
    return RecordRow(0, STEP, 0, name, ok, b"1", at, attempts, worker, 2)


def test_a_step_that_was_in_flight_at_a_kill_may_begin_again_and_counts_as_a_takeover():
    made = checker()
    lines = [line(KILLED, "start", 4), line(ALIVE, "start", 5.5), line(ALIVE, "finish", 6)]
    made._check_step(recorded(ALIVE, 6.1), lines)
    assert (made.takeovers["kill"].count, made.takeovers["kill"].at(0.5)) == (1, 0.5)


def test_a_worker_that_kept_the_step_through_a_stop_and_was_killed_later_was_not_late():
    made = checker()
    lines = [
        *(line(KILLED, "start", 4), line(STOPPED_AND_KILLED, "start", 5.2), line(STOPPED_AND_KILLED, "fail", 5.3)),
        *(line(STOPPED_AND_KILLED, "start", 9.04, 2), line(STOPPED_AND_KILLED, "fail", 9.05, 2)),
        *(line(STOPPED_AND_KILLED, "start", 9.1, 3), line(ALIVE, "start", 10, 3), line(ALIVE, "finish", 10.1, 3)),
    ]
    made._check_step(recorded(ALIVE, 10.2, attempts=3), lines)
    assert made.counts["late"] == 0


def test_a_step_that_a_stopped_worker_was_about_to_begin_is_counted_as_late():
    made = checker()
    lines = [line(ALIVE, "start", 7), line(ALIVE, "finish", 7.1), line(STOPPED, "start", 9.01)]
    made._check_step(recorded(ALIVE, 7.2), lines)
    assert made.counts["late"] == 1


@pytest.mark.parametrize(
    ("lines", "record", "words"),
    [
        ([], recorded(ALIVE, 6), "never carried out"),
        (
            [line(ALIVE, "start", 4), line(ALIVE, "finish", 4.1), line(ALIVE, "start", 6)],
            recorded(ALIVE, 5),
            "begun again",
        ),
        (
            [line(ALIVE, "start", 7), line(ALIVE, "finish", 7.1), line(STOPPED, "start", 9.5)],
            recorded(ALIVE, 7.2),
            "begun again",
        ),
        (
            [line(LEFT, "start", 4), line(ALIVE, "start", 6), line(ALIVE, "finish", 6.1)],
            recorded(ALIVE, 6.2),
            "left a step in good order",
        ),
        (
            [line(ALIVE, "start", 4), line(ALIVE, "start", 5), line(ALIVE, "finish", 5.1)],
            recorded(ALIVE, 6),
            "made twice",
        ),
        ([line(ALIVE, "start", 4), line(ALIVE, "fail", 5)], recorded(ALIVE, 6), "did not end so"),
        ([line(ALIVE, "start", 4), line(ALIVE, "finish", 5)], recorded(ALIVE, 6, attempts=2), "counts 2 attempts"),
        ([line(KILLED, "start", 4), line(KILLED, "finish", 4.5)], recorded(ALIVE, 6), "last begun by"),
        (
            [line(KILLED, "start", 4, step="pay_once"), line(ALIVE, "start", 6, step="pay_once")],
            recorded(ALIVE, 7, name="pay_once"),
            "more than once",
        ),
    ],
)
def test_a_step_that_breaks_a_promise_is_reported(lines: list[LedgerLine], record: RecordRow, words: str):
    with pytest.raises(AssertionError, match=words):
        checker()._check_step(record, lines)


def journal(run: str, output: Any, letters: list[int]) -> Journal:
    records = tuple(
        RecordRow(n, SIGNAL, n, "letter", True, json.dumps(letter).encode(), 1.0, 1, ALIVE, 1)
        for n, letter in enumerate(letters)
    )
    return Journal(run, "", "completed", 0, 1, None, output, "", b"", records, {}, ())


@pytest.mark.parametrize("letters", [[0, 1], [0, 1, 1, 2], [1, 0, 2], []])
def test_signals_that_are_lost_doubled_or_out_of_order_are_reported(letters: list[int]):
    with pytest.raises(AssertionError, match="consumed the signals"):
        check_signals(journal("letters-1", [0, 1, 2], letters))


def test_a_result_of_another_run_is_reported():
    with pytest.raises(AssertionError, match="returned"):
        check_result(journal("sequence-1", ["2 a", "2 b", "2 c"], []))
    check_result(journal("sequence-2", ["2 a", "2 b", "2 c"], []))
