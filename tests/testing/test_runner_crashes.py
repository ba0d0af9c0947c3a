"""``Runner``: crashes where a test wants them."""

from __future__ import annotations

import asyncio
import gc
from datetime import timedelta
from typing import Any

import pytest
from runner_flows import charge, charging, copying, did, fetch, hearing, hourly

from holdfast import (
    StepOutcomeUnknown,
    UsageError,
    step,
    workflow,
)
from holdfast.errors import RunDead
from holdfast.testing import Runner


@pytest.fixture(autouse=True)
def _nothing_done_yet() -> None:
    did.clear()


# Crashes


@pytest.mark.parametrize(
    ("moment", "executions", "replayed"), [("before", 1, False), ("during", 2, False), ("after", 1, True)]
)
@pytest.mark.parametrize("which", [{"step": 2}, {"step": "fetch", "occurrence": 2}, {"step": fetch, "occurrence": 2}])
@pytest.mark.asyncio
async def test_a_crash_at_a_step(moment: str, executions: int, replayed: bool, which: dict[str, Any]) -> None:
    runner = Runner()
    getattr(runner, f"simulate_crash_{moment}")(**which)
    result = await runner.run(copying, 1)
    assert result.has_crashed
    assert result.status == "running"
    assert result.output is None
    assert result.steps[2].is_recorded is replayed
    result = await runner.resume("copy-1")
    assert (result.has_crashed, result.status, result.output) == (False, "completed", 31)
    assert result.steps[1].was_replayed
    assert result.steps[2].was_replayed is replayed
    assert [one.execution_count for one in result.steps] == [1, executions, 1]
    assert did.count(("fetch", 2)) == executions


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("which", [{"signal": "answer"}, {"signal": 1}, {"end": True}])
@pytest.mark.asyncio
async def test_a_crash_at_a_signal_or_at_the_end(moment: str, which: dict[str, Any]) -> None:
    runner = Runner()
    getattr(runner, f"simulate_crash_{moment}")(**which)
    run = await runner.start(hearing)
    assert (await runner.signal(run.run_id, "answer", "yes")).has_crashed
    assert (await runner.resume(run.run_id)).output == "yes"


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.asyncio
async def test_a_crash_at_a_timer_while_time_passes(moment: str) -> None:
    runner = Runner()
    getattr(runner, f"simulate_crash_{moment}")(timer=2)
    run = await runner.start(hourly)
    await runner.advance(timedelta(hours=5))
    result = await runner.resume(run.run_id)
    assert result.output == "done"
    assert did == [("fetch", 0), ("fetch", 1), ("fetch", 2)]


@pytest.mark.asyncio
async def test_crashes_come_one_after_the_other() -> None:
    runner = Runner()
    runner.simulate_crash_during(step=1)
    runner.simulate_crash_during(step=1)
    runner.simulate_crash_after(step="store")
    await runner.run(copying, 1)
    for _ in range(2):
        assert (await runner.resume("copy-1")).has_crashed
    result = await runner.resume("copy-1")
    assert result.output == 31
    assert [one.execution_count for one in result.steps] == [3, 1, 1]


@pytest.mark.asyncio
async def test_a_run_that_takes_its_process_down_again_and_again_is_dead() -> None:
    runner = Runner()
    for _ in range(3):
        runner.simulate_crash_before(step=1)
    await runner.run(copying, 1)
    await runner.resume("copy-1")
    await runner.resume("copy-1")
    result = await runner.resume("copy-1")
    assert result.status == "dead"
    assert isinstance(result.error, RunDead)


@pytest.mark.asyncio
async def test_a_once_step_in_flight_is_not_run_again() -> None:
    runner = Runner()
    runner.simulate_crash_during(charge)
    run = await runner.run(charging)
    result = await runner.resume(run.run_id)
    assert isinstance(result.error, StepOutcomeUnknown)
    assert result.steps[1].execution_count == 1
    assert did == [("charge", 5)]


@pytest.mark.parametrize("happened", [True, False])
def test_a_person_says_what_came_of_a_once_step(happened: bool) -> None:
    runner = Runner()
    runner.simulate_crash_during(charge)
    run = runner.run_sync(charging)
    runner.resume_sync(run.run_id)
    said = {"output": 50} if happened else {"happened": False}
    result = runner.settle_sync(run.run_id, "charge", **said)
    assert result.status == "completed"
    assert did == [("charge", 5)] * (1 if happened else 2)
    assert result.steps[1].output == (50 if happened else 5)


@pytest.mark.asyncio
async def test_a_crash_in_one_run_lets_another_go_on() -> None:
    runner = Runner()
    waiting = await runner.start(hearing)
    runner.simulate_crash_after(step="store")
    assert (await runner.run(copying, 1)).has_crashed
    assert (await runner.signal(waiting.run_id, "answer", "yes")).output == "yes"
    assert (await runner.result("copy-1")).output == 31


@pytest.mark.asyncio
async def test_a_dead_process_runs_no_finally_block() -> None:
    @step
    async def held() -> int:
        try:
            await asyncio.sleep(0)
            return 1
        finally:
            did.append("given back")

    @workflow
    async def two_at_a_time() -> None:
        await asyncio.gather(fetch(1), held())

    runner = Runner()
    runner.simulate_crash_during(step=1)
    await runner.run(two_at_a_time)
    gc.collect()
    assert "given back" not in did


@pytest.mark.asyncio
async def test_an_unreached_crash_point_is_an_error() -> None:
    runner = Runner()
    runner.simulate_crash_after(step="stoer")
    with pytest.raises(
        UsageError, match=r"never reached .* after step 'stoer'; its steps: 1 \(fetch\), 2 \(fetch\), 3"
    ):
        await runner.run(copying, 1)


@pytest.mark.parametrize(
    ("which", "words"),
    [
        ({}, "name one of step="),
        ({"step": 1, "timer": 1}, "name one of step="),
        ({"step": 0}, "numbers start at 1"),
        ({"step": True}, "give its number or name"),
        ({"step": 1.5}, "give its number or name"),
        ({"timer": "1 s"}, "give its number"),
        ({"step": "fetch", "occurrence": 0}, "occurrence= counts from 1"),
        ({"step": 2, "occurrence": 2}, "occurrence= counts from 1"),
    ],
)
def test_a_crash_must_be_somewhere(which: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Runner().simulate_crash_after(**which)
