"""A worker in a rolling deploy: ``CODE`` says whether it has the code of version 1, of version 2, or of 2 for both."""

from __future__ import annotations

import asyncio
import logging
import os

from flows import call

from holdfast import Runtime, patched, wait_for_signal, workflow

CODE = os.environ["CODE"]

if CODE == "1":

    @workflow(name="rolled", id="{name}", version="1")
    async def rolled(name: str) -> list[str]:
        before = await call("old way")
        await wait_for_signal("go")
        return [before, await call("old end")]

else:

    @workflow(name="rolled", id="{name}", version="2", serves=["1"] if CODE == "both" else [])
    async def rolled(name: str) -> list[str]:
        before = await call("new way") if patched("new-way") else await call("old way")
        await wait_for_signal("go")
        return [before, await call("new end")]


async def main() -> None:
    runtime = Runtime(workflows=["rolled"])
    await runtime.open()
    print("ready", flush=True)
    await runtime.run_worker(grace=30)


logging.basicConfig(level=logging.INFO)
asyncio.run(main())
