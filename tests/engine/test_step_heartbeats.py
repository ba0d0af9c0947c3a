"""Heartbeats: progress for the next attempt, and the word that a step should stop."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from engine_world import World, read_attempts
from shared_flows import define_calling

from holdfast import RunFailed, current_step, step, workflow
from holdfast.errors import FenceLost, UnrecordableValue
from waits import wait_until

pytestmark = pytest.mark.asyncio


async def test_progress_is_handed_to_the_next_attempt(world: World):
    @step(retries=2, backoff=0.1)
    async def upload() -> list[Any]:
        me = current_step()
        seen = [] if me.progress is None else me.progress["seen"]
        me.heartbeat({"seen": [*seen, me.attempt]})
        if me.attempt < 3:
            raise ConnectionError
        return [me.attempt, seen]

    @workflow
    async def flow() -> list[Any]:
        return await upload()

    runtime = await world.open()
    assert await (await runtime.start(flow)).result() == [3, [1, 2]]


@pytest.mark.parametrize("plain", [False, True])
async def test_progress_survives_the_worker(world: World, plain: bool):
    """Also from a thread; the attempt that was cut off counts as not made."""
    release = threading.Event()
    seen: list[tuple[int, Any]] = []

    if plain:

        @step
        def upload() -> str:
            me = current_step()
            seen.append((me.attempt, me.progress))
            if me.progress is None:
                me.heartbeat({"bytes": 4096})
                release.wait(10)
            return f"from {me.progress}"

    else:

        @step
        async def upload() -> str:
            me = current_step()
            seen.append((me.attempt, me.progress))
            if me.progress is None:
                me.heartbeat({"bytes": 4096})
                await asyncio.sleep(60)
            return f"from {me.progress}"

    flow = define_calling(upload)

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: read_attempts(first, handle))
    await world.crash(first)
    second = await world.open()
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == "from {'bytes': 4096}"
    assert seen == [(1, None), (1, {"bytes": 4096})]
    assert await read_attempts(second, handle) == {}
    release.set()


async def test_attempts_count_on_after_a_takeover(world: World):
    made: list[int] = []

    @step(retries=5, backoff=0.1)
    async def call() -> int:
        made.append(current_step().attempt)
        if len(made) == 3:
            await asyncio.sleep(60)
        if len(made) < 5:
            raise ConnectionError
        return current_step().attempt

    flow = define_calling(call)

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: len(made) == 3)

    async def two_failed() -> bool:
        return any(one.attempt == 2 for one in (await read_attempts(first, handle)).values())

    await wait_until(two_failed)
    await world.crash(first)
    second = await world.open()
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == 4
    assert made == [1, 2, 3, 3, 4]


async def test_the_idempotency_key_is_the_same_after_a_takeover(world: World):
    keys: list[str] = []

    @step
    async def pay() -> str:
        keys.append(current_step().idempotency_key)
        if len(keys) == 1:
            await asyncio.sleep(60)
        return "paid"

    flow = define_calling(pay)

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: keys)
    await world.crash(first)
    second = await world.open()
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == "paid"
    assert len(keys) == 2
    assert keys[0] == keys[1]


async def test_many_heartbeats_are_few_writes_and_the_last_one_counts(in_memory: World):
    from engine_world import FlakyStore

    from holdfast.stores.operations import SaveAttempt

    @step(retries=1, backoff=0.1)
    async def count() -> int:
        me = current_step()
        if me.attempt == 2:
            return me.progress
        for n in range(5_000):
            me.heartbeat(n)
            if n % 100 == 0:
                await asyncio.sleep(0)
        raise ConnectionError

    flow = define_calling(count)

    store = FlakyStore(in_memory.store())
    runtime = await in_memory.open(store=store)
    started = time.monotonic()
    assert await (await runtime.start(flow)).result() == 4_999
    notes = [op for ops in store.commits for op in ops if isinstance(op, SaveAttempt)]
    assert len(notes) <= 3 + (time.monotonic() - started) * 10


async def test_a_heartbeat_raises_in_a_thread_whose_step_was_cancelled(world: World):
    raised: list[BaseException] = []
    begun = threading.Event()

    @step
    def work() -> None:
        begun.set()
        try:
            while True:
                current_step().heartbeat()
                time.sleep(0.005)
        except BaseException as error:
            raised.append(error)
            raise

    @step
    async def wait_for_it() -> None:
        await wait_until(begun.is_set)

    @workflow
    async def flow() -> str:
        task = asyncio.create_task(work())
        await wait_for_it()
        task.cancel()
        await asyncio.wait([task])
        return "cancelled"

    runtime = await world.open()
    assert await (await runtime.start(flow)).result() == "cancelled"
    await wait_until(lambda: raised)
    assert isinstance(raised[0], asyncio.CancelledError | FenceLost)


async def test_a_heartbeat_raises_in_a_thread_whose_attempt_has_ended_and_drops_its_progress(in_memory: World):
    """A thread cannot be stopped when its attempt times out. What it reports then is not the next attempt's."""
    raised: list[BaseException] = []
    second_begun = threading.Event()

    @step(retries=1, backoff=0.1, timeout=1)
    def work() -> Any:
        me = current_step()
        me.heartbeat({"by": me.attempt})
        if me.attempt == 2:
            second_begun.set()
            while not raised:
                time.sleep(0.002)
            return me.progress
        second_begun.wait(10)
        try:
            me.heartbeat({"by": "a ghost"})
        except BaseException as error:
            raised.append(error)
        return "too late"

    flow = define_calling(work)

    runtime = await in_memory.open()
    assert await (await runtime.start(flow)).result(timeout=10) == {"by": 1}
    assert isinstance(raised[0], asyncio.CancelledError)
    assert "attempt 1 of step 'work' is over" in str(raised[0])


async def test_a_heartbeat_raises_in_a_step_whose_run_another_worker_holds(world: World):
    raised: list[BaseException] = []
    begun, both = threading.Event(), threading.Event()

    @step
    def work() -> str:
        if begun.is_set():
            both.wait(10)
            return "second"
        begun.set()
        try:
            while True:
                current_step().heartbeat({"at": 1})
                time.sleep(0.005)
        except BaseException as error:
            raised.append(error)
            both.set()
            raise

    flow = define_calling(work)

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(begun.is_set)
    await world.kill(first)
    second = await world.open()
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == "second"
    assert isinstance(raised[0], FenceLost)
    assert handle.run_id in str(raised[0])


async def test_progress_that_cannot_be_recorded_is_refused_in_the_step(in_memory: World):
    @step
    async def work() -> None:
        current_step().heartbeat({"lock": threading.Lock()})

    @workflow
    async def flow() -> None:
        await work()

    runtime = await in_memory.open()
    with pytest.raises(RunFailed, match="progress of step 'work'") as failed:
        await (await runtime.start(flow)).result()
    assert isinstance(failed.value.__cause__, UnrecordableValue)
