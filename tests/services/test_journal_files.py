from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.records import Attempt, Record, RecordKind, Rewind, RewindPoint, Signal
from holdfast.core.states import RunState
from holdfast.errors import RunNotFound, UsageError
from holdfast.services.journal_files import JOURNAL_FORMAT, Journal, export_run
from holdfast.stores.memory import MemoryStore
from holdfast.stores.operations import (
    AppendRecord,
    CancelState,
    FinishRun,
    NewRun,
    Run,
    SaveAttempt,
    SendSignal,
    StartResult,
    StartRun,
)
from holdfast.stores.workers import NewWorker


async def create_store_with_run() -> tuple[MemoryStore, Run]:
    """A store with a run in it that has a record, an attempt and a signal."""
    store = MemoryStore(clock=lambda: 1000.0)
    worker = await store.workers.register(NewWorker("w", "host", 1), 10.0)
    new = NewRun("r", "etl", b'{"n":1}', b"\x01digest", b"\xffseed", 1000.125, deadline=2000.5, tags=("a", "b"))
    [started] = await store.commit([StartRun(new, claim_as=worker)])
    assert isinstance(started, StartResult)
    record = Record(0, RecordKind.STEP, 0, "extract", True, b'\x01{"$tuple":[1]}', 1000.1, 1000.0, 2, worker, 1, "n=1")
    await store.commit(
        [
            AppendRecord(started.run.key, record),
            SaveAttempt(started.run.key, 1, Attempt(2, 1, progress=b"3", at=1000.2, name="load")),
            SaveAttempt(started.run.key, 1, Attempt(1, 4, intent=True, error="no", at=1000.2, name="pay")),
            SendSignal("r", "go", b'"\xc3\xbc"', None, 1000.3),
        ]
    )
    return store, started.run


def make_journal(**fields: Any) -> Journal:
    given: dict[str, Any] = {
        "key": 0, "id": "r", "workflow": "etl", "queue": "default", "state": RunState.RUNNING, "epoch": 1,
        "owner": None, "starter": None, "delivery_count": 0, "max_deliveries": 3, "wake_at": None, "waits_for": "",
        "priority": 0, "deadline": None, "inputs": b"{}", "digest": b"d", "seed": b"s", "output": None, "error": None,
        "tags": (), "python_version": "3.11", "created_at": 1000.0, "finished_at": None,
    }  # fmt: skip
    given.update(fields)
    return Journal(Run(**{"clock_started_at": given["created_at"], **given}), ())


@pytest.mark.asyncio
async def test_an_exported_run_is_all_that_the_store_knows_of_it():
    store, started = await create_store_with_run()
    journal = await export_run(store, "r")
    [history] = await store.get_histories([started.key])
    assert list(journal.records) == history.records
    assert [attempt.position for attempt in journal.attempts] == [1, 2]
    assert journal.signals == (Signal(1, "go", b'"\xc3\xbc"', 1000.3),)
    assert (journal.run.seed, journal.run.inputs, journal.run.tags) == (b"\xffseed", b'{"n":1}', ("a", "b"))
    assert (journal.run.key, journal.run.owner, journal.run.starter) == (0, None, None)


@pytest.mark.asyncio
async def test_a_run_that_is_not_there_cannot_be_exported():
    with pytest.raises(RunNotFound, match="there is no run 'other'"):
        await export_run(MemoryStore(), "other")


@pytest.mark.asyncio
async def test_a_run_that_ends_while_it_is_exported_is_exported_whole():
    class Moving(MemoryStore):
        async def get_histories(self, keys: Any) -> Any:
            found = await super().get_histories(keys)
            record = Record(1, RecordKind.STEP, 1, "load", True, b"2", 1001.0, epoch=1)
            await self.commit(
                [AppendRecord(keys[0], record), FinishRun(keys[0], 1, RunState.COMPLETED, b"2", None, 1002.0)]
            )
            return found

    store, _ = await create_store_with_run()
    store.__class__ = Moving
    journal = await export_run(store, "r")
    assert journal.run.state is RunState.COMPLETED
    assert [record.name for record in journal.records] == ["extract", "load"]


