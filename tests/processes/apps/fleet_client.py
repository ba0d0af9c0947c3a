"""A client of a fleet: in each of ``SLOTS``, it starts a parcel, sends its address, and reads the result, over and over
until the gate ``closing`` opens.

It prints what the store has confirmed, as lines of JSON: a run was started, its signal was sent, its result was read.
With ``RETRY``, it repeats what fails while the store is away, as a service does.
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
from holdfast.errors import StoreError

NAME = os.environ["NAME"]
CLOSING = Path(os.environ["GATES"], "gate-closing")
CAN_RETRY = "RETRY" in os.environ


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
        run = f"parcel-{name}"

        async def start(name: str = name) -> str:
            return (await client.start("parcel", name)).run_id

        async def send_address(run: str = run) -> None:
            await client.signal(run, "address", run, id="address")

        async def wait(run: str = run) -> Any:
            return await client.wait(run)

        await confirm("started", run, start)
        await confirm("signaled", run, send_address)
        await confirm("ended", run, wait)


async def main() -> None:
    numbers = itertools.count()
    async with Client() as client:
        print("ready", flush=True)
        await asyncio.gather(*[deliver_parcels(client, numbers) for _ in range(int(os.environ["SLOTS"]))])


asyncio.run(main())
