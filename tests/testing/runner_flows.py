"""Workflows for the tests of the runner, and what their steps did."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from holdfast import (
    step,
    wait_for_signal,
    workflow,
)

did: list[Any] = []


@step
async def fetch(page: int) -> int:
    did.append(("fetch", page))
    return page * 10


@step
def store(rows: int) -> int:
    did.append(("store", rows))
    return rows + 1


@step(effect="once")
async def charge(amount: int) -> int:
    did.append(("charge", amount))
    return amount


@step(retries=5)
async def unsteady(what: str = "") -> str:
    did.append("unsteady")
    raise ConnectionError("no luck")


@workflow(id="copy-{page}")
async def copying(page: int) -> int:
    rows = await fetch(page)
    more = await fetch(page + 1)
    return await store(rows + more)


@workflow
async def hearing(days: float = 7) -> str:
    try:
        return await wait_for_signal("answer", timeout=timedelta(days=days))
    except TimeoutError:
        return "nobody answered"


@workflow
async def hearing_twice() -> list[int]:
    first = await wait_for_signal("number")
    await fetch(first)
    return [first, await wait_for_signal("number")]


@workflow
async def charging() -> int:
    return await charge(5)


@workflow
async def hourly() -> str:
    for hour in range(3):
        await asyncio.sleep(3600)
        await fetch(hour)
    return "done"


@workflow
async def insisting() -> str:
    return await unsteady()
