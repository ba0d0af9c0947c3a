"""A worker: serves all workflows of ``flows`` until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os

import asking_flows  # noqa: F401 - makes the workflows known
import control_flows  # noqa: F401
import flows  # noqa: F401
import killing

from holdfast import Runtime


async def main() -> None:
    workflows = os.environ["WORKFLOWS"].split() if "WORKFLOWS" in os.environ else None
    runtime = Runtime(lease=float(os.environ.get("LEASE", "10")), workflows=workflows)
    await runtime.open()
    print("ready", flush=True)
    await runtime.run_worker(grace=float(os.environ.get("GRACE", "30")))


logging.basicConfig(level=logging.INFO)
killing.arm()
asyncio.run(main())
