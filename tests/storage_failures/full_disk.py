"""A program whose disk fills up in the middle of a run, and has room again later.

The disk is this process's limit on file sizes: beyond it every write fails, as on a full device. That needs no root.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from pathlib import Path

from holdfast import Runtime, step, workflow
from holdfast.errors import StoreFull, StoreUnavailable

folder = Path(sys.argv[1])
database = folder / "runs.db"


def limit_file_sizes(size: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))


@step
async def produce(number: int) -> str:
    with open(folder / "ledger", "a") as ledger:
        ledger.write(f"{number}\n")
    return f"{number}" + "x" * 20_000


@workflow(id="filling")
async def filling(count: int) -> int:
    for number in range(count):
        await produce(number)
    return count


@workflow(id="late-{number}")
async def late(number: int) -> int:
    return number


def size() -> int:
    return max(path.stat().st_size for path in folder.glob("runs.db*") if path.is_file())


async def main() -> None:
    seen: dict[str, object] = {}
    async with Runtime(f"sqlite:///{database}"):
        await late(0)
        limit_file_sizes(size() + 200_000)
        handle = await filling.start(60)
        before = -1
        while (now := len((folder / "ledger").read_text().split()) if (folder / "ledger").exists() else 0) != before:
            before = now
            await asyncio.sleep(0.7)
        seen["stopped_at"] = now
        seen["state_when_full"] = (await handle.info()).state
        try:
            await late(1)
        except StoreUnavailable as error:
            seen["start_when_full"] = type(error).__name__
            seen["full"] = isinstance(error, StoreFull)
            seen["message"] = str(error)
        limit_file_sizes(resource.RLIM_INFINITY)
        seen["result"] = await handle.result(timeout=30)
        seen["late"] = await late(1)
        seen["state"] = (await handle.info()).state
    print(json.dumps(seen))


if __name__ == "__main__":
    asyncio.run(main())
