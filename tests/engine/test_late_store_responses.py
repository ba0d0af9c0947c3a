"""Answers of the store that come late or never, and what the worker must not make of them. Found by the simulator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from engine_world import (
    FlakyStore,
    Replaced,
    World,
    make_unavailable_error,
    read_run,
    take_no_histories,
    wait_until_parked,
)
from shared_flows import define_calling, define_waiting

from holdfast import step, wait_for_signal, workflow
from holdfast.admission.queue_limits import QueueLimits
from holdfast.core.states import RunState
from holdfast.errors import StoreUnavailable
from holdfast.stores.operations import FinishRun, ReopenRun, SendSignal, StartRun
from waits import wait_until

pytestmark = pytest.mark.asyncio


class LossyStore(FlakyStore):
    """Another store, whose answers to other calls than commits can be lost or kept back, too."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.lose_claim = False
        self.before_histories: Callable[[], Any] | None = None
        self.before_retiring: Callable[[], Any] | None = None
        self.claims = Replaced(inner.claims, claim=self._claim, take_histories=take_no_histories)
        self.workers = Replaced(inner.workers, retire=self._retire)

    async def _claim(self, *args: Any, **kwargs: Any) -> Any:
        runs = await self.inner.claims.claim(*args, **kwargs)
        if runs and self.lose_claim:
            self.lose_claim = False
            raise make_unavailable_error("the connection was lost")
        return runs

    async def get_histories(self, keys: Any) -> Any:
        if self.before_histories is not None:
            await self.before_histories()
        return await self.inner.get_histories(keys)

    async def _retire(self, worker: int) -> None:
        if self.before_retiring is not None:
            await self.before_retiring()
        await self.inner.workers.retire(worker)


async def test_a_run_with_a_lost_claim_answer_is_not_held_forever(world: World):
    @step
    async def work() -> str:
        return "done"

    @workflow
    async def flow() -> str:
        await wait_for_signal("go")
        return await work()

    starter = await world.open()
    handle = await starter.start(flow)
    await starter.close()
    store = LossyStore(world.store())
    store.lose_claim = True
    runtime = await world.open(store=store)
    await wait_until(lambda: not store.lose_claim)
    await flow.get_handle(runtime.store_provider, handle.run_id).signal("go", None)
    assert await flow.get_handle(runtime.store_provider, handle.run_id).result(timeout=10) == "done"


async def test_a_run_with_a_lost_start_answer_is_not_held_forever(world: World):
    @step
    async def work() -> str:
        return "done"

    flow = define_calling(work)

    store = LossyStore(world.store())
    store.fail_after = lambda ops: make_unavailable_error() if any(isinstance(op, StartRun) for op in ops) else None
    runtime = await world.open(store=store)
    with pytest.raises(StoreUnavailable):
        await runtime.start(flow.options(id="mine"))
    store.fail_after = lambda _: None
    # The caller is told that nobody knows. The run was created, so it runs; and asking again finds it.
    handle = await runtime.start(flow.options(id="mine"))
    assert await handle.result(timeout=10) == "done"


@pytest.mark.parametrize("delayed", [False, True])
async def test_a_run_with_a_lost_start_answer_starts_without_another_request(world: World, delayed: bool):
    @workflow
    async def flow() -> str:
        return "done"

    store = LossyStore(world.store())
    store.fail_after = lambda ops: make_unavailable_error() if any(isinstance(op, StartRun) for op in ops) else None
    runtime = await world.open(store=store, lease_s=1.0)
    with pytest.raises(StoreUnavailable):
        await runtime.start(flow.options(id="mine", delay=0.2 if delayed else 0))
    world.clock.advance(1)
    assert await flow.get_handle(runtime.store_provider, "mine").result(timeout=10) == "done"


async def test_a_signal_with_a_lost_answer_wakes_its_run(world: World):
    flow = define_waiting()

    store = LossyStore(world.store())
    runtime = await world.open(store=store, lease_s=1.0)
    handle = await runtime.start(flow)
    await wait_until_parked(runtime, world.clock, handle)
    store.fail_after = lambda ops: make_unavailable_error() if any(isinstance(op, SendSignal) for op in ops) else None
    with pytest.raises(StoreUnavailable):
        await handle.signal("go", "done")
    assert await handle.result(timeout=10) == "done"


async def test_a_run_claimed_by_the_worker_that_was_declared_dead_is_not_taken_up_by_the_one_it_became(world: World):
    begun: list[int] = []
    gate = asyncio.Event()

    @step
    async def work() -> str:
        begun.append(1)
        return "done"

    flow = define_calling(work)

    starter = await world.open(definitions={})
    handle = await starter.start(flow)
    store = LossyStore(world.store())
    asked = asyncio.Event()

    async def wait() -> None:
        asked.set()
        await gate.wait()

    store.before_histories = wait
    first = await world.open(store=store, lease_s=0.3)
    before = first.worker_id
    await asked.wait()  # it holds the run, and is about to hear so
    await world.kill(first)
    assert (await starter._engine.store.workers.reap_dead(starter.worker_id)).worker_ids == (before,)
    await wait_until(lambda: first.worker_id != before)
    store.before_histories = None
    gate.set()
    # Under its new number it claims the run anew; the old claim is worth nothing, and nothing is begun under it.
    assert await flow.get_handle(first.store_provider, handle.run_id).result(timeout=10) == "done"
    assert begun == [1]
    assert (await read_run(first, handle)).epoch == 2


