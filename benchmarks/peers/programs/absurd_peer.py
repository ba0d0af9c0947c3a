"""Absurd, on Postgres: eight workers in each process, each with a connection of its own and one task at a time.

They look for work every 20 ms instead of every 250, so that the rate of steps is measured and not the wait for a run.
"""

from __future__ import annotations

import asyncio
from typing import Any

import peer_protocol
from absurd_sdk import AsyncAbsurd

WORKER_COUNT = 8
POLL_INTERVAL_S = 0.02


async def sequence(params: Any, ctx: Any) -> int:
    for number in range(1, params["steps"] + 1):

        async def one(number: int = number) -> str:
            return await peer_protocol.run_step(params["ledger"], number)

        await ctx.step(f"one-{number}", one)
    return params["steps"]


class Absurd:
    async def open(self, store: str, variant: str) -> None:
        self._apps = [AsyncAbsurd(store) for _ in range(WORKER_COUNT + 1)]
        await self._apps[0].create_queue("default")
        for app in self._apps:
            app.register_task(name="sequence")(sequence)
        self._workers = [
            asyncio.create_task(app.start_worker(worker_id=f"worker-{number}", poll_interval=POLL_INTERVAL_S))
            for number, app in enumerate(self._apps[1:])
        ]

    async def run_many(self, runs: int, steps: int) -> None:
        app = self._apps[0]
        spawned = [await app.spawn("sequence", {"ledger": "", "steps": steps}) for _ in range(runs)]
        for task in spawned:
            done = await app.await_task_result(task["task_id"])
            assert done.state == "completed", done

    async def start_run(self, ledger: str) -> None:
        await self._apps[0].spawn("sequence", {"ledger": ledger, "steps": peer_protocol.STEP_COUNT})

    async def resume_run(self, ledger: str) -> None:
        raise NotImplementedError


peer_protocol.serve(Absurd())
