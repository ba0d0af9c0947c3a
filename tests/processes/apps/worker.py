"""A worker: serves all workflows of ``flows`` until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os

import approval_flows  # noqa: F401 - makes the workflows known
import control_flows  # noqa: F401
import flows  # noqa: F401
import kill_points
import wall_clock

from holdfast import Runtime


async def main() -> None:
    workflows = os.environ["WORKFLOWS"].split() if "WORKFLOWS" in os.environ else None
    lease, max_blocked_s = float(os.environ.get("LEASE", "10")), float(os.environ.get("MAX_BLOCKED", "60"))
    runtime = Runtime(lease=lease, max_blocked=max_blocked_s, workflows=workflows)
    await runtime.open()
    print("ready", flush=True)
    grace, exit_if_blocked = float(os.environ.get("GRACE", "30")), "EXIT_IF_BLOCKED" in os.environ
    await runtime.run_worker(grace=grace, exit_if_blocked=exit_if_blocked)


logging.basicConfig(level=logging.INFO)
wall_clock.arm()
kill_points.arm()
asyncio.run(main())
