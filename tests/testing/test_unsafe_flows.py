"""What is wrong with a workflow is found, and named; and nothing is found in one that is in order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import unsafe_flows
from safe_flows import GOOD

from holdfast import Workflow
from holdfast.testing import CrashSafetyError, Runner


def inputs(flow: Workflow[..., Any]) -> tuple[Any, ...]:
    return {"good_template": (1,), "bad_set_input": (set(unsafe_flows.WORDS),)}.get(flow.name, ())


@pytest.mark.parametrize("name", GOOD)
def test_nothing_is_found_in_a_workflow_that_is_in_order(name: str) -> None:
    runner = Runner(replay_processes=0, max_pairs=4)
    runner.answer_signal("go", "one", "two")
    report = runner.crash_everywhere_sync(GOOD[name], *inputs(GOOD[name]))
    assert report.point_count >= 4


@pytest.mark.parametrize("name", ["good_recorded_chance", "good_ordinary_python", "good_task_group", "good_generator"])
def test_nothing_is_found_in_other_processes_either(name: str) -> None:
    report = Runner(replay_processes=1, max_pairs=0).crash_everywhere_sync(GOOD[name])
    assert report.process_count == 1


@pytest.mark.parametrize("flow", unsafe_flows.FOUND_HERE, ids=lambda flow: flow.name)
def test_what_does_not_replay_is_found_and_named(flow: Workflow[..., Any]) -> None:
    with pytest.raises(CrashSafetyError) as caught:
        Runner(replay_processes=0, max_pairs=0).crash_everywhere_sync(flow)
    error = caught.value
    assert unsafe_flows.FOUND_HERE[flow] in error.causes[0]
    assert "unsafe_flows.py:" in error.causes[0] or "`repr`" in error.causes[0]
    assert f"crash_everywhere({flow.name})" in error.reproduction


@pytest.mark.parametrize("flow", unsafe_flows.FOUND_ELSEWHERE, ids=lambda flow: flow.name)
def test_what_differs_from_process_to_process_is_found_and_named(flow: Workflow[..., Any]) -> None:
    with pytest.raises(CrashSafetyError) as caught:
        Runner(max_pairs=0, replay_processes=1).crash_everywhere_sync(flow, *inputs(flow))
    error = caught.value
    assert unsafe_flows.FOUND_ELSEWHERE[flow] in error.causes[0]
    assert "PYTHONHASHSEED" in error.violation.other_process


def test_the_line_that_reproduces_a_failure_does_so() -> None:
    with pytest.raises(CrashSafetyError) as caught:
        Runner(replay_processes=0, max_pairs=0).crash_everywhere_sync(unsafe_flows.bad_random)
    names = {"Runner": Runner, "bad_random": unsafe_flows.bad_random}
    again = eval(caught.value.reproduction.removeprefix("await "), names)
    with pytest.raises(CrashSafetyError) as second:
        asyncio.run(again)
    assert second.value.schedule == caught.value.schedule
    assert second.value.causes == caught.value.causes


def test_a_helper_that_remembers_what_is_always_so_is_not_blamed_for_the_clock() -> None:
    unsafe_flows.square.cache_clear()
    with pytest.raises(CrashSafetyError) as caught:
        Runner(replay_processes=0, max_pairs=0).crash_everywhere_sync(unsafe_flows.bad_clock_beside_cache)
    assert "`time.time()`" in caught.value.causes[0]
