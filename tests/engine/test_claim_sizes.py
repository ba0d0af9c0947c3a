"""How many runs a worker claims at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from engine_world import FlakyStore, Replaced, World

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
