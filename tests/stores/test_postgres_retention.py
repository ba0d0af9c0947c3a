"""Pruning on PostgreSQL while other transactions write."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from store_values import Clock, append, commit_ops, finish, new_run, start_claimed_run, start_run

from holdfast.stores.operations import OpStatus, ReopenRun, StartRun
from holdfast.stores.postgres import PgStore
from holdfast.stores.postgres.statements import PgStatements
from holdfast.stores.retention import KeepReason, PruneRequest

pytestmark = pytest.mark.asyncio

OLD = PruneRequest(finished_before=2_000_000.0)


@pytest_asyncio.fixture
async def pg(backends: dict[str, Any], tmp_path: Path, clock: Clock) -> AsyncIterator[PgStore]:
    backend = backends["postgres"]
    with backend.place(tmp_path) as place:
        store = backend.make(place, clock)
        await store.open()
        yield store
        await store.close()


@pytest_asyncio.fixture
async def other(pg: PgStore) -> AsyncIterator[Any]:
    """A transaction of somebody else."""
    connection = await psycopg.AsyncConnection.connect(pg._libpq_url)
    yield connection
    await connection.close()


async def test_a_blob_that_a_commit_is_about_to_refer_to_stays(pg: PgStore, other: Any):
    large = secrets.token_bytes(40_000).hex().encode()
    old, live = await start_claimed_run(pg, "old"), await start_claimed_run(pg, "live")
    await commit_ops(pg, append(old, 0, payload=large), finish(old))
    assert (await pg.retention.prune(OLD)).run_ids == ("old",)
    [(name, size, data)] = await (await other.execute("SELECT hash, size, data FROM holdfast.blobs")).fetchall()
    await other.execute(PgStatements("holdfast").PUT_BLOB, ([name], [size], [data]))
    sweeping = asyncio.create_task(pg.retention.sweep())
    done, _ = await asyncio.wait([sweeping], timeout=0.3)
    assert not done, "it did not wait for whoever keeps the value"
    columns = "run, seq, kind, position, ok, at, started_at, attempts, worker, epoch, name, preview, payload"
    await other.execute(
        f"INSERT INTO holdfast.records ({columns}) VALUES (%s, 0, 1, 0, 1, 1, 1, 1, 1, 1, 'x', '', %s)",
        (live.key, b"\x00" + name),
    )
    await other.commit()
    swept = await sweeping
    assert (swept.record_count, swept.blob_count, swept.is_done) == (1, 0, True)
    [history] = await pg.get_histories([live.key])
    assert history.records[0].payload == large


async def test_a_blob_that_is_being_deleted_is_written_again(pg: PgStore, other: Any):
    large = secrets.token_bytes(40_000).hex().encode()
    old, live = await start_claimed_run(pg, "old"), await start_claimed_run(pg, "live")
    await commit_ops(pg, append(old, 0, payload=large), finish(old))
    await pg.retention.prune(OLD)
    await other.execute("DELETE FROM holdfast.blobs")
    appending = asyncio.create_task(pg.commit([append(live, 0, payload=large)]))
    done, _ = await asyncio.wait([appending], timeout=0.3)
    assert not done
    await other.commit()
    await appending
    [history] = await pg.get_histories([live.key])
    assert history.records[0].payload == large


async def test_a_run_that_is_being_changed_is_skipped(pg: PgStore, other: Any):
    run = await start_claimed_run(pg, "r", session="s")
    await commit_ops(pg, finish(run))
    await other.execute("SELECT 1 FROM holdfast.runs WHERE id = 'r' FOR NO KEY UPDATE")
    done = await pg.retention.prune(OLD)
    assert (done.run_ids, done.keep_reasons) == ((), {"r": KeepReason.BUSY})
    await other.rollback()
    assert (await pg.retention.prune(OLD)).run_ids == ("r",)


async def test_an_operation_on_a_run_that_is_being_deleted_finds_none(pg: PgStore, other: Any):
    run = await start_claimed_run(pg, "r")
    await commit_ops(pg, finish(run))
    await other.execute("DELETE FROM holdfast.runs WHERE id = 'r'")
    retrying = asyncio.create_task(pg.commit([ReopenRun("r", 1.0)]))
    done, _ = await asyncio.wait([retrying], timeout=0.3)
    assert not done
    await other.commit()
    assert await retrying == [OpStatus.UNKNOWN_RUN]
    [answer] = await pg.commit([StartRun(new_run("r"))])
    assert answer.is_new  # type: ignore[union-attr]


async def test_a_conversation_that_is_being_continued_stays(pg: PgStore, other: Any):
    run = await start_claimed_run(pg, "t1", session="s")
    await commit_ops(pg, finish(run))
    lock = "SELECT pg_advisory_xact_lock(hashtextextended('etl' || chr(1) || 's', hashtextextended('holdfast', 0)))"
    await other.execute(lock)
    pruning = asyncio.create_task(pg.retention.prune(OLD))
    done, _ = await asyncio.wait([pruning], timeout=0.3)
    assert not done
    columns = (
        "key, id, workflow, queue, state, epoch, delivery_count, max_deliveries, ready_state, wake_at, waits_for, "
        "priority, "
        "result_claim, cancel_state, python_version, created_at, clock_started_at, parent, forked_from, rewind_points, "
        "digest, seed, tags, inputs, "
        "session, previous_run, has_budget, version"
    )
    await other.execute(
        f"INSERT INTO holdfast.runs ({columns}) SELECT 999, 't2', 'etl', queue, 'pending', 0, 0, 3, 1, 1, '', 0, 0, "
        "'', python_version, created_at, clock_started_at, '', '', '[]', digest, seed, '[]', inputs, 's', 't1', 0, "
        "version "
        "FROM holdfast.runs WHERE id = 't1'"
    )
    await other.commit()
    pruned = await pruning
    assert (pruned.run_ids, pruned.keep_reasons) == ((), {"t1": KeepReason.UNFINISHED})
    assert (await start_run(pg, "t3", session="s")).previous_run == "t2"
