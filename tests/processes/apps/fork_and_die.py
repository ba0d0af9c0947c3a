"""Forks a run, and is gone in the same moment."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from holdfast import Client


async def main() -> None:
    client = Client()
    await client.fork(sys.argv[1], at=sys.argv[2], id=sys.argv[3])
    os.kill(os.getpid(), signal.SIGKILL)


asyncio.run(main())
