"""``crash_everywhere`` would find it if Holdfast itself broke a promise about children or compensations."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from runner_child_flows import did, failing_order, ordering

from holdfast.authoring import children
from holdfast.core.compensations import CompensationLog
from holdfast.core.records import RecordKind
from holdfast.stores.memory import MemoryStore
from holdfast.stores.operations import AppendRecord, OpStatus, Run
from holdfast.testing import CrashSafetyError, Runner

calls = itertools.count()


def found(flow: Any, *args: Any) -> CrashSafetyError:
    runner = Runner(replay_processes=0, max_pairs=0)
    runner.before_each(did.clear)
    with pytest.raises(CrashSafetyError) as caught:
        runner.crash_everywhere_sync(flow, *args)
    return caught.value


def forget(monkeypatch: pytest.MonkeyPatch, lost: Callable[[Run, AppendRecord], bool]) -> None:
    """Let the store acknowledge records that it does not keep."""
    append = MemoryStore._append

    def forgetful(store: Any, op: AppendRecord) -> OpStatus:
        if op.record.epoch == 1 and lost(store._runs[op.key], op):
            return OpStatus.DONE
        return append(store, op)

    monkeypatch.setattr(MemoryStore, "_append", forgetful)


def test_a_call_that_starts_another_run_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    make_id = children._make_child_id
    monkeypatch.setattr(children, "_make_child_id", lambda *given: f"{make_id(*given)}-{next(calls)}")
    error = found(ordering, "tea")
    assert error.violation.rule == "started-twice"
    assert "child 2 (packing) was started as run 'order-of-tea:packing-2-" in error.violation.message


def test_a_step_of_a_child_that_runs_again_although_it_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch, lambda run, op: bool(run.parent) and op.record.kind is RecordKind.STEP)
    error = found(ordering, "tea")
    assert error.violation.rule == "ran-again"
    assert error.violation.message == "step 1 (pick) of run 'order-of-tea:packing-2' was recorded, and ran again"
    assert "a defect of Holdfast" in error.causes[0]


def test_a_compensation_that_runs_again_although_it_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch, lambda run, op: op.record.name == "unpick")
    error = found(failing_order, "tea")
    assert error.violation.message == "compensation 4 (unpick) was recorded, and ran again"
    assert str(error.schedule[0]) == "after compensation 4 (unpick)"


def test_compensations_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CompensationLog, "pop_step", lambda log: log._steps.pop(-(next(calls) % 2)))
    error = found(failing_order, "tea")
    assert error.violation.rule == "commands"
    assert "workflow code asked for compensation 4 (" in error.violation.message
