"""Runs that sleep until the same moment, and then write when they were resumed."""

from __future__ import annotations

import asyncio
import json
import os
import time
from datetime import UTC, datetime

import holdfast
from holdfast import step, workflow

DESCRIPTOR = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


@step
async def ring(number: int) -> None:
    # One write, and no sync: processes die in drills, not machines, and 10,000 syncs would be what is measured.
    os.write(DESCRIPTOR, f"{json.dumps([number, time.time(), os.getpid()])}\n".encode())


@workflow(id="timer-{number}")
async def timer(number: int, due: float) -> int:
    delay = datetime.fromtimestamp(due, UTC) - holdfast.now()
    await asyncio.sleep(delay.total_seconds())
    await ring(number)
    return number


@workflow
async def launch(count: int, due: float) -> None:
    """Start the timers: from a run, because a worker commits starts together and a client one by one."""
    await asyncio.gather(*[timer.start(number, due) for number in range(count)])
