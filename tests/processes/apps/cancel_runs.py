"""Cancels the runs that it is given as soon as it is told to, and tells of each what it was told."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from holdfast import Client, RunEnded


async def main() -> None:
    async with Client() as client:
        print("ready", flush=True)
        while not Path(os.environ["GATES"], "gate-cancel").exists():  # noqa: ASYNC110 - the event is in another process
            await asyncio.sleep(0.001)
        for run in sys.argv[1:]:
            try:
                told = "asked" if await client.cancel(run) else "asked before"
            except RunEnded:
                told = "ended"
            print(json.dumps([run, told]), flush=True)


asyncio.run(main())
