"""Runs whose workers died: a worker tries them apart from others, and not for ever."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from engine_world import World, get_state, read_run, wait_for_state

from holdfast import RunDead, RunFailed, Runtime, step, workflow
from holdfast.engine.isolation import Isolation
from holdfast.stores.worker_deaths import ISOLATED_WAIT_LEASES, MIN_SOLO_SUSPICION, get_isolation_leases
from waits import wait_until

pytestmark = pytest.mark.asyncio


class Deadly:
    """A step that kills whoever executes it: it says so, and the test lets the process die."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.about_to_kill = asyncio.Event()
        self.deaths = 0

    async def kill(self) -> None:
        self.about_to_kill.set()
        await asyncio.sleep(60)

    async def restart_until(self, runtime: Runtime, run_id: str) -> Runtime:
        """Start another worker after each death, until this run has ended."""
        while not (await read_run(runtime, run_id)).state.is_terminal:
            try:
                await asyncio.wait_for(self.about_to_kill.wait(), 0.02)
            except TimeoutError:
                continue
            self.about_to_kill.clear()
            self.deaths += 1
            assert self.deaths < 20
            await self._world.crash(runtime)
            self.about_to_kill.clear()
            runtime = await self._world.open()
        return runtime


async def test_one_bad_run_ends_dead_and_ten_innocent_ones_complete(world: World):
    deadly = Deadly(world)

    @step
    async def kill() -> None:
        await deadly.kill()

    @step
    async def work(n: int) -> int:
        await asyncio.sleep(0.01)
        return n

    @workflow(id="bad")
    async def bad() -> None:
        await kill()

    @workflow
    async def innocent(n: int) -> int:
        return await work(n) + await work(1)

    runtime = await world.open()
    handles = [await runtime.start(innocent, n) for n in range(5)]
    await runtime.start(bad)
    handles += [await runtime.start(innocent, n) for n in range(5, 10)]
    runtime = await deadly.restart_until(runtime, "bad")
    for n, handle in enumerate(handles):
        assert await innocent.get_handle(runtime.store_provider, handle.run_id).result(timeout=20) == n + 1
    with pytest.raises(RunDead, match="died 3 times while this was the only run it held"):
        await bad.get_handle(runtime.store_provider, "bad").result()
    assert (await read_run(runtime, "bad")).delivery_count == 3
    assert deadly.deaths <= 7


async def test_a_child_that_kills_its_worker_ends_dead_and_its_parent_gets_the_error(world: World):
    deadly = Deadly(world)

    @step
    async def kill() -> None:
        await deadly.kill()

    @workflow
    async def child() -> None:
        await kill()

    @workflow(id="parent")
    async def parent() -> None:
        await child()

    runtime = await world.open()
    await runtime.start(parent)
    runtime = await deadly.restart_until(runtime, "parent")
    with pytest.raises(RunFailed) as failed:
        await parent.get_handle(runtime.store_provider, "parent").result()
    assert isinstance(failed.value.__cause__, RunDead)
    assert (await read_run(runtime, "parent")).delivery_count == 0


async def crash_twice(world: World, runtime: Runtime, begun: list[Any], runs: int) -> Runtime:
    """Two workers die with these runs, each when the steps of all of them have begun."""
    for _ in range(2):
        await wait_until(lambda: len(begun) == runs)
        begun.clear()
        await world.crash(runtime)
        runtime = await world.open()
    return runtime


async def test_a_worker_that_tries_a_run_alone_starts_others_when_it_has_recorded_something(in_memory: World):
    begun: list[str] = []
    gate = asyncio.Event()

    @step
    async def hold(name: str) -> str:
        begun.append(name)
        await gate.wait()
        return name

    @step
    async def quick() -> str:
        return "quick"

    @workflow(id="held-{name}")
    async def held(name: str) -> str:
        return await hold(name)

    @workflow(id="other")
    async def other() -> str:
        return await quick()

    runtime = await in_memory.open()
    for name in "ab":
        await runtime.start(held, name)
    runtime = await crash_twice(in_memory, runtime, begun, 2)
    await wait_until(lambda: begun == ["a"])
    handle = await runtime.start(other)
    await asyncio.sleep(0.3)
    assert begun == ["a"]
    assert [await get_state(runtime, run) for run in ("held-a", "held-b", "other")] == ["running", "pending", "pending"]
    gate.set()
    assert await handle.result(timeout=20) == "quick"
    for name in "ab":
        assert await held.get_handle(runtime.store_provider, f"held-{name}").result(timeout=20) == name


