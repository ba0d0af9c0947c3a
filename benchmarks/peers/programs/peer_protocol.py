"""What all programs have in common: the protocol with the measuring process, and the steps.

A program is started as ``python programs/NAME.py STORE [VARIANT]`` in an environment without Holdfast, so it uses only
the standard library. It prints ``ready`` when it can take work, and then executes one command per line:

``many RUNS STEPS``  executes this many runs at once, and answers with the seconds that took
``begin LEDGER``     starts the run that will be killed, and answers before it has ended
``name LEDGER``      resumes that run by its name; only for peers that do not resume by themselves
``end``              exits
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Protocol, TextIO

OUTPUT_BYTES = 200
"""Bytes of a step's output."""
STEP_COUNT = 12
"""Steps of the run that will be killed."""
HELD_STEP = 9
"""The step in which it is."""
HELD_STEP_S = 600
"""Duration of this step at the first attempt: longer than any timeout."""


class PeerProgram(Protocol):
    """What a program implements."""

    async def open(self, store: str, variant: str) -> None:
        """Start to take work, as a process does in production, including the work of processes that died."""

    async def run_many(self, runs: int, steps: int) -> None:
        """Execute this many runs at once, with this many sequential steps each."""

    async def start_run(self, ledger: str) -> None:
        """Start the run that will be killed, without waiting for its end."""

    async def resume_run(self, ledger: str) -> None:
        """Resume it."""


def make_output(number: int) -> str:
    """The output of a step."""
    return f"{number:0{OUTPUT_BYTES}d}"


async def run_logged_step(ledger: str, number: int) -> str:
    """A step that leaves a line in a file outside the database; the one that is held takes long when first tried."""
    is_new = not any(line.split()[0] == str(number) for line in _read_lines(ledger))
    with open(ledger, "a") as file:
        file.write(f"{number} {os.getpid()} {time.time()}\n")
    if number == HELD_STEP and is_new:
        await asyncio.sleep(HELD_STEP_S)
    return make_output(number)


async def run_step(ledger: str, number: int) -> str:
    """A step of either kind: without a ledger it only returns its output."""
    return await run_logged_step(ledger, number) if ledger else make_output(number)


def _read_lines(ledger: str) -> list[str]:
    path = Path(ledger)
    return path.read_text().splitlines() if path.exists() else []


def serve(peer: PeerProgram) -> None:
    """Serve commands until ``end``. What the peer itself prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    failed = 0
    try:
        asyncio.run(_serve_commands(peer, answers))
    except BaseException:
        failed = 1
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(failed)  # threads of the peer may still wait for something


async def _serve_commands(peer: PeerProgram, answers: TextIO) -> None:
    store, variant, *_ = [*sys.argv[1:], ""]
    await peer.open(store, variant)
    answers.write("ready\n")
    while line := await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline):
        answer = await _handle_command(peer, line.split())
        if answer is None:
            return
        answers.write(f"{answer}\n")


async def _handle_command(peer: PeerProgram, words: list[str]) -> str | None:
    match words:
        case ["many", runs, steps]:
            started = time.perf_counter()
            await peer.run_many(int(runs), int(steps))
            return str(time.perf_counter() - started)
        case ["begin", ledger]:
            await peer.start_run(ledger)
            return "begun"
        case ["name", ledger]:
            await peer.resume_run(ledger)
            return "named"
    return None
