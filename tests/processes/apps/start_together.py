"""``start_together.py <workflow> <name>...`` starts a run for each name, at the moment the gate ``go`` opens."""

from __future__ import annotations

import asyncio
import json
import sys

import flows

from holdfast import Runtime


async def main() -> None:
    async with Runtime():
        print("ready", flush=True)
        await flows.pass_gate("go")
        _, workflow, *names = sys.argv
        results = await asyncio.gather(*[getattr(flows, workflow)(name) for name in names])
        print(json.dumps(dict(zip(names, results, strict=True))), flush=True)


asyncio.run(main())
