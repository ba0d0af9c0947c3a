"""A worker whose code declares a schedule that fires every second."""

from __future__ import annotations

import asyncio
import logging

from ledger import effect

from holdfast import Runtime, Schedule, step, workflow


@step
async def beat() -> None:
    with effect():
        await asyncio.sleep(0.05)


@workflow
async def pulse(word: str) -> str:
    await beat()
    return word


Schedule("pulse", pulse, "tick", every="1 s", catch_up="all")


async def main() -> None:
    runtime = Runtime()
    await runtime.open()
    print("ready", flush=True)
    await runtime.run_worker()


logging.basicConfig(level=logging.INFO)
asyncio.run(main())
