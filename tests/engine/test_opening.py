"""A worker that starts while the store is locked waits for it, as one that runs does."""

from __future__ import annotations

from typing import Any

import pytest
from worlds import VirtualClock, World

from holdfast import workflow
from holdfast.engine.patience import OPENING_PATIENCE, when_unlocked
from holdfast.errors import StoreFull, StoreLocked

pytestmark = pytest.mark.asyncio


class Passing(VirtualClock):
    """Time of which all is virtual."""

    def monotonic(self) -> float:
        return self.now()


class Locked:
    """A store that is locked for the first calls of a method."""

    def __init__(self, inner: Any, method: str, times: int) -> None:
        self.inner, self.method, self.times = inner, method, times

    def __getattr__(self, name: str) -> Any:
        return self._perhaps if name == self.method else getattr(self.inner, name)

    async def _perhaps(self, *args: Any, **options: Any) -> Any:
        if self.times:
            self.times -= 1
            raise StoreLocked("the store is locked by another process")
        return await getattr(self.inner, self.method)(*args, **options)


@pytest.mark.parametrize("method", ["open", "register_worker", "publish", "reap"])
async def test_a_worker_starts_when_the_lock_is_given_back(world: World, method: str):
    @workflow
    async def opened_late() -> int:
        return 1

    store = Locked(world.store(), method, times=2)
    runtime = await world.open(store=store)
    assert store.times == 0
    assert await (await runtime.start(opened_late)).result() == 1


async def test_a_lock_that_stays_is_told_in_the_end():
    clock, tries = Passing(), []

    async def locked() -> None:
        tries.append(clock.now())
        clock.advance(5.0)
        raise StoreLocked("for ever")

    with pytest.raises(StoreLocked, match="for ever"):
        await when_unlocked(locked, clock)
    assert tries[-1] - tries[0] < OPENING_PATIENCE < clock.now() - tries[0] + 1


async def test_only_a_lock_is_waited_for():
    async def full() -> None:
        raise StoreFull("no room")

    with pytest.raises(StoreFull):
        await when_unlocked(full, Passing())
