"""Cancelling: the run's code is interrupted, may clean up, and what was promised to be cancelled never completes."""

from __future__ import annotations

import asyncio
import threading
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
from shared_flows import define_cleaning_up, define_waiting

from holdfast import (
    Client,
    RunCancelled,
    RunEnded,
    RunFailed,
    RunNotFound,
    current_step,
    step,
    wait_for_signal,
    workflow,
)
from holdfast.engine import driver as drivers
from holdfast.services.run_control import retry_run
from holdfast.stores.operations import AppendRecord, CancelRun, CancelState, FinishRun, ParkRun, PauseRun
from waits import wait_until

pytestmark = pytest.mark.asyncio


async def cancel_from_outside(world: World, run_id: str) -> Any:
    """Cancel a run from another process."""
    store = await world.open_store()
    [answer] = await store.commit([CancelRun(run_id, store.now())])
    return answer


async def test_a_run_that_waits_is_cancelled(world: World):
    seen: list[str] = []

    @workflow
    async def flow() -> None:
        try:
            await wait_for_signal("never")
        except asyncio.CancelledError:
            seen.append("interrupted")
            raise

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs)
    assert await handle.cancel() is True
    with pytest.raises(RunCancelled) as cancelled:
        await handle.result()
    assert (cancelled.value.run_id, cancelled.value.state) == (handle.run_id, "cancelled")
    assert cancelled.value.__cause__ is None
    run = await read_run(runtime, handle)
    assert (run.state, run.cancel_state, run.error, run.output) == ("cancelled", CancelState.RECORDED, None, None)
    assert seen == ["interrupted"]
    assert await describe_journal(runtime, handle) == ["cancel cancel"]


async def test_an_async_step_in_flight_is_cancelled(world: World):
    log: list[str] = []

    @step
    async def slow() -> None:
        log.append("begun")
        try:
            await asyncio.sleep(60)
        finally:
            log.append("stopped")

    @step
    async def later() -> None:
        log.append("later")

    @workflow
    async def flow() -> None:
        await slow()
        await later()

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: log)
    await handle.cancel()
    with pytest.raises(RunCancelled):
        await handle.result()
    await wait_until(lambda: len(log) == 2)
    assert log == ["begun", "stopped"]


async def test_a_step_in_a_thread_learns_of_it_by_its_heartbeat(world: World):
    log: list[str] = []
    over = threading.Event()

    @step
    def slow() -> None:
        me = current_step()
        log.append("begun")
        try:
            while not over.wait(0.002):
                me.heartbeat()
        except asyncio.CancelledError:
            log.append("told")
            raise

    @workflow
    async def flow() -> None:
        await slow()

    runtime = await world.open()
    handle = await runtime.start(flow)
    try:
        await wait_until(lambda: log)
        await handle.cancel()
        with pytest.raises(RunCancelled):
            await handle.result()
        await wait_until(lambda: len(log) == 2)
    finally:
        over.set()
    assert log == ["begun", "told"]


async def test_between_two_steps(world: World):
    """The cancel is asked for while the first outcome is on its way; the second step is never begun, or interrupted."""
    log: list[str] = []

    @step
    async def first() -> None:
        log.append("first")

    @step
    async def second() -> None:
        log.append("second")
        await asyncio.sleep(60)

    @workflow
    async def flow() -> None:
        await first()
        await second()

    store = HeldCommits(world.store(), lambda op: isinstance(op, AppendRecord) and op.record.name == "first")
    runtime = await world.open(store=store)
    handle = await runtime.start(flow)
    await store.reached.wait()
    await cancel_from_outside(world, handle.run_id)
    await wait_until(
        lambda: runtime._engine.held_runs.drivers_by_run_id[handle.run_id]._cancel_state is CancelState.RECORDED
    )
    store.release.set()
    with pytest.raises(RunCancelled):
        await handle.result()
    assert log in (["first"], ["first", "second"])
    assert await describe_journal(runtime, handle) == ["step first", "cancel cancel"]


