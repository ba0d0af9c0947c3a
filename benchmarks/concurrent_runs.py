"""Runs in a process of its own: ``python -m benchmarks.concurrent_runs URL RUNS STEPS``.

It prints "ready", waits for a line, executes the runs, and prints how many seconds that took.
"""

from __future__ import annotations

import asyncio
import sys
import time

from benchmarks import workloads
from holdfast import Runtime


async def main(url: str, run_count: int, step_count: int) -> None:
    run = workloads.sequence.options(new=True)
    async with Runtime(url):
        await asyncio.gather(*[run(2) for _ in range(50)])
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        started = time.perf_counter()
        await asyncio.gather(*[run(step_count) for _ in range(run_count)])
        print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
