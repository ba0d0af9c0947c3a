"""How many runs a worker claims at once, and how soon it claims again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from engine_world import FlakyStore, Replaced, World, wait_for_state

from holdfast import step, workflow
from waits import wait_until

pytestmark = pytest.mark.asyncio


async def test_a_worker_leaves_other_workers_their_share_of_what_is_due(world: World):
    @step
    async def wait_forever(number: int) -> None:
        await asyncio.Event().wait()

    @workflow
    async def flow(number: int) -> None:
        await wait_forever(number)

    starter = await world.open()
    for number in range(100):
        await starter.start(flow, number)
    await starter.close()
    store = FlakyStore(world.store())
    claimed: list[int] = []

    async def claim(*args: Any, **kwargs: Any) -> Any:
        runs = await store.inner.claims.claim(*args, **kwargs)
        claimed.append(len(runs))
        return runs

    store.claims = Replaced(store.claims, claim=claim)
    await world.open(store=store)
    await wait_until(lambda: sum(claimed) == 100)
    assert claimed[:5] == [16, 16, 16, 24, 28]


async def test_a_worker_that_got_nothing_claims_again_soon_and_then_less_often(world: World):
    gate = asyncio.Event()

    @step
    async def wait_for_gate() -> None:
        await gate.wait()

    @workflow
    async def flow() -> None:
        await wait_for_gate()

    starter = await world.open()
    handle = await starter.start(flow)
    await starter.close()
    gate.set()
    store = FlakyStore(world.store())
    pauses: list[float] = []
    is_empty = False

    async def claim(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_empty
        is_empty = len(pauses) < 7
        return [] if is_empty else await store.inner.claims.claim(*args, **kwargs)

    async def wait_for_change(timeout_s: float, **kwargs: Any) -> bool:
        nonlocal is_empty
        if not is_empty:
            return await store.inner.wait_for_change(timeout_s, **kwargs)
        is_empty = False
        pauses.append(timeout_s)
        world.clock.advance(timeout_s + 0.001)
        return False

    store.claims = Replaced(store.claims, claim=claim)
    store.wait_for_change = wait_for_change
    runtime = await world.open(store=store)
    await wait_for_state(runtime, handle, "completed")
    assert pauses == pytest.approx([0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.2], abs=1e-4)
