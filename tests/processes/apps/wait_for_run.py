"""A client that knows none of the code: waits for the run it is given, and prints its result."""

from __future__ import annotations

import asyncio
import json
import sys

from holdfast import Client


async def main() -> None:
    async with Client() as client:
        print("ready", flush=True)
        print(json.dumps(await client.wait(sys.argv[1], timeout=30)), flush=True)


asyncio.run(main())
