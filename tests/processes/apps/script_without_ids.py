"""A script as people write it: no ids, no runtime, one call after the other. ``NEW`` forces another bill."""

from __future__ import annotations

import asyncio
import json
import os

import flows


async def main() -> None:
    if os.environ.get("QUOTE"):
        await flows.quote("acme")
    bill = flows.bill.options(new=True) if os.environ.get("NEW") else flows.bill
    print(json.dumps(await bill("acme")))


asyncio.run(main())
