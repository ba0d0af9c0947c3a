"""Runs in a process of its own: ``python -m benchmarks.concurrent_runs URL RUNS STEPS``.

It prints "ready". For each line with two times of ``time.monotonic``, it executes runs until the second one, always as
many at once, and prints how many steps were recorded between the two.
"""

from __future__ import annotations

import asyncio
import sys
import time

from benchmarks.workloads import one
from holdfast import Runtime, workflow

recorded_count = 0


@workflow
async def counted(length: int) -> int:
    global recorded_count
    for number in range(length):
        await one(number)
        recorded_count += 1
    return length


async def main(url: str, run_count: int, step_count: int) -> None:
    async with Runtime(url):
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            start, end = map(float, line.split())
            [recorded, *_] = await asyncio.gather(
                count_between(start, end), *[execute_until(end, step_count) for _ in range(run_count)]
            )
            print(recorded, flush=True)


async def execute_until(end: float, step_count: int) -> None:
    run = counted.options(new=True)
    while time.monotonic() < end:
        await run(step_count)


async def count_between(start: float, end: float) -> int:
    await asyncio.sleep(start - time.monotonic())
    before = recorded_count
    await asyncio.sleep(end - time.monotonic())
    return recorded_count - before


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