async def test_a_parked_run_is_brought_back_and_cancelled(world: World, clock: VirtualClock):
    log: list[str] = []
    flow = define_cleaning_up(log)

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_parked(runtime, clock, handle)
    await handle.cancel()
    with pytest.raises(RunCancelled):
        await handle.result()
    assert log == ["cleaned up"]


async def test_a_run_that_has_not_started_is_cancelled_at_once(world: World):
    log: list[str] = []

    @workflow(queue="elsewhere")
    async def flow() -> None:
        log.append("begun")

    runtime = await world.open(queues=["default"])
    handle = await runtime.start(flow)
    waiting = asyncio.ensure_future(handle.result())
    assert await handle.cancel()
    assert await get_state(runtime, handle) == "cancelled"
    with pytest.raises(RunCancelled):
        await waiting
    assert not await handle.cancel()
    await world.open(queues=["elsewhere"])
    await asyncio.sleep(0.02)
    assert log == []
    assert await read_journal(runtime, handle) == []


async def test_a_run_with_a_delay_is_cancelled_at_once(world: World, clock: VirtualClock):
    @workflow
    async def flow() -> None: ...

    runtime = await world.open()
    handle = await runtime.start(flow.options(delay=1000))
    await handle.cancel()
    with pytest.raises(RunCancelled):
        await handle.result()


async def test_a_run_that_was_handed_over_is_cancelled_by_its_next_worker(world: World):
    log: list[str] = []

    @step
    async def work() -> None:
        log.append("work")
        if len(log) == 1:
            await asyncio.sleep(60)

    @step
    async def clean_up() -> None:
        log.append("cleaned up")

    @workflow
    async def flow() -> None:
        try:
            await work()
        finally:
            await clean_up()

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: log)
    await first.close()
    await cancel_from_outside(world, handle.run_id)
    second = await world.open()
    with pytest.raises(RunCancelled):
        await flow.get_handle(second.store_provider, handle.run_id).result()
    assert log == ["work", "cleaned up"]  # what was in flight is not begun again only to be cancelled


async def test_a_cancel_survives_the_worker_that_received_it(world: World):
    log: list[str] = []

    @step
    async def clean_up() -> None:
        log.append("clean up")
        if len(log) == 1:
            await asyncio.sleep(60)

    @workflow
    async def flow() -> None:
        try:
            await wait_for_signal("never")
        finally:
            await clean_up()

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: first._engine._idle_runs)
    await handle.cancel()
    await wait_until(lambda: log)
    await world.crash(first)
    second = await world.open()
    with pytest.raises(RunCancelled):
        await flow.get_handle(second.store_provider, handle.run_id).result()
    assert log == ["clean up", "clean up"]
    assert await describe_journal(second, handle) == ["cancel cancel", "step clean_up"]


async def test_a_worker_that_dies_before_it_records_the_cancel_leaves_it_to_the_next(world: World):
    flow = define_waiting(signal="never")

    store = HeldCommits(world.store(), AppendRecord)
    first = await world.open(store=store)
    handle = await first.start(flow)
    await wait_until(lambda: first._engine._idle_runs)
    await handle.cancel()
    await store.reached.wait()
    await world.crash(first)
    second = await world.open()
    with pytest.raises(RunCancelled):
        await flow.get_handle(second.store_provider, handle.run_id).result()
    assert await describe_journal(second, handle) == ["cancel cancel"]


async def test_while_it_is_being_replayed(world: World, monkeypatch: pytest.MonkeyPatch):
    log: list[str] = []

    @step
    async def work(n: int) -> int:
        log.append(f"work {n}")
        return n

    @workflow
    async def flow() -> None:
        for n in range(5):
            await work(n)
        await wait_for_signal("go")
        await work(99)

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: first._engine._idle_runs and len(log) == 5)
    await first.close()
    monkeypatch.setattr(drivers, "REPLAY_BATCH_SIZE", 0)  # it stands still in the middle of its past
    second = await world.open()
    await wait_until(lambda: handle.run_id in second._engine.held_runs.drivers_by_run_id)
    again = flow.get_handle(second.store_provider, handle.run_id)
    await again.signal("go")
    await again.cancel()
    await wait_until(
        lambda: second._engine.held_runs.drivers_by_run_id[handle.run_id]._cancel_state is not CancelState.NONE
    )
    monkeypatch.setattr(drivers, "REPLAY_BATCH_SIZE", 500)
    with pytest.raises(RunCancelled):
        await again.result()
    assert log == [f"work {n}" for n in range(5)]
    assert (await describe_journal(second, handle))[5:] == ["cancel cancel"]


