"""``Runner``: what a test can do with a run, and what it is told of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

import pytest
from runner_flows import charge, charging, copying, did, fetch, hearing, hearing_twice, insisting, store, unsteady

from holdfast import (
    InputError,
    RunConflict,
    RunEnded,
    RunNotFound,
    RunTimedOut,
    UnrecordableValue,
    UsageError,
    current_step,
    step,
    wait_for_signal,
    workflow,
)
from holdfast.errors import ForbiddenInWorkflow, WorkflowStuck
from holdfast.testing import Runner


@pytest.fixture(autouse=True)
def _nothing_done_yet() -> None:
    did.clear()


# Running


@pytest.mark.asyncio
async def test_run_returns_the_output_and_the_steps() -> None:
    result = await Runner().run(copying, 1)
    assert (result.run_id, result.status, result.has_crashed, result.output) == ("copy-1", "completed", False, 31)
    assert result.error is None
    assert [(one.number, one.name, one.output) for one in result.steps] == [
        (1, "fetch", 10), (2, "fetch", 20), (3, "store", 31),
    ]  # fmt: skip
    assert [one.number for one in result.steps["fetch"]] == [1, 2]
    assert result.steps[3] is result.steps["store"][0]
    one = result.steps[1]
    assert (one.is_recorded, one.was_replayed, one.attempt_count, one.execution_count) == (True, False, 1, 1)


@pytest.mark.asyncio
async def test_a_workflow_that_fails_raises_nothing() -> None:
    runner = Runner()
    runner.mock(store, raises=ValueError("full"))
    result = await runner.run(copying, 1)
    assert result.status == "failed"
    assert isinstance(result.error, ValueError)
    assert isinstance(result.steps[3].error, ValueError)
    assert result.steps[3].output is None


@pytest.mark.asyncio
async def test_a_week_takes_no_time() -> None:
    runner = Runner()
    began = time.monotonic()
    result = await runner.run(hearing)
    assert result.output == "nobody answered"
    assert time.monotonic() - began < 1
    assert runner.clock.datetime.isoformat() == "2030-01-08T00:00:00+00:00"


@pytest.mark.asyncio
async def test_runs_of_a_test_have_the_same_ids_each_time() -> None:
    for _ in range(2):
        runner = Runner()
        assert [(await runner.run(charging)).run_id for _ in range(2)] == ["charging-1", "charging-2"]


@pytest.mark.asyncio
async def test_an_id_that_the_test_has_given_away_is_not_given_again() -> None:
    runner = Runner()
    await runner.run(hearing.options(id="charging-2"))
    assert (await runner.run(charging)).run_id == "charging-3"


@pytest.mark.asyncio
async def test_starting_the_same_id_again_is_the_same_run() -> None:
    runner = Runner()
    await runner.run(copying, 1)
    did.clear()
    assert (await runner.run(copying, 1)).output == 31
    assert did == []
    with pytest.raises(RunConflict, match="other inputs"):
        await runner.run(copying.options(id="copy-1"), 2)


@pytest.mark.asyncio
async def test_a_delayed_run_begins_when_it_is_due() -> None:
    runner = Runner()
    run = await runner.start(charging.options(delay=timedelta(hours=1)))
    assert run.status == "pending"
    await runner.advance(timedelta(minutes=59))
    assert did == []
    await runner.advance(timedelta(minutes=1))
    assert (await runner.result(run.run_id)).output == 5


@pytest.mark.asyncio
async def test_a_run_that_takes_too_long_times_out_in_virtual_time() -> None:
    @workflow(timeout=60)
    async def patient() -> None:
        await asyncio.sleep(100)

    runner = Runner()
    result = await runner.run(patient)
    assert isinstance(result.error, RunTimedOut)
    assert runner.clock.datetime.minute == 1


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda runner: runner.run(fetch), UsageError, "put @workflow on it"),
        (lambda runner: runner.crash_everywhere("copying"), UsageError, "put @workflow on it"),
        (lambda runner: runner.run(copying, 1, 2), InputError, "too many positional arguments"),
        (lambda runner: runner.run(copying, "one"), InputError, "declared as `int`"),
        (lambda runner: runner.resume("copy-9"), RunNotFound, "no run 'copy-9'.*runs: 'charging-1'"),
        (lambda runner: runner.signal("copy-9", "go"), RunNotFound, "no run 'copy-9'"),
        (lambda runner: runner.result("copy-9"), RunNotFound, "no run 'copy-9'"),
        (lambda runner: runner.signal("charging-1", "go"), RunEnded, "takes no signal 'go': it has completed"),
        (lambda runner: runner.advance(-1), UsageError, "advance by -1 is not a duration"),
    ],
)
@pytest.mark.asyncio
async def test_mistakes_are_told(call: Any, error: type[Exception], words: str) -> None:
    runner = Runner()
    await runner.run(charging)
    with pytest.raises(error, match=words):
        await call(runner)


@pytest.mark.asyncio
async def test_an_unknown_step_is_reported_with_the_known_ones() -> None:
    @workflow
    async def mixed() -> int:
        await wait_for_signal("go")
        return await charge(1)

    runner = Runner()
    runner.answer_signal("go", 1)
    steps = (await runner.run(mixed)).steps
    assert [one.number for one in steps] == [2]
    assert steps[-1] is steps[2]
    with pytest.raises(IndexError, match=r"no step 99; numbers start at 1, and the steps are: 2 \(charge\)"):
        steps[99]
    with pytest.raises(IndexError, match="number 1 is the wait for signal 'go'"):
        steps[1]
    with pytest.raises(IndexError, match="numbers start at 1"):
        steps[0]
    assert steps["nothing of this name"] == []


@pytest.mark.parametrize("caught", [True, False])
@pytest.mark.asyncio
async def test_forbidden_things_fail_the_run(caught: bool, caplog: pytest.LogCaptureFixture) -> None:
    @workflow(name=f"forbidden {caught}")
    async def forbidden() -> None:
        try:
            await asyncio.to_thread(print)
        except Exception:
            if not caught:
                raise

    with caplog.at_level(logging.CRITICAL, "holdfast"):
        assert isinstance((await Runner().run(forbidden)).error, ForbiddenInWorkflow)


@pytest.mark.asyncio
async def test_a_workflow_that_nothing_can_wake_fails() -> None:
    @workflow
    async def stuck() -> None:
        await asyncio.Event().wait()

    assert isinstance((await Runner().run(stuck)).error, WorkflowStuck)


@pytest.mark.asyncio
async def test_a_value_that_cannot_be_recorded_fails_the_run() -> None:
    runner = Runner()
    runner.mock(fetch, return_value="not a number")
    result = await runner.run(copying, 1)
    assert isinstance(result.error, UnrecordableValue)
    assert "step 'fetch'" in str(result.error)


def test_the_steps_of_a_run_can_be_gone_through_from_either_end() -> None:
    steps = Runner().run_sync(copying, 1).steps
    assert [one.number for one in reversed(steps)] == [3, 2, 1]
    assert steps[-1] is steps[3]
    assert steps[3] in steps


# Signals


@pytest.mark.asyncio
async def test_time_and_signals_step_by_step() -> None:
    runner = Runner()
    run = await runner.start(hearing)
    assert (run.status, run.waits_for) == ("waiting", "signal 'answer' or a timer")
    await runner.advance(timedelta(days=6))
    assert (await runner.result(run.run_id)).status == "waiting"
    assert (await runner.signal(run.run_id, "other", 1)).status == "waiting"
    assert (await runner.signal(run.run_id, "answer", "yes")).output == "yes"
    late = await runner.start(hearing)
    await runner.advance(timedelta(days=7))
    assert (await runner.result(late.run_id)).output == "nobody answered"


@pytest.mark.asyncio
async def test_a_signal_counts_once_by_its_id_and_waits_to_be_wanted() -> None:
    runner = Runner()
    run = await runner.start(hearing_twice)
    runner.simulate_crash_during(fetch)
    assert (await runner.signal(run.run_id, "number", 1, id="first")).has_crashed
    await runner.signal(run.run_id, "number", 1, id="first")
    assert (await runner.result(run.run_id)).status == "waiting"
    assert (await runner.signal(run.run_id, "number", 2, id="second")).output == [1, 2]


@pytest.mark.asyncio
async def test_answers_are_sent_when_a_run_waits_for_them() -> None:
    runner = Runner()
    runner.answer_signal("number", 7, 8)
    assert (await runner.run(hearing_twice)).output == [7, 8]


# Mocks


@pytest.mark.asyncio
async def test_mocks_return_call_or_raise() -> None:
    runner = Runner()
    fetched = runner.mock(fetch, side_effect=lambda page: page + 100)
    runner.mock("store", return_value=5)
    result = await runner.run(copying, 1)
    assert result.output == 5
    assert [call.args for call in fetched.calls] == [(1,), (2,)]
    assert did == []
    assert result.steps[1].execution_count == 1


@pytest.mark.asyncio
async def test_a_mock_may_be_async() -> None:
    async def slowly(page: int) -> int:
        await asyncio.sleep(0)
        return page

    runner = Runner()
    runner.mock(fetch, side_effect=slowly)
    assert (await runner.run(copying, 1)).output == 4


@pytest.mark.asyncio
async def test_a_mocked_step_is_retried_in_virtual_time() -> None:
    runner = Runner()
    mock = runner.mock(unsteady, side_effect=[ConnectionError("a"), ConnectionError, "there"])
    result = await runner.run(insisting)
    assert result.output == "there"
    assert (result.steps[1].attempt_count, result.steps[1].execution_count, len(mock.calls)) == (3, 3, 3)
    assert runner.clock.datetime.second > 0


@pytest.mark.asyncio
async def test_a_mock_without_outcomes_fails_the_step_and_says_so() -> None:
    runner = Runner()
    runner.mock(fetch, side_effect=[1])
    result = await runner.run(copying, 1)
    assert "mock 'fetch' was called more than once" in str(result.error)


@pytest.mark.parametrize(
    ("step", "outcome", "words"),
    [
        (fetch, {}, "give one of"),
        (fetch, {"return_value": 1, "raises": ValueError}, "give one of"),
        (fetch, {"side_effect": 5}, "a function, an exception, or an iterable"),
        (fetch, {"side_effect": "abc"}, "a function, an exception, or an iterable"),
        (fetch, {"raises": "no"}, "raises= is an exception"),
        (copying, {"return_value": 1}, "takes a step"),
    ],
)
def test_a_mock_has_one_outcome_of_the_right_kind(step: Any, outcome: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Runner().mock(step, **outcome)


# Retries, time-outs and progress


@pytest.mark.asyncio
async def test_retries_take_virtual_time() -> None:
    runner = Runner()
    began = time.monotonic()
    result = await runner.run(insisting)
    assert time.monotonic() - began < 1
    assert isinstance(result.error, ConnectionError)
    assert (result.steps[1].attempt_count, did) == (6, ["unsteady"] * 6)
    assert runner.clock.datetime.second > 10


@pytest.mark.asyncio
async def test_what_a_step_beat_is_there_after_a_crash() -> None:
    @step(retries=1)
    async def long_one() -> int:
        this = current_step()
        if this.progress is None:
            this.heartbeat(41)
            await asyncio.sleep(0.02)
            raise ValueError("half way")
        return this.progress + 1

    @workflow
    async def with_progress() -> int:
        return await long_one()

    assert (await Runner().run(with_progress)).output == 42


# What does not end


@pytest.mark.asyncio
async def test_an_endless_run_is_reported_instead_of_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    @workflow
    async def for_ever() -> None:
        while True:
            await fetch(1)
            await asyncio.sleep(86400)

    monkeypatch.setattr("holdfast.testing.simulated_process.MAX_TIME_JUMPS", 50)
    with pytest.raises(UsageError, match=r"waited 51 times, until 2030-02-21 00:00, .* use `start` and `advance`"):
        await Runner().run(for_ever)
    runner = Runner()
    run = await runner.start(for_ever)
    await runner.advance(timedelta(days=300))
    assert (await runner.result(run.run_id)).status == "waiting"


@pytest.mark.asyncio
async def test_a_step_that_never_ends_does_not_hold_up_the_tests_own_time_out() -> None:
    @step
    async def never_ends() -> None:
        await asyncio.Event().wait()

    @workflow
    async def hanging() -> None:
        await never_ends()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await Runner().run(hanging)


# Event loops


def test_without_an_event_loop() -> None:
    runner = Runner()
    runner.simulate_crash_after(step=1)
    assert runner.run_sync(copying, 1).has_crashed
    assert runner.resume_sync("copy-1").output == 31
    run = runner.start_sync(hearing_twice)
    runner.signal_sync(run.run_id, "number", 1, id="k")
    runner.advance_sync(5)
    assert runner.signal_sync(run.run_id, "number", 2).output == [1, 2]
    assert runner.result_sync(run.run_id).status == "completed"
    assert Runner(replay_processes=0, max_pairs=0).crash_everywhere_sync(copying, 1).point_count == 13


@pytest.mark.asyncio
async def test_the_forms_without_a_loop_are_refused_under_one() -> None:
    with pytest.raises(UsageError, match="`await` it"):
        Runner().run_sync(copying, 1)


def _uvloop(call: Coroutine[Any, Any, Any]) -> Any:
    return pytest.importorskip("uvloop").run(call)


@pytest.mark.parametrize("run", [asyncio.run, _uvloop])
def test_one_runner_lives_through_several_loops(run: Any) -> None:
    runner = Runner()
    runner.simulate_crash_during(step=2)
    assert run(runner.run(copying, 1)).has_crashed
    assert run(runner.resume("copy-1")).output == 31
    waiting = run(runner.start(hearing))
    run(runner.advance(timedelta(days=1)))
    assert run(runner.signal(waiting.run_id, "answer", "yes")).output == "yes"


@pytest.mark.asyncio
async def test_nothing_goes_on_after_a_call() -> None:
    runner = Runner()
    await runner.start(hearing)
    runner.simulate_crash_before(step=2)
    await runner.run(copying, 1)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
