"""A run whose imports take long is held already: what arrives meanwhile is not lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from engine_world import VirtualClock, World, wait_until_parked

import holdfast
from holdfast import workflow
from holdfast.stores.operations import Run
from waits import wait_until

pytestmark = pytest.mark.asyncio


async def test_a_signal_that_arrives_while_the_imports_of_its_run_are_loaded_is_not_lost(
    world: World, clock: VirtualClock
):
    @workflow(id="waits")
    async def waits() -> str:
        return await holdfast.wait_for_signal("go")

    imported, loading_ids = asyncio.Event(), list[str]()

    async def prepare_run(run: Run) -> None:
        loading_ids.append(run.id)
        await imported.wait()

    runtime = await world.open()
    handle = await runtime.start(waits)
    await wait_until_parked(runtime, clock, handle)
    known = runtime._engine.definitions
    known["waits"] = replace(known["waits"], prepare_run=prepare_run)
    await handle.signal("other", "for later")  # it is in the mailbox when the run is claimed
    await wait_until(lambda: loading_ids == ["waits"])
    await handle.signal("go", "now")
    await runtime._engine._poller.poll()  # the worker takes the signal now, and does not take it again
    imported.set()
    assert await asyncio.wait_for(handle.result(), 10) == "now"
