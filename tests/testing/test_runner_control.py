"""``Runner``: runs that are cancelled, paused, retried and forked."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from runner_child_flows import (
    Journey,
    approved_order,
    approving,
    did,
    failing_order,
    nagging,
    ordering,
    packing,
    pick,
    sending,
    wrap,
)

from holdfast import RetryRefused, RunCancelled, RunConflict, RunEnded, RunNotFound, UsageError, workflow
from holdfast.testing import Runner


@pytest.fixture(autouse=True)
def _nothing_done_yet() -> None:
    did.clear()


# Cancel


@pytest.mark.asyncio
async def test_a_cancelled_run_is_undone() -> None:
    runner = Runner()
    run = await runner.start(approving, "tea")
    result = await runner.cancel(run.run_id)
    assert result.status == "cancelled"
    assert isinstance(result.error, RunCancelled)
    assert result.steps["unpick"][0].compensates == 1
    assert did == [("pick", "tea"), ("unpick", "tea")]
    assert "\n" not in repr(result)


@pytest.mark.asyncio
async def test_cancelling_a_run_cancels_the_child_that_it_waits_for() -> None:
    runner = Runner()
    run = await runner.start(approved_order, "tea")
    result = await runner.cancel(run.run_id)
    assert (result.status, result.children[2].status) == ("cancelled", "cancelled")
    assert did == [("bill", 9), ("pick", "tea"), ("refund", "receipt 9", 9), ("unpick", "tea")]


@pytest.mark.asyncio
async def test_a_cancel_that_takes_time_goes_on_when_it_passes() -> None:
    runner = Runner()
    runner.mock("unpick", side_effect=[ConnectionError("shut"), "back"])
    run = await runner.start(approving, "tea")
    assert (await runner.cancel(run.run_id)).status == "waiting"  # for the second attempt, in a minute
    result = await runner.resume(run.run_id)
    assert (result.status, result.steps["unpick"][0].attempt_count) == ("cancelled", 2)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.asyncio
async def test_a_crash_when_a_cancel_is_recorded(moment: str) -> None:
    runner = Runner()
    run = await runner.start(approving, "tea")
    getattr(runner, f"simulate_crash_{moment}")(cancel=True)
    assert (await runner.cancel(run.run_id)).has_crashed
    assert (await runner.resume(run.run_id)).status == "cancelled"
    assert did == [("pick", "tea"), ("unpick", "tea")]


@pytest.mark.asyncio
async def test_a_run_whose_process_died_can_be_cancelled() -> None:
    runner = Runner()
    runner.simulate_crash_after(step="pick")
    run = await runner.start(approving, "tea")
    assert (await runner.cancel(run.run_id)).status == "cancelled"
    assert did == [("pick", "tea"), ("unpick", "tea")]


@pytest.mark.asyncio
async def test_a_workflow_may_clean_up_when_it_is_cancelled() -> None:
    @workflow
    async def tidy_when_cancelled() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            did.append("tidied")

    runner = Runner()
    run = await runner.start(tidy_when_cancelled)
    did.clear()  # leaving memory runs the block, too
    assert (await runner.cancel(run.run_id)).status == "cancelled"
    assert "tidied" in did


@pytest.mark.parametrize("which", [{"step": "pick"}, {"child": packing}, {"step": 1}])
@pytest.mark.asyncio
async def test_a_cancel_comes_as_soon_as_something_is_recorded(which: dict[str, Any]) -> None:
    runner = Runner()
    runner.cancel_after(**which)
    result = await runner.run(ordering, "tea")
    assert result.status == "cancelled"
    assert result.steps["bill"][0].was_compensated
    assert (await runner.run(ordering, "jam")).status == "completed"  # it is used up


@pytest.mark.parametrize("which", [{"step": "pick"}, {"child": packing}, {"step": "bill"}, {"timer": 1}])
def test_a_cancelled_run_survives_a_crash_anywhere(which: dict[str, Any]) -> None:
    @workflow(name=f"cancelled anywhere {which}")
    async def cancelled_anywhere() -> str:
        await ordering("tea")
        await pick("jam")
        await asyncio.sleep(60)
        return await packing("bread")

    runner = Runner(replay_processes=0, max_pairs=10)
    runner.cancel_after(**which)
    runner.before_each(did.clear)

    @runner.after_each
    def nothing_is_left(result: Any) -> None:
        assert result.status == "cancelled"
        picked = {item for what, item, *_ in did if what == "pick"}
        put_back = {item for what, item, *_ in did if what == "unpick"}
        assert ("jam" in picked) == ("jam" in put_back)

    report = runner.crash_everywhere_sync(cancelled_anywhere)
    assert report.result.status == "cancelled"


@pytest.mark.asyncio
async def test_an_unreached_cancel_point_is_an_error() -> None:
    runner = Runner(replay_processes=0)
    runner.cancel_after(step="pikc")
    with pytest.raises(UsageError, match="never reached the simulated cancel after step 'pikc'"):
        await runner.crash_everywhere(ordering, "tea")
    with pytest.raises(UsageError, match="never reached the simulated cancel after step 'pikc'; its steps: 1"):
        await runner.run(ordering, "tea")
    with pytest.raises(UsageError, match="cancel_after: name one of step=, signal=, approval=, timer= and child="):
        runner.cancel_after()


# Pause


@pytest.mark.asyncio
async def test_a_paused_run_does_not_continue() -> None:
    runner = Runner()
    run = await runner.start(nagging, 1)
    paused = await runner.pause(run.run_id)
    assert (paused.status, paused.is_paused) == ("waiting", True)
    assert "paused" in repr(paused)
    await runner.advance(timedelta(days=5))
    assert (await runner.resume(run.run_id)).is_paused  # a new process does not lift it
    assert did == []
    result = await runner.unpause(run.run_id)
    assert (result.output, result.is_paused) == ("nagged", False)


@pytest.mark.asyncio
async def test_a_signal_waits_for_the_end_of_a_pause() -> None:
    runner = Runner()
    run = await runner.start(approving, "tea")
    await runner.pause(run.run_id)
    assert (await runner.signal(run.run_id, "approval", "yes")).status != "completed"
    assert (await runner.unpause(run.run_id)).output == "yes"


@pytest.mark.asyncio
async def test_a_child_is_paused_by_itself() -> None:
    runner = Runner()
    run = await runner.start(approved_order, "tea")
    await runner.pause(run.run_id)
    child = await runner.signal(run.children[2].run_id, "approval", "yes")
    assert child.output == "yes"
    assert (await runner.result(run.run_id)).status != "completed"
    assert (await runner.unpause(run.run_id)).output == "tea: yes"


# Retry


@pytest.mark.asyncio
async def test_a_retry_of_a_run_retries_the_child_that_failed() -> None:
    @workflow
    async def wrapping_one(item: str) -> str:
        return await wrap(item)

    @workflow
    async def wrapping_two() -> list[str]:
        return [await wrapping_one("tea"), await wrapping_one("jam")]

    runner = Runner()
    runner.mock(wrap, side_effect=["[tea]", ValueError("no paper"), "[jam]"])
    failed = await runner.run(wrapping_two)
    assert [child.status for child in failed.children] == ["completed", "failed"]
    result = await runner.retry(failed.run_id)
    assert (result.output, result.children[2].status) == (["[tea]", "[jam]"], "completed")
    assert [child.steps[1].execution_count for child in result.children] == [1, 2]


@pytest.mark.asyncio
async def test_what_has_been_undone_cannot_be_retried() -> None:
    runner = Runner()
    failed = await runner.run(failing_order, "tea")
    with pytest.raises(RetryRefused, match="have undone"):
        await runner.retry(failed.run_id)


@pytest.mark.asyncio
async def test_a_retry_repeats_only_what_failed() -> None:
    runner = Runner()
    runner.mock("carry", side_effect=[ConnectionError("no carrier"), "carried"])
    failed = await runner.run(sending, "tea")
    assert failed.status == "failed"
    result = await runner.retry(failed.run_id)
    assert (result.output, result.steps[1].was_replayed, result.steps[2].execution_count) == ("sent", True, 2)
    assert did == [("send", "tea")]


@pytest.mark.asyncio
async def test_a_once_step_runs_again_only_on_request() -> None:
    runner = Runner()
    runner.simulate_crash_during("send")
    runner.mock("carry", return_value="carried")
    run = await runner.run(sending, "tea")
    unknown = await runner.resume(run.run_id)
    assert unknown.status == "failed"
    with pytest.raises(RetryRefused, match="a second time"):
        await runner.retry(run.run_id)
    assert (await runner.retry(run.run_id, run_again=True)).output == "sent"
    assert did == [("send", "tea")] * 2


# Fork


@pytest.mark.asyncio
async def test_a_fork_shares_the_beginning() -> None:
    runner = Runner()
    await runner.run(ordering, "tea")
    did.clear()
    fork = await runner.fork("order-of-tea", at="packing")
    assert (fork.run_id, fork.output) == ("order-of-tea-fork-1", "[a tea]")
    assert fork.steps[1].was_replayed
    assert (fork.steps[1].execution_count, fork.children[2].run_id) == (0, "order-of-tea-fork-1:packing-2")
    assert did == [("pick", "tea"), ("wrap", "a tea")]
    assert (await runner.fork("order-of-tea", at=2, with_output="nothing", id="other")).output == "nothing"
    assert (await runner.fork("order-of-tea")).run_id == "order-of-tea-fork-2"


@pytest.mark.asyncio
async def test_a_fork_of_a_failed_run_with_another_output() -> None:
    runner = Runner()
    failed = await runner.run(failing_order, "tea")
    fork = await runner.fork(failed.run_id, at="carry", with_output="carried")
    assert (fork.status, fork.output) == ("completed", "carried")


@pytest.mark.asyncio
async def test_a_fork_of_a_class_workflow_counts_as_the_class_does() -> None:
    runner = Runner()
    run = await runner.run(Journey, count=1)
    fork = await runner.fork(run.run_id, at=3, with_output=12)
    assert (fork.output, fork.steps[2].was_replayed) == (12, True)
    with pytest.raises(UsageError, match=r"has no step 9; its steps are: 1 \(legs\), 2 \(book\), 3 \(pay\)"):
        await runner.fork(run.run_id, at=9)


@pytest.mark.asyncio
async def test_a_fork_can_crash() -> None:
    runner = Runner()
    await runner.run(ordering, "tea")
    runner.simulate_crash_during("wrap")
    assert (await runner.fork("order-of-tea", at=2)).has_crashed
    assert (await runner.resume("order-of-tea-fork-1")).output == "[a tea]"


@pytest.mark.asyncio
async def test_forks_are_the_same_each_time() -> None:
    async def keys() -> list[Any]:
        runner = Runner()
        await runner.run(ordering, "tea")
        await runner.fork("order-of-tea", at=1)
        return [
            trace.traced_executions[-1].seeded_random.derive_idempotency_key(0, "bill")
            for trace in runner._world.traces.values()
        ]

    once = await keys()
    assert once == await keys()
    assert len(set(once)) == len(once)


# Mistakes, and plain tests


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda runner: runner.cancel("order-of-jam"), RunNotFound, "no run 'order-of-jam'.*runs: 'order-of-tea'"),
        (lambda runner: runner.pause("order-of-jam"), RunNotFound, "no run 'order-of-jam'"),
        (lambda runner: runner.retry("order-of-jam"), RunNotFound, "no run 'order-of-jam'"),
        (lambda runner: runner.fork("order-of-jam"), RunNotFound, "no run 'order-of-jam'"),
        (lambda runner: runner.cancel("order-of-tea"), RunEnded, "cannot be cancelled: it has completed"),
        (lambda runner: runner.pause("order-of-tea"), RunEnded, "cannot be paused: it has completed"),
        (lambda runner: runner.unpause("order-of-tea"), RunEnded, "cannot be resumed: it has completed"),
        (lambda runner: runner.retry("order-of-tea"), RetryRefused, "is completed"),
        (lambda runner: runner.fork("order-of-tea", at="wrap"), UsageError, "no recorded step 'wrap'"),
        (lambda runner: runner.fork("order-of-tea", with_output=1), UsageError, "say which with `at`"),
        (lambda runner: runner.fork("order-of-tea", id="order-of-tea"), RunConflict, "is taken"),
    ],
)
@pytest.mark.asyncio
async def test_mistakes_are_told(call: Any, error: type[Exception], words: str) -> None:
    runner = Runner()
    await runner.run(ordering, "tea")
    with pytest.raises(error, match=words):
        await call(runner)


def test_without_an_event_loop() -> None:
    runner = Runner()
    run = runner.start_sync(approving, "tea")
    assert runner.pause_sync(run.run_id).is_paused
    assert not runner.unpause_sync(run.run_id).is_paused
    assert runner.cancel_sync(run.run_id).status == "cancelled"
    runner.mock("carry", side_effect=[ConnectionError, "carried", "carried"])
    failed = runner.run_sync(sending, "tea")
    assert runner.retry_sync(failed.run_id).status == "completed"
    assert runner.fork_sync(failed.run_id, at="send", with_output="lost").output == "lost"
