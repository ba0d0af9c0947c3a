"""Workers on a queue with limits: they keep to them together, take a free place at once, and leave a full one alone."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest
from engine_world import Replaced, VirtualClock, World, get_state, read_run

from holdfast import step, workflow
from holdfast.admission.queue_limits import QueueLimits
from holdfast.admission.rates import Rate
from waits import wait_until

pytestmark = pytest.mark.asyncio

SOON = 0.8
"""Seconds in which a free place is taken: less than ``FREED_SLOT_POLL_DELAY_S``, when it would be found in any case."""


class Site:
    """Steps that stay in flight until they are let go, and who is in one."""

    def __init__(self) -> None:
        self.inside: list[str] = []
        self.most = 0
        self.done: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}

    async def visit(self, name: str) -> str:
        self.inside.append(name)
        self.most = max(self.most, len(self.inside))
        try:
            await self.gates.setdefault(name, asyncio.Event()).wait()
            self.done.append(name)
        finally:
            self.inside.remove(name)
        return name

    def open(self, name: str) -> None:
        self.gates.setdefault(name, asyncio.Event()).set()


def flow_of(site: Site, queue: str = "llm") -> Any:
    visit = step(site.visit, name="visit")

    @workflow(name="visits", queue=queue)
    async def visits(name: str) -> str:
        return await visit(name)

    return visits


class CountingStore:
    """A store that counts how often it is asked for work."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.times: Counter[str] = Counter()
        self.claims = Replaced(inner.claims, claim=self._claim, get_next_wake_at=self._get_next_wake_at)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def _claim(self, *args: Any, **wanted: Any) -> Any:
        self.times["claim"] += 1
        return await self.inner.claims.claim(*args, **wanted)

    async def _get_next_wake_at(self, **wanted: Any) -> Any:
        self.times["get_next_wake_at"] += 1
        return await self.inner.claims.get_next_wake_at(**wanted)


async def test_several_workers_keep_to_the_limit_of_a_queue_together(world: World):
    site = Site()
    flow = flow_of(site)
    workers = [await world.open(queue_limits={"llm": QueueLimits(2)}) for _ in range(3)]
    handles = [await workers[n % 3].start(flow, f"v{n}") for n in range(12)]
    began = time.monotonic()
    for _ in range(12):
        await wait_until(lambda: len(site.inside) == min(2, 12 - len(site.done)))
        site.open(site.inside[0])
        before = len(site.done)
        await wait_until(lambda before=before: len(site.done) > before)
    assert [await handle.result() for handle in handles] == [f"v{n}" for n in range(12)]
    assert site.most == 2
    assert sorted(site.done) == sorted(f"v{n}" for n in range(12))
    assert time.monotonic() - began < 12 * SOON


async def test_a_worker_takes_the_next_run_when_one_of_its_own_has_given_up_the_place(world: World):
    site = Site()
    flow = flow_of(site)
    worker = await world.open(queue_limits={"llm": QueueLimits(1)})
    handles = [await worker.start(flow, name) for name in "abcdef"]
    began = time.monotonic()
    for name in "abcdef":
        site.open(name)
    for handle in handles:
        await handle.result()
    assert time.monotonic() - began < 2 * SOON  # for six, one after the other
    assert (site.most, site.done) == (1, [*"abcdef"])


async def test_a_full_queue_is_not_polled_again_and_again(world: World):
    site = Site()
    flow = flow_of(site)
    store = CountingStore(world.store())
    worker = await world.open(store=store, queue_limits={"llm": QueueLimits(1)})
    handles = [await worker.start(flow, name) for name in "abc"]
    await wait_until(lambda: site.inside == ["a"])
    await asyncio.sleep(0.1)
    store.times.clear()
    await asyncio.sleep(0.6)
    assert store.times["claim"] == 0
    if world.kind != "memory":  # which tells of every write again and again for a second
        assert store.times["get_next_wake_at"] <= 2
    for name in "abc":
        site.open(name)
    for handle in handles:
        await handle.result()


async def test_a_run_can_wait_for_others_of_its_own_queue(world: World, clock: VirtualClock):
    @step
    async def double(n: int) -> int:
        return 2 * n

    @workflow(queue="llm")
    async def inner(n: int) -> int:
        await asyncio.sleep(3600)
        return await double(n)

    @workflow(queue="llm")
    async def outer(n: int) -> int:
        return await inner(n) + 1

    workers = [await world.open(queue_limits={"llm": QueueLimits(1)}) for _ in range(2)]
    handle = await workers[0].start(outer, 4)

    async def asleep() -> bool:
        waiting = [
            run for run in await workers[0]._engine.store.queues.list() if run.running_count == run.waiting_count == 0
        ]
        parked = [driver for worker in workers for driver in worker._engine.held_runs.list_drivers()]
        return bool(waiting) and not parked

    await wait_until(asleep)
    clock.advance(3600)
    assert await handle.result() == 9


async def test_runs_begin_when_the_rate_has_room_again(world: World, clock: VirtualClock):
    site = Site()
    flow = flow_of(site)
    workers = [await world.open(queue_limits={"llm": QueueLimits(rates=(Rate.parse("2/min"),))}) for _ in range(2)]
    handles = [await workers[n % 2].start(flow, f"v{n}") for n in range(5)]
    for n in range(5):
        site.open(f"v{n}")
    for wanted in (2, 4, 5):
        await wait_until(lambda wanted=wanted: len(site.done) == wanted)
        await asyncio.sleep(0.3)
        assert len(site.done) == wanted
        clock.advance(60)
    assert sorted([await handle.result() for handle in handles]) == [f"v{n}" for n in range(5)]


async def test_the_place_of_a_dead_worker_is_free(world: World):
    site = Site()
    flow = flow_of(site)
    first = await world.open(queue_limits={"llm": QueueLimits(1)})
    a = await first.start(flow, "a")
    await wait_until(lambda: site.inside == ["a"])
    second = await world.open(queue_limits={"llm": QueueLimits(1)})
    b = await second.start(flow, "b")
    await asyncio.sleep(0.05)
    assert site.inside == ["a"]
    await world.crash(first)

    async def is_taken_up() -> bool:
        return (await read_run(second, a)).owner == second.worker_id and site.inside == ["a"]

    await wait_until(is_taken_up)  # before the one that has not begun
    assert site.most == 1
    site.open("a")
    site.open("b")
    assert [await flow.get_handle(second.store_provider, one.run_id).result() for one in (a, b)] == ["a", "b"]


async def test_a_queue_gets_limits_while_its_runs_are_held(world: World):
    site = Site()
    flow = flow_of(site)
    worker = await world.open()
    a = await worker.start(flow, "a")
    await wait_until(lambda: site.inside == ["a"])
    assert not (await read_run(worker, a)).is_limited
    operator = await world.open_store()
    assert await operator.queues.set_limits("llm", QueueLimits(1))
    b = await worker.start(flow, "b")
    await asyncio.sleep(0.1)
    assert site.inside == ["a"]
    site.open("a")
    await wait_until(lambda: site.inside == ["b"])
    assert await operator.queues.pause("llm")
    c = await worker.start(flow, "c")
    site.open("b")
    site.open("c")
    await b.result()
    await asyncio.sleep(0.1)
    assert await get_state(worker, c) == "pending"
    assert await operator.queues.resume("llm")
    assert await c.result() == "c"
