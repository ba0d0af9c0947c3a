"""A worker that notes when it reaches each stage: ``python -m benchmarks.restarted URL LEDGER [NUMBER]``.

With a number, it also starts the run.
"""

from __future__ import annotations

import sys
import time


def note(stage: str) -> None:
    with open(sys.argv[2], "a") as ledger:
        ledger.write(f"{stage} {time.time()} {time.process_time()}\n")


note("main")

import asyncio  # noqa: E402

from holdfast import Runtime, step, workflow  # noqa: E402


@step
async def wait_a_little(number: int) -> int:
    note("step")
    await asyncio.sleep(0.02)
    return number


@workflow(id="restarted-{number}")
async def restarted(number: int) -> int:
    for index in range(40):
        await wait_a_little(index)
    return number


async def main(url: str, number: str | None) -> None:
    note("imported")
    async with Runtime(url) as runtime:
        note("open")
        if number is not None:
            await restarted.start(int(number))
        await runtime.run_worker(grace=0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[3] if len(sys.argv) > 3 else None))
