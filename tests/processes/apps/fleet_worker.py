"""A worker of a fleet, of the Holdfast that is first on its path."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import fleet_flows  # noqa: F401 - makes the workflows known

import holdfast
from holdfast import Runtime


async def main() -> None:
    runtime = Runtime(lease=float(os.environ.get("LEASE", "10")))
    await runtime.open()
    print(Path(holdfast.__file__).parents[1], flush=True)
    print("ready", flush=True)
    await runtime.run_worker(grace=30)


logging.basicConfig(level=logging.INFO)
asyncio.run(main())
