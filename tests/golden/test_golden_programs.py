"""A program that a release has recorded is continued by the code of today: no recorded call is made again."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

import golden_programs
import pytest
from record_programs import CURRENT, FOLDER, answer_questions

from holdfast import Client, Runtime
from holdfast.core.records import Record, RecordKind
from holdfast.core.states import RunState
from holdfast.services.journal_files import Journal
from holdfast.stores.archives import ArchivedRun
from holdfast.stores.urls import create_store

STEPS = {"model call", "look_up", "take_note", "charge", "mail-7"}
JOURNALS = sorted(FOLDER.glob("*/*.json"))


def get_name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def count_steps(records: tuple[Record, ...]) -> Counter[str]:
    """The steps with an outcome in these records; ``ask`` has a step of its own, which does nothing."""
    return Counter(record.name for record in records if record.kind is RecordKind.STEP and record.name in STEPS)


async def continue_run(journal: Journal, length: int, url: str) -> Journal:
    """Execute a run that was killed after its first records, and return its journal."""
    started = replace(journal.run, state=RunState.RUNNING, output=None, error=None)
    store = create_store(url)
    await store.open()
    archived = ArchivedRun(started, journal.records[:length])
    await store.archives.restore(archived)
    await store.archives.activate(archived)
    await store.close()
    async with Runtime(url, workflows=[journal.run.workflow]) as runtime, Client(url) as client:
        answering = asyncio.create_task(answer_questions(client))
        async with asyncio.timeout(10):
            await runtime.store_provider.wait_for_end(journal.run.id)
        answering.cancel()
        store = await runtime.store_provider.store()
        run = await store.get_run(journal.run.id)
        assert run is not None
        [history] = await store.get_histories([run.key])
        return Journal(run, tuple(history.records))


@pytest.mark.parametrize("path", JOURNALS, ids=get_name)
def test_a_program_that_was_killed_after_any_of_its_records_continues(path: Path, tmp_path: Path):
    journal = Journal.read(path)
    for length in range(len(journal.records) + 1):
        golden_programs.made.clear()
        continued = asyncio.run(continue_run(journal, length, f"sqlite:///{tmp_path / f'{length}.db'}"))
        assert (continued.run.state, continued.run.output) == (journal.run.state, journal.run.output), (
            continued.run.error
        )
        assert Counter(golden_programs.made) == count_steps(journal.records[length:])
        assert continued.records[:length] == journal.records[:length]
        assert count_steps(continued.records) == count_steps(journal.records)


def test_every_program_has_been_recorded_by_this_version():
    recorded = {path.stem for path in CURRENT.glob("*.json")}
    assert recorded == set(golden_programs.PROGRAMS), "record it with `python tests/golden/record_programs.py`"
