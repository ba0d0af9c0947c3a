"""Starts runs of the soak's workflows, one after the other in each of ``SLOTS``, until the gate ``over`` opens.

It knows none of the code, and tells in the file ``starts`` of every run that it begins, has started, and has seen end.
It ends when all of them have.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
from pathlib import Path
from typing import Any

from holdfast import Client
from holdfast.errors import RunDead, RunFailed, StoreError

FOLDER = Path(os.environ["GATES"])
FLOWS = os.environ["FLOWS"].split()
descriptor = os.open(FOLDER / "starts", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def write_event(*what: Any) -> None:
    os.write(descriptor, f"{json.dumps(what)}\n".encode())


async def start(client: Client, flow: str, n: int) -> None:
    """Start the run, however often that has to be tried: an id makes it the same run."""
    while True:
        try:
            handle = await client.start(f"soak_{flow}", n)
        except StoreError:
            await asyncio.sleep(0.05)
            continue
        except RunDead:
            return  # it is there, and three strikes in a row have hit it since
        assert handle.run_id == f"{flow}-{n}", handle
        return


async def end_of(client: Client, run: str) -> tuple[str, Any]:
    """How the run ended; a dead one is retried by the test, so it is waited for again."""
    while True:
        try:
            return "completed", await client.wait(run)
        except RunFailed:
            return "failed", str((await client.get(run)).error)
        except (RunDead, StoreError):
            await asyncio.sleep(0.2)


async def main() -> None:
    chance = random.Random(int(os.environ["SEED"]))
    numbers = itertools.count()
    over = FOLDER / "gate-over"

    async def keep_starting(client: Client) -> None:
        while not over.exists():
            n, flow = next(numbers), chance.choice(FLOWS)
            run = f"{flow}-{n}"
            write_event("begin", run)
            if flow == "family":
                write_event("begin", f"child-{n}")
            await start(client, flow, n)
            write_event("started", run)
            if flow != "failing" and chance.random() < 0.05:
                await start(client, flow, n)  # which joins the run that is there
            state, result = await end_of(client, run)
            write_event("ended", run, state, result)
            if flow == "family":
                write_event("ended", f"child-{n}", *await end_of(client, f"child-{n}"))

    async with Client() as client:
        await asyncio.gather(*[keep_starting(client) for _ in range(int(os.environ["SLOTS"]))])
    write_event("over", "")


asyncio.run(main())
