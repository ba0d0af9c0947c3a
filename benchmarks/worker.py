"""A worker process for the measurements that need a second one: ``python -m benchmarks.worker URL``."""

from __future__ import annotations

import asyncio
import sys

from benchmarks import workloads
from holdfast import Runtime


async def main(url: str) -> None:
    async with Runtime(url) as runtime:
        print("ready", flush=True)
        await runtime.run_worker(grace=0)


if __name__ == "__main__":
    assert workloads.sequence
    asyncio.run(main(sys.argv[1]))
