"""A listener whose steps leave a line in a ledger, and which dies where its payload says so, in the first delivery.

``delivery_listener.py ADDRESS AT_ONCE [RUNS]``: with RUNS, nothing begins before that many runs have been delivered, so
that each one reaches a listener before another listener dies and its run is delivered again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from holdfast.client.client import Client
from holdfast.client.delivery import Delivery

STEPS = ("extract", "validate", "load", "report")
runs_at_first = 0
"""How many runs are delivered before anything begins."""


def effect(run: str, step: str, pause: float) -> None:
    """What the step does to the world."""
    with open(os.environ["LEDGER"], "a") as ledger:
        ledger.write(f"{run} {step} {os.getpid()}\n")
        ledger.flush()
        os.fsync(ledger.fileno())
    asyncio.run(asyncio.sleep(pause))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def until_delivered(run: str, runs: int) -> None:
    """Wait until this many runs have been delivered."""
    delivered = Path(os.environ["LEDGER"]).with_name("delivered")
    delivered.mkdir(exist_ok=True)
    (delivered / run).touch()
    while len(list(delivered.iterdir())) < runs:  # noqa: ASYNC110 - other processes add to it
        await asyncio.sleep(0.01)


async def handler(delivery: Delivery) -> list[str]:
    where, step_to_die_at = delivery.payload
    if delivery.number == 1:
        await until_delivered(delivery.run_id, runs_at_first)
    dies = step_to_die_at if delivery.number == 1 else None
    for step in STEPS:

        def work(step: str = step) -> str:
            effect(delivery.run_id, step, 0.1)
            if dies == step and where == "in":
                die()
            return step.upper()

        await delivery.step(step, work)
        if dies == step and where == "behind":
            die()
    return [delivery.steps[step].output for step in STEPS]


if __name__ == "__main__":
    _, address, max_in_flight, *runs = sys.argv
    runs_at_first = int(runs[0]) if runs else 0
    asyncio.run(Client().serve(address, handler, concurrency=int(max_in_flight)))
