"""Runs the golden programs on a real SQLite file, and keeps their journals.

    python tests/golden/record_programs.py    # those that have none in the folder of this version

A journal that is there is never recorded again: that it was written by the code of its day is all that it is good for.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from golden_programs import INPUTS, PROGRAMS

import holdfast
from holdfast import Client, Runtime
from holdfast.services.journal_files import export_run

FOLDER = Path(__file__).parent / "programs"
CURRENT = FOLDER / ".".join(holdfast.__version__.split(".")[:2])


async def answer_questions(client: Client) -> None:
    """Answers what runs ask, as a person would."""
    while True:
        for approval in await client.approvals():
            await client.approve(approval.id, "yes", by="ada")
        await asyncio.sleep(0.02)


async def record(url: str) -> None:
    async with Runtime(url) as runtime, Client(url) as client:
        answering = asyncio.create_task(answer_questions(client))
        for name, flow in PROGRAMS.items():
            path = CURRENT / f"{name}.json"
            if path.exists():
                continue
            handle: Any = await runtime.start(flow.options(id=name), INPUTS[name])
            await handle.result()
            store = await runtime.store_provider.store()
            journal = await export_run(store, name)
            journal.write(path)
            print(f"{name}: {len(journal.records)} records")
        answering.cancel()


if __name__ == "__main__":
    CURRENT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(record(f"sqlite:///{folder}/runs.db"))
