"""Gravtory, on SQLite or Postgres: class workflows, recovered when a process starts.

There, the number of steps belongs to the class, so there is a class for each length.
"""

from __future__ import annotations

import asyncio
import itertools
import warnings
from typing import Any

import peer_protocol
from gravtory import Gravtory, step

_counter = itertools.count()


def make_sequence(steps: int) -> type:
    """A class with this many steps in sequence."""
    methods: dict[str, Any] = {}
    for number in range(1, steps + 1):

        async def one(self: Any, ledger: str, _number: int = number) -> str:
            return await peer_protocol.run_step(ledger, _number)

        one.__name__ = f"one_{number}"
        methods[one.__name__] = step(number, depends_on=number - 1 or None)(one)
    return type(f"Sequence{steps}", (), methods)


class GravtoryPeer:
    async def open(self, store: str, variant: str) -> None:
        warnings.simplefilter("ignore")
        self._gravtory = Gravtory(store)
        self._workflows: dict[int, Any] = {}
        self._get_workflow(peer_protocol.STEP_COUNT)
        await self._gravtory.start()

    def _get_workflow(self, steps: int) -> Any:
        if steps not in self._workflows:
            wrapped = self._gravtory.workflow(id=f"sequence-{steps}-{{key}}")(make_sequence(steps))
            self._workflows[steps] = wrapped
        return self._workflows[steps]

    async def run_many(self, runs: int, steps: int) -> None:
        workflow = self._get_workflow(steps)
        keys = [str(next(_counter)) for _ in range(runs)]
        begun = [self._gravtory.run(workflow, key=key, ledger="") for key in keys]
        ended: list[Any] = await asyncio.gather(*begun, return_exceptions=True)
        bad = [run for run in ended if isinstance(run, BaseException) or run.status.value != "completed"]
        if bad:
            raise RuntimeError(f"{len(bad)} of {runs} runs failed, the first with: {bad[0]!r:.150}")

    async def start_run(self, ledger: str) -> None:
        run = self._gravtory.run(self._get_workflow(peer_protocol.STEP_COUNT), key="crash", ledger=ledger)
        self._started_run = asyncio.ensure_future(run)

    async def resume_run(self, ledger: str) -> None:
        await self._gravtory.run(self._get_workflow(peer_protocol.STEP_COUNT), key="crash", ledger=ledger)


peer_protocol.serve(GravtoryPeer())
