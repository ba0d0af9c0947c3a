"""Programs for ``test_temporal_programs``; as a script, a process that executes one of them."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from holdfast import Runtime, program, step, wait_for_signal

executed: list[int] = []
"""What the steps of this process have done."""


@step
async def note_number(number: int) -> int:
    executed.append(number)
    return number


@program
async def counts(upto: int) -> list[int]:
    return [await note_number(number) for number in range(upto)]


@program
async def counts_signals(upto: int) -> list[int]:
    """Waits for signals all the time."""

    async def listen() -> list[int]:
        return [await wait_for_signal("number", type=int) for _ in range(3)]

    listening = asyncio.create_task(listen())
    done = [await note_number(number) for number in range(upto)]
    return [*done, *await listening]


@program
async def holds_open(upto: int) -> list[int]:
    """Has always something in flight."""
    holding = asyncio.create_task(hold())
    done = [await note_number(number) for number in range(upto)]
    await holding
    return done


@program
async def holds(seconds: float) -> None:
    await hold(seconds)


@step
async def hold(seconds: float = 60) -> None:
    await asyncio.sleep(seconds)


@program(max_deliveries=2)
async def kills_its_process() -> None:
    os._exit(9)


@step
def write_twice(path: str, who: str) -> str:
    """Takes a while."""
    log = Path(path)
    log.write_text(f"{log.read_text()}{who} started\n")
    until = time.monotonic() + 2
    while time.monotonic() < until:
        time.sleep(0.05)
    log.write_text(f"{log.read_text()}{who} ended\n")
    return who


@step
def write_after(path: str, who: str) -> str:
    log = Path(path)
    log.write_text(f"{log.read_text()}{who} went on\n")
    return who


@program(id="freezes")
async def freezes(path: str) -> list[str]:
    first = await asyncio.to_thread(write_twice, path, os.environ["WHO"])
    return [first, await asyncio.to_thread(write_after, path, first)]


async def main() -> None:
    code = {"freezes": freezes, "kills": kills_its_process.options(id="kills")}[sys.argv[1]]
    async with Runtime(sys.argv[2], workflows=[code.name], lease=4):
        handle = await code.start(*sys.argv[3:])
        print("RESULT:", await handle.result())


if __name__ == "__main__":
    asyncio.run(main())
