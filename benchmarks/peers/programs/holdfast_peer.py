"""Holdfast, on SQLite or Postgres."""

from __future__ import annotations

import asyncio

import peer_protocol

from holdfast import Runtime, step, workflow


@step
async def one(ledger: str, number: int) -> str:
    return await peer_protocol.run_step(ledger, number)


@workflow
async def sequence(ledger: str, steps: int) -> int:
    for number in range(1, steps + 1):
        await one(ledger, number)
    return steps


class Holdfast:
    async def open(self, store: str, variant: str) -> None:
        self._runtime = Runtime(store)
        await self._runtime.__aenter__()
        self._worker = asyncio.create_task(self._runtime.run_worker(grace=0))

    async def run_many(self, runs: int, steps: int) -> None:
        run = sequence.options(new=True)
        await asyncio.gather(*[run("", steps) for _ in range(runs)])

    async def start_run(self, ledger: str) -> None:
        await sequence.start(ledger, peer_protocol.STEP_COUNT)

    async def resume_run(self, ledger: str) -> None:
        raise NotImplementedError


peer_protocol.serve(Holdfast())
