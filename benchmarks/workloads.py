"""The workflows that are measured."""

from __future__ import annotations

import asyncio

import holdfast
from holdfast import step, workflow

OUTPUT_CHARS = 200


@step
async def one(number: int) -> str:
    return f"{number:0{OUTPUT_CHARS}d}"


@workflow
async def sequence(length: int) -> int:
    for number in range(length):
        await one(number)
    return length


@workflow
async def mapped(length: int, concurrency: int) -> int:
    return len(await holdfast.map(one, range(length), max_concurrency=concurrency))


@workflow(id="held-{name}")
async def held(name: str, length: int) -> int:
    """Steps, then a signal: the way to a run with a long journal that has not ended."""
    for number in range(length):
        await one(number)
    await holdfast.wait_for_signal("go")
    return length


@workflow(id="parked-{number}")
async def parked(number: int) -> str:
    return await holdfast.wait_for_signal("go")


@step
async def linger(log: str) -> int:
    """Write which process runs it, then take long."""
    import os
    import time

    with open(log, "a") as ledger:
        ledger.write(f"{os.getpid()} {time.time()}\n")
    await asyncio.sleep(0.2)
    return os.getpid()


@workflow(id="lingering-{number}")
async def lingering(number: int, log: str) -> int:
    for _ in range(1000):
        await linger(log)
    return 0


@workflow
async def child(number: int) -> str:
    return await one(number)


@workflow
async def parent(size: int) -> int:
    return len(await asyncio.gather(*[child(number) for number in range(size)]))


async def _increment(number: int) -> int:
    return number + 1


_CHAIN_LENGTH = 20
_chain_steps = [step(name=f"s{number}")(_increment) for number in range(1, _CHAIN_LENGTH + 1)]


@workflow
async def chained(number: int) -> int:
    """A chain of steps, as a function."""
    for one_more in _chain_steps:
        number = await one_more(number)
    return number


@workflow
class Chained:
    """The same chain as a class."""

    @step(1)
    async def s1(self, number: int) -> int:
        return number + 1

    for _number in range(2, _CHAIN_LENGTH + 1):

        @step(_number, depends_on=_number - 1, name=f"s{_number}")
        async def _step(self, result: int) -> int:
            return result + 1

        vars()[f"s{_number}"] = _step
    del _step, _number
