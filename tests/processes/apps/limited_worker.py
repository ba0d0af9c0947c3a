"""A worker of two queues with limits, which tells outside of the database when it was given which runs to begin."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from ledger import effect

from holdfast import Queue, Runtime, step, workflow

PLACES = 3


@step
async def visit(customer: str) -> str:
    with effect(customer):
        await are_slots_full()
        await asyncio.sleep(0.1)
    return customer


async def are_slots_full() -> None:
    """The first visits wait for each other: however slow the machine is, all places are taken at once one time."""
    begun = Path(f"{os.environ['CLAIMS']}.begun")
    with begun.open("a") as file:
        file.write("x")
    patience = time.monotonic() + 20
    while begun.stat().st_size < PLACES and time.monotonic() < patience:  # noqa: ASYNC110 - other processes write
        await asyncio.sleep(0.02)


@workflow(queue=Queue("visits", concurrency=PLACES, per_key=1, key="{customer}"), max_deliveries=99)
async def visits(customer: str, number: int) -> str:
    return await visit(customer)


@step
async def call(number: int) -> int:
    with effect():
        return number


@workflow(queue=Queue("calls", rate="15/s"), max_deliveries=99)
async def calls(number: int) -> int:
    return await call(number)


def print_claims(store: Any) -> None:
    """Append a line for each claim: when it was asked, when it was answered, and the runs that begin."""
    claim = store.claims.claim

    async def print_claim(*args: Any, **kwargs: Any) -> Any:
        asked = time.time()
        runs = await claim(*args, **kwargs)
        begin = [run.id for run in runs if run.epoch == 1 and run.queue == "calls"]
        if begin:
            line = f"{json.dumps([asked, time.time(), begin])}\n".encode()
            descriptor = os.open(os.environ["CLAIMS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(descriptor, line)
            os.close(descriptor)
        return runs

    store.claims.claim = print_claim


async def main() -> None:
    runtime = Runtime()
    print_claims(runtime._engine.store)
    await runtime.open()
    print("ready", flush=True)
    await runtime.run_worker()


logging.basicConfig(level=logging.INFO)
asyncio.run(main())
