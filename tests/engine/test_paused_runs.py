"""Pausing: nothing new begins until the run is resumed, and nothing that came meanwhile is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from engine_world import (
    HeldCommits,
    VirtualClock,
    World,
    describe_journal,
    get_state,
    read_journal,
    read_run,
    wait_for_state,
    wait_until_ended,
    wait_until_parked,
    wait_until_quiet,
)
from shared_flows import define_calling, define_cleaning_up, define_waiting

from holdfast import RunCancelled, RunFailed, step, wait_for_signal, workflow
from holdfast.engine import driver as drivers
from holdfast.stores.operations import ParkRun, PauseRun, ResumeRun
from waits import wait_until

pytestmark = pytest.mark.asyncio


async def wait_until_paused(runtime: Any, handle: Any) -> None:
    """Wait until nobody holds the paused run."""
    await wait_for_state(runtime, handle, "waiting", "pending")
    await wait_until(lambda: handle.run_id not in runtime._engine.held_runs.drivers_by_run_id)
    assert (await handle.info()).is_paused


async def test_a_run_that_has_not_started(world: World):
    log: list[str] = []

    @workflow(queue="other")
    async def flow() -> str:
        log.append("begun")
        return await wait_for_signal("go")

    runtime = await world.open(queues=["default"])
    handle = await runtime.start(flow)
    assert [await handle.pause(), await handle.pause()] == [True, False]
    other = await world.open(queues=["other"])
    await asyncio.sleep(0.05)
    await wait_until_quiet(other)
    assert (log, await get_state(runtime, handle)) == ([], "pending")
    assert [await handle.resume(), await handle.resume()] == [True, False]
    await handle.signal("go", "done")
    assert await handle.result() == "done"
    assert log == ["begun"]


async def test_a_run_that_was_paused_does_not_go_on_by_a_signal_that_is_seen_in_the_same_look(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    flow = define_waiting()

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: handle.run_id in runtime._engine.held_runs.drivers_by_run_id)
    await wait_until_quiet(runtime)
    store, both = runtime._engine.store, asyncio.Event()
    new_signals, requests = store.claims.get_new_signals, store.claims.get_run_requests

    async def when_both_are_there(worker: int, after: int) -> Any:
        await both.wait()
        return await new_signals(worker, after)

    async def slowly(worker: int) -> Any:
        await asyncio.sleep(0.05)
        return await requests(worker)

    monkeypatch.setattr(store.claims, "get_new_signals", when_both_are_there)
    monkeypatch.setattr(store.claims, "get_run_requests", slowly)
    assert await handle.pause()
    await handle.signal("go", "done")
    both.set()
    await wait_until(lambda: handle.run_id not in runtime._engine.held_runs.drivers_by_run_id)
    assert await get_state(runtime, handle) != "completed"
    assert await handle.resume()
    assert await handle.result() == "done"


async def test_a_run_that_is_resumed_still_waits_for_its_delay(world: World, clock: VirtualClock):
    @workflow
    async def flow() -> str:
        return "done"

    runtime = await world.open()
    handle = await runtime.start(flow.options(delay=1000))
    await handle.pause()
    await handle.resume()
    await asyncio.sleep(0.05)
    assert await get_state(runtime, handle) == "pending"
    clock.advance(1000)
    assert await handle.result() == "done"


async def test_a_parked_run_stays_where_it_is_and_takes_what_came_when_it_is_resumed(world: World, clock: VirtualClock):
    @workflow
    async def flow() -> list[Any]:
        return [await wait_for_signal("go"), await wait_for_signal("go")]

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_parked(runtime, clock, handle)
    epoch = (await read_run(runtime, handle)).epoch
    await handle.pause()
    await handle.signal("go", 1)
    await handle.signal("go", 2)
    await asyncio.sleep(0.05)
    await wait_until_quiet(runtime)
    run = await read_run(runtime, handle)
    assert (run.state, run.epoch) == ("waiting", epoch)
    await handle.resume()
    assert await handle.result() == [1, 2]
    assert not (await handle.info()).is_paused


async def test_an_idle_run_in_memory_leaves_it(world: World):
    flow = define_waiting()

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs)
    await handle.pause()
    await wait_until_paused(runtime, handle)
    await handle.signal("go", 1)
    await asyncio.sleep(0.02)
    assert await read_journal(runtime, handle) == []
    await handle.resume()
    assert await handle.result() == 1


async def test_a_step_in_flight_ends_and_is_recorded_and_nothing_new_begins(world: World):
    log: list[str] = []
    gate = asyncio.Event()

    @step
    async def work(name: str) -> str:
        log.append(name)
        if name == "a":
            await gate.wait()
        return name

    @workflow
    async def flow() -> list[str]:
        return [await work("a"), await work("b"), await work("c")]

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: log)
    await handle.pause()
    await wait_until(lambda: runtime._engine.held_runs.drivers_by_run_id[handle.run_id]._is_pausing)
    assert await get_state(runtime, handle) == "running"
    assert (await handle.info()).is_paused
    gate.set()
    await wait_until_paused(runtime, handle)
    assert log == ["a"]
    assert await describe_journal(runtime, handle) == ["step work"]
    await handle.resume()
    assert await handle.result() == ["a", "b", "c"]
    assert log == ["a", "b", "c"]


async def test_of_several_steps_in_flight_all_are_recorded(world: World):
    log: list[int] = []
    gates = [asyncio.Event() for _ in range(3)]

    @step
    async def work(n: int) -> int:
        log.append(n)
        if n < 3:
            await gates[n].wait()
        return n

    @workflow
    async def flow() -> list[int]:
        first = await asyncio.gather(*[work(n) for n in range(3)])
        return [*first, await work(3)]

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: len(log) == 3)
    await handle.pause()
    await wait_until(lambda: runtime._engine.held_runs.drivers_by_run_id[handle.run_id]._is_pausing)
    for n in (2, 0, 1):
        assert await get_state(runtime, handle) == "running"
        gates[n].set()
        await asyncio.sleep(0.005)
    await wait_until_paused(runtime, handle)
    assert [record.position for record in await read_journal(runtime, handle)] == [2, 0, 1]
    await handle.resume()
    assert await handle.result() == [0, 1, 2, 3]
    assert log == [0, 1, 2, 3]


async def test_a_signal_that_is_there_when_the_step_in_flight_ends_waits_too(world: World):
    gate, begun = asyncio.Event(), asyncio.Event()

    @step
    async def work() -> None:
        begun.set()
        await gate.wait()

    @workflow
    async def flow() -> Any:
        await work()
        return await wait_for_signal("go")

    runtime = await world.open()
    handle = await runtime.start(flow)
    await begun.wait()
    await handle.signal("go", 5)
    await handle.pause()
    await wait_until(lambda: runtime._engine.held_runs.drivers_by_run_id[handle.run_id]._is_pausing)
    gate.set()
    await wait_until_paused(runtime, handle)
    assert await describe_journal(runtime, handle) == ["step work"]
    await handle.resume()
    assert await handle.result() == 5


async def test_a_timer_that_is_due_meanwhile_fires_when_the_run_is_resumed(world: World, clock: VirtualClock):
    @workflow
    async def flow() -> str:
        await asyncio.sleep(100)
        return "slept"

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs)
    await handle.pause()
    await wait_until_paused(runtime, handle)
    clock.advance(500)
    await asyncio.sleep(0.05)
    assert await read_journal(runtime, handle) == []
    await handle.resume()
    assert await handle.result() == "slept"


async def test_a_timer_that_is_not_due_yet_is_waited_for_after_the_pause(world: World, clock: VirtualClock):
    @workflow
    async def flow() -> str:
        await asyncio.sleep(100)
        return "slept"

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs)
    await handle.pause()
    await wait_until_paused(runtime, handle)
    await handle.resume()
    await wait_until(lambda: runtime._engine._idle_runs)
    assert await read_journal(runtime, handle) == []
    clock.advance(100)
    assert await handle.result() == "slept"


async def test_a_timer_that_comes_due_while_a_step_in_flight_delays_the_pause_waits(world: World, clock: VirtualClock):
    gate, begun = asyncio.Event(), asyncio.Event()

    @step
    async def work() -> str:
        begun.set()
        await gate.wait()
        return "worked"

    @workflow
    async def flow() -> str:
        async with asyncio.timeout(100):
            return await work()

    runtime = await world.open()
    handle = await runtime.start(flow)
    await begun.wait()
    await handle.pause()
    await wait_until(lambda: runtime._engine.held_runs.drivers_by_run_id[handle.run_id]._is_pausing)
    clock.advance(101)
    await asyncio.sleep(0.02)
    gate.set()
    # Its last step has ended, and that is recorded: the code has nothing more to do, so the run completes.
    assert await handle.result() == "worked"


async def test_a_deadline_that_passes_meanwhile_strikes_when_the_run_is_resumed(world: World, clock: VirtualClock):
    @workflow(timeout=100)
    async def flow() -> None:
        await wait_for_signal("never")

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs)
    await handle.pause()
    await wait_until_paused(runtime, handle)
    clock.advance(500)
    await asyncio.sleep(0.05)
    assert await get_state(runtime, handle) == "waiting"
    await handle.resume()
    with pytest.raises(RunFailed, match="RunTimedOut"):
        await handle.result()


async def test_the_end_of_a_child_waits_and_the_child_continues(world: World):
    child = define_waiting("child")

    parent = define_calling(child, "parent")

    runtime = await world.open()
    handle = await runtime.start(parent.options(id="p"))
    await wait_until(lambda: len(runtime._engine._idle_runs) == 2)
    await handle.pause()
    await wait_until_paused(runtime, handle)
    await child.get_handle(runtime.store_provider, "p:child-1").signal("go", 7)
    assert await child.get_handle(runtime.store_provider, "p:child-1").result() == 7
    await wait_until_quiet(runtime)
    assert (await get_state(runtime, handle), await read_journal(runtime, handle)) == ("waiting", [])
    await handle.resume()
    assert await handle.result() == 7


async def test_a_paused_child_keeps_its_parent_waiting(world: World):
    child = define_waiting("child")

    parent = define_calling(child, "parent")

    runtime = await world.open()
    handle = await runtime.start(parent.options(id="p"))
    await wait_until(lambda: len(runtime._engine._idle_runs) == 2)
    kid = child.get_handle(runtime.store_provider, "p:child-1")
    await kid.pause()
    await wait_until_paused(runtime, kid)
    await kid.signal("go", 1)
    await asyncio.sleep(0.02)
    assert not (await read_run(runtime, handle)).state.is_terminal
    await kid.resume()
    assert await handle.result() == 1


async def test_no_child_is_begun_while_the_run_is_being_paused(world: World):
    gate, begun = asyncio.Event(), asyncio.Event()

    @step
    async def work() -> None:
        begun.set()
        await gate.wait()

    @workflow
    async def child() -> str:
        return "child"

    @workflow
    async def parent() -> str:
        await work()
        return await child()

    runtime = await world.open()
    handle = await runtime.start(parent.options(id="p"))
    await begun.wait()
    await handle.pause()
    await wait_until(lambda: runtime._engine.held_runs.drivers_by_run_id["p"]._is_pausing)
    gate.set()
    await wait_until_paused(runtime, handle)
    assert await runtime._engine.store.get_run("p:child-2") is None
    await handle.resume()
    assert await handle.result() == "child"


async def test_a_resume_before_the_pause_was_carried_out(world: World):
    log: list[str] = []
    gate = asyncio.Event()

    @step
    async def work(name: str) -> str:
        log.append(name)
        if name == "a":
            await gate.wait()
        return name

    @workflow
    async def flow() -> list[Any]:
        return [await work("a"), await work("b"), await wait_for_signal("go")]

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: log)
    await handle.pause()
    await wait_until(lambda: runtime._engine.held_runs.drivers_by_run_id[handle.run_id]._is_pausing)
    await handle.signal("go", 1)
    await handle.resume()
    await wait_for_polls(runtime)
    gate.set()
    assert await handle.result() == ["a", "b", 1]
    assert (await read_run(runtime, handle)).epoch == 1


async def wait_for_polls(runtime: Any) -> None:
    await asyncio.sleep(0.01)
    await wait_until(lambda: not runtime._engine._poller.background_tasks)


async def test_a_resume_while_the_park_is_on_its_way(world: World):
    flow = define_waiting()

    store = HeldCommits(world.store(), ParkRun)
    runtime = await world.open(store=store)
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs)
    await handle.pause()
    await store.reached.wait()
    outside = await world.open_store()
    await outside.commit([ResumeRun(handle.run_id, outside.now())])
    store.release.set()
    await handle.signal("go", 3)
    assert await handle.result() == 3
    assert (await read_run(runtime, handle)).epoch == 1


async def test_a_resume_and_another_pause_while_a_step_is_in_flight(world: World):
    log: list[str] = []
    gate = asyncio.Event()

    @step
    async def work(name: str) -> str:
        log.append(name)
        if name == "a":
            await gate.wait()
        return name

    @workflow
    async def flow() -> list[str]:
        return [await work("a"), await work("b")]

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: log)
    assert [await handle.pause(), await handle.resume(), await handle.pause()] == [True, True, True]
    await wait_until(lambda: runtime._engine.held_runs.drivers_by_run_id[handle.run_id]._is_pausing)
    gate.set()
    await wait_until_paused(runtime, handle)
    assert log == ["a"]
    await handle.resume()
    assert await handle.result() == ["a", "b"]


async def test_a_pause_survives_the_death_of_the_worker(world: World):
    log: list[str] = []

    @step
    async def work() -> str:
        log.append("work")
        if len(log) == 1:
            await asyncio.sleep(60)
        return "worked"

    flow = define_calling(work)

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: log)
    await handle.pause()
    await wait_until(lambda: first._engine.held_runs.drivers_by_run_id[handle.run_id]._is_pausing)
    await world.crash(first)
    second = await world.open()
    await second._engine.store.workers.reap_dead(second.worker_id)
    await asyncio.sleep(0.05)
    assert (await get_state(second, handle), log) == ("pending", ["work"])
    await flow.get_handle(second.store_provider, handle.run_id).resume()
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == "worked"


async def test_a_pause_survives_a_hand_over(world: World):
    log: list[str] = []

    @step
    async def work() -> str:
        log.append("work")
        if len(log) == 1:
            await asyncio.sleep(60)
        return "worked"

    flow = define_calling(work)

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: log)
    await handle.pause()
    await first.close()
    second = await world.open()
    await asyncio.sleep(0.05)
    assert (await get_state(second, handle), log) == ("pending", ["work"])
    await flow.get_handle(second.store_provider, handle.run_id).resume()
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == "worked"
    assert (await read_run(second, handle)).delivery_count == 0


async def test_cancelling_a_paused_run(world: World):
    log: list[str] = []
    flow = define_cleaning_up(log)

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs)
    await handle.pause()
    await wait_until_paused(runtime, handle)
    await handle.cancel()
    with pytest.raises(RunCancelled):
        await handle.result()
    assert log == ["cleaned up"]


async def test_cancelling_a_run_that_is_being_paused(world: World):
    log: list[str] = []

    @step
    async def work(name: str) -> None:
        log.append(name)
        if name == "a":
            await asyncio.sleep(60)

    @workflow
    async def flow() -> None:
        try:
            await work("a")
        finally:
            await work("clean up")

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: log)
    await handle.pause()
    await wait_until(lambda: runtime._engine.held_runs.drivers_by_run_id[handle.run_id]._is_pausing)
    await handle.cancel()
    with pytest.raises(RunCancelled):
        await handle.result()
    assert log == ["a", "clean up"]


async def test_a_clean_up_after_a_cancel_can_be_paused(world: World):
    log: list[str] = []
    gate = asyncio.Event()

    @step
    async def clean_up(n: int) -> None:
        log.append(f"clean up {n}")
        await gate.wait()

    @workflow
    async def flow() -> None:
        try:
            await wait_for_signal("never")
        finally:
            await clean_up(1)
            await clean_up(2)

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs)
    await handle.cancel()
    await wait_until(lambda: log)
    assert await handle.pause()
    await wait_until(lambda: runtime._engine.held_runs.drivers_by_run_id[handle.run_id]._is_pausing)
    gate.set()
    await wait_until_paused(runtime, handle)
    assert log == ["clean up 1"]
    await handle.resume()
    with pytest.raises(RunCancelled):
        await handle.result()
    assert log == ["clean up 1", "clean up 2"]


async def test_undoing_can_be_paused(world: World):
    log: list[str] = []
    gate = asyncio.Event()

    async def undo(out: str) -> None:
        log.append(f"undo {out}")
        await gate.wait()

    @step(compensate=undo)
    async def work(name: str) -> str:
        return name

    @workflow
    async def flow() -> None:
        await work("a")
        await work("b")
        raise ValueError("no")

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: log)
    await handle.pause()
    await wait_until(lambda: runtime._engine.held_runs.drivers_by_run_id[handle.run_id]._is_pausing)
    gate.set()
    await wait_until_paused(runtime, handle)
    assert log == ["undo b"]
    await handle.resume()
    await wait_until_ended(runtime, handle)
    assert log == ["undo b", "undo a"]


async def test_a_run_that_ends_while_it_is_being_paused_completes(world: World):
    gate, begun = asyncio.Event(), asyncio.Event()

    @step
    async def work() -> str:
        begun.set()
        await gate.wait()
        return "worked"

    flow = define_calling(work)

    runtime = await world.open()
    handle = await runtime.start(flow)
    await begun.wait()
    await handle.pause()
    await wait_until(lambda: runtime._engine.held_runs.drivers_by_run_id[handle.run_id]._is_pausing)
    gate.set()
    assert await handle.result() == "worked"
    run = await read_run(runtime, handle)
    assert (run.state, run.paused_at) == ("completed", None)


async def test_a_pause_during_replay_takes_effect(world: World, monkeypatch: pytest.MonkeyPatch):
    log: list[str] = []

    @step
    async def work(n: int) -> int:
        log.append(f"work {n}")
        if n == 3 and log.count("work 3") == 1:
            await asyncio.sleep(60)
        return n

    @workflow
    async def flow() -> int:
        return sum([await work(n) for n in range(5)])

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: len(log) == 4)
    await first.close()
    monkeypatch.setattr(drivers, "REPLAY_BATCH_SIZE", 0)  # it stands still in the middle of its past
    second = await world.open()
    await wait_until(lambda: handle.run_id in second._engine.held_runs.drivers_by_run_id)
    again = flow.get_handle(second.store_provider, handle.run_id)
    await again.pause()
    await wait_for_polls(second)
    monkeypatch.setattr(drivers, "REPLAY_BATCH_SIZE", 500)
    await wait_until_paused(second, again)
    assert len(log) == 4
    await again.resume()
    assert await again.result() == 10
    assert log[4:] == ["work 3", "work 4"]


async def test_a_pause_while_the_run_is_being_parked(world: World, clock: VirtualClock):
    flow = define_waiting()

    store = HeldCommits(world.store(), ParkRun)
    runtime = await world.open(store=store)
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs)
    clock.advance(1.1)
    runtime._engine._idle_runs.sweep()
    await store.reached.wait()
    outside = await world.open_store()
    await outside.commit([PauseRun(handle.run_id, outside.now())])
    store.release.set()
    await wait_until_paused(runtime, handle)
    await handle.signal("go", 1)
    await asyncio.sleep(0.02)
    assert await get_state(runtime, handle) == "waiting"
    await handle.resume()
    assert await handle.result() == 1


async def test_a_run_in_another_engine(world: World):
    @workflow(queue="other")
    async def flow() -> Any:
        return await wait_for_signal("go")

    here, there = await world.open(queues=["default"]), await world.open(queues=["other"])
    handle = await here.start(flow)
    await wait_until(lambda: there._engine._idle_runs)
    await handle.pause()
    await wait_for_state(here, handle, "waiting")
    await handle.signal("go", 1)
    await asyncio.sleep(0.02)
    assert await get_state(here, handle) == "waiting"
    await handle.resume()
    assert await handle.result() == 1
