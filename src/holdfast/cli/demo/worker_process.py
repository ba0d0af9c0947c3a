"""The demo's workers: real processes, started as a user would start them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import holdfast
from holdfast.cli.demo.effect_log import FOLDER_VARIABLE, MODEL_VARIABLE, THINK_TIME_VARIABLE
from holdfast.cli.demo.plan import Plan
from holdfast.errors import HoldfastError
from holdfast.stores.contract import Store

TIMEOUT_S = 60.0
"""Seconds that anything in the demo may take before it is given up."""


class DemoFailed(HoldfastError):
    """The demo could not show what it is there to show."""


class WorkerProcess:
    """``holdfast worker holdfast.cli.demo.research_agent:research`` in a process of its own."""

    def __init__(self, folder: Path, url: str, plan: Plan, name: str) -> None:
        self._log = folder / f"{name}.log"
        package = str(Path(holdfast.__file__).parents[1])
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            FOLDER_VARIABLE: str(folder),
            THINK_TIME_VARIABLE: str(plan.think_time_s),
            MODEL_VARIABLE: plan.model or "",
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONUNBUFFERED": "1",
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "holdfast.cli",
                    "worker",
                    "holdfast.cli.demo.research_agent:research",
                    "--url",
                    url,
                ],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends its workers
            )

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def has_exited(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """SIGKILL: the process gets no chance to do anything more."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """SIGTERM, and wait until it has handed over."""
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.kill()

    def read_log_tail(self) -> str:
        """The end of what it wrote, for the message when something went wrong."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-8:])

    def delete_log(self) -> None:
        """Remove what it wrote."""
        self._log.unlink(missing_ok=True)


async def wait_until_serving(store: Store, workers: list[WorkerProcess]) -> None:
    """Wait until all of them are registered and serve."""
    deadline = time.monotonic() + TIMEOUT_S
    wanted = {worker.pid for worker in workers}
    while True:
        # A worker announces what it serves a moment after it has registered; whoever starts by name needs that.
        is_announced = bool(await store.get_workflow_specs())
        serving = {worker.pid for worker in await store.list_workers() if worker.state == "live" and worker.workflows}
        if is_announced and wanted <= serving:
            return
        for worker in workers:
            if worker.has_exited():
                raise DemoFailed(f"a worker process ended before its time:\n{worker.read_log_tail()}")
        if time.monotonic() > deadline:
            raise DemoFailed(f"the workers did not start within {TIMEOUT_S:g} s:\n{workers[0].read_log_tail()}")
        await asyncio.sleep(0.02)