async def test_a_once_step_in_flight_is_interrupted_and_never_begun_again(world: World):
    log: list[str] = []

    @step(effect="once")
    async def pay() -> None:
        log.append("pay")
        await asyncio.sleep(60)

    @workflow
    async def flow() -> str:
        try:
            await pay()
        except Exception as error:
            return type(error).__name__
        return ""

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: log)
    await handle.cancel()
    with pytest.raises(RunCancelled):
        await handle.result()
    await retry_run(runtime.store_provider, handle.run_id)
    assert await handle.result() == "StepOutcomeUnknown"
    assert log == ["pay"]


async def test_a_once_step_whose_intent_is_on_its_way_is_not_begun(world: World):
    log: list[str] = []

    @step(effect="once")
    async def pay() -> None:
        log.append("pay")

    @workflow
    async def flow() -> None:
        await pay()

    store = HeldCommits(world.store(), lambda op: type(op).__name__ == "SaveAttempt")
    runtime = await world.open(store=store)
    handle = await runtime.start(flow)
    await store.reached.wait()
    await cancel_from_outside(world, handle.run_id)
    await wait_until(
        lambda: runtime._engine.held_runs.drivers_by_run_id[handle.run_id]._cancel_state is CancelState.RECORDED
    )
    driver = runtime._engine.held_runs.drivers_by_run_id[handle.run_id]
    store.release.set()
    await wait_until_ended(runtime, handle)
    await wait_until(lambda: driver.is_closed)
    assert await get_state(runtime, handle) == "cancelled"
    # Whichever of the two was committed first; the outcome may have been on its way.
    assert (log, await describe_journal(runtime, handle)) in (
        ([], ["cancel cancel"]), (["pay"], ["cancel cancel"]), (["pay"], ["cancel cancel", "step pay"]),
    )  # fmt: skip


# Cleaning up


async def test_clean_up_may_run_steps_wait_and_start_children(world: World, clock: VirtualClock):
    log: list[str] = []

    @step
    async def note(what: str) -> None:
        log.append(what)

    @workflow
    async def child() -> str:
        return "child"

    @workflow
    async def flow() -> None:
        try:
            await wait_for_signal("never")
        finally:
            await note("first")
            await asyncio.sleep(100)
            await note(await child())

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs)
    await handle.cancel()
    await wait_until_parked(runtime, clock, handle, 2)
    assert (await handle.info()).is_cancelling
    clock.advance(100)
    with pytest.raises(RunCancelled):
        await handle.result()
    assert log == ["first", "child"]
    assert not (await handle.info()).is_cancelling


async def test_code_that_swallows_the_cancellation_completes(world: World):
    @step
    async def work() -> str:
        return "worked"

    @workflow
    async def flow() -> str:
        try:
            await wait_for_signal("never")
        except asyncio.CancelledError:
            pass
        return await work()

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs)
    await handle.cancel()
    assert await handle.result() == "worked"
    with pytest.raises(RunEnded, match="has completed"):
        await handle.cancel()


async def test_code_that_raises_something_else_fails(world: World):
    @workflow
    async def flow() -> None:
        try:
            await wait_for_signal("never")
        except asyncio.CancelledError:
            raise ValueError("in the clean-up") from None

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs)
    await handle.cancel()
    with pytest.raises(RunFailed, match="ValueError: in the clean-up"):
        await handle.result()


