"""Steps: retries, time-outs, effects, progress, and exceptions that keep their class."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from conformance_world import World, did, fails_with, fresh

from holdfast import (
    StepFailed,
    StepTimedOut,
    current_run,
    current_step,
    step,
    workflow,
)

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
    did[me.run_id, "flaky"] += 1
    if me.attempt < until:
        raise ConnectionError(f"attempt {me.attempt}")
    return me.attempt


@workflow
async def st_trying(until: int) -> int:
    return await st_flaky(until)


async def test_a_failed_attempt_is_made_again(world: World) -> None:
    run = fresh("trying")
    assert await st_trying.options(id=run)(3) == 3
    assert did[run, "flaky"] == 3


async def test_retries_are_bounded_and_the_last_failure_counts(world: World) -> None:
    run = fresh("trying")
    with fails_with(ConnectionError, "attempt 5"):
        await st_trying.options(id=run)(9)
    assert did[run, "flaky"] == 5


@step(retries=5, backoff=0.001, retry_on=ConnectionError)
async def st_choosy() -> None:
    did[current_run().id, "choosy"] += 1
    raise PermissionError("no") if did[current_run().id, "choosy"] == 2 else ConnectionError("again")


@step(retries=5, backoff=0.001, give_up_on=PermissionError)
async def st_giving_up() -> None:
    did[current_run().id, "giving up"] += 1
    raise PermissionError("no") if did[current_run().id, "giving up"] == 2 else ConnectionError("again")


@step(retries=5, backoff=0.001, retry_on=lambda error: "again" in str(error))
def st_asking() -> None:
    did[current_run().id, "asking"] += 1
    raise OSError("no" if did[current_run().id, "asking"] == 2 else "again")


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
    run = fresh("choosing")
    assert await st_choosing.options(id=run)() == ["PermissionError('no')", "PermissionError('no')", "OSError('no')"]
    assert [did[run, name] for name in ("choosy", "giving up", "asking")] == [2, 2, 2]


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
        did[current_run().id, "cleaned up"] += 1


released = threading.Event()


@step(timeout=0.5)
def st_too_slow_in_a_thread() -> None:
    released.wait(5)


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
    run = fresh("timing")
    released.clear()
    told = await st_timing.options(id=run)()
    released.set()
    assert told == [["st_too_slow", True], ["st_too_slow_in_a_thread", True], 2]
    assert did[run, "cleaned up"] == 1


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
    did[current_run().id, "letter"] += 1
    return "sent"


@step(effect="once")
async def st_lost_letter() -> str:
    did[current_run().id, "lost"] += 1
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
    run = fresh("sending")
    assert await st_sending.options(id=run)() == ["sent", "no answer"]
    assert [did[run, name] for name in ("letter", "lost")] == [1, 1]


@step(retries=2, backoff=0.001)
async def st_importing(count: int) -> list[int]:
    me = current_step()
    start = me.progress or 0
    for row in range(start, count):
        me.heartbeat(row)
        if row == 60 and me.attempt == 1:
            raise ConnectionError("dropped")
        if row == 80 and me.attempt == 2:
            await me.keep(90)
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
    did[me.run_id, me.idempotency_key] += 1
    if me.attempt == 1:
        raise ConnectionError("again")
    return [me.idempotency_key]


@workflow
async def st_keying() -> list[str]:
    return await st_keyed() + await st_keyed()


async def test_an_idempotency_key_is_that_of_the_step_in_all_its_attempts(world: World) -> None:
    run = fresh("keying")
    first, second = await st_keying.options(id=run)()
    assert first != second
    assert did[run, first] == did[run, second] == 2


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
