"""``keep``: progress that is durable when the step goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from engine_world import FlakyStore, World, read_attempts
from shared_flows import define_calling

from holdfast import current_step, step
from holdfast.errors import StoreUnavailable, UnrecordableValue
from holdfast.stores.operations import Op, SaveAttempt
from waits import wait_until

pytestmark = pytest.mark.asyncio


async def test_saved_progress_is_in_the_store_before_the_step_continues(world: World):
    seen: list[Any] = []

    @step
    async def edit() -> str:
        me = current_step()
        seen.append(me.progress)
        for number in range(me.progress or 0, 4):
            await me.save_progress(number)
            [noted] = (await read_attempts(runtime, me.run_id)).values()
            seen.append(noted.progress)
            if len(seen) == 4:
                await asyncio.sleep(60)
        return "done"

    kept_progress = define_calling(edit, "kept_progress")

    runtime = await world.open()
    handle = await runtime.start(kept_progress)
    await wait_until(lambda: len(seen) == 4)
    await world.crash(runtime)
    assert seen == [None, b"0", b"1", b"2"]
    runtime = await world.open()
    assert await kept_progress.get_handle(runtime.store_provider, handle.run_id).result() == "done"
    assert seen[4:] == [2, b"2", b"3"]
    assert not await read_attempts(runtime, handle)


async def test_a_step_waits_until_the_store_takes_its_progress(in_memory: World):
    events: list[str] = []

    @step
    async def edit() -> str:
        await current_step().save_progress("before")
        events.append("went on")
        return "done"

    kept_while_failing = define_calling(edit, "kept_while_failing")

    def fail_twice(ops: Sequence[Op]) -> BaseException | None:
        if any(isinstance(op, SaveAttempt) for op in ops) and events.count("failed") < 2:
            events.append("failed")
            return StoreUnavailable("not now")
        return None

    store = FlakyStore(in_memory.store(), fail_before=fail_twice)
    runtime = await in_memory.open(store=store)
    assert await (await runtime.start(kept_while_failing)).result() == "done"
    assert events == ["failed", "failed", "went on"]


async def test_a_zombie_does_not_go_on_when_it_keeps_its_progress(world: World):
    gates: list[asyncio.Event] = []
    events: list[str] = []

    @step
    async def edit() -> str:
        gates.append(asyncio.Event())
        who = f"worker {len(gates)}"
        try:
            await gates[-1].wait()
            await current_step().save_progress(who)
        except BaseException:
            events.append(f"{who} stopped")
            raise
        events.append(f"{who} went on")
        return who

    kept_by_a_zombie = define_calling(edit, "kept_by_a_zombie")

    first = await world.open()
    handle = await first.start(kept_by_a_zombie)
    await wait_until(lambda: len(gates) == 1)
    await world.kill(first)
    second = await world.open()
    await wait_until(lambda: len(gates) == 2)
    gates[0].set()
    await wait_until(lambda: events)
    gates[1].set()
    assert await kept_by_a_zombie.get_handle(second.store_provider, handle.run_id).result() == "worker 2"
    assert events == ["worker 1 stopped", "worker 2 went on"]


async def test_progress_that_cannot_be_recorded_is_refused(in_memory: World):
    @step
    async def edit() -> str:
        with pytest.raises(UnrecordableValue):
            await current_step().save_progress(object())
        return "refused"

    kept_unfit = define_calling(edit, "kept_unfit")

    runtime = await in_memory.open()
    assert await (await runtime.start(kept_unfit)).result() == "refused"