async def test_a_second_cancel_returns_false_and_does_not_interrupt_the_cleanup(world: World, clock: VirtualClock):
    log: list[str] = []
    gate = asyncio.Event()

    @step
    async def clean_up() -> None:
        log.append("begun")
        await gate.wait()
        log.append("ended")

    @workflow
    async def flow() -> None:
        try:
            await wait_for_signal("never")
        finally:
            await clean_up()

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs)
    assert await handle.cancel()
    await wait_until(lambda: log)
    assert not await handle.cancel()
    await wait_for_one_in_flight(runtime)
    gate.set()
    with pytest.raises(RunCancelled):
        await handle.result()
    assert log == ["begun", "ended"]
    assert not await handle.cancel()
    assert await describe_journal(runtime, handle) == ["cancel cancel", "step clean_up"]


async def wait_for_one_in_flight(runtime: Any) -> None:
    await asyncio.sleep(0.01)
    await wait_until(lambda: runtime._engine.in_flight_count <= 1)


async def test_two_cancels_before_the_worker_sees_the_first(world: World):
    flow = define_waiting(signal="never")

    runtime = await world.open()
    handle = await runtime.start(flow)
    assert [await handle.cancel(), await handle.cancel()] == [True, False]
    with pytest.raises(RunCancelled):
        await handle.result()


# Runs that have ended


@pytest.mark.parametrize(("how", "words"), [("completed", "it has completed"), ("failed", "it has failed")])
async def test_an_ended_run_cannot_be_cancelled_and_the_error_names_its_state(world: World, how: str, words: str):
    @workflow
    async def flow() -> None:
        if how == "failed":
            raise ValueError("no")

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_ended(runtime, handle)
    for call in (handle.cancel, handle.pause, handle.resume):
        with pytest.raises(RunEnded, match=words):
            await call()
    assert await get_state(runtime, handle) == how


async def test_a_cancelled_run_cannot_be_paused(world: World):
    flow = define_waiting(signal="never")

    runtime = await world.open()
    handle = await runtime.start(flow)
    await handle.cancel()
    await wait_until_ended(runtime, handle)
    with pytest.raises(RunEnded, match="it was cancelled"):
        await handle.pause()


async def test_a_dead_run_cannot_be_cancelled(world: World):
    begun: list[int] = []

    @step
    async def crashing() -> None:
        begun.append(1)
        await asyncio.sleep(60)

    @workflow
    async def flow() -> None:
        await crashing()

    handle: Any = None
    for deaths in (1, 2, 3):
        mortal = await world.open()
        handle = handle or await mortal.start(flow)
        await wait_until(lambda deaths=deaths: len(begun) == deaths)
        await world.crash(mortal)
    runtime = await world.open()
    assert await get_state(runtime, handle) == "dead"
    with pytest.raises(RunEnded, match="it is dead"):
        await flow.get_handle(runtime.store_provider, handle.run_id).cancel()


async def test_a_run_that_is_not_there(world: World):
    @workflow
    async def flow() -> None: ...

    runtime = await world.open()
    for call in ("cancel", "pause", "resume"):
        with pytest.raises(RunNotFound, match="nobody"):
            await getattr(flow.get_handle(runtime.store_provider, "nobody"), call)()


# Races with the end


async def test_a_cancel_that_is_accepted_before_the_end_is_recorded_wins(world: World):
    log: list[str] = []

    @step(compensate=lambda: log.append("undone"))
    async def work() -> None:
        log.append("work")

    @workflow
    async def flow() -> str:
        await work()
        return "result"

    store = HeldCommits(world.store(), FinishRun)
    runtime = await world.open(store=store)
    handle = await runtime.start(flow)
    await store.reached.wait()
    await cancel_from_outside(world, handle.run_id)
    store.release.set()
    with pytest.raises(RunCancelled):
        await handle.result()
    assert log == ["work", "undone"]
    assert await describe_journal(runtime, handle) == ["step work", "cancel cancel", "compensation <lambda>"]
    run = await read_run(runtime, handle)
    assert (run.state, run.output) == ("cancelled", None)