async def test_a_slow_hand_over_is_no_death(world: World):
    hang = asyncio.Event()
    begun: list[int] = []

    @step
    async def work() -> str:
        begun.append(1)
        await hang.wait()
        return "done"

    flow = define_calling(work)

    store = LossyStore(world.store())
    other = await world.open(definitions={}, clock=world.clock)
    first = await world.open(store=store, lease_s=0.5)
    handle = await first.start(flow)
    await wait_until(lambda: begun)
    renewed: list[float] = []
    engine = first._engine
    renew = engine._heartbeat._renew
    engine._heartbeat._renew = lambda: renewed.append(1) or renew()

    async def wait() -> None:
        seen = len(renewed)
        await wait_until(lambda: len(renewed) > seen)  # the lease goes on being renewed

    store.before_retiring = wait
    await first.close()
    run = await read_run(other, handle)
    assert (run.state.value, run.delivery_count) == ("pending", 0)


async def test_a_run_that_parks_while_its_worker_asks_what_is_due_next_is_woken_all_the_same(world: World):
    """The answer is older than the park, and a store does not tell a worker of what it wrote itself."""

    @workflow
    async def flow() -> str:
        await asyncio.sleep(3600)
        return "woken"

    async def tell_slowly(**wanted: Any) -> float | None:
        found = await store.inner.claims.get_next_wake_at(**wanted)
        asked.set()
        await told.wait()
        return found

    asked, told = asyncio.Event(), asyncio.Event()
    told.set()
    store = FlakyStore(world.store())
    store.claims = Replaced(store.inner.claims, get_next_wake_at=tell_slowly)
    runtime = await world.open(store=store)
    engine = runtime._engine
    handle = await runtime.start(flow)
    await wait_until(lambda: len(engine._idle_runs) == 1 and not engine._poller._lock.locked())
    asked.clear()
    told.clear()
    engine.wake()
    await asked.wait()
    engine.park_idle()
    await wait_until(lambda: not engine.held_runs.drivers)
    told.set()
    await wait_until(lambda: not engine._poller._lock.locked())
    world.clock.advance(3601)
    assert await handle.result(timeout=10) == "woken"


async def test_a_reopened_run_with_a_lost_claim_answer_is_released_although_its_driver_is_still_here(
    world: World,
):
    """It waits for the answer to the run's first end; the claim that got lost was made under the next epoch."""
    answers = ["bad", "good"]

    @step
    async def work() -> str:
        if (answer := answers.pop(0)) == "bad":
            raise ValueError(answer)
        return answer

    flow = define_calling(work)

    class SlowToEnd(LossyStore):
        async def commit(self, ops: Any) -> Any:
            done = await super().commit(ops)
            if any(isinstance(op, FinishRun) for op in ops):
                ended.set()
                await told.wait()
            return done

    ended, told = asyncio.Event(), asyncio.Event()
    store = SlowToEnd(world.store())
    runtime = await world.open(store=store)
    handle = await runtime.start(flow)
    await ended.wait()
    store.lose_claim = True
    await store.inner.commit([ReopenRun(handle.run_id, world.clock.now())])
    runtime._engine.wake()
    await wait_until(lambda: not store.lose_claim)
    claims = runtime._engine._claims
    await wait_until(lambda: claims._check_times)
    claims._check_times = [0.0]  # both looks for what was not heard of come before the answer does
    runtime._engine.wake()
    await wait_until(lambda: not claims._check_times)
    told.set()

    async def completed() -> bool:
        return (await read_run(runtime, handle)).state is RunState.COMPLETED

    await wait_until(completed)
    assert answers == []


@pytest.mark.parametrize("is_answered", ["before the journal is read", "after it could not be read"])
async def test_a_run_that_a_claim_gives_back_is_not_taken_up_by_the_answer_to_its_start(
    in_memory: World, is_answered: str
):
    """A child in a queue with limits is created pending, so a claim may take it up before its start is answered."""
    seen: list[RunState] = []
    answered, unread = asyncio.Event(), asyncio.Event()

    @step
    async def work() -> str:
        run = await store.inner.get_run("child")
        seen.append(run.state)
        return "done"

    @workflow(queue="limited")
    async def child() -> str:
        return await work()

    @workflow
    async def parent() -> str:
        return await child.options(id="child")()

    class SlowToAnswer(LossyStore):
        async def commit(self, ops: Any) -> Any:
            answers = await super().commit(ops)
            if any(isinstance(op, StartRun) and op.run.id == "child" for op in ops):
                runtime._engine.wake()
                await answered.wait()
                # As the store answers when the start is repeated, because its first answer was lost.
                return await self.inner.commit(ops)
            return answers

        async def get_histories(self, keys: Any) -> Any:
            [run] = [await self.inner.get_run("child")]
            if run is None or run.key not in keys or unread.is_set():
                return await self.inner.get_histories(keys)
            if is_answered == "before the journal is read":
                answered.set()
                await asyncio.sleep(0.05)
            unread.set()
            raise make_unavailable_error("the connection was lost")

    store = SlowToAnswer(in_memory.store())
    runtime = await in_memory.open(store=store, queue_limits={"limited": QueueLimits(5)})
    handle = await runtime.start(parent)
    await unread.wait()
    answered.set()
    assert await handle.result(timeout=10) == "done"
    assert seen == [RunState.RUNNING]
