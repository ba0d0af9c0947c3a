"""Parking: a run that waits for time or a signal leaves memory, and is there again when it is needed."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
from engine_world import (
    FlakyStore,
    VirtualClock,
    World,
    get_state,
    read_journal,
    read_run,
    wait_for_state,
    wait_until_parked,
    wait_until_quiet,
)
from shared_flows import define_waiting

from holdfast import RunFailed, RunTimedOut, current_run, step, wait_for_signal, workflow
from holdfast.authoring.registry import definitions
from holdfast.engine import idle_runs
from holdfast.engine.phase import Phase
from holdfast.stores.operations import AppendRecord, Op, ParkRun
from waits import wait_until

pytestmark = pytest.mark.asyncio


async def test_a_run_that_waits_for_a_signal_is_parked_and_woken_by_it(world: World, clock: VirtualClock):
    flow = define_waiting()

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_parked(runtime, clock, handle)
    info = await handle.info()
    assert (info.state, info.waits_for) == ("waiting", "signal 'go'")
    assert not runtime._engine.held_runs.drivers
    await handle.signal("go", "hello")
    assert await handle.result() == "hello"


async def test_a_run_is_parked_although_the_clock_was_set_back(in_memory: World, clock: VirtualClock):
    flow = define_waiting()

    runtime = await in_memory.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: len(runtime._engine._idle_runs) == 1)
    clock.set_time(clock.now() - 3600)
    runtime._engine._idle_runs.sweep()
    await wait_for_state(runtime, handle, "waiting")


async def test_a_signal_sent_before_the_wait_is_not_lost(world: World):
    gate = asyncio.Event()

    @step
    async def first() -> None:
        await gate.wait()

    @workflow
    async def flow() -> list[Any]:
        await first()
        return [await wait_for_signal("go"), await wait_for_signal("go")]

    runtime = await world.open()
    handle = await runtime.start(flow)
    await handle.signal("go", 1)
    await handle.signal("go", 2)
    gate.set()
    assert await handle.result() == [1, 2]


async def test_a_signal_sent_twice_under_one_id_arrives_once(world: World):
    @workflow
    async def flow() -> list[Any]:
        return [await wait_for_signal("go"), await wait_for_signal("go")]

    runtime = await world.open()
    handle = await runtime.start(flow)
    assert await handle.signal("go", 1, id="a")
    assert not await handle.signal("go", 1, id="a")
    await handle.signal("go", 2, id="b")
    assert await handle.result() == [1, 2]


async def test_a_timer_wakes_a_parked_run(world: World, clock: VirtualClock):
    @workflow
    async def flow() -> str:
        await asyncio.sleep(3600)
        return "slept"

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_parked(runtime, clock, handle)
    assert (await handle.info()).waits_for == "a timer"
    clock.advance(3500)
    await asyncio.sleep(0.05)
    assert await get_state(runtime, handle) == "waiting"
    clock.advance(100)
    assert await handle.result() == "slept"
    [record] = await read_journal(runtime, handle)
    assert (record.kind.label, record.name) == ("timer", "3600 s")


async def test_a_timer_survives_the_worker(world: World, clock: VirtualClock):
    @workflow
    async def flow() -> str:
        await asyncio.sleep(3600)
        return "slept"

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: first._engine._idle_runs)
    await world.crash(first)
    clock.advance(3601)
    second = await world.open()
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == "slept"


async def test_a_short_sleep_stays_in_memory(world: World, clock: VirtualClock):
    @workflow
    async def flow() -> str:
        for _ in range(3):
            await asyncio.sleep(0.5)
        return "slept"

    runtime = await world.open()
    handle = await runtime.start(flow)
    driver = runtime._engine.held_runs.drivers_by_run_id[handle.run_id]
    for n in range(3):
        await wait_until(lambda n=n: driver.recorder.next_seq == n and driver in runtime._engine._idle_runs)
        runtime._engine._idle_runs.sweep(min_count=1)
        assert driver.phase is Phase.LIVE
        clock.advance(0.5)
    assert await handle.result() == "slept"
    assert (await read_run(runtime, handle)).epoch == 1


async def test_what_finally_undoes_is_undone_once_although_the_run_was_parked_three_times(
    world: World, clock: VirtualClock
):
    undone: list[str] = []

    @step
    async def undo() -> None:
        undone.append("undone")

    @workflow
    async def flow() -> str:
        try:
            for _ in range(3):
                await wait_for_signal("go")
        finally:
            await undo()
        return "done"

    runtime = await world.open()
    handle = await runtime.start(flow)
    for _ in range(3):
        await wait_until_parked(runtime, clock, handle)
        assert undone == []
        await handle.signal("go")
    assert await handle.result() == "done"
    assert undone == ["undone"]


async def test_a_run_with_a_step_in_flight_is_not_parked(world: World, clock: VirtualClock):
    gate = asyncio.Event()

    @step
    async def slow() -> str:
        await gate.wait()
        return "slow"

    @workflow
    async def flow() -> list[Any]:
        return list(await asyncio.gather(slow(), wait_for_signal("go")))

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine.held_runs.drivers_by_run_id[handle.run_id].steps.started)
    clock.advance(10)
    runtime._engine._idle_runs.sweep(min_count=5)
    assert await get_state(runtime, handle) == "running"
    gate.set()
    await handle.signal("go", "fast")
    assert await handle.result() == ["slow", "fast"]


async def test_a_park_that_races_with_a_signal_is_refused_and_the_signal_is_seen(world: World, clock: VirtualClock):
    """The signal is committed before the park, and the engine has not heard of it yet."""

    flow = define_waiting()

    store = FlakyStore(world.store())
    runtime = await world.open(store=store)
    handle = await runtime.start(flow)
    other = await world.open(definitions={})

    async def signal_first(ops: Any) -> None:
        if any(isinstance(op, ParkRun) for op in ops):
            store.before_commit = None
            await flow.get_handle(other.store_provider, handle.run_id).signal("go", "in time")

    store.before_commit = signal_first
    driver = runtime._engine.held_runs.drivers_by_run_id[handle.run_id]
    await wait_until(lambda: driver in runtime._engine._idle_runs)
    clock.advance(1.1)
    runtime._engine._idle_runs.sweep(min_count=0)
    assert await handle.result(timeout=10) == "in time"


async def test_a_signal_that_the_engine_hears_of_while_its_park_is_on_the_way_is_seen(
    world: World, clock: VirtualClock
):
    """As above, but the engine is told of the signal before it is told that the park was refused."""

    flow = define_waiting()

    store = FlakyStore(world.store())
    runtime = await world.open(store=store)
    engine = runtime._engine
    handle = await runtime.start(flow)
    other = await world.open(definitions={})

    async def signal_and_tell(ops: Any) -> None:
        if any(isinstance(op, ParkRun) for op in ops):
            store.before_commit = None
            await flow.get_handle(other.store_provider, handle.run_id).signal("go", "in time")
            await engine._poller.poll()

    store.before_commit = signal_and_tell
    driver = engine.held_runs.drivers_by_run_id[handle.run_id]
    await wait_until(lambda: driver in engine._idle_runs)
    clock.advance(1.1)
    engine._idle_runs.sweep(min_count=0)
    assert await handle.result(timeout=5) == "in time"


async def test_many_idle_runs_leave_memory_at_once(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(idle_runs, "MAX_IDLE_RUNS", 10)

    @workflow
    async def flow(n: int) -> int:
        return n + await wait_for_signal("go")

    runtime = await world.open()
    handles = [await runtime.start(flow, n) for n in range(60)]
    await wait_until(lambda: len(runtime._engine.held_runs.drivers) <= 10)
    states = [await get_state(runtime, handle) for handle in handles]
    assert states.count("waiting") >= 50
    for handle in handles:
        await handle.signal("go", 100)
    results = await asyncio.gather(*[handle.result(timeout=20) for handle in handles])
    assert results == [n + 100 for n in range(60)]


async def test_nothing_of_a_parked_run_stays_in_memory(in_memory: World, clock: VirtualClock):
    class Thing:
        pass

    held: list[weakref.ref[Thing]] = []

    @workflow
    async def flow() -> None:
        thing = Thing()
        held.append(weakref.ref(thing))
        async with asyncio.TaskGroup() as group:
            group.create_task(wait_for_signal("a"))
            await wait_for_signal("b")
        del thing

    runtime = await in_memory.open()
    handle = await runtime.start(flow)
    await wait_until_parked(runtime, clock, handle)
    await asyncio.sleep(0)
    gc.collect()
    assert held[0]() is None
    assert not runtime._engine.held_runs.drivers
    assert not runtime._engine.held_runs.drivers_by_run_id


async def test_a_signal_with_a_timeout(world: World, clock: VirtualClock):
    @workflow
    async def flow() -> str:
        try:
            return await wait_for_signal("go", timeout=60)
        except TimeoutError:
            return "nobody came"

    runtime = await world.open()
    late, early = await runtime.start(flow), await runtime.start(flow.options(new=True))
    await wait_until_parked(runtime, clock, late)
    assert (await late.info()).waits_for == "signal 'go' or a timer"
    await early.signal("go", "hello")
    assert await early.result() == "hello"
    clock.advance(60)
    assert await late.result() == "nobody came"


async def test_a_signal_of_the_wrong_type_fails_the_wait_by_name(in_memory: World):
    @workflow
    async def flow() -> str:
        return str(await wait_for_signal("age", type=int))

    runtime = await in_memory.open()
    handle = await runtime.start(flow)
    await handle.signal("age", "not a number")
    with pytest.raises(RunFailed, match=r"[sS]ignal 'age'"):
        await handle.result()


# Deploys that change what a parked run waits for


def waits_for(name: str) -> Any:
    async def flow() -> str:
        return await wait_for_signal(name)

    definitions.pop("flow", None)
    return workflow(name="flow")(flow)


@pytest.mark.parametrize("how", ["close", "crash"])
async def test_a_signal_sent_while_a_deploy_waited_for_another_name_is_found_after_the_rollback(
    world: World, clock: VirtualClock, how: str
):
    flow = waits_for("paid")
    first = await world.open()
    handle = await first.start(flow)
    await wait_until_parked(first, clock, handle)
    await first.close()
    waits_for("payment")  # the deploy
    second = await world.open()
    await flow.get_handle(second.store_provider, handle.run_id).signal("paid", "7 euros")
    await wait_until_parked(second, clock, handle)
    assert (await read_run(second, handle)).waits_for == "signal 'payment'"
    await (second.close() if how == "close" else world.crash(second))
    waits_for("paid")  # the rollback
    third = await world.open()
    assert await flow.get_handle(third.store_provider, handle.run_id).result(timeout=10) == "7 euros"


async def test_a_deploy_wakes_no_parked_run_whose_mailbox_is_empty(world: World, clock: VirtualClock):
    flow = waits_for("paid")
    first = await world.open()
    handles = [await first.start(flow.options(new=True)) for _ in range(5)]
    await wait_until(lambda: len(first._engine._idle_runs) == len(handles))
    clock.advance(1.1)
    first._engine.park_idle()
    for handle in handles:
        await wait_for_state(first, handle, "waiting")
    epochs = [(await read_run(first, handle)).epoch for handle in handles]
    await first.close()
    second = await world.open()
    await wait_until_quiet(second)
    assert [(await read_run(second, handle)).epoch for handle in handles] == epochs


async def test_a_resume_lets_the_code_of_today_look_at_a_paused_run_at_once(world: World, clock: VirtualClock):
    flow = waits_for("paid")
    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_parked(runtime, clock, handle)
    epoch = (await read_run(runtime, handle)).epoch
    assert await handle.pause()
    assert await handle.resume()

    async def looked_at() -> bool:
        return (await read_run(runtime, handle)).epoch > epoch

    await wait_until(looked_at)


# Deadlines


async def test_a_run_that_takes_longer_than_its_workflows_timeout_fails(world: World, clock: VirtualClock):
    @step
    async def slow() -> None:
        await asyncio.sleep(60)

    @workflow(timeout=10)
    async def flow() -> None:
        await slow()

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine.held_runs.drivers_by_run_id[handle.run_id].steps.started)
    clock.advance(10)
    with pytest.raises(RunFailed) as failed:
        await handle.result()
    assert isinstance(failed.value.__cause__, RunTimedOut)
    assert isinstance(failed.value.__cause__, TimeoutError)


async def test_a_deadline_wakes_a_parked_run_and_lets_it_clean_up_once(world: World, clock: VirtualClock):
    undone: list[str] = []

    @step
    async def undo() -> None:
        undone.append("undone")

    @workflow(timeout=100)
    async def flow() -> None:
        try:
            await wait_for_signal("never")
        finally:
            await undo()

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_parked(runtime, clock, handle)
    clock.advance(100)
    with pytest.raises(RunFailed, match="did not end within"):
        await handle.result()
    assert undone == ["undone"]


async def test_a_deadline_that_passed_without_a_worker_comes_before_steps_in_flight(world: World, clock: VirtualClock):
    calls: list[str] = []

    @step
    async def slow() -> None:
        calls.append("slow")
        await asyncio.sleep(60)

    @workflow(timeout=100)
    async def flow() -> None:
        await slow()

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: calls)
    await world.crash(first)
    clock.advance(200)
    second = await world.open()
    with pytest.raises(RunFailed, match="did not end within"):
        await flow.get_handle(second.store_provider, handle.run_id).result()
    assert calls == ["slow"]


async def test_a_worker_that_dies_while_a_timed_out_run_cleans_up_does_not_cut_the_clean_up_short(
    world: World, clock: VirtualClock
):
    """The deadline is in the journal: replay must not let it strike a second time."""
    calls: list[str] = []

    @step
    async def undo() -> str:
        calls.append("undo")
        if len(calls) == 1:
            await asyncio.sleep(60)
        return "undone"

    @workflow(timeout=100)
    async def flow() -> str:
        try:
            await wait_for_signal("never")
        except asyncio.CancelledError:
            return await undo()
        return ""

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: first._engine._idle_runs)
    clock.advance(100)
    await wait_until(lambda: calls)
    await world.crash(first)
    second = await world.open()
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == "undone"
    assert [record.kind.label for record in await read_journal(second, handle)] == ["deadline", "step"]


async def test_a_clean_up_that_waits_is_parked_and_woken_without_a_second_deadline(world: World, clock: VirtualClock):
    @workflow(timeout=100)
    async def flow() -> str:
        try:
            await wait_for_signal("never")
        except asyncio.CancelledError:
            await asyncio.sleep(500)
        return "cleaned up"

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs)
    clock.advance(100)
    await wait_until(lambda: runtime._engine.held_runs.drivers_by_run_id[handle.run_id]._timers.is_deadline_recorded)
    await wait_until_parked(runtime, clock, handle)
    clock.advance(500)
    assert await handle.result() == "cleaned up"


async def test_a_timer_that_was_due_without_a_worker_comes_before_steps_in_flight(world: World, clock: VirtualClock):
    calls: list[str] = []

    @step
    async def paid_call() -> str:
        calls.append("paid")
        await asyncio.sleep(60)
        return "answer"

    @workflow
    async def flow() -> str:
        try:
            async with asyncio.timeout(30):
                return await paid_call()
        except TimeoutError:
            return "gave up"

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: calls)
    await world.crash(first)
    clock.advance(31)
    second = await world.open()
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == "gave up"
    assert calls == ["paid"]


async def test_all_that_was_due_comes_first_also_if_it_is_recorded_one_by_one(world: World, clock: VirtualClock):
    """A commit of unknown outcome is repeated one operation at a time."""
    calls: list[str] = []

    @step
    async def paid_call(name: str) -> str:
        calls.append(name)
        await asyncio.sleep(60)
        return name

    @workflow
    async def flow() -> str:
        try:
            async with asyncio.timeout(30):
                try:
                    async with asyncio.timeout(10):
                        return await paid_call("model")
                except TimeoutError:
                    return await paid_call("fallback")
        except TimeoutError:
            return "gave up"

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: calls)
    await world.crash(first)
    clock.advance(31)
    store = FlakyStore(world.store())
    broken: list[int] = []

    def break_once(ops: Sequence[Op]) -> BaseException | None:
        if broken or sum(isinstance(op, AppendRecord) for op in ops) < 2:
            return None
        broken.append(len(ops))
        return ConnectionError("the wire was cut")

    async def take_a_while(_: Sequence[Op]) -> None:
        await asyncio.sleep(0.02)

    store.fail_before, store.before_commit = break_once, take_a_while
    second = await world.open(store=store)
    assert await flow.get_handle(second.store_provider, handle.run_id).result(timeout=10) == "gave up"
    assert broken == [2]
    assert calls == ["model"]


async def test_a_delayed_start_begins_when_its_time_has_come(world: World, clock: VirtualClock):
    @workflow
    async def flow() -> str:
        return "ran"

    runtime = await world.open()
    handle = await runtime.start(flow.options(delay=3600))
    await asyncio.sleep(0.05)
    assert await get_state(runtime, handle) == "pending"
    clock.advance(3600)
    assert await handle.result() == "ran"


# Silence


async def test_logging_of_workflow_code_is_silent_in_replay(
    world: World, clock: VirtualClock, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    log = logging.getLogger("users.own")
    replaying: list[bool] = []

    @step
    async def work() -> None:
        log.info("in the step")

    @workflow
    async def flow() -> None:
        log.info("begun")
        await work()
        replaying.append(current_run().is_replaying)
        log.info("worked")
        await wait_for_signal("go")
        log.info("woken")

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_parked(runtime, clock, handle)
    await handle.signal("go")
    await handle.result()
    own = [record.message for record in caplog.records if record.name == "users.own"]
    assert own == ["begun", "in the step", "worked", "woken"]
    assert replaying == [False, True]


async def test_an_exception_of_a_task_that_is_never_awaited_is_logged_once(
    world: World, clock: VirtualClock, caplog: pytest.LogCaptureFixture
):
    @step
    async def work() -> None: ...

    async def aside() -> None:
        await work()
        raise ValueError("nobody looks at this")

    @workflow
    async def flow() -> None:
        asyncio.create_task(aside())  # noqa: RUF006
        await work()
        await work()
        await wait_for_signal("go")

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_parked(runtime, clock, handle)
    await handle.signal("go")
    await handle.result()
    gc.collect()
    stray = [record for record in caplog.records if record.exc_info and record.exc_info[0] is ValueError]
    assert len(stray) == 1
    assert handle.run_id in stray[0].getMessage()


async def test_waiting_for_a_run_that_was_parked_elsewhere_and_ended_there(world: World, clock: VirtualClock):
    flow = define_waiting()

    first, second = await world.open(), await world.open()
    handle = await first.start(flow)
    waiting = asyncio.ensure_future(handle.result())
    await wait_until_parked(first, clock, handle)
    first._engine._claims._queues = ()  # the first engine takes nothing any more
    await flow.get_handle(second.store_provider, handle.run_id).signal("go", "done")
    async with asyncio.timeout(10):
        assert await waiting == "done"
    await wait_for_state(second, handle, "completed")