async def test_a_takeover_after_such_a_race_comes_to_the_same_end(world: World):
    log: list[str] = []
    undoing = asyncio.Event()

    async def undo() -> None:
        log.append("undo")
        undoing.set()
        if log.count("undo") == 1:
            await asyncio.sleep(60)

    @step(compensate=undo)
    async def work() -> None:
        log.append("work")

    @workflow
    async def flow() -> str:
        await work()
        return "result"

    store = HeldCommits(world.store(), FinishRun)
    first = await world.open(store=store)
    handle = await first.start(flow)
    await store.reached.wait()
    await cancel_from_outside(world, handle.run_id)
    store.release.set()
    await undoing.wait()
    await world.crash(first)
    second = await world.open()
    with pytest.raises(RunCancelled):
        await flow.get_handle(second.store_provider, handle.run_id).result()
    assert log == ["work", "undo", "undo"]


async def test_a_run_that_has_failed_when_the_cancel_is_accepted_stays_failed(world: World):
    @workflow
    async def flow() -> None:
        raise ValueError("no")

    store = HeldCommits(world.store(), FinishRun)
    runtime = await world.open(store=store)
    handle = await runtime.start(flow)
    await store.reached.wait()
    await cancel_from_outside(world, handle.run_id)
    store.release.set()
    with pytest.raises(RunFailed, match="ValueError: no"):
        await handle.result()
    assert await describe_journal(runtime, handle) == ["cancel cancel"]


async def test_a_cancel_while_the_tasks_that_were_left_clean_up_undoes(world: World):
    """The workflow's own code has returned, but its end waits for a task that it left behind."""
    log: list[str] = []
    gate = asyncio.Event()

    @step(compensate=lambda: log.append("undone"))
    async def work() -> None:
        log.append("work")

    @step
    async def clean_up() -> None:
        log.append("clean up")
        await gate.wait()

    async def aside() -> None:
        try:
            await wait_for_signal("never")
        finally:
            await clean_up()

    @workflow
    async def flow() -> str:
        asyncio.create_task(aside())  # noqa: RUF006
        await work()
        return "result"

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: "clean up" in log)
    await handle.cancel()
    await wait_until(
        lambda: runtime._engine.held_runs.drivers_by_run_id[handle.run_id]._cancel_state is CancelState.RECORDED
    )
    gate.set()
    with pytest.raises(RunCancelled):
        await handle.result()
    assert log == ["work", "clean up", "undone"]


async def test_a_cancel_while_a_failed_run_is_being_undone_changes_nothing(world: World):
    log: list[str] = []
    gate = asyncio.Event()

    async def undo() -> None:
        log.append("undo")
        await gate.wait()

    @step(compensate=undo)
    async def work() -> None: ...

    @workflow
    async def flow() -> None:
        await work()
        await work()
        raise ValueError("no")

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: log)
    assert await handle.cancel()
    await wait_until(
        lambda: runtime._engine.held_runs.drivers_by_run_id[handle.run_id]._cancel_state is CancelState.RECORDED
    )
    gate.set()
    with pytest.raises(RunFailed, match="ValueError: no"):
        await handle.result()
    assert log == ["undo", "undo"]


async def test_a_cancel_while_the_run_is_being_parked_is_not_missed(world: World, clock: VirtualClock):
    flow = define_waiting(signal="never")

    store = HeldCommits(world.store(), ParkRun)
    runtime = await world.open(store=store)
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs)
    clock.advance(1.1)
    runtime._engine._idle_runs.sweep()
    await store.reached.wait()
    await cancel_from_outside(world, handle.run_id)
    store.release.set()
    with pytest.raises(RunCancelled):
        await handle.result()
    assert (await read_run(runtime, handle)).epoch == 1


# Deadlines


