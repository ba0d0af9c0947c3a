"""Steps whose task is cancelled, and not by Holdfast: that is a failed attempt, and never the end of progress."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from engine_world import World, read_journal
from shared_flows import define_calling

from holdfast import RunFailed, Runtime, StepTimedOut, current_step, step, workflow
from holdfast.engine.clock import SystemClock
from holdfast.errors import FenceLost

pytestmark = pytest.mark.asyncio


def cancel_me() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def leave_a_request_behind() -> None:
    """As libraries do that swallow a cancellation of their own, and do not take the request back."""
    cancel_me()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        pass


async def cancel_and_wait() -> None:
    cancel_me()
    await asyncio.sleep(60)


async def cancel_from_outside() -> None:
    asyncio.get_running_loop().call_later(0.01, asyncio.current_task().cancel)  # type: ignore[union-attr]
    await asyncio.sleep(60)


async def await_what_is_cancelled() -> None:
    await leave_a_request_behind()
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def lose_nothing() -> None:
    await leave_a_request_behind()
    raise FenceLost("says who?")


WAYS = [cancel_and_wait, cancel_from_outside, await_what_is_cancelled, lose_nothing]


@pytest.mark.parametrize("way", WAYS)
async def test_a_step_that_cancels_its_own_task_fails(in_memory: World, way: Any):
    @step
    async def work() -> None:
        await way()

    @workflow
    async def flow() -> None:
        await work()

    runtime = await in_memory.open()
    handle = await runtime.start(flow)
    expected = "FenceLost" if way is lose_nothing else r"step 'work' of run '.*' ended without an outcome"
    with pytest.raises(RunFailed, match=expected):
        await handle.result(timeout=10)
    [record] = await read_journal(runtime, handle)
    assert not record.ok


@pytest.mark.parametrize("way", WAYS)
async def test_it_is_tried_again_as_often_as_any_other(world: World, way: Any):
    @step(retries=2, backoff=0.01)
    async def work() -> int:
        if current_step().attempt < 3:
            await way()
        return current_step().attempt

    flow = define_calling(work)

    runtime = await world.open()
    assert await (await runtime.start(flow)).result(timeout=10) == 3


async def test_a_leftover_cancel_request_does_not_disable_the_timeout(in_memory: World):
    @step(timeout=0.05, retries=1, backoff=0.01)
    async def work() -> None:
        await leave_a_request_behind()
        await asyncio.sleep(60)

    @workflow
    async def flow() -> None:
        await work()

    runtime = await in_memory.open(clock=SystemClock())
    handle = await runtime.start(flow)
    with pytest.raises(RunFailed) as failed:
        await handle.result(timeout=10)
    assert isinstance(failed.value.__cause__, StepTimedOut)
    [record] = await read_journal(runtime, handle)
    assert record.attempts == 2


@pytest.mark.parametrize("leave", [cancel_me, leave_a_request_behind])
async def test_a_returned_value_is_an_outcome_despite_a_leftover_cancel_request(world: World, leave: Any):
    calls: list[int] = []

    @step
    async def work() -> str:
        calls.append(1)
        left = leave()
        if left is not None:
            await left
        return "done"

    @workflow
    async def flow() -> list[str]:
        return [await work(), await work()]

    runtime = await world.open()
    assert await (await runtime.start(flow)).result(timeout=10) == ["done", "done"]
    assert len(calls) == 2


@pytest.mark.parametrize("leave", [cancel_me, leave_a_request_behind])
async def test_a_transaction_is_committed_despite_a_leftover_cancel_request(tmp_path: Any, leave: Any):
    @step(transaction=True)
    async def work() -> str:
        current_step().connection.execute("CREATE TABLE IF NOT EXISTS done (n int)")
        current_step().connection.execute("INSERT INTO done VALUES (1)")
        asyncio.get_running_loop().call_later(0.0, asyncio.current_task().cancel)  # type: ignore[union-attr]
        left = leave()
        if left is not None:
            await left
        return "done"

    @step(transaction=True)
    async def count() -> int:
        return current_step().connection.execute("SELECT count(*) FROM done").fetchone()[0]

    @workflow
    async def flow() -> list[Any]:
        return [await work(), await count()]

    async with Runtime(f"sqlite:///{tmp_path}/runs.db") as runtime:
        assert await (await runtime.start(flow)).result(timeout=10) == ["done", 1]


async def test_what_a_failed_attempt_left_running_does_not_stop_the_next_one(in_memory: World):
    """A timer of the step's own cancels its task while it waits for the next attempt."""
    slept: list[float] = []

    class Slow(SystemClock):
        async def sleep(self, seconds: float) -> None:
            slept.append(seconds)
            await super().sleep(seconds)

    @step(retries=1, backoff=0.2)
    async def work() -> str:
        if current_step().attempt == 1:
            asyncio.get_running_loop().call_later(0.05, asyncio.current_task().cancel)  # type: ignore[union-attr]
            raise ConnectionError("once more")
        return "done"

    flow = define_calling(work)

    runtime = await in_memory.open(clock=Slow())
    assert await (await runtime.start(flow)).result(timeout=10) == "done"
    assert len([one for one in slept if one <= 0.2]) >= 2


async def test_a_timeout_that_expires_in_the_watcher_calls_off_no_step(tmp_path: Any):
    """While a timeout expires, the task in it counts as cancelled. The engine then looked as if it were stopping."""
    is_expiring, committed = asyncio.Event(), asyncio.Event()

    async def expire(longest: float, *, follow_runs: bool) -> bool:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            is_expiring.set()
            await committed.wait()
        task.uncancel()
        return False

    @step(transaction=True)
    async def work() -> str:
        await is_expiring.wait()
        return "done"

    flow = define_calling(work)

    async with Runtime(f"sqlite:///{tmp_path}/runs.db") as runtime:
        runtime._engine.store.wait_for_change = expire  # type: ignore[method-assign, union-attr]
        try:
            assert await (await runtime.start(flow)).result(timeout=10) == "done"
        finally:
            committed.set()
