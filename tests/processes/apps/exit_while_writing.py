"""A script that ends while something is on its way to the store: a ``signal``, or the ``outcome`` of a step."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import flows
import kill_points

sending: set[asyncio.Task[bool]] = set()


async def end_with_a_signal() -> None:
    handle = await flows.letters.start("x", 1)
    # It hands the signal to the writer in the last turn of the loop, so that the writer has no turn to begin in.
    sending.add(asyncio.create_task(handle.signal("letter", "the last word", id="1")))


async def end_with_an_outcome() -> None:
    await flows.held.start("x")
    ledger = Path(os.environ["LEDGER"])
    while not (ledger.exists() and "finish" in ledger.read_text()):  # noqa: ASYNC110 - the step does not tell us
        await asyncio.sleep(0.005)


kill_points.arm()
asyncio.run(end_with_a_signal() if sys.argv[1] == "signal" else end_with_an_outcome())
