"""Large values in a SQLite file: kept apart, compressed, shared, and checked when they are read."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from store_values import (
    DONE,
    append,
    claim_run,
    commit_ops,
    finish,
    list_record_seqs,
    list_signals,
    new_run,
    read_run,
    rewind,
    signal,
    start_child,
    start_claimed_run,
    start_run,
)

from holdfast.core.records import RecordKind
from holdfast.core.states import RunState
from holdfast.stores.contract import MAX_INLINE_BYTES, RunFilter
from holdfast.stores.operations import ForkRun, ReopenRun, StartRun
from holdfast.stores.sql import blobs
from holdfast.stores.sqlite import SqliteStore

pytestmark = pytest.mark.asyncio

LARGE = json.dumps("words that come again and again, " * 5000).encode()
DENSE = b'"' + os.urandom(MAX_INLINE_BYTES + 1).hex().encode()[: MAX_INLINE_BYTES + 1] + b'"'
assert len(LARGE) > MAX_INLINE_BYTES < len(DENSE)


@pytest_asyncio.fixture
async def big(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    yield store
    await store.close()


def list_blob_sizes(store: SqliteStore) -> list[tuple[int, int]]:
    """The sizes of large payloads, and of their compressed form."""
    with sqlite3.connect(store.path) as connection:
        return connection.execute("SELECT size, length(data) FROM blobs ORDER BY size").fetchall()


@pytest.mark.parametrize("payload", [LARGE, DENSE], ids=["words", "dense"])
async def test_large_values_come_back_wherever_they_were_put(big: SqliteStore, payload: bytes):
    run = await start_claimed_run(big, inputs=payload)
    assert run.inputs == payload
    assert await commit_ops(big, append(run, 0, payload=payload), signal(payload=payload)) == [DONE, DONE]
    [history] = await big.get_histories([run.key])
    assert [record.payload for record in history.records] == [payload]
    assert [sent.payload for sent in history.signals] == [payload]
    assert [sent.payload for _, sent in (await big.claims.get_new_signals(run.owner or 0, 0)).signals] == [payload]
    await commit_ops(big, finish(run, RunState.FAILED, output=payload, error=payload))
    ended = await read_run(big)
    assert (ended.inputs, ended.output, ended.error) == (payload, payload, payload)
    assert await big.get_runs(["r"]) == [ended]
    [found] = await commit_ops(big, StartRun(new_run()))
    assert found.run == ended
    [size] = list_blob_sizes(big)
    assert size[0] == len(payload)


async def test_values_that_compress_take_less_room_and_others_no_more(big: SqliteStore):
    noise = os.urandom(200_000)
    await start_run(big, "a", inputs=LARGE)
    await start_run(big, "b", inputs=noise)
    sizes = dict(list_blob_sizes(big))
    assert sizes[len(LARGE)] < len(LARGE) / 10
    assert sizes[len(noise)] == len(noise) + 1
    assert (await read_run(big, "b")).inputs == noise


async def test_small_values_stay_where_they_are(big: SqliteStore):
    run = await start_claimed_run(big, inputs=b"x" * MAX_INLINE_BYTES)
    await commit_ops(big, append(run, 0, payload=b"y" * MAX_INLINE_BYTES))
    assert list_blob_sizes(big) == []
    assert (await read_run(big)).inputs == b"x" * MAX_INLINE_BYTES


async def test_what_could_be_taken_for_a_reference_is_not(big: SqliteStore):
    sly = b"\x00" + os.urandom(32)
    run = await start_claimed_run(big, inputs=sly)
    await commit_ops(big, append(run, 0, payload=sly), signal(payload=sly))
    [history] = await big.get_histories([run.key])
    assert (await read_run(big)).inputs == history.records[0].payload == history.signals[0].payload == sly


async def test_a_claimed_run_has_its_large_inputs(big: SqliteStore):
    await start_run(big, inputs=LARGE)
    await start_run(big, "small")
    assert (await claim_run(big)).inputs == LARGE


async def test_a_large_outcome_is_repeated_and_fenced_like_any_other(big: SqliteStore):
    run = await start_claimed_run(big)
    op = append(run, 0, payload=LARGE)
    assert await commit_ops(big, op) == [DONE]
    assert await commit_ops(big, op, append(run, 1, payload=LARGE)) == [DONE, DONE]
    assert await list_record_seqs(big, run) == [0, 1]
    assert len(list_blob_sizes(big)) == 1


async def test_a_large_end_is_sent_and_forked_without_a_copy(big: SqliteStore):
    parent = await start_claimed_run(big, "p")
    [child] = await commit_ops(big, start_child(parent, claim_as=parent.owner))
    await commit_ops(big, append(child.run, 0, payload=LARGE), finish(child.run, output=LARGE))
    [end] = await list_signals(big, parent)
    assert end.payload == LARGE
    [forked] = await commit_ops(big, ForkRun("c", new_run("f"), 1))
    [history] = await big.get_histories([forked.run.key])
    assert history.records[0].payload == LARGE
    assert len(list_blob_sizes(big)) == 1


async def test_a_large_signal_comes_back_with_a_retry(big: SqliteStore):
    run = await start_claimed_run(big)
    got = append(run, 0, kind=RecordKind.SIGNAL, name="go", payload=LARGE)
    await commit_ops(big, got, finish(run, RunState.FAILED, rewind=rewind(0)), ReopenRun("r", 1.0))
    [back] = await list_signals(big, run)
    assert (back.name, back.payload) == ("go", LARGE)


async def test_a_list_shows_the_size_of_large_values_without_reading_them(big: SqliteStore, monkeypatch):
    run = await start_claimed_run(big, inputs=json.dumps("x" * 3_100_000).encode())
    await commit_ops(big, finish(run, output=LARGE))
    await start_run(big, "small", inputs=b"1")
    monkeypatch.setattr(blobs, "_unpack", None)
    small, large = await big.list_runs(RunFilter())
    assert small.inputs == b"1"
    assert json.loads(large.inputs) == "(3.1 MB, see holdfast show)"
    assert json.loads(large.output or b"") == "(165 kB, see holdfast show)"


async def test_a_list_has_whole_errors(big: SqliteStore):
    run = await start_claimed_run(big)
    await commit_ops(big, finish(run, RunState.FAILED, error=LARGE))
    [listed] = await big.list_runs(RunFilter())
    assert listed.error == LARGE


async def test_hashing_compressing_and_their_undoing_never_happen_on_the_event_loop(big: SqliteStore, monkeypatch):
    threads: list[threading.Thread] = []
    hashing = blobs._hash

    def watched(payload: bytes) -> bytes:
        threads.append(threading.current_thread())
        return hashing(payload)

    monkeypatch.setattr(blobs, "_hash", watched)
    await start_run(big, inputs=LARGE)
    run = await claim_run(big)
    await commit_ops(big, signal(payload=LARGE))
    await big.claims.get_new_signals(run.owner or 0, 0)
    await commit_ops(big, StartRun(new_run()))
    await read_run(big)
    assert len(threads) == 6
    assert threading.main_thread() not in threads