async def test_a_cancel_after_the_deadline_does_not_cut_the_clean_up_short(world: World, clock: VirtualClock):
    log: list[str] = []
    gate = asyncio.Event()

    @step
    async def clean_up() -> None:
        log.append("begun")
        await gate.wait()
        log.append("ended")

    @workflow(timeout=100)
    async def flow() -> None:
        try:
            await wait_for_signal("never")
        finally:
            await clean_up()

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs)
    clock.advance(101)
    await wait_until(lambda: log)
    assert await handle.cancel()
    await wait_until(
        lambda: runtime._engine.held_runs.drivers_by_run_id[handle.run_id]._cancel_state is CancelState.RECORDED
    )
    gate.set()
    with pytest.raises(RunFailed, match="RunTimedOut"):
        await handle.result()
    assert log == ["begun", "ended"]
    assert await describe_journal(runtime, handle) == ["deadline deadline", "cancel cancel", "step clean_up"]


async def test_a_deadline_after_the_cancel_does_not_cut_the_clean_up_short(world: World, clock: VirtualClock):
    log: list[str] = []
    gate = asyncio.Event()

    @step
    async def clean_up() -> None:
        log.append("begun")
        await gate.wait()
        log.append("ended")

    @workflow(timeout=100)
    async def flow() -> None:
        try:
            await wait_for_signal("never")
        finally:
            await clean_up()

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs)
    await handle.cancel()
    await wait_until(lambda: log)
    clock.advance(101)
    await wait_until(lambda: runtime._engine.held_runs.drivers_by_run_id[handle.run_id]._timers.is_deadline_recorded)
    gate.set()
    with pytest.raises(RunCancelled):
        await handle.result()
    assert log == ["begun", "ended"]


async def test_a_cancel_and_a_deadline_due_at_once_after_a_takeover(world: World, clock: VirtualClock):
    begun: list[str] = []

    @step
    async def slow() -> None:
        begun.append("slow")
        await asyncio.sleep(60)

    @workflow(timeout=100)
    async def flow() -> None:
        await slow()

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: begun)
    await world.crash(first)
    await cancel_from_outside(world, handle.run_id)
    clock.advance(101)
    second = await world.open()
    with pytest.raises(RunCancelled):
        await flow.get_handle(second.store_provider, handle.run_id).result()
    assert begun == ["slow"]


# Elsewhere


async def test_a_run_in_another_engine_is_cancelled(world: World):
    @workflow(queue="other")
    async def flow() -> None:
        await wait_for_signal("never")

    here, there = await world.open(queues=["default"]), await world.open(queues=["other"])
    handle = await here.start(flow)
    await wait_until(lambda: there._engine._idle_runs)
    await handle.cancel()
    with pytest.raises(RunCancelled):
        await handle.result()


async def test_a_client_cancels_by_id(world: World):
    if world.kind == "memory":
        pytest.skip("a client in another process cannot see it")

    flow = define_waiting(signal="never")

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs)
    async with Client(world.url) as client:
        assert [await client.cancel(handle.run_id), await client.cancel(handle.run_id)] == [True, False]
        with pytest.raises(RunCancelled):
            await client.wait(handle.run_id, timeout=10)
        with pytest.raises(RunNotFound):
            await client.cancel("nobody")


async def test_a_run_with_code_that_no_longer_fits_ends_although_it_was_cancelled(world: World):
    @step
    async def before() -> None: ...

    @step
    async def after() -> None: ...

    async def define(new: bool) -> Any:
        @workflow(name="flow")
        async def flow() -> None:
            await (after if new else before)()
            await wait_for_signal("never")

        return flow

    first = await world.open()
    handle = await first.start(await define(new=False))
    await wait_until(lambda: first._engine._idle_runs)
    await first.close()
    await cancel_from_outside(world, handle.run_id)
    await define(new=True)
    second = await world.open()
    run = await wait_until_ended(second, handle)
    assert run.state == "failed"
    assert b"NonDeterminismError" in (run.error or b"")


async def test_a_pause_is_lifted_by_a_cancel(world: World, clock: VirtualClock):
    flow = define_waiting(signal="never")

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_parked(runtime, clock, handle)
    store = await world.open_store()
    await store.commit([PauseRun(handle.run_id, store.now())])
    await wait_until_quiet(runtime)
    assert (await handle.info()).is_paused
    await handle.cancel()
    with pytest.raises(RunCancelled):
        await handle.result()
    await wait_for_state(runtime, handle, "cancelled")
