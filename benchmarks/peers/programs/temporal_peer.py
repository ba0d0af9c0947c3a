"""Temporal's own SDK on its development server: a worker and a client in each process.

The store is the server's address. A step is an activity, or a local activity.
"""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta

import peer_protocol
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

STEP_TIMEOUT = timedelta(seconds=2 * peer_protocol.HELD_STEP_S)
"""How long a step may take."""
HEARTBEAT_TIMEOUT = timedelta(seconds=10)
"""Heartbeat timeout of a step that may take long, after which its worker counts as dead."""


@activity.defn
async def one(ledger: str, number: int) -> str:
    if not ledger:
        return peer_protocol.make_output(number)
    beating = asyncio.create_task(send_heartbeats())
    try:
        return await peer_protocol.run_step(ledger, number)
    finally:
        beating.cancel()


async def send_heartbeats() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(1)


@workflow.defn(sandboxed=False)
class Activities:
    @workflow.run
    async def run(self, ledger: str, steps: int) -> int:
        for number in range(1, steps + 1):
            await workflow.execute_activity(
                one, args=[ledger, number], start_to_close_timeout=STEP_TIMEOUT, heartbeat_timeout=HEARTBEAT_TIMEOUT
            )
        return steps


@workflow.defn(sandboxed=False)
class LocalActivities:
    @workflow.run
    async def run(self, ledger: str, steps: int) -> int:
        for number in range(1, steps + 1):
            await workflow.execute_local_activity(one, args=[ledger, number], start_to_close_timeout=STEP_TIMEOUT)
        return steps


class Temporal:
    async def open(self, store: str, variant: str) -> None:
        self._client = await Client.connect(store)
        self._workflow = LocalActivities if variant == "local" else Activities
        workflows = [Activities, LocalActivities]
        self._worker = Worker(self._client, task_queue="peers", workflows=workflows, activities=[one])
        self._worker_task = asyncio.create_task(self._worker.run())

    async def run_many(self, runs: int, steps: int) -> None:
        await asyncio.gather(*[self._start(str(uuid.uuid4()), "", steps, wait=True) for _ in range(runs)])

    async def _start(self, name: str, ledger: str, steps: int, *, wait: bool) -> None:
        handle = await self._client.start_workflow(
            self._workflow.run, args=[ledger, steps], id=name, task_queue="peers"
        )
        if wait:
            await handle.result()

    async def start_run(self, ledger: str) -> None:
        await self._start(str(uuid.uuid4()), ledger, peer_protocol.STEP_COUNT, wait=False)

    async def resume_run(self, ledger: str) -> None:
        raise NotImplementedError


peer_protocol.serve(Temporal())
