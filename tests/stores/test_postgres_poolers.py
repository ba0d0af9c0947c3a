"""PgBouncer in transaction mode: its clients share the server's sessions, and what is prepared in them.

Holdfast recognizes such a pooler by the process number that it invents, and prepares nothing behind it. A pooler that
passes on the server's own process number is not recognized. The fixture ``unrecognized`` makes PgBouncer look like
one of those.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("psycopg")

import psycopg
from postgres_faults import Pooler
from postgres_server import database
from store_values import claim_run, commit_ops, finish, get_state, new_worker, start_run

from holdfast.core.states import RunState
from holdfast.stores.postgres import PgStore
from holdfast.stores.postgres.connections import connect
from holdfast.stores.postgres.database import PgDatabase
from holdfast.stores.sql.database import WriteConflict

ADD = "SELECT %s::bigint + 1"
SUBTRACT = "SELECT %s::bigint - 1"


@pytest.fixture
def plain() -> Iterator[str]:
    with database() as url:
        yield url


@pytest.fixture
def pooled(plain: str) -> Iterator[str]:
    pooler = Pooler(plain)
    yield pooler.url
    pooler.stop()


@pytest.fixture
def unrecognized(pooled: str, monkeypatch: pytest.MonkeyPatch) -> str:
    def ask_server(info: psycopg.ConnectionInfo) -> int:
        found = info.pgconn.exec_(b"SELECT pg_backend_pid()").get_value(0, 0)
        assert found is not None
        return int(found)

    monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", property(ask_server))
    return pooled


@pytest.fixture
def client(unrecognized: str) -> Iterator[Callable[[], PgDatabase]]:
    opened: list[PgDatabase] = []

    def open_one() -> PgDatabase:
        opened.append(PgDatabase(connect(unrecognized), "holdfast"))
        assert not opened[-1].connection.is_pooled
        return opened[-1]

    yield open_one
    for db in opened:
        db.connection.close()


def in_other_session(pooled: str) -> psycopg.Connection[Any]:
    """Occupies the session that was used last, so that everybody else gets the other one."""
    holder = psycopg.connect(pooled, prepare_threshold=None)
    holder.execute("SELECT 1")
    return holder


def test_a_client_never_executes_what_another_client_has_prepared(unrecognized: str, client: Callable[[], PgDatabase]):
    first, second = client(), client()
    assert first.query(ADD, (1,)) == [(2,)]
    with in_other_session(unrecognized):
        assert second.query(SUBTRACT, (1,)) == [(0,)]
        assert first.query(ADD, (1,)) == [(2,)]  # in a session in which only the second client has prepared anything
        assert second.query(SUBTRACT, (1,)) == [(0,)]


def test_a_statement_that_another_client_has_prepared_in_the_same_session_can_be_used(client: Callable[[], PgDatabase]):
    first, second = client(), client()
    assert first.query(ADD, (1,)) == [(2,)]
    assert second.query(ADD, (2,)) == [(3,)]
    assert second.connection.is_pooled, "a statement that is there already shows that the session is shared"
    assert second.connection.settings_sql
    assert first.query(ADD, (3,)) == [(4,)]


def test_what_is_shared_is_noticed_in_the_middle_of_a_transaction(client: Callable[[], PgDatabase]):
    first, second = client(), client()
    assert first.query(ADD, (1,)) == [(2,)]
    second.begin()
    assert second.query(SUBTRACT, (1,)) == [(0,)]
    with pytest.raises(WriteConflict, match="already exists"):
        second.query(ADD, (1,))
    second.roll_back()
    second.begin()
    assert second.query(SUBTRACT, (1,)) == [(0,)]
    assert second.query(ADD, (1,)) == [(2,)]
    second.commit()


@pytest.mark.asyncio
async def test_a_query_of_the_event_loop_survives_that_another_client_has_prepared_it(unrecognized: str):
    stores = [PgStore(unrecognized, poll_interval_s=0.0) for _ in range(2)]
    for store in stores:
        await store.open()
    assert [await store.query(lambda db: (ADD, (1,))) for store in stores * 2] == [[(2,)]] * 4
    for store in stores:
        await store.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["pooled", "unrecognized"])
async def test_two_stores_work_through_a_pooler(how: str, request: pytest.FixtureRequest):
    url = request.getfixturevalue(how)
    stores = [PgStore(url, poll_interval_s=0.0) for _ in range(2)]
    for store in stores:
        await store.open()
    workers = [await store.workers.register(new_worker(), 30.0) for store in stores]
    for number in range(10):
        for store, worker in zip(stores, workers, strict=True):
            await start_run(store, f"run-{number}-{worker}")
            run = await claim_run(store, worker)
            assert store.workers.renew_lease(worker, 30.0)
            await commit_ops(store, finish(run))
            assert await get_state(store, run.id) is RunState.COMPLETED
    found = await stores[0].read_for_client(
        lambda db: db.query("SELECT count(server_started_at) FROM holdfast.workers")
    )
    assert found == [(0,)], "a lock that is held through a pooler says nothing about its worker"
    for store in stores:
        await store.close()


@pytest.mark.asyncio
async def test_a_pooler_that_is_noticed_while_a_worker_registers_leaves_the_decision_to_its_lease(
    plain: str, monkeypatch: pytest.MonkeyPatch
):
    # Without a pooler: a real one may be noticed before the worker has its lock.
    store = PgStore(plain, poll_interval_s=0.0)
    await store.open()
    lock, save = store.session.lock_worker, store.workers.save_server_starts
    is_next_submitted, noticing, saved = threading.Event(), [], []

    def notice(db: PgDatabase) -> None:
        db.connection.treat_as_pooled()
        is_next_submitted.wait(10)

    async def lock_and_notice(worker: int) -> float | None:
        server_started_at = await lock(worker)
        assert server_started_at is not None
        noticing.append(asyncio.create_task(store.session.run(notice)))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(is_next_submitted.set)
        return server_started_at

    def note_and_save(db: Any, workers: Any, server_started_at: float | None) -> None:
        saved.append(server_started_at)
        save(db, workers, server_started_at)

    monkeypatch.setattr(store.session, "lock_worker", lock_and_notice)
    monkeypatch.setattr(store.workers, "save_server_starts", note_and_save)
    await store.workers.register(new_worker(), 30.0)
    await noticing[0]
    assert not saved, "the lock says nothing any more"
    found = await store.read_for_client(lambda db: db.query("SELECT server_started_at FROM holdfast.workers"))
    assert found == [(None,)]
    await store.close()
