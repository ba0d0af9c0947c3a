"""Steps: retries, time-outs, effects, progress, and exceptions that keep their class."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from conformance_world import World, effect_counts, fails_with, make_unique_id

from holdfast import (
    Client,
    RetryPolicy,
    RunCancelled,
    StepFailed,
    StepTimedOut,
    current_run,
    current_step,
    step,
    workflow,
)
from waits import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Denied(Exception):
    """An exception with arguments of its own."""

    def __init__(self, who: str, *, code: int) -> None:
        super().__init__(f"{who} may not")
        self.who = who
        self.code = code


@step(retries=4, backoff=0.001)
async def st_flaky(until: int) -> int:
    me = current_step()
    effect_counts[me.run_id, "flaky"] += 1
    if me.attempt < until:
        raise ConnectionError(f"attempt {me.attempt}")
    return me.attempt


@workflow
async def st_trying(until: int) -> int:
    return await st_flaky(until)


async def test_a_failed_attempt_is_made_again(world: World) -> None:
    run = make_unique_id("trying")
    assert await st_trying.options(id=run)(3) == 3
    assert effect_counts[run, "flaky"] == 3


async def test_retries_are_bounded_and_the_last_failure_counts(world: World) -> None:
    run = make_unique_id("trying")
    with fails_with(ConnectionError, "attempt 5"):
        await st_trying.options(id=run)(9)
    assert effect_counts[run, "flaky"] == 5


async def test_failed_attempts_and_failures_are_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    run = make_unique_id("trying")
    with fails_with(ConnectionError, "attempt 5"):
        await st_trying.options(id=run)(9)
    told = [one.getMessage() for one in caplog.records if one.name == "holdfast.runs" and run in one.getMessage()]
    assert [line.partition(", retrying in ")[0] for line in told[:4]] == [
        f"step 'st_flaky' of run {run!r} failed (attempt {attempt} of 5)" for attempt in (1, 2, 3, 4)
    ]
    assert all(line.endswith(f": ConnectionError: attempt {at}") for at, line in enumerate(told[:4], 1))
    assert told[4:] == [
        f"step 'st_flaky' of run {run!r} failed (attempt 5): ConnectionError: attempt 5",
        f"run {run!r} of workflow 'st_trying' failed: ConnectionError: attempt 5",
    ]


@step(retries=5, backoff=0.001, retry_on=ConnectionError)
async def st_choosy() -> None:
    effect_counts[current_run().id, "choosy"] += 1
    raise PermissionError("no") if effect_counts[current_run().id, "choosy"] == 2 else ConnectionError("again")


@step(retries=5, backoff=0.001, give_up_on=PermissionError)
async def st_giving_up() -> None:
    effect_counts[current_run().id, "giving up"] += 1
    raise PermissionError("no") if effect_counts[current_run().id, "giving up"] == 2 else ConnectionError("again")


@step(retries=5, backoff=0.001, retry_on=lambda error: "again" in str(error))
def st_asking() -> None:
    effect_counts[current_run().id, "asking"] += 1
    raise OSError("no" if effect_counts[current_run().id, "asking"] == 2 else "again")


@workflow
async def st_choosing() -> list[str]:
    told: list[str] = []
    for one in (st_choosy, st_giving_up, st_asking):
        try:
            await one()
        except OSError as error:
            told.append(repr(error))
    return told


async def test_which_failures_are_worth_another_attempt(world: World) -> None:
    run = make_unique_id("choosing")
    assert await st_choosing.options(id=run)() == ["PermissionError('no')", "PermissionError('no')", "OSError('no')"]
    assert [effect_counts[run, name] for name in ("choosy", "giving up", "asking")] == [2, 2, 2]


def st_cancel_me() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def st_leave_a_request() -> None:
    st_cancel_me()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        pass


@step(retries=1, backoff=0.001)
async def st_cancelling_its_task(attempts: int) -> int:
    if current_step().attempt <= attempts:
        st_cancel_me()
        await asyncio.sleep(60)
    return current_step().attempt


@step(timeout=0.2)
async def st_timing_out_after_a_request() -> None:
    await st_leave_a_request()
    await asyncio.sleep(60)


@step
async def st_returning_after_a_request() -> str:
    await st_leave_a_request()
    st_cancel_me()
    return "done"


@workflow
async def st_cancelled_from_within() -> list[Any]:
    told: list[Any] = [await st_cancelling_its_task(1), await st_returning_after_a_request()]
    for one in (partial(st_cancelling_its_task, 9), st_timing_out_after_a_request):
        try:
            await one()
        except (StepFailed, StepTimedOut) as error:
            told.append(type(error).__name__)
    return told


async def test_a_step_that_cancels_its_own_task_has_failed(world: World) -> None:
    run = make_unique_id("cancelled from within")
    assert await st_cancelled_from_within.options(id=run)() == [2, "done", "StepFailed", "StepTimedOut"]


@step(retries=1, backoff=0.3)
async def st_late() -> float:
    if current_step().attempt == 1:
        raise ConnectionError("again")
    return time.time()


@workflow
async def st_backing_off() -> float:
    return await st_late()


async def test_the_next_attempt_waits_for_its_backoff(world: World) -> None:
    began = time.time()
    assert await st_backing_off.options(new=True)() - began >= 0.15  # half of it is chance


@step(timeout=0.5)
async def st_too_slow() -> None:
    try:
        await asyncio.sleep(60)
    finally:
        effect_counts[current_run().id, "cleaned up"] += 1


released = threading.Event()


@step(timeout=0.5)
def st_too_slow_in_a_thread() -> None:
    released.wait(5)


@step(retry=RetryPolicy(backoff=0.2, factor=1, jitter=0, give_up_after=0.5))
async def st_never_answers() -> None:
    raise ConnectionError(f"attempt {current_step().attempt}")


@workflow
async def st_losing_patience() -> None:
    await st_never_answers()


async def test_a_policy_may_give_up_after_a_time(world: World) -> None:
    with fails_with(ConnectionError, "attempt "):
        await st_losing_patience.options(new=True)()


class Busy(Exception):
    def __init__(self, wait: float) -> None:
        super().__init__("busy")
        self.wait = wait


@step(retry=RetryPolicy(retries=1, backoff=0.01, read_retry_after=lambda error: getattr(error, "wait", None)))
async def st_asks_to_wait() -> float:
    me = current_step()
    if me.attempt == 1:
        me.heartbeat(time.time())
        raise Busy(0.5)
    return time.time() - me.progress


@workflow
async def st_heeding() -> float:
    return await st_asks_to_wait()


async def test_the_next_attempt_waits_as_long_as_the_error_asks_for(world: World) -> None:
    assert await st_heeding.options(new=True)() >= 0.5


@step(retry=RetryPolicy(backoff=3600, max_backoff=3600))
async def st_waits_long() -> None:
    raise ConnectionError("not yet")


@workflow
async def st_waiting_long() -> None:
    await st_waits_long()


async def test_a_step_that_waits_for_its_next_attempt_says_when_that_is(world: World) -> None:
    handle = await st_waiting_long.options(new=True).start()

    async with Client(world.url) as client:

        async def waits() -> Any:
            story = await client.describe(handle.run_id)
            return story.in_flight and story.in_flight[0].retry_at and story.in_flight[0]

        found = await wait_until(waits)
    assert (found.name, found.attempt, found.error) == ("st_waits_long", 1, "ConnectionError: not yet")
    assert 1700 < (found.retry_at - datetime.now(UTC)).total_seconds() <= 3600
    await handle.cancel()
    with pytest.raises(RunCancelled):
        await handle.result()


@step(timeout=0.5, retries=1, backoff=0.001)
async def st_slow_at_first() -> int:
    if current_step().attempt == 1:
        await asyncio.sleep(60)
    return current_step().attempt


@workflow
async def st_timing() -> list[Any]:
    told: list[Any] = []
    for one in (st_too_slow, st_too_slow_in_a_thread):
        try:
            await one()
        except StepTimedOut as error:
            told.append([error.step, isinstance(error, TimeoutError)])
    return [*told, await st_slow_at_first()]


async def test_a_time_out_ends_an_attempt(world: World) -> None:
    run = make_unique_id("timing")
    released.clear()
    told = await st_timing.options(id=run)()
    released.set()
    assert told == [["st_too_slow", True], ["st_too_slow_in_a_thread", True], 2]
    assert effect_counts[run, "cleaned up"] == 1


@step
async def st_denying() -> None:
    raise Denied("ann", code=7)


@step
async def st_grouping() -> None:
    raise ExceptionGroup("both", [ValueError("one"), KeyError("two")])


def local_error() -> Exception:
    class Local(Exception):
        pass

    return Local("nobody can import this")


@step
async def st_local() -> None:
    raise local_error()


@workflow
async def st_raising() -> list[Any]:
    told: list[Any] = []
    for one in (st_denying, st_grouping, st_local):
        try:
            await one()
        except Denied as error:
            told.append([error.who, error.code, str(error)])
        except StepFailed as error:
            told.append(str(error))
    return told


async def test_exceptions_have_their_class_and_what_they_hold(world: World) -> None:
    assert await st_raising.options(new=True)() == [
        ["ann", 7, "ann may not"],
        "ExceptionGroup: both (2 sub-exceptions)",
        "local_error.<locals>.Local: nobody can import this",
    ]


@workflow
async def st_uncaught() -> None:
    await st_denying()


async def test_an_exception_of_a_step_that_nobody_catches_fails_the_run(world: World) -> None:
    with fails_with(Denied, "ann may not"):
        await st_uncaught.options(new=True)()


@step(effect="once", retries=0)
async def st_letter() -> str:
    effect_counts[current_run().id, "letter"] += 1
    return "sent"


@step(effect="once")
async def st_lost_letter() -> str:
    effect_counts[current_run().id, "lost"] += 1
    raise ConnectionError("no answer")


@workflow
async def st_sending() -> list[str]:
    told = [await st_letter()]
    try:
        await st_lost_letter()
    except ConnectionError as error:
        told.append(str(error))
    return told


async def test_a_once_step_is_done_once(world: World) -> None:
    run = make_unique_id("sending")
    assert await st_sending.options(id=run)() == ["sent", "no answer"]
    assert [effect_counts[run, name] for name in ("letter", "lost")] == [1, 1]


@step(retries=2, backoff=0.001)
async def st_importing(count: int) -> list[int]:
    me = current_step()
    start = me.progress or 0
    for row in range(start, count):
        me.heartbeat(row)
        if row == 60 and me.attempt == 1:
            raise ConnectionError("dropped")
        if row == 80 and me.attempt == 2:
            await me.save_progress(90)
            raise ConnectionError("dropped again")
    return [me.attempt, start]


@workflow
async def st_progressing() -> list[int]:
    return await st_importing(100)


async def test_a_step_keeps_its_place_from_attempt_to_attempt(world: World) -> None:
    assert await st_progressing.options(new=True)() == [3, 90]


@step(retries=1, backoff=0.001)
async def st_keyed() -> list[str]:
    me = current_step()
    effect_counts[me.run_id, me.idempotency_key] += 1
    if me.attempt == 1:
        raise ConnectionError("again")
    return [me.idempotency_key]


@workflow
async def st_keying() -> list[str]:
    return await st_keyed() + await st_keyed()


async def test_an_idempotency_key_is_that_of_the_step_in_all_its_attempts(world: World) -> None:
    run = make_unique_id("keying")
    first, second = await st_keying.options(id=run)()
    assert first != second
    assert effect_counts[run, first] == effect_counts[run, second] == 2


@step
async def st_stopping() -> None:
    raise SystemExit(3)


@step
async def st_cancelling_itself() -> None:
    raise asyncio.CancelledError


@workflow
async def st_surviving() -> list[str]:
    told: list[str] = []
    for one in (st_stopping, st_cancelling_itself):
        try:
            await one()
        except StepFailed as error:
            told.append(error.step)
    return told


async def test_a_step_that_exits_or_cancels_itself_has_failed(world: World) -> None:
    assert await st_surviving.options(new=True)() == ["st_stopping", "st_cancelling_itself"]
