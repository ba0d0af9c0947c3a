"""Transactional steps on SQLite: each attempt has its own connection to the store's file.

The transaction takes the file's only write lock when it begins, and keeps it. So no other connection can write until it
ends, and no worker can take the run over: the fence is checked once, at the beginning. Steps of one process take turns.

**Guards.** SQLite itself refuses ``BEGIN``, ``COMMIT``, and ``ROLLBACK``, however the step issues them, including
Python's implicit commits: it asks an *authorizer* before it prepares a statement. Savepoints are allowed.

An abandoned step may still run in its thread. The statement that it executes at that moment is interrupted, and later
ones are refused: outside of a transaction, SQLite would commit them at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, cast

from holdfast.core.records import Attempt
from holdfast.errors import StepFailed, StoreUnavailable
from holdfast.stores import rules
from holdfast.stores.operations import OpStatus, Run
from holdfast.stores.sql.step_transactions import GuardedConnection, SqlStepTransaction
from holdfast.stores.sqlite import statements as sql
from holdfast.stores.sqlite.connections import (
    LOCK_TIMEOUT_S,
    open_step_connection,
    retry_while_busy,
    validate_schema_version,
)
from holdfast.stores.sqlite.errors import to_store_error
from holdfast.stores.step_transactions import StepTransactions, make_end_refused_error, make_ended_by_step_error

if TYPE_CHECKING:
    from holdfast.stores.sqlite.store import SqliteStore

_INTERRUPT_INTERVAL_S = 0.001


class StepCursor(sqlite3.Cursor):
    """A cursor whose errors explain what SQLite has not authorized."""

    def execute(self, *args: Any) -> StepCursor:
        with cast(StepConnection, self.connection).guard_statement():
            return super().execute(*args)

    def executemany(self, *args: Any) -> StepCursor:
        with cast(StepConnection, self.connection).guard_statement():
            return super().executemany(*args)

    def executescript(self, sql_script: str, /) -> NoReturn:
        raise make_end_refused_error("executescript()", "Execute the statements one by one.")


class StepConnection(GuardedConnection, sqlite3.Connection):
    """The connection that a step gets."""

    nested_hint: ClassVar[str] = "For a part of it that may fail, use SAVEPOINT, ROLLBACK TO and RELEASE."

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.statement_lock = threading.Lock()
        """Held while a statement is executed."""

    is_abandoned = False
    """Its attempt was abandoned."""
    denied_operation = ""
    """The last operation that was not authorized."""

    def cursor(self, factory: Any = StepCursor) -> Any:
        return super().cursor(factory)

    def execute(self, *args: Any) -> Any:
        return self.cursor().execute(*args)

    def executemany(self, *args: Any) -> Any:
        return self.cursor().executemany(*args)

    def executescript(self, sql_script: str, /) -> NoReturn:
        raise make_end_refused_error("connection.executescript()", "Execute the statements one by one.")

    @contextlib.contextmanager
    def guard_statement(self) -> Generator[None]:
        with self.statement_lock:
            if self.is_abandoned:
                raise StepFailed("this attempt of the step is over, and so is its transaction", "")
            self.denied_operation = ""
            try:
                yield
            except sqlite3.DatabaseError as error:
                if self.denied_operation:
                    raise make_end_refused_error(self.denied_operation, self.nested_hint) from error
                raise

    def authorize(self, action: int, operation: str | None, *_: Any) -> int:
        """Whether SQLite may prepare a statement."""
        if action != sqlite3.SQLITE_TRANSACTION:
            return sqlite3.SQLITE_OK
        self.denied_operation = operation or ""
        return sqlite3.SQLITE_DENY

    def __del__(self) -> None:
        self.force_close()  # the thread of an abandoned step may be its last user

    def force_close(self) -> None:
        sqlite3.Connection.close(self)


class SqliteStepTransaction(SqlStepTransaction):
    """The transaction of one attempt."""

    connection: StepConnection

    def __init__(
        self, store: SqliteStore, run: Run, attempt: Attempt, connection: StepConnection, on_end: Callable[[], None]
    ) -> None:
        super().__init__(store, run, attempt)
        self.connection = connection
        self._path = store.path
        self._on_end = on_end
        self._has_tried_commit = False

    @property
    def is_lost(self) -> bool:
        # SQLite rolls back by itself after errors such as a full disk.
        return not self.connection.in_transaction

    async def commit(self, outcome: bytes) -> OpStatus:
        if self._has_tried_commit:
            return await self._resolve_attempt()
        self._has_tried_commit = True
        if self.is_lost:
            await self.roll_back()
            raise make_ended_by_step_error(self._attempt.name)
        try:
            await asyncio.to_thread(self._commit, outcome)
        except asyncio.CancelledError:
            self._end()  # the thread continues
            raise
        except sqlite3.DatabaseError as error:
            await self.roll_back()
            if isinstance(error, sqlite3.IntegrityError):
                raise  # a deferred constraint
            raise StoreUnavailable(str(to_store_error(error, self._path))) from error
        await self.roll_back()
        return OpStatus.DONE

    def _commit(self, outcome: bytes) -> None:
        connection, attempt = self.connection, self._attempt
        connection.set_authorizer(None)
        row = (self._run.key, attempt.position, attempt.attempt, attempt.at, attempt.name, outcome)
        connection.execute(sql.SAVE_OUTCOME, row)
        connection.execute("COMMIT")

    async def roll_back(self) -> None:
        self._roll_back()
        self.connection.force_close()
        self._end()

    async def abandon(self) -> None:
        try:
            await asyncio.to_thread(self._abandon)
        finally:
            self._end()

    def _abandon(self) -> None:
        connection = self.connection
        connection.is_abandoned = True
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while not connection.statement_lock.acquire(timeout=_INTERRUPT_INTERVAL_S):
            connection.interrupt()
            if time.monotonic() > deadline:
                return  # the connection is closed when the thread drops it
        try:
            self._roll_back()
        finally:
            connection.statement_lock.release()

    def _roll_back(self) -> None:
        connection = self.connection
        with contextlib.suppress(sqlite3.Error):  # closing the connection rolls back as well
            connection.set_authorizer(None)
            if connection.in_transaction:
                sqlite3.Cursor(connection).execute("ROLLBACK")

    def _end(self) -> None:
        on_end, self._on_end = self._on_end, _do_nothing
        on_end()


class SqliteStepTransactions(StepTransactions):
    """Transactions of steps in the store's file."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.reset()

    def reset(self) -> None:
        """Use a new lock after the store was closed: the holder of the old one belongs to a loop that may be gone."""
        self._lock = asyncio.Lock()
        """Held while a step of this process has the file's write lock."""

    async def begin(
        self, run: Run, attempt: Attempt, *, is_sync: bool, timeout_s: float | None = None
    ) -> SqliteStepTransaction | None:
        store = self._store
        store.writer.check_files_unchanged()  # a new connection would create new files
        await self._lock.acquire()  # in the database they would wait for each other less fairly
        connection = None
        try:
            connection = await asyncio.to_thread(_begin_transaction, store.path, run)
        except sqlite3.DatabaseError as error:
            raise await asyncio.to_thread(to_store_error, error, store.path) from error
        finally:
            if connection is None:
                self._lock.release()
        return (
            None if connection is None else SqliteStepTransaction(store, run, attempt, connection, self._lock.release)
        )


def _begin_transaction(path: Path, run: Run) -> StepConnection | None:
    """A connection with an open transaction that holds the write lock, if the run is still held. Blocking."""
    connection = open_step_connection(path, StepConnection)
    try:
        retry_while_busy(lambda: connection.execute("BEGIN IMMEDIATE"))
        validate_schema_version(connection, path)
        rows = connection.execute(sql.FENCE_BY_KEY, (run.key,)).fetchall()
        if any(rules.can_write(row[3], row[2], run.epoch) for row in rows):
            connection.set_authorizer(connection.authorize)
            return connection
    except BaseException:
        connection.force_close()
        raise
    connection.force_close()
    return None


def _do_nothing() -> None:
    pass
