"""A worker of workflows with ``once`` steps, for databases that go back to a backup."""

from __future__ import annotations

import asyncio
import logging

import flows
from ledger import effect

from holdfast import Runtime, Schedule, step, workflow


@step(effect="once")
async def charge(order: str) -> str:
    with effect(order):
        return f"charged {order}"


@step(effect="once")
async def ship(order: str) -> str:
    with effect(order):
        return f"shipped {order}"


@workflow
async def order(name: str) -> list[str]:
    return [await flows.hold("order"), await charge(name), await charge(f"tip for {name}")]


@workflow(id="part-{name}")
async def part(name: str) -> str:
    return await charge(name)


@workflow
async def parts(name: str) -> str:
    """Starts a run after the backup was made."""
    await flows.hold("order")
    return await part(name)


@workflow
async def shipping(name: str) -> str:
    await flows.hold("ship")
    return await ship(name)


@workflow
async def report(word: str) -> str:
    return await charge(word)


Schedule("report", report, "the report", every="1 s", catch_up="all")


async def main() -> None:
    runtime = Runtime(lease=2)
    await runtime.open()
    print("ready", flush=True)
    await runtime.run_worker()


logging.basicConfig(level=logging.INFO)
asyncio.run(main())
