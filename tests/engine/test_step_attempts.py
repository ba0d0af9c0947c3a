"""One step's attempts: retries, waits, time-outs, and what a step knows of itself."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from engine_world import VirtualClock, World, read_attempts, read_journal
from shared_flows import define_calling

from holdfast import RunFailed, StepTimedOut, current_step, step, workflow
from waits import wait_until

pytestmark = pytest.mark.asyncio


class Flaky:
    """Fails a number of times before it works."""

    def __init__(self, times: int, error: Exception | None = None) -> None:
        self.left = times
        self.calls = 0
        self.error = error or ConnectionError("refused")

    def __call__(self) -> int:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise self.error
        return self.calls


async def test_a_failed_attempt_is_made_again_after_growing_waits(world: World, clock: VirtualClock):
    service = Flaky(4)

    @step(retries=4, backoff=2, max_backoff=10)
    async def call() -> int:
        return service()

    flow = define_calling(call)

    runtime = await world.open()
    handle = await runtime.start(flow)
    assert await handle.result() == 5
    assert clock.slept == [2.0, 4.0, 8.0, 10.0]
    [record] = await read_journal(runtime, handle)
    assert record.attempts == 5
    assert await read_attempts(runtime, handle) == {}


async def test_jitter_shortens_the_waits(in_memory: World, clock: VirtualClock):
    clock.chance = 0.5
    service = Flaky(2)

    @step(retries=2, backoff=4)
    async def call() -> int:
        return service()

    flow = define_calling(call)

    runtime = await in_memory.open()
    await (await runtime.start(flow)).result()
    assert clock.slept == [3.0, 6.0]


async def test_after_the_last_attempt_the_workflow_gets_the_exception_itself(world: World):
    service = Flaky(99)

    @step(retries=2, backoff=0.1)
    def call() -> int:
        return service()

    @workflow
    async def flow() -> str:
        try:
            await call()
        except ConnectionError as error:
            return f"caught {error}"
        return "not caught"

    runtime = await world.open()
    handle = await runtime.start(flow)
    assert await handle.result() == "caught refused"
    assert service.calls == 3


@pytest.mark.parametrize(
    ("retry_on", "calls"),
    [
        (ConnectionError, 3),
        ((TimeoutError, ConnectionError), 3),
        ([ConnectionError], 3),
        (ValueError, 1),
        (lambda error: "refused" in str(error), 3),
        (lambda error: "other" in str(error), 1),
    ],
)
async def test_retry_on_says_what_is_worth_another_attempt(in_memory: World, retry_on, calls: int):
    service = Flaky(99)

    @step(retries=2, backoff=0.1, retry_on=retry_on)
    async def call() -> int:
        return service()

    flow = define_calling(call)

    runtime = await in_memory.open()
    with pytest.raises(RunFailed) as failed:
        await (await runtime.start(flow)).result()
    assert isinstance(failed.value.__cause__, ConnectionError)
    assert service.calls == calls


async def test_what_is_given_up_on_is_not_tried_again(in_memory: World):
    service = Flaky(99, PermissionError("no"))

    @step(retries=5, give_up_on=PermissionError)
    async def call() -> int:
        return service()

    flow = define_calling(call)

    runtime = await in_memory.open()
    with pytest.raises(RunFailed):
        await (await runtime.start(flow)).result()
    assert service.calls == 1


async def test_a_retry_predicate_that_raises_fails_the_step_and_does_not_hang_the_run(in_memory: World):
    def picky(error: BaseException) -> bool:
        raise KeyError("a mistake in the predicate")

    @step(retries=2, retry_on=picky)
    async def call() -> int:
        raise ValueError("no")

    flow = define_calling(call)

    runtime = await in_memory.open()
    with pytest.raises(RunFailed, match="mistake in the predicate"):
        await (await runtime.start(flow)).result(timeout=5)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


async def test_an_exception_that_cannot_be_put_into_words_is_retried_and_recorded_like_others(in_memory: World):
    calls: list[int] = []

    @step(retries=1, backoff=0.1)
    async def call() -> int:
        calls.append(1)
        raise Unspeakable

    flow = define_calling(call)

    runtime = await in_memory.open()
    with pytest.raises(RunFailed):
        await (await runtime.start(flow)).result(timeout=5)
    assert len(calls) == 2


async def test_an_async_attempt_that_takes_too_long_is_cancelled_and_made_again(world: World):
    ended: list[str] = []

    @step(retries=1, backoff=0.1, timeout=0.02)
    async def slow() -> str:
        if current_step().attempt == 2:
            return "quick this time"
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")
        return ""

    flow = define_calling(slow)

    runtime = await world.open()
    assert await (await runtime.start(flow)).result() == "quick this time"
    assert ended == ["cancelled"]


async def test_a_time_out_reaches_the_workflow_as_a_time_out_that_names_the_step(world: World):
    @step(timeout=0.02)
    async def slow() -> None:
        await asyncio.sleep(60)

    @workflow
    async def flow() -> str:
        try:
            await slow()
        except TimeoutError as error:
            return f"{type(error) is StepTimedOut} {getattr(error, 'step', None)} {error}"
        return ""

    runtime = await world.open()
    handle = await runtime.start(flow)
    told = await handle.result()
    assert told == f"True slow step 'slow' of run '{handle.run_id}' took longer than its time-out of 0.02 s (attempt 1)"


async def test_a_plain_function_that_takes_too_long_is_left_to_itself_and_its_outcome_dropped(world: World):
    let_go, returned = threading.Event(), threading.Event()

    @step(timeout=0.02)
    def slow() -> str:
        let_go.wait(10)
        returned.set()
        return "too late"

    @workflow
    async def flow() -> str:
        try:
            return await slow()
        except TimeoutError:
            return "timed out"

    runtime = await world.open()
    handle = await runtime.start(flow)
    assert await handle.result() == "timed out"
    let_go.set()
    await wait_until(returned.is_set)
    await asyncio.sleep(0.01)
    assert len(await read_journal(runtime, handle)) == 1


async def test_a_steps_own_timeout_error_is_not_taken_for_the_steps_time_out(in_memory: World):
    @step(timeout=30)
    async def call() -> None:
        raise TimeoutError("the server said so")

    @workflow
    async def flow() -> str:
        try:
            await call()
        except TimeoutError as error:
            return f"{type(error).__name__}: {error}"
        return ""

    runtime = await in_memory.open()
    assert await (await runtime.start(flow)).result() == "TimeoutError: the server said so"


async def test_waiting_for_a_free_thread_is_not_the_steps_own_time(in_memory: World):
    @step(timeout=1)
    def nap(n: int) -> int:
        time.sleep(0.2)
        return n

    @workflow
    async def flow() -> list[int]:
        return list(await asyncio.gather(*[nap(n) for n in range(6)]))

    runtime = await in_memory.open(threads=1)
    assert await (await runtime.start(flow)).result() == list(range(6))


async def test_plain_steps_run_in_threads_side_by_side(in_memory: World):
    together = threading.Barrier(4)

    @step
    def meet(n: int) -> str:
        together.wait(10)
        return threading.current_thread().name

    @workflow
    async def flow() -> list[str]:
        return list(await asyncio.gather(*[meet(n) for n in range(4)]))

    runtime = await in_memory.open()
    names = await (await runtime.start(flow)).result()
    assert len(set(names)) == 4
    assert all(name.startswith("holdfast-step") for name in names)


async def test_the_idempotency_key_is_the_same_for_every_attempt_and_another_for_every_step_and_run(world: World):
    keys: list[tuple[str, str]] = []

    @step(retries=2, backoff=0.1)
    async def pay(what: str) -> str:
        keys.append((what, current_step().idempotency_key))
        if current_step().attempt < 3:
            raise ConnectionError
        return what

    @workflow
    async def flow(who: str) -> None:
        await pay(f"{who} one")
        await pay(f"{who} two")

    runtime = await world.open()
    for who in ("ann", "bob"):
        await (await runtime.start(flow, who)).result()
    by_step = {what: {key for other, key in keys if other == what} for what, _ in keys}
    assert len(keys) == 12
    assert all(len(found) == 1 for found in by_step.values())
    assert len(set.union(*by_step.values())) == 4


async def test_a_step_knows_its_name_its_run_and_its_attempt(in_memory: World):
    @step(name="look-around", retries=1, backoff=0.1)
    def look() -> list[str]:
        me = current_step()
        if me.attempt == 1:
            raise ValueError
        return [me.name, me.run_id, me.workflow, str(me.attempt), str(me.progress)]

    @workflow
    async def flow() -> list[str]:
        return await look()

    runtime = await in_memory.open()
    handle = await runtime.start(flow)
    assert await handle.result() == ["look-around", handle.run_id, "flow", "2", "None"]
