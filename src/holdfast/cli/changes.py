"""``holdfast signal``."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from holdfast.cli.liveness import look_around, why_stalled
from holdfast.cli.opening import existing_store, find_run
from holdfast.client.client import Client


def send_signal(url: str | None, run_id: str, name: str, value: str | None, dedup: str | None) -> None:
    """Send a signal, and say what became of it."""
    asyncio.run(_send(url, run_id, name, None if value is None else _value(value), dedup))


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


async def _send(url: str | None, run_id: str, name: str, value: Any, dedup: str | None) -> None:
    async with existing_store(url) as store, Client(url) as client:
        await find_run(store, run_id)
        if await client.signal(run_id, name, value, id=dedup):
            print(f"sent signal {name!r} to run {run_id!r}")
        else:
            print(f"a signal with id {dedup!r} was sent to run {run_id!r} before: nothing changed")
        run = await find_run(store, run_id)
        if note := why_stalled(run, await look_around(store, [run])):
            print(f"it is kept until the run goes on; {note}")
