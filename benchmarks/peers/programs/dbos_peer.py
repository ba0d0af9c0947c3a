"""DBOS, on SQLite or Postgres: asynchronous workflows and steps, recovered when a process with the same id starts."""

from __future__ import annotations

import asyncio

import peer_protocol
from dbos import DBOS, SetWorkflowID


@DBOS.step()
async def one(ledger: str, number: int) -> str:
    return await peer_protocol.run_step(ledger, number)


@DBOS.workflow()
async def sequence(ledger: str, steps: int) -> int:
    for number in range(1, steps + 1):
        await one(ledger, number)
    return steps


class Dbos:
    async def open(self, store: str, variant: str) -> None:
        DBOS(config={"name": "peers", "system_database_url": store, "log_level": "ERROR"})
        await asyncio.to_thread(DBOS.launch)

    async def run_many(self, runs: int, steps: int) -> None:
        async def whole() -> None:
            handle = await DBOS.start_workflow_async(sequence, "", steps)
            await handle.get_result()

        await asyncio.gather(*[whole() for _ in range(runs)])

    async def start_run(self, ledger: str) -> None:
        with SetWorkflowID("crash"):
            await DBOS.start_workflow_async(sequence, ledger, peer_protocol.STEP_COUNT)

    async def resume_run(self, ledger: str) -> None:
        raise NotImplementedError


peer_protocol.serve(Dbos())