@pytest.mark.asyncio
async def test_the_file_is_readable_with_one_record_to_a_line(tmp_path: Path):
    store, _ = await create_store_with_run()
    journal = await export_run(store, "r")
    journal.write(tmp_path / "run.json")
    lines = (tmp_path / "run.json").read_text().splitlines()
    assert lines[:5] == ["{", '  "format": "holdfast-journal",', '  "version": 1,', '  "run": {', '    "id": "r",']
    [line] = [line for line in lines if "extract" in line]
    assert json.loads(line.rstrip(",")) == {
        "seq": 0, "kind": "step", "position": 0, "name": "extract", "ok": True,
        "payload": '\x01{"$tuple":[1]}', "at": 1000.1, "started_at": 1000.0, "attempts": 2, "worker": 1,
        "epoch": 1, "preview": "n=1",
    }  # fmt: skip
    assert any('"payload": "\\"ü\\""' in line for line in lines), "text stays text"
    assert Journal.read(tmp_path / "run.json") == journal


payloads = st.one_of(
    st.none(), st.binary(), st.text().map(str.encode), st.binary().map(lambda data: b"\x01" + data), st.just(b"\x01")
)
words = st.text(st.characters(codec=None, exclude_categories=()))  # half surrogate pairs, too
times = st.floats(allow_nan=False, allow_infinity=False)
whole = st.integers(0, 2**63)
records = st.builds(
    Record,
    whole,
    st.sampled_from(RecordKind),
    whole,
    words,
    st.booleans(),
    payloads,
    times,
    times,
    whole,
    whole,
    whole,
    words,
)
attempts = st.builds(
    Attempt,
    whole,
    whole,
    st.booleans(),
    payloads,
    words,
    times,
    words,
    outcome=payloads,
    retry_at=st.none() | times,
    failing_since=st.none() | times,
)
signals = st.builds(Signal, whole, words, payloads.filter(bool), times, st.none() | whole)
rewinds = st.builds(
    Rewind,
    st.lists(whole).map(tuple),
    whole,
    whole,
    st.booleans(),
    st.lists(whole, max_size=3).map(tuple),
    abandoned_positions=st.lists(whole, max_size=3).map(tuple),
)


@given(
    fields=st.fixed_dictionaries(
        {
            "id": words, "tags": st.lists(words).map(tuple), "seed": st.binary(), "digest": st.binary(),
            "inputs": payloads.filter(bool), "output": payloads, "error": payloads, "created_at": times,
            "deadline": st.none() | times, "state": st.sampled_from(RunState), "waits_for": words,
            "clock_started_at": times, "cancel_state": st.sampled_from(CancelState), "paused_at": st.none() | times,
            "rewind": st.none() | rewinds, "parent": words, "forked_from": words,
        }
    ),
    recorded=st.lists(records, max_size=3),
    tried=st.lists(attempts, max_size=2),
    sent=st.lists(signals, max_size=2),
)  # fmt: skip
def test_reading_a_file_gives_back_what_was_written(fields: Any, recorded: Any, tried: Any, sent: Any):
    journal = Journal(make_journal(**fields).run, tuple(recorded), tuple(tried), tuple(sent))
    text = journal.dumps()
    assert Journal.loads(text) == journal
    assert Journal.loads(text.encode()).dumps() == text


def change_journal(change: Any) -> str:
    content = json.loads(make_journal().dumps())
    content["records"] = [json.loads(json.dumps(RECORD))]
    change(content)
    return json.dumps(content)


