"""A listener whose steps leave a line in a ledger, and which dies where its payload says so, in the first delivery."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from holdfast.client.client import Client
from holdfast.client.deliveries import Delivery

STEPS = ("extract", "validate", "load", "report")


def effect(run: str, step: str, pause: float) -> None:
    """What the step does to the world."""
    with open(os.environ["LEDGER"], "a") as ledger:
        ledger.write(f"{run} {step} {os.getpid()}\n")
        ledger.flush()
        os.fsync(ledger.fileno())
    asyncio.run(asyncio.sleep(pause))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def handler(delivery: Delivery) -> list[str]:
    where, step_to_die_at = delivery.payload
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
    asyncio.run(Client().serve(sys.argv[1], handler, at_once=int(sys.argv[2])))
