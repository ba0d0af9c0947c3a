"""What is wrong with children, compensations and class workflows is found, and named; nothing in those in order."""

from __future__ import annotations

from typing import Any

import pytest
import unsafe_child_flows
from safe_child_flows import GOOD

from holdfast import Workflow
from holdfast.testing import CrashSafetyError, Runner
from holdfast.testing.reachable_state import ReachableState
from holdfast.testing.source_scan import scan_source


def found(runner: Runner, flow: Workflow[..., Any]) -> CrashSafetyError:
    with pytest.raises(CrashSafetyError) as caught:
        runner.crash_everywhere_sync(flow)
    return caught.value


@pytest.mark.parametrize("name", GOOD)
def test_nothing_is_found_in_a_family_that_is_in_order(name: str) -> None:
    report = Runner(replay_processes=0, max_pairs=6).crash_everywhere_sync(GOOD[name])
    assert report.point_count >= 4


@pytest.mark.parametrize(
    ("name", "which"),
    [
        ("good_grandchildren", {"child": "little"}),
        ("good_children_in_group", {"step": "note"}),
        ("good_saga_of_many", {"step": "take"}),  # it fails by itself, before the cancel or after
        ("good_saga_with_once", {"step": "take"}),
        ("good_saga_that_sticks", {"step": "take"}),
    ],
)
def test_nothing_is_found_in_a_family_that_is_cancelled(name: str, which: dict[str, Any]) -> None:
    runner = Runner(replay_processes=0, max_pairs=6)
    runner.cancel_after(**which)
    assert runner.crash_everywhere_sync(GOOD[name]).result.status in ("cancelled", "failed")


@pytest.mark.parametrize("name", ["good_children_at_once", "good_saga_with_child", "good_class_as_child"])
def test_nothing_is_found_in_other_processes_either(name: str) -> None:
    assert Runner(replay_processes=1, max_pairs=0).crash_everywhere_sync(GOOD[name]).process_count == 1


@pytest.mark.parametrize("flow", unsafe_child_flows.FOUND_HERE, ids=lambda flow: flow.name)
def test_what_does_not_replay_is_found_and_named(flow: Workflow[..., Any]) -> None:
    error = found(Runner(replay_processes=0, max_pairs=0), flow)
    assert unsafe_child_flows.FOUND_HERE[flow] in error.causes[0]
    assert "unsafe_child_flows.py:" in error.causes[0]
    assert f"crash_everywhere({flow.name})" in error.reproduction


@pytest.mark.parametrize("flow", unsafe_child_flows.FOUND_ELSEWHERE, ids=lambda flow: flow.name)
def test_what_differs_from_process_to_process_is_found_and_named(flow: Workflow[..., Any]) -> None:
    error = found(Runner(replay_processes=1, max_pairs=0), flow)
    assert unsafe_child_flows.FOUND_ELSEWHERE[flow] in error.causes[0]
    assert "PYTHONHASHSEED" in error.violation.other_process


@pytest.mark.parametrize("flow", unsafe_child_flows.NOT_IDEMPOTENT, ids=lambda flow: flow.name)
def test_what_does_something_else_when_it_is_repeated_is_found_and_named(flow: Workflow[..., Any]) -> None:
    runner = Runner(replay_processes=0, max_pairs=0)
    runner.before_each(unsafe_child_flows.returned.clear)
    error = found(runner, flow)
    assert unsafe_child_flows.NOT_IDEMPOTENT[flow] in error.violation.message
    assert error.violation.rule == "step-result"
    assert "is not idempotent" in error.causes[0]
    assert str(error.schedule[0]).startswith("during ")


def test_a_child_that_is_started_twice_is_reported_as_such() -> None:
    error = found(Runner(replay_processes=0, max_pairs=0), unsafe_child_flows.bad_id_of_child)
    assert error.violation.rule == "started-twice"
    assert error.violation.message.startswith("child 1 (little) was started as run 'little-")
    assert "before the crash, and as run 'little-" in error.violation.message
    assert str(error.schedule[0]) == "before child 1 (little)"


def test_a_fault_in_a_child_is_reported_with_its_run_and_can_be_reproduced() -> None:
    error = found(Runner(replay_processes=0, max_pairs=0), unsafe_child_flows.bad_child_reads_clock)
    run = "of run 'bad_child_reads_clock-1:timed_child-2'"
    assert str(error.schedule[0]) == f"before step 2 (note) {run}"
    assert f"the process dies before step 2 (note) {run} begins; another takes over" in str(error)
    assert error.violation.message.startswith(f"step 2 (note) {run} was called with ")
    again = found(
        Runner(replay_processes=0, only="; ".join(map(str, error.schedule))), unsafe_child_flows.bad_child_reads_clock
    )
    assert again.schedule == error.schedule


def test_the_source_of_a_lambda_condition_is_found() -> None:
    reach = ReachableState(unsafe_child_flows.BadWhenReadsClock.definition.function)
    assert [function.__name__ for function in reach.functions] == ["<lambda>"]
    inside = lambda: list({"a", "b"})  # noqa: E731
    [finding] = scan_source(inside)  # type: ignore[arg-type]
    assert finding.kind == "set"
    assert f":{inside.__code__.co_firstlineno} in <lambda>" in finding.location
