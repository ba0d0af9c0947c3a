"""A plain step waits for a thread to be free; meanwhile its worker may have lost the run. Found by the soak."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from engine_world import World, read_journal

from holdfast import step, workflow
from waits import wait_until

pytestmark = pytest.mark.asyncio


async def test_a_plain_step_that_got_its_thread_after_the_lease_had_passed_waits_until_it_is_renewed(world: World):
    occupied, go_on = threading.Event(), threading.Event()
    held: list[bool] = []

    @step
    def occupy() -> None:
        occupied.set()
        go_on.wait(20)

    @step
    def charge() -> None:
        held.append(engine.membership.has_lease())

    @workflow
    async def both() -> None:
        await asyncio.gather(occupy(), charge())

    runtime = await world.open(threads=1)
    engine = runtime._engine
    handle = await runtime.start(both)
    await wait_until(occupied.is_set)
    engine.membership._lease_valid_until = 0.0  # the machine stood still for longer than the lease
    go_on.set()
    await wait_until(lambda: len(engine.held_runs.drivers) == 1 and engine.thread_pool._pool._work_queue.empty())
    await asyncio.sleep(0.1)
    assert held == []
    engine.membership._lease_valid_until = time.monotonic() + 60
    await handle.result()
    assert held == [True]


async def test_a_plain_step_that_got_its_thread_after_its_run_was_lost_never_begins(world: World):
    occupied, go_on = threading.Event(), threading.Event()
    begun: list[str] = []

    @step
    def occupy() -> None:
        occupied.set()
        go_on.wait(20)

    @step
    def charge(where: str) -> str:
        begun.append(where)
        return where

    @workflow
    async def both() -> str:
        return (await asyncio.gather(occupy(), charge("somewhere")))[1]

    runtime = await world.open(threads=1)
    handle = await runtime.start(both)
    await wait_until(occupied.is_set)
    [driver] = runtime._engine.held_runs.drivers.values()
    driver.handle_claim_lost()
    go_on.set()
    await wait_until(lambda: runtime._engine.thread_pool._pool._work_queue.empty())
    await asyncio.sleep(0.1)
    assert begun == []
    assert await read_journal(runtime, handle) == []
