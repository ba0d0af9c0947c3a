"""What a run of the soak has to come to: its state, its result, its signals and its pauses, from its number alone."""

from __future__ import annotations

import json
from typing import Any

from ledger import SIGNAL, STEP, TIMER, Journal

LETTERS = 3
"""So many signals are sent to each run of ``letters``."""
FLOWS = ("sequence", "gather", "retry", "failing", "timers", "letters", "payment", "map", "family", "slow")
WORKFLOWS = (*(f"soak_{flow}" for flow in FLOWS), "soak_child")


def flow_of(run: str) -> tuple[str, int]:
    """The workflow and the number of a run."""
    flow, _, number = run.rpartition("-")
    return flow, int(number)


def check_result(journal: Journal) -> None:
    """The run ended in the state, and with the result, that it is meant to have."""
    flow, n = flow_of(journal.id)
    if flow == "failing":
        assert (journal.state, journal.error) == ("failed", f"{n} is meant to fail"), f"{journal}"
        return
    assert journal.state == "completed", f"run {journal.id} ended {journal.state}: {journal.error}"
    results = _results(flow, n)
    assert journal.output in results, f"run {journal.id} returned {journal.output}, not {results}"


def _results(flow: str, n: int) -> list[Any]:
    """One of these it is."""
    match flow:
        case "payment":
            return [[paid, f"{n} {paid}"] for paid in ("paid", "unknown")]
        case "family":
            return [[f"{n} a", of_child, f"{n} c"] for of_child in (f"{n} child", "dead")]
        case _:
            return [_result(flow, n)]


def _result(flow: str, n: int) -> Any:
    match flow:
        case "child":
            return f"{n} child"
        case "gather":
            return [f"{n} first", *[f"{n} {k}" for k in range(3)], f"{n} plain", 2, f"{n} last"]
        case "retry":
            return [3, f"{n} is broken"]
        case "letters":
            return list(range(LETTERS))
        case "map":
            return [f"{n} {k}" for k in range(8)]
        case "slow":
            return [f"{n} a", f"{n} b"]
        case _:
            return [f"{n} a", f"{n} b", f"{n} c"]


def check_signals(journal: Journal) -> None:
    """Every signal was consumed once, in the order of sending, and none is left over."""
    expected = list(range(LETTERS)) if flow_of(journal.id)[0] == "letters" else []
    consumed = [json.loads(record.payload or b"null") for record in journal.list_records(SIGNAL)]
    assert consumed == expected, f"run {journal.id} consumed the signals {consumed}, not {expected}"
    assert not journal.signals, f"run {journal.id} ended and left signals: {journal.signals}"


def check_pauses(journal: Journal) -> None:
    """No timer went off early: each is counted from the record before it."""
    flow, n = flow_of(journal.id)
    expected = [0.05 + n % 5 * 0.05, 1.2 + n % 4 * 0.3] if flow == "timers" else []
    timers = journal.list_records(TIMER)
    assert len(timers) == len(expected), f"run {journal.id} has the timers {timers}"
    for timer, seconds in zip(timers, expected, strict=True):
        before = journal.records[timer.seq - 1]
        assert before.kind == STEP, f"run {journal.id}: {journal.records}"
        passed = timer.at - before.at
        assert passed > seconds - 0.001, f"run {journal.id}: a timer of {seconds} s after {passed} s"
