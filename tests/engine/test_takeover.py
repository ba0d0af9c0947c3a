"""Death, takeover and the fence: one run, one holder, no step twice."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from engine_world import VirtualClock, World, get_state, read_journal, read_run, wait_until_parked
from shared_flows import define_calling, define_waiting

from holdfast import Budget, RunDead, step, workflow
from holdfast.admission.usage import Usage
from holdfast.engine.step_context import get_step_executor
from waits import wait_until

pytestmark = pytest.mark.asyncio


async def test_another_worker_continues_where_a_dead_one_stopped(world: World):
    calls: list[str] = []
    hang = True

    @step
    async def work(name: str) -> str:
        calls.append(name)
        if name == "c" and hang:
            await asyncio.sleep(60)
        return name

    @workflow
    async def flow() -> list[str]:
        return [await work(name) for name in ("a", "b", "c", "d")]

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: "c" in calls)
    await world.crash(first)
    hang = False
    second = await world.open()
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == ["a", "b", "c", "d"]
    assert calls == ["a", "b", "c", "c", "d"]
    run = await read_run(second, handle)
    assert (run.epoch, run.delivery_count) == (2, 0)
    assert [record.epoch for record in await read_journal(second, handle)] == [1, 1, 2, 2]


async def test_a_run_continues_after_any_number_of_crashes(world: World):
    calls: list[int] = []

    @step
    async def work(n: int) -> int:
        calls.append(n)
        if calls.count(n) == 1 and n % 2:
            await asyncio.sleep(60)
        return n

    @workflow
    async def flow() -> int:
        return sum([await work(n) for n in range(8)])

    runtime = await world.open()
    handle = await runtime.start(flow)
    for n in (1, 3, 5, 7):
        await wait_until(lambda n=n: n in calls)
        await world.crash(runtime)
        runtime = await world.open()
    assert await flow.get_handle(runtime.store_provider, handle.run_id).result() == sum(range(8))
    assert calls == [0, 1, 1, 2, 3, 3, 4, 5, 5, 6, 7, 7]


async def test_a_zombies_outcome_is_refused_and_its_run_dropped(world: World, caplog: pytest.LogCaptureFixture):
    """Worker one is taken for dead while it works. It ends its step later than worker two, and nobody sees it."""
    gates: list[asyncio.Event] = []

    @step
    async def work() -> str:
        gate = asyncio.Event()
        gates.append(gate)
        who = len(gates)
        await gate.wait()
        return f"worker {who}"

    @step
    async def after() -> str:
        return "after"

    @workflow
    async def flow() -> list[str]:
        return [await work(), await after()]

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: len(gates) == 1)
    await world.kill(first)
    second = await world.open()
    await wait_until(lambda: len(gates) == 2)
    gates[0].set()
    await wait_until(lambda: not first._engine.held_runs.drivers)
    gates[1].set()
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == ["worker 2", "after"]
    assert [record.epoch for record in await read_journal(second, handle)] == [2, 2]
    assert any("held by another worker now" in record.message for record in caplog.records)


async def test_a_zombies_other_steps_are_cancelled_when_it_loses_the_fence(world: World):
    begun: list[str] = []
    cancelled: list[str] = []
    gate = asyncio.Event()
    second_turn = False

    @step
    async def work(name: str) -> str:
        begun.append(name)
        if second_turn:
            return name
        try:
            if name == "quick":
                await gate.wait()
            else:
                await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(name)
            raise
        return name

    @workflow
    async def flow() -> list[str]:
        return list(await asyncio.gather(work("slow"), work("quick")))

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: len(begun) == 2)
    await world.kill(first)
    second_turn = True
    second = await world.open()
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == ["slow", "quick"]
    gate.set()
    await wait_until(lambda: cancelled == ["slow"])
    assert not first._engine.held_runs.drivers


async def test_a_zombie_cannot_end_a_run(world: World):
    gates: list[asyncio.Event] = []

    @step
    async def work() -> int:
        gates.append(asyncio.Event())
        who = len(gates)
        await gates[-1].wait()
        return who

    flow = define_calling(work)

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: gates)
    # The outcome is committed; then, before its end is, the run is taken over.
    store = first._engine.store
    driver = first._engine.held_runs.drivers_by_run_id[handle.run_id]
    finish = driver._finish

    def taken_over_first(*args: Any, **options: Any) -> None:
        async def later() -> None:
            await world.kill(first)
            await store.workers.reap_dead(None)
            finish(*args, **options)

        first._engine.run_in_background(later())

    driver._finish = taken_over_first  # type: ignore[method-assign]
    gates[0].set()
    await wait_until(lambda: driver.is_closed)
    assert await get_state(first, handle) in ("pending", "running")
    second = await world.open()
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == 1
    assert len(gates) == 1


async def test_a_caller_who_waits_at_a_zombie_still_gets_the_result(world: World):
    """The run ends elsewhere: whoever waits here must hear of it, whatever happened to the hold on it."""
    gates: list[asyncio.Event] = []

    @step
    async def work() -> str:
        gates.append(asyncio.Event())
        await gates[-1].wait()
        return "done"

    flow = define_calling(work)

    first = await world.open()
    handle = await first.start(flow)
    waiting = asyncio.ensure_future(handle.result())
    await wait_until(lambda: gates)
    await world.kill(first)
    second = await world.open()
    await wait_until(lambda: len(gates) == 2)
    gates[1].set()
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == "done"
    await asyncio.sleep(0.3)  # the first engine has looked around meanwhile, and found itself still holding the run
    gates[0].set()
    async with asyncio.timeout(10):
        assert await waiting == "done"


async def test_a_worker_that_learns_that_it_was_declared_dead_comes_back_as_another(world: World, caplog):
    @step
    async def work() -> str:
        return "done"

    flow = define_calling(work)

    first = await world.open(lease_s=0.3)
    before = first.worker_id
    await world.kill(first)
    second = await world.open()
    await second._engine.store.workers.reap_dead(second.worker_id)
    await wait_until(lambda: first.worker_id != before)
    assert any("declared dead" in record.message for record in caplog.records)
    await second.close()
    assert await (await first.start(flow)).result(timeout=10) == "done"


async def test_three_deaths_in_a_row_without_a_record_make_a_run_dead(world: World):
    begun: list[int] = []

    @step
    async def killer() -> None:
        begun.append(1)
        await asyncio.sleep(60)

    @workflow
    async def flow() -> None:
        await killer()

    runtime = await world.open()
    handle = await runtime.start(flow)
    for n in (1, 2, 3):
        await wait_until(lambda n=n: len(begun) == n)
        await world.crash(runtime)
        runtime = await world.open()
    with pytest.raises(RunDead, match="died 3 times while this was the only run it held") as dead:
        await flow.get_handle(runtime.store_provider, handle.run_id).result()
    assert f"holdfast retry {handle.run_id}" in str(dead.value)
    assert len(begun) == 3


async def test_deaths_between_which_something_was_recorded_do_not_add_up(world: World):
    calls: list[int] = []

    @step
    async def work(n: int) -> int:
        calls.append(n)
        if calls.count(n) == 1:
            await asyncio.sleep(60)
        return n

    @workflow
    async def flow() -> int:
        return sum([await work(n) for n in range(5)])

    runtime = await world.open()
    handle = await runtime.start(flow)
    for n in range(5):
        await wait_until(lambda n=n: n in calls)
        await world.crash(runtime)
        runtime = await world.open()
    assert await flow.get_handle(runtime.store_provider, handle.run_id).result() == 10


async def test_closing_hands_a_run_over_without_counting(world: World):
    begun: list[int] = []

    @step
    async def work() -> str:
        begun.append(1)
        if len(begun) < 5:
            await asyncio.sleep(60)
        return "done"

    flow = define_calling(work)

    runtime = await world.open()
    handle = await runtime.start(flow)
    for n in range(1, 5):
        await wait_until(lambda n=n: len(begun) == n)
        await runtime.close()
        runtime = await world.open()
    assert await flow.get_handle(runtime.store_provider, handle.run_id).result() == "done"
    assert (await read_run(runtime, handle)).delivery_count == 0


async def test_closing_with_grace_lets_steps_in_flight_end_and_starts_no_new_ones(world: World):
    from holdfast.engine.clock import SystemClock

    calls: list[str] = []

    @step
    async def work(name: str) -> str:
        calls.append(name)
        await asyncio.sleep(0.05)
        return name

    @workflow
    async def flow() -> list[str]:
        return [await work("a"), await work("b")]

    real = SystemClock()
    first = await world.open(clock=real)
    handle = await first.start(flow)
    await wait_until(lambda: calls)
    await first.close(grace=10)
    assert calls == ["a"]
    second = await world.open(clock=real)
    assert [record.name for record in await read_journal(second, handle)][:1] == ["work"]
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == ["a", "b"]
    assert calls == ["a", "b"]


async def test_a_long_journal_is_replayed_in_slices_and_does_not_block_the_process(in_memory: World):
    calls: list[int] = []
    hang = True

    @step
    async def work(n: int) -> int:
        calls.append(n)
        if hang and n == 1_600:
            await asyncio.sleep(60)
        return n

    @workflow
    async def flow() -> int:
        return sum([await work(n) for n in range(1_605)])

    first = await in_memory.open()
    handle = await first.start(flow)
    await wait_until(lambda: 1_600 in calls)
    await in_memory.crash(first)
    hang = False
    second = await in_memory.open()
    turns = 0
    waiting = asyncio.ensure_future(flow.get_handle(second.store_provider, handle.run_id).result())
    while not waiting.done():
        turns += 1
        await asyncio.sleep(0)
    assert await waiting == sum(range(1_605))
    assert len(calls) == 1_606
    assert turns > 3


async def test_two_workers_share_the_runs_and_run_no_step_twice(world: World):
    calls: list[tuple[int, int]] = []

    @step
    async def work(run: int, n: int) -> int:
        calls.append((run, n))
        await asyncio.sleep(0)
        return n

    @workflow
    async def flow(run: int) -> int:
        return sum([await work(run, n) for n in range(5)])

    first, second = await world.open(max_concurrency=5), await world.open(max_concurrency=5)
    handles = [await (first if n % 2 else second).start(flow, n) for n in range(40)]
    results = await asyncio.gather(*[handle.result() for handle in handles])
    assert results == [10] * 40
    assert sorted(calls) == [(run, n) for run in range(40) for n in range(5)]


async def test_a_worker_takes_only_what_its_queues_and_workflows_allow(in_memory: World):
    from holdfast.authoring.registry import definitions

    @workflow(queue="slow")
    async def one() -> str:
        return "one"

    @workflow
    async def two() -> str:
        return "two"

    picky = await in_memory.open(queues=["default"])
    handle = await picky.start(one)
    assert await (await picky.start(two)).result() == "two"
    assert await get_state(picky, handle) == "pending"
    ignorant = await in_memory.open(definitions={"two": definitions["two"]})
    await asyncio.sleep(0.3)
    assert await get_state(ignorant, handle) == "pending"
    await in_memory.open(queues=["slow"])
    assert await handle.result(timeout=10) == "one"


async def test_a_signal_for_a_run_that_another_worker_holds_reaches_it(world: World, clock: VirtualClock):
    flow = define_waiting()

    first, second = await world.open(), await world.open()
    handle = await first.start(flow)
    await flow.get_handle(second.store_provider, handle.run_id).signal("go", "from elsewhere")
    assert await handle.result(timeout=10) == "from elsewhere"

    handle = await first.start(flow)
    await wait_until_parked(first, clock, handle)
    await first.close()
    await flow.get_handle(second.store_provider, handle.run_id).signal("go", "after parking")
    assert await flow.get_handle(second.store_provider, handle.run_id).result(timeout=10) == "after parking"


async def test_workflows_that_need_more_room_than_there_is_wait_their_turn(world: World):
    running: set[int] = set()
    most = 0

    @step
    async def work(n: int) -> int:
        nonlocal most
        running.add(n)
        most = max(most, len(running))
        await asyncio.sleep(0.005)
        running.discard(n)
        return n

    @workflow
    async def flow(n: int) -> int:
        return await work(n)

    runtime = await world.open(max_concurrency=3)
    handles = [await runtime.start(flow, n) for n in range(12)]
    assert await asyncio.gather(*[handle.result(timeout=20) for handle in handles]) == list(range(12))
    assert most <= 3


async def test_the_engine_says_little_when_all_goes_well(world: World, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "holdfast")

    @step
    async def work() -> int:
        return 1

    flow = define_calling(work)

    runtime = await world.open()
    assert await (await runtime.start(flow)).result() == 1
    await runtime.close()
    assert caplog.records == []


@pytest.mark.parametrize("asks", ["withdraw", "remind", "reserve"])
async def test_a_zombie_drops_a_run_when_a_step_learns_that_it_is_lost(world: World, asks: str):
    """A step asks the store something under the old epoch: its run leaves memory, with all its other steps."""
    begun: list[str] = []
    cancelled: list[str] = []
    gate = asyncio.Event()
    second_turn = False

    @step
    async def work(name: str) -> str:
        begun.append(name)
        if second_turn:
            return name
        try:
            if name == "slow":
                await asyncio.sleep(60)
            await gate.wait()
            executor = get_step_executor()
            if asks == "withdraw":
                await executor.withdraw_approval("question")
            elif asks == "remind":
                await executor.remind_approval("question", 1, "ada", None)
            else:
                await executor.reserve(Usage(input_tokens=1))
        except asyncio.CancelledError:
            cancelled.append(name)
            raise
        return name

    @workflow
    async def flow() -> list[str]:
        return list(await asyncio.gather(work("slow"), work("quick")))

    first = await world.open()
    handle = await first.start(flow.options(budget=Budget(turns=100)))
    await wait_until(lambda: len(begun) == 2)
    await world.kill(first)
    second_turn = True
    second = await world.open()
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == ["slow", "quick"]
    gate.set()
    await wait_until(lambda: cancelled == ["slow"])
    assert not first._engine.held_runs.drivers
