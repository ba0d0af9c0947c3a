"""Workflows that survive every crash.

They lie in a module, not in the tests, because other Python processes have to find them.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import logging
import random
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import anyio

import holdfast
from holdfast import StepOutcomeUnknown, current_run, current_step, step, wait_for_signal, workflow

log = logging.getLogger("zoo")


@step
async def note(what: Any = None) -> int:
    return 1


@step
def double(number: int) -> int:
    return number * 2


@step(retries=3)
async def third_time(number: int) -> int:
    if current_step().attempt < 3:
        raise ValueError("not yet")
    return number


@step(retries=2)
async def broken() -> int:
    raise ValueError("broken for good")


@step(timeout=0.01)
async def too_slow() -> int:
    await asyncio.sleep(60)
    return 1


@step(effect="once")
async def pay(amount: int) -> int:
    return amount


@step(retries=2)
async def in_parts() -> int:
    this = current_step()
    if this.progress is None:
        this.heartbeat({"done": 3})
        await asyncio.sleep(0.02)
        raise ValueError("half way")
    return this.progress["done"]


@step
async def not_recordable() -> object:
    return object()


# Good ones

visitor: contextvars.ContextVar[str] = contextvars.ContextVar("visitor", default="nobody")
SIZES = {"small": 1, "large": 2}


@step
async def who() -> str:
    return visitor.get()


@functools.lru_cache
def square(number: int) -> int:
    return number * number


@workflow
async def good_threads() -> int:
    return sum(await asyncio.gather(*[double(number) for number in range(4)]))


async def two_steps(number: int) -> int:
    try:
        return await double(number) + await note(number)
    finally:
        await asyncio.sleep(0)


@workflow
async def good_task_group() -> int:
    async with asyncio.TaskGroup() as group:
        naps = [group.create_task(asyncio.sleep(number, number)) for number in range(3)]
        others = [group.create_task(two_steps(number)) for number in range(2)]
    return sum(task.result() for task in [*naps, *others])


@workflow
async def good_map() -> int:
    return sum(await holdfast.map(double, range(4)))


@workflow
async def good_retries() -> int:
    return await third_time(1) + await third_time(2)


@workflow
async def good_time_out() -> str:
    try:
        await too_slow()
    except TimeoutError:
        return "late"
    return "in time"


@workflow
async def good_once_caught() -> int:
    try:
        return await pay(1)
    except StepOutcomeUnknown:
        return await note("look whether it was paid")


@workflow
async def good_once_not_caught() -> int:
    return await pay(1) + await pay(2)


@workflow
async def good_finally() -> int:
    try:
        await note("do")
        await asyncio.sleep(100)
    finally:
        await note("undo")
        await asyncio.sleep(100)
    return 1


@workflow(timeout=timedelta(days=1))
async def good_deadline() -> None:
    try:
        await asyncio.sleep(timedelta(days=2).total_seconds())
    finally:
        await note("undo")


@workflow
async def good_failure() -> None:
    await note()
    await broken()


@workflow
async def good_except_exception() -> str:
    try:
        await broken()
    except Exception as error:
        return str(error)
    return "whole"


@workflow
async def good_reraise() -> int:
    try:
        await note(1)
        await asyncio.sleep(10)
        return await note(2)
    except BaseException:
        log.info("on the way out")
        raise


@workflow
async def good_signals() -> list[str]:
    return [await wait_for_signal("go"), await wait_for_signal("go")]


@workflow
async def good_signal_in_vain() -> str:
    try:
        async with asyncio.timeout(60):
            return await wait_for_signal("nobody sends this")
    except TimeoutError:
        return "late"


@workflow
async def good_recorded_chance() -> str:
    drawn = f"{holdfast.now()} {holdfast.uuid4()} {holdfast.random().random()} {current_run().id}"
    await note(drawn)
    await asyncio.sleep(60)
    return f"{drawn} {holdfast.now()} {holdfast.uuid4()}"


@workflow
async def good_ordinary_python() -> int:
    log.info("hello")
    words = {"c", "a", "b"}
    for word in sorted(words):
        await note(word)
    for size in SIZES.values():
        await note(square(size))
    own = random.Random(42)
    await note(own.random())
    return len(words)


@workflow
async def good_changing_argument() -> int:
    numbers = [1]
    call = asyncio.ensure_future(note(numbers))
    await asyncio.sleep(0)
    numbers.append(2)
    await call
    await note(numbers)
    numbers.append(3)
    return len(numbers)


@workflow
async def good_live_objects() -> int:
    return await note(object()) + await note([lambda: 1])


@workflow
async def good_context() -> str:
    visitor.set("me")
    return await who() + visitor.get()


async def doubled(most: int) -> AsyncIterator[int]:
    try:
        for number in range(most):
            yield await double(number)
    finally:
        await note("closed")


@workflow
async def good_generator() -> int:
    total = 0
    async for number in doubled(4):
        total += number
        if number >= 2:
            break
    return total


@workflow
async def good_context_manager() -> int:
    @contextlib.asynccontextmanager
    async def held() -> AsyncIterator[int]:
        yield await note("take")
        await note("give back")

    async with held():
        await asyncio.sleep(5)
    return 1


@workflow
async def good_first_of_many() -> bool:
    tasks = [asyncio.create_task(two_steps(number)) for number in range(3)]
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    return bool(done)


@workflow
async def good_anyio() -> int:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 1000)
        group.start_soon(two_steps, 1)
        await note(1)
        with anyio.CancelScope(shield=True):
            await note(2)
        with anyio.move_on_after(3):
            await anyio.sleep(100)
        group.cancel_scope.cancel()
    return 1


@workflow
async def good_time_out_in_finally() -> str:
    try:
        await asyncio.wait_for(wait_for_signal("nobody sends this"), 5)
    except TimeoutError:
        try:
            await note()
        finally:
            async with asyncio.timeout(5):
                await asyncio.sleep(3)
    return "late"


@workflow
async def good_failing_group() -> int:
    async def failing() -> None:
        await note(1)
        raise ValueError

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(failing())
            await asyncio.sleep(50)
    except* ValueError:
        pass
    return await note(3)


@workflow
async def good_locks() -> int:
    lock, room = asyncio.Lock(), asyncio.Semaphore(2)

    async def one(number: int) -> None:
        async with room, lock:
            await note(number)

    await asyncio.gather(*(one(number) for number in range(3)))
    return 1


@workflow
async def good_cancelled_task() -> int:
    task = asyncio.create_task(asyncio.sleep(1000))
    await note()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return 1


@workflow
async def good_left_behind() -> int:
    task = asyncio.create_task(two_steps(1))
    await asyncio.sleep(0)
    return await note(task.done())


@workflow
async def good_progress() -> int:
    return await in_parts()


@workflow
async def good_unrecordable() -> None:
    await not_recordable()


@workflow
async def good_nothing() -> int:
    return 1


@workflow(id="good-{number}")
async def good_template(number: int) -> int:
    return await note(number)


GOOD = {name: flow for name, flow in globals().items() if name.startswith("good_")}
