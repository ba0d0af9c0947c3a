"""``holdfast signal`` and ``holdfast retry``: the commands that change a run."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from holdfast.cli.liveness import why_stalled
from holdfast.cli.opening import existing_store, find_run
from holdfast.cli.wording import counted, one_line
from holdfast.client.client import Client
from holdfast.core.records import Kind


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
        if note := why_stalled(run, await store.workers(), store.now()):
            print(f"it is kept until the run goes on; {note}")


def retry_run(url: str | None, run_id: str, run_again: bool) -> None:
    """Reopen a failed or dead run, and say how it goes on."""
    asyncio.run(_retry(url, run_id, run_again))


async def _retry(url: str | None, run_id: str, run_again: bool) -> None:
    async with existing_store(url) as store, Client(url) as client:
        before = await find_run(store, run_id)
        [history] = await store.histories([before.key])
        await client.retry(run_id, run_again=run_again)
        run = await find_run(store, run_id)
        last = history.records[-1] if history.records else None
        anew = last is not None and last.kind is Kind.STEP and not last.ok
        kept = counted(len(history.records) - anew, "record")
        step = f", and step {last.position + 1} ({one_line(last.name)}) is tried anew" if anew and last else ""
        print(f"run {run_id!r} goes on (it was {before.state}): its journal keeps {kept}{step}")
        if note := why_stalled(run, await store.workers(), store.now()):
            print(note)
