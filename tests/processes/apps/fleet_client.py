"""A client of a fleet: in each of ``SLOTS``, it starts a parcel, sends its address, and reads the result, over and over
until the gate ``closing`` opens.

It prints what the store has confirmed, as lines of JSON: a run was started, its signal was sent, its result was read.
With ``RETRY``, it repeats what fails while the store is away, and sends again what the store has lost.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from holdfast import Client
from holdfast.errors import RunEnded, RunNotFound, StoreError

NAME = os.environ["NAME"]
CLOSING = Path(os.environ["GATES"], "gate-closing")
CAN_RETRY = "RETRY" in os.environ
RESEND_AFTER_S = 5.0 if CAN_RETRY else 60.0


async def confirm(event: str, run: str, request: Callable[[], Awaitable[Any]]) -> None:
    """Make a request until it is answered, and print the event with the answer."""
    while True:
        try:
            answer = await request()
            break
        except StoreError:
            if not CAN_RETRY:
                raise
            await asyncio.sleep(0.02)
    print(json.dumps([event, run, answer]), flush=True)


async def deliver_parcels(client: Client, numbers: itertools.count[int]) -> None:
    while not CLOSING.exists():
        name = f"{NAME}-{next(numbers)}"
        while not await is_delivered(client, name):
            pass


async def is_delivered(client: Client, name: str) -> bool:
    """Deliver a parcel. Returns whether the store still has what it has confirmed; if not, all is sent again."""
    run = f"parcel-{name}"

    async def start() -> str:
        return (await client.start("parcel", name)).run_id

    async def send_address() -> None:
        await client.signal(run, "address", run, id="address")

    async def wait() -> Any:
        return await client.wait(run, RESEND_AFTER_S)

    try:
        await confirm("started", run, start)
        await confirm("signaled", run, send_address)
        await confirm("ended", run, wait)
    except (RunNotFound, TimeoutError):
        if not CAN_RETRY:
            raise
        return False
    except RunEnded:  # it was sent its address before, and has ended
        await confirm("ended", run, wait)
    return True


async def main() -> None:
    numbers = itertools.count()
    async with Client() as client:
        print("ready", flush=True)
        await asyncio.gather(*[deliver_parcels(client, numbers) for _ in range(int(os.environ["SLOTS"]))])


asyncio.run(main())
