"""Senders of numbers: each sends its own, one after the other, and all of them at the same time."""

from __future__ import annotations

import asyncio
import json
import os
import time

from holdfast import Client

RUN, NAME = os.environ["RUN"], os.environ["NAME"]
SENDER_COUNT, NUMBER_COUNT = int(os.environ["SENDER_COUNT"]), int(os.environ["NUMBER_COUNT"])


async def send(client: Client, sender: str) -> None:
    for number in range(NUMBER_COUNT):
        is_new = await client.signal(RUN, "number", [sender, number], id=f"{sender}-{number}")
        assert is_new, f"{sender}-{number} was there before"


async def main() -> None:
    began = time.time()
    async with Client() as client, asyncio.TaskGroup() as tasks:
        for number in range(SENDER_COUNT):
            tasks.create_task(send(client, f"{NAME}.{number}"))
    print(json.dumps({"sent": SENDER_COUNT * NUMBER_COUNT, "began": began, "ended": time.time()}), flush=True)


asyncio.run(main())
