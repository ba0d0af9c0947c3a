"""A step that waits long for its next attempt: its run leaves memory, and what is known of the step survives."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from engine_world import (
    FlakyStore,
    ManualClock,
    World,
    get_state,
    read_attempts,
    read_journal,
    read_run,
    wait_for_state,
    wait_until_parked,
)
from shared_flows import define_calling

from holdfast import (
    Effect,
    RetryPolicy,
    RunCancelled,
    RunFailed,
    Runtime,
    RunTimedOut,
    Step,
    StepOutcomeUnknown,
    current_step,
    step,
    wait_for_signal,
    workflow,
)
from holdfast.client.handle import Handle
from holdfast.stores.claims import RunRequests
from holdfast.stores.operations import ParkRun, PauseRun, SaveAttempt
from waits import wait_until

pytestmark = pytest.mark.asyncio


@pytest.fixture
def clock(world: World) -> ManualClock:
    world.clock = ManualClock()
    world._memory._clock = world.clock.now
    return world.clock


class Outage:
    """A service that fails until somebody says otherwise."""

    def __init__(self, clock: ManualClock) -> None:
        self.is_over = False
        self.asked_at: list[float] = []
        self.attempts: list[int] = []
        self._clock = clock

    def ask(self) -> str:
        self.asked_at.append(self._clock.now())
        self.attempts.append(current_step().attempt)
        if not self.is_over:
            raise ConnectionError("refused")
        return "answered"


async def wait_until_waiting_in_memory(runtime: Runtime, handle: Handle[object]) -> None:
    """Wait until the run is idle because a step of it waits for its next attempt, and that is noted."""
    driver = await wait_until(lambda: runtime._engine.held_runs.drivers_by_run_id.get(handle.run_id))
    await wait_until(lambda: driver in runtime._engine._idle_runs)


async def test_the_run_leaves_memory_and_comes_back_for_the_attempt(world: World, clock: ManualClock):
    outage = Outage(clock)

    @step(retries=3, backoff=600, max_backoff=600)
    async def call() -> str:
        return outage.ask()

    flow = define_calling(call)

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_parked(runtime, clock, handle)
    assert not runtime._engine.held_runs.drivers
    info = await handle.info()
    assert (info.state, info.waits_for) == ("waiting", "the next attempt of step 'call'")
    [noted] = (await read_attempts(runtime, handle)).values()
    assert (noted.attempt, noted.error) == (1, "ConnectionError: refused")
    assert noted.retry_at == (await read_run(runtime, handle)).wake_at == outage.asked_at[0] + 600
    assert noted.failing_since == outage.asked_at[0]

    clock.advance(590)
    await asyncio.sleep(0.05)
    assert await get_state(runtime, handle) == "waiting"
    clock.advance(10)
    await wait_until(lambda: outage.attempts == [1, 2])
    await wait_until_parked(runtime, clock, handle)
    outage.is_over = True
    clock.advance(600)
    assert await handle.result() == "answered"
    assert outage.attempts == [1, 2, 3]
    assert all(later - earlier >= 600 for earlier, later in pairwise(outage.asked_at))
    [record] = await read_journal(runtime, handle)
    assert record.attempts == 3
    assert await read_attempts(runtime, handle) == {}


async def test_the_wait_and_the_count_survive_the_worker(world: World, clock: ManualClock):
    outage = Outage(clock)

    @step(retries=2, backoff=600, max_backoff=600)
    def call() -> str:
        return outage.ask()

    flow = define_calling(call)

    first = await world.open()
    handle = await first.start(flow)
    await wait_until_waiting_in_memory(first, handle)
    await world.crash(first)
    second = await world.open()
    await wait_until_waiting_in_memory(second, handle)
    clock.advance(599)
    await asyncio.sleep(0.05)
    assert outage.attempts == [1]
    clock.advance(1)
    await wait_until(lambda: outage.attempts == [1, 2])
    await wait_until_parked(second, clock, handle)
    clock.advance(600)
    with pytest.raises(RunFailed):
        await flow.get_handle(second.store_provider, handle.run_id).result()
    assert outage.attempts == [1, 2, 3]


async def test_what_wakes_the_run_earlier_does_not_make_the_attempt_come_earlier(world: World, clock: ManualClock):
    outage = Outage(clock)
    heard: list[str] = []

    @step(retries=1, backoff=600, max_backoff=600)
    async def call() -> str:
        return outage.ask()

    async def listen() -> None:
        heard.append(await wait_for_signal("news"))

    @workflow
    async def flow() -> str:
        answer, _ = await asyncio.gather(call(), listen())
        return answer

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_parked(runtime, clock, handle)
    assert (await handle.info()).waits_for == "signal 'news' or the next attempt of step 'call'"
    await handle.signal("news", "rain")
    await wait_until(lambda: heard == ["rain"])
    await wait_until_parked(runtime, clock, handle, records=1)
    assert outage.attempts == [1]
    outage.is_over = True
    clock.advance(600)
    assert await handle.result() == "answered"
    assert outage.attempts == [1, 2]
    assert outage.asked_at[1] >= outage.asked_at[0] + 600


async def test_each_of_several_steps_waits_for_its_own_time(world: World, clock: ManualClock):
    slow, quick = Outage(clock), Outage(clock)

    @step(retries=1, backoff=3600, max_backoff=3600)
    async def call_slow() -> str:
        return slow.ask()

    @step(retries=1, backoff=600, max_backoff=600)
    async def call_quick() -> str:
        return quick.ask()

    @workflow
    async def flow() -> list[str]:
        return await asyncio.gather(call_slow(), call_quick())

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_parked(runtime, clock, handle)
    assert (await handle.info()).waits_for == "the next attempt of 2 steps, such as 'call_quick'"
    slow.is_over = quick.is_over = True
    clock.advance(600)
    await wait_until_parked(runtime, clock, handle, records=1)
    assert (slow.attempts, quick.attempts) == ([1], [1, 2])
    assert (await read_run(runtime, handle)).wake_at == slow.asked_at[0] + 3600
    clock.advance(3000)
    assert await handle.result() == ["answered", "answered"]


async def test_a_run_with_something_else_to_do_stays_in_memory(world: World, clock: ManualClock):
    outage, gate = Outage(clock), asyncio.Event()

    @step(retries=1, backoff=600, max_backoff=600)
    async def call() -> str:
        return outage.ask()

    @step
    async def work() -> None:
        await gate.wait()

    @workflow
    async def flow() -> str:
        answer, _ = await asyncio.gather(call(), work())
        return answer

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: clock.slept)
    clock.advance(2)
    runtime._engine._idle_runs.sweep(min_count=10)
    assert await get_state(runtime, handle) == "running"
    outage.is_over = True
    clock.advance(598)
    await wait_until(lambda: outage.attempts == [1, 2])
    gate.set()
    assert await handle.result() == "answered"
    assert (await read_run(runtime, handle)).epoch == 1


async def test_a_short_wait_stays_in_memory(world: World, clock: ManualClock):
    outage = Outage(clock)

    @step(retries=1, backoff=0.9)
    async def call() -> str:
        return outage.ask()

    flow = define_calling(call)

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_waiting_in_memory(runtime, handle)
    runtime._engine._idle_runs.sweep(min_count=1)
    assert await get_state(runtime, handle) == "running"
    outage.is_over = True
    clock.advance(0.9)
    assert await handle.result() == "answered"
    assert (await read_run(runtime, handle)).epoch == 1


# What people ask for meanwhile


@pytest.mark.parametrize("where", ["in memory", "parked"])
async def test_a_pause_ends_the_wait_at_once_and_a_resume_takes_it_up(world: World, clock: ManualClock, where: str):
    outage = Outage(clock)

    @step(retries=1, backoff=600, max_backoff=600)
    async def call() -> str:
        return outage.ask()

    flow = define_calling(call)

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_waiting_in_memory(runtime, handle)
    if where == "parked":
        await wait_until_parked(runtime, clock, handle)
    await handle.pause()
    await wait_for_state(runtime, handle, "waiting")
    await wait_until(lambda: not runtime._engine.held_runs.drivers)
    outage.is_over = True
    clock.advance(1000)
    await asyncio.sleep(0.05)
    assert outage.attempts == [1]
    await handle.resume()
    assert await handle.result() == "answered"
    assert outage.attempts == [1, 2]


async def test_a_run_that_is_resumed_before_it_has_left_continues_to_wait(world: World, clock: ManualClock):
    outage = Outage(clock)

    @step(retries=1, backoff=600, max_backoff=600)
    async def call() -> str:
        return outage.ask()

    flow = define_calling(call)

    store = FlakyStore(world.store())
    runtime = await world.open(store=store)
    handle = await runtime.start(flow)
    await wait_until_waiting_in_memory(runtime, handle)

    async def resume_first(ops: object) -> None:
        if any(isinstance(op, ParkRun) for op in ops):  # type: ignore[attr-defined]
            store.before_commit = None
            outside = await world.open_store() if world.kind != "memory" else store.inner
            from holdfast.stores.operations import ResumeRun

            await outside.commit([ResumeRun(handle.run_id, clock.now())])

    store.before_commit = resume_first
    await handle.pause()
    await wait_until_waiting_in_memory(runtime, handle)
    outage.is_over = True
    clock.advance(599)
    await asyncio.sleep(0.05)
    assert outage.attempts == [1]
    clock.advance(1)
    assert await handle.result() == "answered"
    assert outage.attempts == [1, 2]


@pytest.mark.parametrize("where", ["in memory", "parked"])
async def test_a_cancel_ends_the_run_without_another_attempt(world: World, clock: ManualClock, where: str):
    outage = Outage(clock)

    @step(retries=1, backoff=600, max_backoff=600)
    async def call() -> str:
        return outage.ask()

    flow = define_calling(call)

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_waiting_in_memory(runtime, handle)
    if where == "parked":
        await wait_until_parked(runtime, clock, handle)
    await handle.cancel()
    with pytest.raises(RunCancelled):
        await handle.result()
    assert outage.attempts == [1]


async def test_the_deadline_of_the_run_comes_before_the_next_attempt(world: World, clock: ManualClock):
    outage = Outage(clock)

    @step(retries=1, backoff=600, max_backoff=600)
    async def call() -> str:
        return outage.ask()

    @workflow(timeout=60)
    async def flow() -> str:
        return await call()

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_parked(runtime, clock, handle)
    clock.advance(60)
    with pytest.raises(RunFailed) as failed:
        await handle.result()
    assert isinstance(failed.value.__cause__, RunTimedOut)
    assert outage.attempts == [1]


async def test_a_time_limit_in_the_code_comes_before_the_next_attempt(world: World, clock: ManualClock):
    outage = Outage(clock)

    @step(retries=1, backoff=600, max_backoff=600)
    async def call() -> str:
        return outage.ask()

    @workflow
    async def flow() -> str:
        try:
            async with asyncio.timeout(60):
                return await call()
        except TimeoutError:
            return "too late"

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_parked(runtime, clock, handle)
    clock.advance(60)
    assert await handle.result() == "too late"
    assert outage.attempts == [1]


async def test_a_worker_that_stops_does_not_wait_for_the_attempt(world: World, clock: ManualClock):
    outage = Outage(clock)

    @step(retries=1, backoff=600, max_backoff=600)
    async def call() -> str:
        return outage.ask()

    flow = define_calling(call)

    first = await world.open()
    handle = await first.start(flow)
    await wait_until_waiting_in_memory(first, handle)
    async with asyncio.timeout(5):
        await first.close(grace=600)
    world._open.remove(first)
    second = await world.open()
    await wait_until_waiting_in_memory(second, handle)
    outage.is_over = True
    clock.advance(600)
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == "answered"
    assert outage.attempts == [1, 2]


async def test_a_step_that_fails_while_its_worker_stops_is_left_to_another(world: World, clock: ManualClock):
    outage, gate = Outage(clock), asyncio.Event()

    @step(retries=1, backoff=600, max_backoff=600)
    async def call() -> str:
        await gate.wait()
        return outage.ask()

    flow = define_calling(call)

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: first._engine.in_flight_count)
    closing = asyncio.create_task(first.close(grace=600))
    await asyncio.sleep(0.02)
    gate.set()
    async with asyncio.timeout(5):
        while not closing.done():
            clock.advance(0.02)
            await asyncio.sleep(0.002)
    world._open.remove(first)
    second = await world.open()
    await wait_until_waiting_in_memory(second, handle)
    outage.is_over = True
    clock.advance(600)
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == "answered"
    assert outage.attempts == [1, 2]


# How long it is tried


async def test_a_policy_may_give_up_after_a_time_that_outlives_the_worker(world: World, clock: ManualClock):
    outage = Outage(clock)

    @step(retry=RetryPolicy(backoff=1000, max_backoff=1000, give_up_after=2500))
    async def call() -> str:
        return outage.ask()

    flow = define_calling(call)

    runtime = await world.open()
    handle = await runtime.start(flow)
    for made in (1, 2):
        await wait_until(lambda made=made: len(outage.attempts) == made)
        await wait_until_waiting_in_memory(runtime, handle)
        await world.crash(runtime)
        clock.advance(1000)
        runtime = await world.open()
    with pytest.raises(RunFailed, match="refused"):
        await flow.get_handle(runtime.store_provider, handle.run_id).result()
    assert outage.attempts == [1, 2, 3]


async def test_an_export_has_the_time_of_the_next_attempt(world: World, clock: ManualClock):
    from holdfast.core.records import Attempt
    from holdfast.services.file_format import encode
    from holdfast.services.journal_files import JOURNAL_FORMAT

    noted = Attempt(0, 1, name="call", retry_at=17.5, failing_since=3.25)
    written = json.loads(json.dumps(encode(noted)))
    assert JOURNAL_FORMAT.decode(Attempt, written, "a file") == noted


# Steps that must not happen twice


def once(step: Step[..., Any]) -> Step[..., Any]:
    """A ``once`` step that is tried again if it says that it did not happen, as the calls of MCP servers are."""
    return Step(replace(step.definition, effect=Effect.ONCE, retry=RetryPolicy(backoff=600, max_backoff=600)))


async def test_a_once_step_that_did_not_happen_waits_like_any_other(world: World, clock: ManualClock):
    outage = Outage(clock)
    noted: list[bool] = []

    @step
    async def pay() -> str:
        noted.append((await read_attempts(runtime, handle))[0].intent)
        return outage.ask()

    pay_once = once(pay)

    flow = define_calling(pay_once)

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_parked(runtime, clock, handle)
    assert not (await read_attempts(runtime, handle))[0].intent
    outage.is_over = True
    clock.advance(600)
    assert await handle.result() == "answered"
    assert outage.attempts == [1, 2]
    assert noted == [True, True], "that it is about to start is durable before it does"


async def test_a_worker_that_dies_while_a_once_step_waits_leaves_no_doubt(world: World, clock: ManualClock):
    outage = Outage(clock)

    @step
    async def pay() -> str:
        return outage.ask()

    pay_once = once(pay)

    flow = define_calling(pay_once)

    first = await world.open()
    handle = await first.start(flow)
    await wait_until_waiting_in_memory(first, handle)
    await world.crash(first)
    outage.is_over = True
    clock.advance(600)
    second = await world.open()
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == "answered"
    assert outage.attempts == [1, 2]


async def test_a_worker_that_dies_in_the_second_attempt_of_a_once_step_leaves_it_unknown(
    world: World, clock: ManualClock
):
    outage, begun = Outage(clock), asyncio.Event()

    @step
    async def pay() -> str:
        if current_step().attempt == 2:
            begun.set()
            await asyncio.Event().wait()
        return outage.ask()

    pay_once = once(pay)

    flow = define_calling(pay_once)

    first = await world.open()
    handle = await first.start(flow)
    await wait_until_parked(first, clock, handle)
    clock.advance(600)
    await begun.wait()
    await world.crash(first)
    second = await world.open()
    with pytest.raises(RunFailed) as failed:
        await flow.get_handle(second.store_provider, handle.run_id).result()
    assert isinstance(failed.value.__cause__, StepOutcomeUnknown)
    assert outage.attempts == [1]


async def test_a_once_step_is_not_begun_again_when_the_run_is_paused_just_then(world: World, clock: ManualClock):
    outage = Outage(clock)

    @step
    async def pay() -> str:
        return outage.ask()

    pay_once = once(pay)

    flow = define_calling(pay_once)

    store = FlakyStore(world.store())
    runtime = await world.open(store=store)
    handle = await runtime.start(flow)
    await wait_until_waiting_in_memory(runtime, handle)

    async def pause_first(ops: Any) -> None:
        if any(isinstance(op, SaveAttempt) and op.attempt.intent for op in ops):
            store.before_commit = None  # what is asked for now takes effect before the intent is answered
            driver = runtime._engine.held_runs.drivers_by_run_id[handle.run_id]
            await store.inner.commit([PauseRun(handle.run_id, clock.now())])
            driver.handle_request(RunRequests(driver.run.key, is_cancel_requested=False, is_pause_requested=True))

    store.before_commit = pause_first
    outage.is_over = True
    clock.advance(600)
    await wait_for_state(runtime, handle, "waiting")
    assert (await read_run(runtime, handle)).paused_at is not None
    assert outage.attempts == [1]
    assert not (await read_attempts(runtime, handle))[0].intent
