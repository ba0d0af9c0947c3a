"""Transactional steps: what a step does is committed together with its outcome, or not at all; on stores that can."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from postgres_pooler import SmallPooler
from store_values import (
    CLAIM_FILTER,
    DONE,
    FENCED,
    REFUSED,
    append,
    commit_ops,
    finish,
    new_worker,
    rewind,
    save_attempt,
    start_claimed_run,
)

from holdfast.core.records import Attempt
from holdfast.core.states import RunState
from holdfast.errors import StoreUnavailable, UsageError
from holdfast.stores.contract import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.operations import ReopenRun, Run
from holdfast.stores.postgres import PgStore

pytestmark = pytest.mark.asyncio

with_a_database = pytest.mark.parametrize("backend", ["sqlite", "postgres"], indirect=True)
on_postgres = pytest.mark.parametrize("backend", ["postgres"], indirect=True)

SETUP = "CREATE TABLE IF NOT EXISTS paid (run TEXT, amount INT)"
INSERT = "INSERT INTO paid VALUES ('r', 1)"


async def begin(store: Store, run: Run, number: int = 1, **fields: Any) -> Any:
    plain = fields.pop("plain", True)
    return await store.step_transactions.begin(run, Attempt(0, number, at=5.0, name="pay", **fields), is_sync=plain)


async def execute(transaction: Any, statement: Any) -> Any:
    done = transaction.connection.execute(statement)
    return await done if asyncio.iscoroutine(done) else done


def outside(store: Any, statement: str) -> list[tuple[Any, ...]]:
    """What somebody else finds, or does, in the same database."""
    if isinstance(store, PgStore):
        with psycopg.connect(store._libpq_url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []
    connection = sqlite3.connect(store.path, isolation_level=None)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


def paid(store: Any) -> int:
    return outside(store, "SELECT count(*) FROM paid")[0][0]


async def attempt_of(store: Store, run: Run) -> Attempt | None:
    [history] = await store.get_histories([run.key])
    return history.attempts.get(0)


@pytest_asyncio.fixture
async def run(store: Store) -> Run:
    outside(store, SETUP)
    return await start_claimed_run(store)


@with_a_database
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
async def test_changes_and_the_outcome_are_committed_together(store: Store, run: Run, plain: bool):
    transaction = await begin(store, run, 3, plain=plain)
    await execute(transaction, INSERT)
    assert paid(store) == 0
    assert await attempt_of(store, run) is None
    assert await transaction.commit(b'"done"') is DONE
    assert paid(store) == 1
    kept = Attempt(0, 3, at=5.0, name="pay", outcome=b'"done"')
    assert await attempt_of(store, run) == kept
    assert await commit_ops(store, save_attempt(run, 0, 3, name="pay")) == [
        DONE
    ]  # a note that comes late leaves it there
    assert (await attempt_of(store, run))._replace(at=5.0) == kept
    assert await commit_ops(store, append(run, 0, clear=True)) == [DONE]
    assert await attempt_of(store, run) is None


@with_a_database
@pytest.mark.parametrize("end", ["roll_back", "abandon"])
async def test_what_is_rolled_back_leaves_nothing(store: Store, run: Run, end: str):
    for number in range(1, 4):  # also not for the next one, which may have the same session
        transaction = await begin(store, run, number)
        await execute(transaction, INSERT)
        await getattr(transaction, end)()
        assert paid(store) == 0
        assert await attempt_of(store, run) is None
        with pytest.raises(Exception, match=r"closed|over"):
            await execute(transaction, INSERT)
    assert paid(store) == 0


@with_a_database
async def test_a_run_that_was_taken_away_gets_no_outcome(
    store: Store, second_store: Store, run: Run, kill_worker: Callable[[int], None]
):
    if isinstance(store, PgStore):  # on SQLite nobody can, while the transaction is open
        transaction = await begin(store, run)
        await execute(transaction, INSERT)
        kill_worker(run.owner or 0)
        await second_store.workers.reap_dead()
        [taken] = await second_store.claims.claim(
            await second_store.workers.register(new_worker("other"), 60.0), **CLAIM_FILTER, limit=1
        )
        assert await transaction.commit(b"1") is FENCED
    else:
        kill_worker(run.owner or 0)
        await second_store.workers.reap_dead()
        [taken] = await second_store.claims.claim(
            await second_store.workers.register(new_worker("other"), 60.0), **CLAIM_FILTER, limit=1
        )
    assert await begin(store, run) is None
    assert paid(store) == 0
    assert taken.epoch == run.epoch + 1
    assert await attempt_of(store, taken) is None


@with_a_database
async def test_a_failed_commit_is_known_to_have_failed_when_it_is_repeated(store: Store, run: Run):
    transaction = await begin(store, run)
    await execute(transaction, INSERT)
    if isinstance(store, PgStore):
        transaction._commit = _cut
    else:
        transaction.connection.set_authorizer(None)
        transaction._commit = _full
    with pytest.raises(StoreUnavailable):
        await transaction.commit(b"1")
    assert await transaction.commit(b"1") is REFUSED
    assert paid(store) == 0
    assert (await attempt_of(store, run))._replace(at=0.0, error="") == Attempt(0, 1, name="pay")
    transaction = await begin(store, run, 2)
    await execute(transaction, INSERT)
    assert await transaction.commit(b"2") is DONE
    assert paid(store) == 1


def _cut(_: bytes) -> None:
    raise psycopg.OperationalError("the connection is lost")


def _full(_: bytes) -> None:
    raise sqlite3.OperationalError("database or disk is full")


REFUSALS: dict[str, Callable[[Any], Any]] = {
    "commit": lambda connection: connection.commit(),
    "rollback": lambda connection: connection.rollback(),
    "close": lambda connection: connection.close(),
    "with": lambda connection: connection.__enter__(),
    "COMMIT": lambda connection: connection.execute("COMMIT"),
    "a comment and END": lambda connection: connection.cursor().execute("/* ; */ end"),
    "ROLLBACK": lambda connection: connection.execute("ROLLBACK"),
    "BEGIN": lambda connection: connection.execute("BEGIN"),
}


@with_a_database
@pytest.mark.parametrize("how", REFUSALS)
async def test_a_step_cannot_end_its_transaction(store: Store, run: Run, how: str):
    transaction = await begin(store, run)
    await execute(transaction, INSERT)
    with pytest.raises(UsageError, match="would end the transaction of this step"):
        REFUSALS[how](transaction.connection)
    assert paid(store) == 0
    assert await transaction.commit(b"1") is DONE
    assert paid(store) == 1


@with_a_database
async def test_savepoints_are_the_steps_own(store: Store, run: Run):
    transaction = await begin(store, run)
    for statement in (
        "SAVEPOINT a",
        INSERT,
        "ROLLBACK TO a",
        INSERT,
        "RELEASE a",
        "SAVEPOINT begin_b",
        "RELEASE begin_b",
    ):
        await execute(transaction, statement)
    await execute(transaction, "SELECT 'x; COMMIT'")
    if isinstance(store, PgStore):
        with pytest.raises(psycopg.errors.DivisionByZero), transaction.connection.transaction():
            transaction.connection.execute(INSERT)
            transaction.connection.execute("SELECT 1/0")
    assert await transaction.commit(b"1") is DONE
    assert paid(store) == 1


@with_a_database
async def test_a_thread_that_runs_on_has_no_effect_any_more(store: Store, run: Run):
    transaction = await begin(store, run)
    transaction.connection.execute(INSERT)
    long = (
        "SELECT pg_sleep(60)"
        if isinstance(store, PgStore)
        else "WITH RECURSIVE r (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r"
    )
    errors: list[BaseException] = []
    begun = threading.Event()

    def work() -> None:
        for statement in (long, INSERT, INSERT):
            begun.set()
            try:
                transaction.connection.execute(statement)
            except BaseException as error:
                errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    await asyncio.sleep(0.1)
    await transaction.abandon()
    thread.join(10)
    assert len(errors) == 3
    assert paid(store) == 0
    again = await begin(store, run, 2)  # nothing is locked any more
    again.connection.execute(INSERT)
    assert await again.commit(b"1") is DONE
    assert paid(store) == 1


@with_a_database
async def test_a_retry_deletes_the_outcomes_of_the_steps_it_removes(store: Store, run: Run):
    for position in (0, 4):
        attempt = Attempt(position, 1, name="pay")
        transaction = await store.step_transactions.begin(run, attempt, is_sync=True)
        assert transaction is not None
        assert await transaction.commit(b"1") is DONE
    await commit_ops(store, append(run, 0, position=3, ok=False))
    await commit_ops(store, finish(run, RunState.FAILED, rewind=rewind(0, command_count=4)))
    assert await commit_ops(store, ReopenRun("r", 1.0)) == [DONE]
    [history] = await store.get_histories([run.key])
    assert list(history.attempts) == [0]


async def test_a_store_without_a_database_says_which_ones_have_one():
    store = MemoryStore()
    await store.open()
    run = await start_claimed_run(store)
    assert not store.supports(Store.step_transactions)
    with pytest.raises(
        UsageError, match=r"step transactions: not supported by memory://.*sqlite:///… or postgresql://…"
    ):
        await begin(store, run)


# PostgreSQL only


@on_postgres
async def test_a_step_has_a_connection_as_users_know_them(store: PgStore, run: Run):
    for number in (1, 2):  # the second one has the same session, and finds nothing of the first
        transaction = await begin(store, run, number)
        connection = transaction.connection
        connection.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        assert connection.execute("SELECT 1::int2, 'a\x01b', current_setting('search_path')").fetchone() == (
            1,
            "a\x01b",
            '"$user", public',
        )
        connection.row_factory = psycopg.rows.dict_row
        connection.execute("SET search_path = pg_catalog")
        pid = connection.info.backend_pid
        assert await transaction.commit(b"1") is DONE
        await commit_ops(store, append(run, number, position=0, clear=True))
        assert connection.closed
    assert len(store.step_transactions._sessions._idle) == 1
    assert outside(store, f"SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}") == [(1,)]


@on_postgres
async def test_a_commit_that_arrives_late_is_refused(store: PgStore, run: Run):
    """The client has seen its connection break, and the server gets the commit only afterwards."""
    transaction = await begin(store, run)
    await execute(transaction, INSERT)
    really, transaction._commit = transaction._commit, _cut
    session, transaction._end = transaction._session, lambda **_: None
    session.close, close = (lambda: None), session.close
    with pytest.raises(StoreUnavailable):
        await transaction.commit(b"1")
    assert await transaction.commit(b"1") is REFUSED
    with pytest.raises(psycopg.errors.InvalidArgumentForLogarithm):
        really(transaction._make_commit(b"1"))
    close()
    assert paid(store) == 0


@on_postgres
async def test_a_commit_whose_answer_was_lost_is_found(store: PgStore, run: Run):
    transaction = await begin(store, run)
    await execute(transaction, INSERT)
    really = transaction._commit

    def cut_after(statements: bytes) -> None:
        really(statements)
        _cut(statements)

    transaction._commit = cut_after
    with pytest.raises(StoreUnavailable):
        await transaction.commit(b"1")
    assert await transaction.commit(b"1") is DONE
    assert paid(store) == 1


@on_postgres
async def test_a_connection_that_the_server_has_cut_is_lost(store: PgStore, run: Run):
    transaction = await begin(store, run)
    await execute(transaction, INSERT)
    outside(store, f"SELECT pg_terminate_backend({transaction.connection.info.backend_pid})")
    with pytest.raises(psycopg.OperationalError):
        await execute(transaction, "SELECT 1")
    assert transaction.is_lost
    assert await transaction.commit(b"1") is REFUSED
    idle = await begin(store, run)
    await idle.roll_back()
    outside(store, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'holdfast step'")
    again = await begin(store, run)  # a session that was cut while nobody used it is replaced
    await execute(again, INSERT)
    assert await again.commit(b"1") is DONE
    assert paid(store) == 1


@on_postgres
async def test_a_failed_commit_of_postgres_is_reported(store: PgStore, run: Run):
    outside(store, "CREATE TABLE ones (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    transaction = await begin(store, run)
    await execute(transaction, "INSERT INTO ones VALUES (1), (1)")
    with pytest.raises(psycopg.errors.UniqueViolation):
        await transaction.commit(b"1")
    transaction = await begin(store, run)
    await execute(transaction, INSERT)
    with pytest.raises(psycopg.errors.DivisionByZero):
        await execute(transaction, "SELECT 1/0")
    with pytest.raises(UsageError, match="a statement of step 'pay' has failed, and the step went on"):
        await transaction.commit(b"1")
    transaction = await begin(store, run)
    psycopg.Cursor(transaction.connection).execute("COMMIT")  # found a way around the guard
    psycopg.Cursor(transaction.connection).execute("BEGIN")
    with pytest.raises(UsageError, match="step 'pay' has ended its transaction itself"):
        await transaction.commit(b"1")
    assert paid(store) == 0
    assert await attempt_of(store, run) is None


@on_postgres
async def test_a_pooler_changes_nothing(store: PgStore, run: Run):
    pooler = SmallPooler(store._libpq_url)
    pooled = PgStore(pooler.url, poll_interval_s=0.0)
    try:
        await pooled.open()
        for position, plain in enumerate((True, False, True)):
            transaction = await pooled.step_transactions.begin(run, Attempt(position, 1, name="pay"), is_sync=plain)
            assert transaction is not None
            for _ in range(8):  # more often than psycopg waits before it would prepare a statement
                await execute(transaction, INSERT)
            assert await transaction.commit(b"1") is DONE
    finally:
        await pooled.close()
        pooler.stop()
    assert paid(store) == 24
