"""Workflows that ask for much at once; see ``test_temporal_start_limiter``."""

from __future__ import annotations

import asyncio

from holdfast import step, workflow

at_work: list[int] = [0, 0]
"""How many steps are at work now, and how many were at most."""


@step
async def pacing_work(number: int) -> int:
    at_work[0] += 1
    at_work[1] = max(at_work)
    await asyncio.sleep(0.01)
    at_work[0] -= 1
    return number


@step
async def undo_work(number: int) -> None:
    pass


@step(compensate=undo_work)
async def pacing_careful(number: int) -> int:
    await asyncio.sleep(5)
    return number


@workflow
async def pacing_wide(count: int) -> list[int]:
    return await asyncio.gather(*map(pacing_work, range(count)))


@workflow
async def pacing_withdrawn(count: int) -> int:
    """Steps that are withdrawn while they wait for their turn never begin, and nobody waits for them."""
    works = [asyncio.create_task(pacing_careful(number)) for number in range(count)]
    await pacing_child("", 0)
    for work in works:
        work.cancel()
    await asyncio.wait(works)
    return await pacing_work(7)


@workflow
async def pacing_child(text: str, number: int) -> int:
    return len(text)


@workflow
async def pacing_children(count: int, size: int) -> list[int]:
    return await asyncio.gather(*(pacing_child("x" * size, number) for number in range(count)))


@workflow
async def pacing_cancelled(count: int, size: int) -> int:
    """Children that are called off before there was room for them are never started."""
    first = pacing_work(1)
    children = [asyncio.create_task(pacing_child("x" * size, number)) for number in range(count)]
    await asyncio.sleep(0)
    for child in children[2:]:
        child.cancel()
    done, _ = await asyncio.wait(children)
    return await first + sum(not child.cancelled() for child in done)
