"""A worker process for the measurements that need a second one: ``python -m benchmarks.worker URL [agents]``."""

from __future__ import annotations

import asyncio
import gc
import sys

from benchmarks import workloads
from holdfast import Runtime


async def main(url: str, *, has_agents: bool) -> None:
    if has_agents:
        from benchmarks import agent_workloads  # only then: the model library takes long to import

        agent_workloads.make_agent(20)
    async with Runtime(url) as runtime:
        gc.freeze()  # as ``holdfast worker`` does
        print("ready", flush=True)
        await runtime.run_worker(grace=0)


if __name__ == "__main__":
    assert workloads.sequence
    asyncio.run(main(sys.argv[1], has_agents="agents" in sys.argv[2:]))