RECORD = {
    "seq": 0, "kind": "step", "position": 0, "name": "a", "ok": True, "payload": None, "at": 1.0, "started_at": 1.0,
    "attempts": 1, "worker": 1, "epoch": 1, "preview": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a journal: it is not JSON"),
        ("{", "is not a journal: it is not JSON"),
        (b"\xff\xfe\xfa", "is not a journal: it is not JSON"),
        ("[" * 100_000, "is not a journal: it is not JSON"),
        ("[]", "it is not a JSON object"),
        ('{"format": "har"}', 'it has no "format": "holdfast-journal"'),
        ('{"format": "holdfast-journal"}', "'version' must be a whole number"),
        (
            change_journal(lambda c: c.update(version=JOURNAL_FORMAT.version + 1)),
            "was written by a newer Holdfast (format version 2;",
        ),
        (change_journal(lambda c: c.pop("run")), "run: Field required"),
        (change_journal(lambda c: c["run"].pop("seed")), "run.seed: Field required"),
        (change_journal(lambda c: c.pop("records")), "records: Field required"),
        (change_journal(lambda c: c.update(signals={})), "signals: Input should be a valid tuple"),
        (change_journal(lambda c: c["records"].append(7)), "records[1]: Input should be a valid dictionary"),
        (change_journal(lambda c: c["records"][0].pop("payload")), "records[0].payload: Field required"),
        (
            change_journal(lambda c: c["records"][0].update(payload=3)),
            'records[0].payload: Input should be a string or {"base64": ...}',
        ),
        (
            change_journal(lambda c: c["records"][0].update(payload={})),
            'records[0].payload: Input should be a string or {"base64": ...}',
        ),
        (
            change_journal(lambda c: c["records"][0].update(payload={"base64": "?"})),
            "records[0].payload: Input should be a string or",
        ),
        (
            change_journal(lambda c: c["records"][0].update(kind="stop")),
            "records[0].kind: Input should be 'step', 'timer', 'signal', 'deadline'",
        ),
        (
            change_journal(lambda c: c["records"][0].update(kind=[])),
            "records[0].kind: Input should be 'step', 'timer', 'signal', 'deadline'",
        ),
        (
            change_journal(lambda c: c["records"][0].update(position=True)),
            "records[0].position: Input should be a valid integer",
        ),
        (change_journal(lambda c: c["records"][0].update(ok=1)), "records[0].ok: Input should be a valid boolean"),
        (change_journal(lambda c: c["run"].update(state="lost")), "run.state: Input should be 'pending', 'running'"),
        (change_journal(lambda c: c["run"].update(seed={"base64": "xyz"})), "run.seed: Input should be a string or"),
        (
            change_journal(lambda c: c["run"].update(cancel_state="maybe")),
            "run.cancel_state: Input should be '', 'requested' or 'recorded'",
        ),
        (change_journal(lambda c: c["run"].update(rewind={})), "run.rewind.failed_seqs: Field required"),
        (change_journal(lambda c: c["run"].update(rewind=[])), "run.rewind: Input should be a valid dictionary"),
        (change_journal(lambda c: c["run"].update(tags="ab")), "run.tags: Input should be a valid tuple"),
        (change_journal(lambda c: c["run"].update(created_at="now")), "run.created_at: Input should be a valid number"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_the_field(text: str | bytes, message: str):
    with pytest.raises(UsageError) as raised:
        Journal.loads(text, "run.json")
    assert str(raised.value).startswith("run.json ")
    assert message in str(raised.value)


def test_a_field_that_a_later_release_added_is_ignored():
    journal = Journal.loads(
        change_journal(lambda c: (c.update(more=1), c["run"].update(more=1), c["records"][0].update(x=1)))
    )
    assert journal.records == (Record(0, RecordKind.STEP, 0, "a", True, None, 1.0, 1.0, 1, 1, 1, ""),)


def test_a_file_may_lack_the_fields_that_have_a_default():
    def drop_defaults(content: dict[str, Any]) -> None:
        for field in ("cancel_state", "paused_at", "rewind", "parent", "forked_from", "version", "is_delivery"):
            del content["run"][field]
        for field in ("started_at", "attempts", "worker", "epoch", "preview"):
            del content["records"][0][field]
        del content["attempts"], content["signals"]

    expected = Journal(make_journal().run, (Record(0, RecordKind.STEP, 0, "a", True, None, 1.0),))
    assert Journal.loads(change_journal(drop_defaults)) == expected


def test_a_file_has_every_field_except_those_that_mean_nothing_outside_the_store():
    run = make_journal(rewind=Rewind((3,), 2, 1, once_seqs=(3,)), rewind_points=(RewindPoint(2, 3),)).run
    written = Journal(run, ()).to_json()["run"]
    store_fields = {"key", "owner", "starter", "is_limited", "suspicion", "trace_parent"}
    assert set(written) == {field.name for field in fields(Run)} - store_fields
    assert written["rewind"] == {
        "failed_seqs": [3],
        "command_count": 2,
        "timer_count": 1,
        "is_compensated": False,
        "once_seqs": [3],
        "abandoned_positions": [],
    }
    assert written["rewind_points"] == [{"position": 2, "seq": 3}]


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path):
    with pytest.raises(UsageError, match=r"none\.json cannot be read: No such file"):
        Journal.read(tmp_path / "none.json")