async def test_an_isolated_run_that_waits_leaves_memory_at_once_for_the_next_one(in_memory: World):
    begun: list[str] = []

    @step
    async def hold(name: str) -> str:
        begun.append(name)
        return name if len(begun) > 4 else await asyncio.sleep(60, "")

    @workflow(id="waits")
    async def waits() -> str:
        from holdfast import wait_for_signal

        begun.append("waits")
        return await wait_for_signal("go")

    @workflow(id="held")
    async def held() -> str:
        return await hold("held")

    runtime = await in_memory.open()
    for flow in (waits, held):
        await runtime.start(flow)
    runtime = await crash_twice(in_memory, runtime, begun, 2)
    begun += ["", "", "", ""]
    assert await held.get_handle(runtime.store_provider, "held").result(timeout=20) == "held"
    await wait_for_state(runtime, "waits", "waiting")
    assert (await read_run(runtime, "waits")).suspicion == 0


# Bounds, without an engine


class Holder:
    """An engine with a clock of its own, and whatever runs a test gives it."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.clock: Any = SimpleNamespace(monotonic=lambda: self.time)
        self.held: list[Any] = []

    @property
    def is_idle(self) -> bool:
        return not self.held

    @property
    def drivers(self) -> dict[int, Any]:
        return dict(enumerate(self.held))

    def take(self, suspicion: int, count: int = 1) -> list[Any]:
        taken = [
            SimpleNamespace(
                run=SimpleNamespace(id="r", suspicion=suspicion), is_isolated=suspicion > 1, is_closed=False
            )
            for _ in range(count)
        ]
        self.held += taken
        return taken


LEASE = 10.0


@pytest.fixture
def holder() -> Holder:
    return Holder()


@pytest.fixture
def isolation(holder: Holder) -> Isolation:
    return Isolation(holder, holder.clock, LEASE)  # type: ignore[arg-type]


async def test_a_worker_that_holds_nothing_takes_suspects_at_once_and_nothing_else(
    holder: Holder, isolation: Isolation
):
    assert isolation.get_suspect_delay_s() == 0.0
    isolation.note_claimed(holder.take(MIN_SOLO_SUSPICION))
    assert isolation.get_suspect_delay_s() is None
    assert isolation.is_exclusive


async def test_a_busy_worker_leaves_suspects_to_others_for_a_while_and_then_takes_them_too(
    holder: Holder, isolation: Isolation
):
    holder.take(0)
    assert isolation.get_suspect_delay_s() == ISOLATED_WAIT_LEASES * LEASE
    isolation.note_claimed(holder.take(MIN_SOLO_SUSPICION))
    assert isolation.get_suspect_delay_s() is None
    assert not isolation.is_exclusive


async def test_the_next_suspects_are_taken_when_all_have_recorded_something_or_left(
    holder: Holder, isolation: Isolation
):
    one, other = holder.take(3, 2)
    isolation.note_claimed([one, other])
    one.is_isolated = False
    assert isolation.is_exclusive
    other.is_closed = True
    holder.held.remove(other)
    assert not isolation.is_exclusive
    assert isolation.get_suspect_delay_s() == 0.0


async def test_isolation_ends_after_a_bound_that_doubles_with_each_further_death(holder: Holder, isolation: Isolation):
    for doubling, suspicion in enumerate((MIN_SOLO_SUSPICION, MIN_SOLO_SUSPICION + 1, MIN_SOLO_SUSPICION + 2)):
        holder.held.clear()
        isolation.note_claimed(holder.take(suspicion))
        holder.time += get_isolation_leases(MIN_SOLO_SUSPICION) * LEASE * 2**doubling - 0.1
        assert isolation.is_exclusive
        holder.time += 0.2
        assert not isolation.is_exclusive
        assert isolation.get_suspect_delay_s() == ISOLATED_WAIT_LEASES * LEASE


async def test_suspects_taken_one_after_another_do_not_prolong_the_bound(holder: Holder, isolation: Isolation):
    began = holder.time
    while isolation.get_suspect_delay_s() == 0.0:
        [suspect] = holder.take(MIN_SOLO_SUSPICION)
        isolation.note_claimed([suspect])
        holder.time += LEASE
        suspect.is_isolated = False
    assert holder.time - began == get_isolation_leases(MIN_SOLO_SUSPICION) * LEASE


async def test_a_worker_that_has_taken_something_else_is_not_exclusive_any_more(holder: Holder, isolation: Isolation):
    isolation.note_claimed(holder.take(MIN_SOLO_SUSPICION))
    holder.take(0)
    assert not isolation.is_exclusive
