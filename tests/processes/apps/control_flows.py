"""Workflows that are cancelled, undone, forked and switched off, and such as have children."""

from __future__ import annotations

import asyncio

from flows import call, hold, pass_gate
from ledger import effect

from holdfast import step, workflow

# Undoing


@step
async def release(label: str) -> str:
    """In flight until the gate for undoing this opens."""
    with effect(label):
        await pass_gate(f"undo-{label}")
        return label


@step(compensate=release)
async def acquire(label: str) -> str:
    with effect(label):
        return label


@step
async def refuse(label: str) -> str:
    with effect(label):
        raise RuntimeError(f"{label} is refused")


@workflow(id="undone-{name}")
async def undone(name: str) -> None:
    for number in range(3):
        await acquire(f"{name}-{number}")
    await refuse(name)


# Cancelling


@workflow(id="cleaned-{name}")
async def cleaned(name: str) -> None:
    await acquire(f"{name}-0")
    try:
        await hold(name)
    finally:
        await hold(f"{name}-clean")


@workflow(id="short-{name}")
async def short(name: str) -> str:
    return await hold(name)


@workflow(id="then-{name}")
async def held_then(name: str) -> list[str]:
    return [await hold(name), await call(f"{name} after")]


# Children


@workflow(id="child-{name}")
async def child(name: str) -> str:
    await call(f"{name} in the child")
    return await hold(name)


@workflow(id="parent-{name}")
async def parent(name: str) -> list[str]:
    first = await call(f"{name} before")
    return [first, await child(name), await call(f"{name} after")]


@workflow(id="family-{name}")
async def family(name: str, size: int) -> int:
    await asyncio.gather(*[short(f"{name}-{number}") for number in range(size)])
    return size


# Forking


@workflow(id="long-{name}")
async def long(name: str) -> list[str]:
    return [await call(f"{name} first"), await call(f"{name} second"), await hold(name)]
