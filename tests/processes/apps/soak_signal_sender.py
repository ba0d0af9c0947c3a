"""Sends every run of ``letters`` its signals, in order, and many of them more than once.

It learns of the runs from the starter's file, ends when the starter has, and then says how many duplicates it sent.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from pathlib import Path

from holdfast import Client, RunEnded, RunState
from holdfast.errors import StoreError

STARTS = Path(os.environ["GATES"], "starts")
LETTERS = int(os.environ["LETTERS"])
duplicates = 0


async def send(client: Client, run: str, number: int, *, before: bool) -> None:
    """Send a letter; ``before`` says whether it was sent already."""
    global duplicates
    doubtful = False
    while True:
        try:
            fresh = await client.signal(run, "letter", number, id=f"{run}-{number}")
        except StoreError:
            doubtful = True  # it may be there all the same
            await asyncio.sleep(0.05)
            continue
        except RunEnded:
            # Three of its workers were struck in a row (the checker finds out whether that is so): a person retries it.
            state = (await client.get(run)).state
            assert state is RunState.DEAD or not state.is_terminal, f"{run} is {state} without letter {number}"
            await asyncio.sleep(0.05)
            continue
        assert fresh is not before or doubtful, f"letter {number} of {run}: fresh={fresh}, sent before={before}"
        duplicates += before
        return


async def write_to(client: Client, run: str, chance: random.Random) -> None:
    for number in range(LETTERS):
        # Now and then so late that the run has been parked.
        await asyncio.sleep(chance.uniform(1.2, 2.5) if chance.random() < 0.15 else chance.uniform(0, 0.3))
        await send(client, run, number, before=False)
        while chance.random() < 0.4:
            await send(client, run, chance.randint(0, number), before=True)


async def main() -> None:
    chance = random.Random(int(os.environ["SEED"]) + 1)
    async with Client() as client, asyncio.TaskGroup() as letters:
        with STARTS.open() as starts:
            rest = ""
            while True:
                rest += starts.read()
                *lines, rest = rest.split("\n")
                told = [json.loads(line) for line in lines]
                for what, run, *_ in told:
                    if what == "started" and run.startswith("letters-"):
                        letters.create_task(write_to(client, run, random.Random(chance.random())))
                if any(what == "over" for what, *_ in told):
                    break
                await asyncio.sleep(0.05)
    print(json.dumps(duplicates), flush=True)


asyncio.run(main())
