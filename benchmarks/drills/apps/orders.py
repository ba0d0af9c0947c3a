"""Orders: runs of four steps that take a while, one of which must not happen twice. Steps write the ledger."""

from __future__ import annotations

import asyncio
import os

from ledger import effect

from holdfast import StepOutcomeUnknown, step, workflow

STEP_S = float(os.environ.get("STEP_S", "0.25"))


async def take_long(number: int) -> None:
    """Take ``STEP_S`` on average, and a different time in each run, so that they don't advance in step."""
    await asyncio.sleep(STEP_S * (0.5 + number * 7 % 11 / 10))


@step
async def reserve(number: int) -> str:
    with effect(f"{number}"):
        await take_long(number)
        return "reserved"


@step(effect="once")
async def charge(number: int) -> str:
    with effect(f"{number}"):
        await take_long(number)
        return "charged"


@step
async def pack(number: int) -> str:
    with effect(f"{number}"):
        await take_long(number)
        return "packed"


@step
async def ship(number: int) -> str:
    with effect(f"{number}"):
        await take_long(number)
        return "shipped"


@workflow(id="order-{number}")
async def order(number: int) -> list[str]:
    reserved = await reserve(number)
    try:
        charged = await charge(number)
    except StepOutcomeUnknown:
        charged = "unknown"
    return [reserved, charged, await pack(number), await ship(number)]


@workflow
async def launch(count: int) -> None:
    """Start the orders: from a run, because a worker commits starts together and a client one by one."""
    await asyncio.gather(*[order.start(number) for number in range(count)])
