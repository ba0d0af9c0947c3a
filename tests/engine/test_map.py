"""``map``: bounded fan-out, in order, recorded item by item."""

from __future__ import annotations

import asyncio

import pytest
from engine_world import World, read_journal

from holdfast import RunFailed, UsageError, map, step, workflow
from holdfast.services.run_control import retry_run
from waits import wait_until

pytestmark = pytest.mark.asyncio


async def test_results_come_in_the_order_of_the_items_whatever_order_they_end_in(world: World):
    @step
    async def work(n: int) -> int:
        await asyncio.sleep(0.002 * ((n * 7) % 5))
        return n * n

    @workflow
    async def flow() -> list[int]:
        return await map(work, range(20), max_concurrency=6)

    runtime = await world.open()
    handle = await runtime.start(flow)
    assert await handle.result() == [n * n for n in range(20)]
    assert len(await read_journal(runtime, handle)) == 20


@pytest.mark.parametrize("concurrency", [1, 3, 50])
async def test_no_more_than_the_given_number_run_at_once(in_memory: World, concurrency: int):
    running = most = 0

    @step
    async def work(n: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1
        return n

    @workflow
    async def flow() -> list[int]:
        return await map(work, range(12), max_concurrency=concurrency)

    runtime = await in_memory.open()
    assert await (await runtime.start(flow)).result() == list(range(12))
    assert most == min(concurrency, 12)


class Broken(Exception):
    pass


async def test_the_first_failure_is_raised_and_the_rest_is_cancelled(world: World):
    begun: list[int] = []
    cancelled: list[int] = []

    @step
    async def work(n: int) -> int:
        begun.append(n)
        if n == 2:
            await wait_until(lambda: len(begun) == 3)
            raise Broken("item 2")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(n)
            raise
        return n

    @workflow
    async def flow() -> str:
        try:
            await map(work, range(100), max_concurrency=3)
        except Broken as error:
            return str(error)
        return ""

    runtime = await world.open()
    assert await (await runtime.start(flow)).result() == "item 2"
    await wait_until(lambda: sorted(cancelled) == [0, 1])
    assert sorted(begun) == [0, 1, 2]


@pytest.mark.parametrize("explicitly", [True, False])
@pytest.mark.parametrize("in_a_handler", [True, False])
async def test_a_retry_finds_the_failed_step_that_caused_what_the_items_code_raised(
    world: World, explicitly: bool, in_a_handler: bool
):
    calls: list[int] = []
    broken = True

    @step
    async def charge(n: int) -> int:
        calls.append(n)
        if broken and n == 2:
            raise Broken("declined")
        return n

    async def one(n: int) -> int:
        try:
            return await charge(n)
        except Broken as error:
            if explicitly:
                raise RuntimeError(f"item {n}") from error
            raise RuntimeError(f"item {n}")  # noqa: B904

    @workflow
    async def flow() -> list[int]:
        if not in_a_handler:
            return await map(one, range(4), max_concurrency=1)
        try:
            raise LookupError("something else")
        except LookupError:
            return await map(one, range(4), max_concurrency=1)

    runtime = await world.open()
    handle = await runtime.start(flow)
    with pytest.raises(RunFailed, match="item 2"):
        await handle.result()
    broken = False
    await retry_run(runtime.store_provider, handle.run_id)
    assert await handle.result() == [0, 1, 2, 3]
    assert calls == [0, 1, 2, 2, 3]


async def test_nothing_to_do_is_no_trouble(in_memory: World):
    @step
    async def work(n: int) -> int:
        return n

    @workflow
    async def flow() -> list[int]:
        return await map(work, [])

    runtime = await in_memory.open()
    assert await (await runtime.start(flow)).result() == []


@pytest.mark.parametrize("concurrency", [0, -3])
async def test_a_concurrency_below_one_is_refused(in_memory: World, concurrency: int):
    @step
    async def work(n: int) -> int:
        return n

    @workflow
    async def flow() -> list[int]:
        return await map(work, [1], max_concurrency=concurrency)

    runtime = await in_memory.open()
    with pytest.raises(RunFailed, match=f"concurrency={concurrency} must be at least 1") as failed:
        await (await runtime.start(flow)).result()
    assert isinstance(failed.value.__cause__, UsageError)


async def test_a_crash_in_the_middle_costs_only_the_items_in_flight(world: World):
    calls: list[int] = []
    hang = True

    @step
    async def work(n: int) -> int:
        calls.append(n)
        if hang and n >= 5:
            await asyncio.sleep(60)
        return n

    @workflow
    async def flow() -> list[int]:
        return await map(work, range(10), max_concurrency=2)

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: calls.count(5) + calls.count(6) == 2)
    await world.crash(first)
    hang = False
    second = await world.open()
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == list(range(10))
    assert sorted(calls) == sorted([*range(10), 5, 6])


async def test_map_outside_a_workflow_says_where_it_belongs():
    with pytest.raises(UsageError, match="only in workflow code"):
        await map(asyncio.sleep, [1])  # type: ignore[arg-type]
