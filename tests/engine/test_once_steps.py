"""``effect="once"``: whatever happens, nobody starts it a second time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest
from engine_world import HeldCommits, World, read_attempts, read_journal, wait_for_state, wait_until_parked
from shared_flows import define_calling

from holdfast import StepOutcomeUnknown, current_step, step, workflow
from holdfast.authoring.registry import definitions
from holdfast.stores.memory import MemoryStore
from holdfast.stores.operations import Op, OpResult, SaveAttempt
from waits import wait_until

pytestmark = pytest.mark.asyncio


async def test_an_intent_is_recorded_before_the_step_starts_and_cleared_with_its_outcome(world: World):
    seen: list[object] = []

    @step(effect="once")
    async def pay() -> str:
        seen.append(await read_attempts(runtime, handle))
        return "paid"

    flow = define_calling(pay)

    runtime = await world.open()
    handle = await runtime.start(flow)
    assert await handle.result() == "paid"
    [[intent]] = [list(one.values()) for one in seen]  # type: ignore[attr-defined]
    assert intent.intent
    assert await read_attempts(runtime, handle) == {}


async def test_a_once_step_whose_worker_died_is_not_run_again(world: World):
    calls: list[int] = []

    @step(effect="once")
    async def pay() -> str:
        calls.append(1)
        await asyncio.sleep(60)
        return "paid"

    @workflow
    async def flow() -> str:
        try:
            return await pay()
        except StepOutcomeUnknown as unknown:
            return f"{unknown.step} unknown: {unknown}"

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: calls)
    await world.crash(first)
    second = await world.open()
    told = await flow.get_handle(second.store_provider, handle.run_id).result()
    assert told.startswith(f"pay unknown: step 'pay' of run '{handle.run_id}' was in flight")
    assert "may or may not have happened" in told
    assert calls == [1]


@pytest.mark.parametrize("plain", [False, True])
async def test_a_once_step_that_reports_progress_keeps_its_intent(world: World, plain: bool):
    calls: list[int] = []

    if plain:

        @step(effect="once")
        def pay() -> str:
            calls.append(1)
            for part in range(100):
                current_step().heartbeat(part)
                time.sleep(0.02)
            return "paid"

    else:

        @step(effect="once")
        async def pay() -> str:
            calls.append(1)
            for part in range(100):
                current_step().heartbeat(part)
                await asyncio.sleep(0.02)
            return "paid"

    @workflow
    async def flow() -> str:
        try:
            return await pay()
        except StepOutcomeUnknown:
            return "unknown"

    first = await world.open()
    handle = await first.start(flow)

    async def progressed() -> bool:
        return any(one.progress for one in (await read_attempts(first, handle)).values())

    await wait_until(progressed)
    await world.crash(first)
    second = await world.open()
    assert await flow.get_handle(second.store_provider, handle.run_id).result(timeout=10) == "unknown"
    assert calls == [1]


async def test_a_worker_that_died_before_the_step_began_may_not_know_either(world: World):
    """The intent was written, and the process died in the moment before the call: that cannot be told apart."""
    calls: list[int] = []

    @step(effect="once")
    async def pay() -> str:
        calls.append(1)
        return "paid"

    @workflow
    async def flow() -> str:
        try:
            return await pay()
        except StepOutcomeUnknown:
            return "unknown"

    first = await world.open()
    handle = await first.start(flow)
    # Let the intent be committed, but crash before the step's task has had its turn.
    while not await read_attempts(first, handle) and not calls:  # noqa: ASYNC110 - the very next moment
        await asyncio.sleep(0)
    await world.crash(first)
    before = len(calls)
    second = await world.open()
    result = await flow.get_handle(second.store_provider, handle.run_id).result()
    assert (result, len(calls)) in [("unknown", before), ("paid", 1)]
    assert len(calls) <= 1


async def test_a_once_step_that_failed_has_an_outcome_like_any_other(world: World):
    calls: list[int] = []

    @step(effect="once")
    async def pay() -> str:
        calls.append(1)
        raise ValueError("declined")

    @workflow
    async def flow() -> str:
        try:
            return await pay()
        except ValueError as error:
            return str(error)

    runtime = await world.open()
    handle = await runtime.start(flow)
    assert await handle.result() == "declined"
    assert calls == [1]
    assert [record.ok for record in await read_journal(runtime, handle)] == [False]


async def test_a_once_step_that_the_workflow_gave_up_on_is_not_started_any_more(world: World):
    calls: list[int] = []

    @step(effect="once")
    async def pay() -> str:
        calls.append(1)
        return "paid"

    @step
    async def other() -> str:
        return "other"

    @workflow
    async def flow() -> str:
        task = asyncio.create_task(pay())
        await asyncio.sleep(0)
        task.cancel()
        return await other()

    runtime = await world.open()
    assert await (await runtime.start(flow)).result() == "other"
    assert calls == []


async def test_a_once_step_is_known_again_after_its_run_was_parked(world: World, clock):
    calls: list[int] = []

    @step(effect="once")
    async def pay() -> str:
        calls.append(1)
        return "paid"

    @workflow
    async def flow() -> str:
        paid = await pay()
        await asyncio.sleep(3600)
        return paid

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_parked(runtime, clock, handle)
    clock.advance(3600)
    assert await handle.result() == "paid"
    assert calls == [1]


async def test_the_intent_of_another_step_is_nothing_to_the_step_that_now_has_its_place(world: World):
    """A retry can take out of the past what a step was an answer to, and so can new code; its intent is still there."""
    begun, paid_out = asyncio.Event(), []

    @step(effect="once")
    async def refund() -> None:
        begun.set()
        await asyncio.Event().wait()

    @step(effect="once")
    async def pay_out() -> None:
        paid_out.append("once")

    @workflow(name="flow")
    async def before() -> None:
        await refund()

    first = await world.open()
    handle = await first.start(before)
    await wait_until(begun.is_set)
    await world.crash(first)
    definitions.clear()

    @workflow(name="flow")
    async def after() -> None:
        await pay_out()

    second = await world.open()
    await wait_for_state(second, handle, "completed")
    assert paid_out == ["once"]
    assert await read_attempts(second, handle) == {}


async def test_a_run_ends_although_the_intent_of_a_step_that_lost_a_race_is_still_being_written(
    in_memory: World, monkeypatch: pytest.MonkeyPatch
):
    # The outcome that decides the race is handed in just before the intent, and so is committed with it. (Found by the
    # simulator: the end waited for the note, and nobody looked again when the note was there.)
    real = MemoryStore.commit

    async def slow(self: MemoryStore, ops: Sequence[Op]) -> list[OpResult]:
        await asyncio.sleep(0.1)
        return await real(self, ops)

    @step
    async def quick() -> None: ...

    @step
    async def winner() -> str:
        await asyncio.sleep(0.05)  # while the outcome of `quick` is being written
        return "won"

    @step(effect="once")
    async def pay() -> str:
        return "paid"

    async def slower() -> str:
        await quick()
        return await pay()

    @workflow
    async def flow() -> str:
        tasks = [asyncio.create_task(one) for one in (winner(), slower())]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()

    runtime = await in_memory.open()
    monkeypatch.setattr(MemoryStore, "commit", slow)
    handle = await runtime.start(flow)
    assert await handle.result(timeout=10) == "won"


async def test_a_once_step_whose_intent_is_being_written_does_not_begin_in_a_worker_that_stops(world: World):
    calls: list[str] = []

    @step(effect="once")
    async def pay() -> str:
        calls.append("pay")
        if len(calls) == 1:
            await asyncio.sleep(60)
        return "paid"

    flow = define_calling(pay)

    store = HeldCommits(world.store(), lambda op: isinstance(op, SaveAttempt) and op.attempt.intent)
    first = await world.open(store=store)
    handle = await first.start(flow)
    await store.reached.wait()
    closing = asyncio.ensure_future(first.close(grace=0.5))
    await wait_until(lambda: first._engine.is_draining)
    store.release.set()
    await closing
    assert not calls
    calls.append("another worker")
    second = await world.open()
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == "paid"
    assert calls == ["another worker", "pay"]
