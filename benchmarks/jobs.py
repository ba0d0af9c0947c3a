"""The workflows that are measured."""

from __future__ import annotations

import asyncio

import holdfast
from holdfast import step, workflow

WIDTH = 200


@step
async def one(number: int) -> str:
    return f"{number:0{WIDTH}d}"


@workflow
async def sequence(length: int) -> int:
    for number in range(length):
        await one(number)
    return length


@workflow
async def mapped(length: int, concurrency: int) -> int:
    return len(await holdfast.map(one, range(length), concurrency=concurrency))


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
    """Tell where it runs, then take long."""
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
