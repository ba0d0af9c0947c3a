# ruff: noqa: D102 - the contract documents the methods of a store
"""SQL stores for a world: they answer at once and use the world's time.

These are the stores that users run, with their statements and transactions, and with the locks that tell a dead process
from a paused one. Only what would wait is replaced: threads (work runs where it is requested), the event loop, and
notifications, which the world spreads itself. So single records, which the PostgreSQL store sends from the event loop,
are sent by the thread's statement, which is the same.

A ``StoreFactory`` provides the databases of many worlds, one after the other. Each world gets an empty one.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from holdfast.stores.contract import Store
from holdfast.stores.sql.database_access import DatabaseWork
from holdfast.stores.sql.statements import Statements
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.database import SqliteDatabase

T = TypeVar("T")

SQLITE = "sqlite"
"""Selects SQLite files; everything else is the URL of a PostgreSQL server."""


class InlineSqlStore(Store, ABC):
    """A store whose coroutines never wait."""

    @abstractmethod
    def list_mailbox_ids(self, key: int) -> list[int]:
        """The ids of the signals in a run's mailbox."""

    @abstractmethod
    def kill_worker(self, worker: int) -> None:
        """Free the lock of a worker whose process has died."""

    @abstractmethod
    def dispose(self) -> None:
        """Close the store at the end of its world."""


class StoreFactory(ABC):
    """Where worlds have their databases."""

    name: str
    """Of the kind of store, as ``--store`` takes it."""

    @property
    @abstractmethod
    def statements(self) -> Statements:
        """The statements that its worlds use: a bug can be planted there."""

    @abstractmethod
    def create_store(self, clock: Callable[[], float]) -> InlineSqlStore:
        """An empty store. There is one at a time."""

    @abstractmethod
    def close(self) -> None:
        """There will be no more worlds."""


@contextmanager
def open_store_factory(location: str | None) -> Iterator[StoreFactory | None]:
    """The place that goes by this name (see ``SQLITE``); ``None``: worlds have their databases in memory alone."""
    if location is None:
        yield None
        return
    if location == SQLITE:
        place: StoreFactory = SqliteStoreFactory()
    else:
        from simulation.postgres import PgStoreFactory  # imported where used: the driver is optional

        place = PgStoreFactory(location)
    try:
        yield place
    finally:
        place.close()


@contextmanager
def locate_store(kind: str) -> Iterator[str | None]:
    """The place for this kind of store, as ``open_store_factory`` takes it: a server is started if one is needed."""
    if kind == "postgres":
        from simulation.postgres import run_server

        with run_server() as url:
            yield url
    else:
        yield SQLITE if kind == SQLITE else None


# SQLite


class InlineSqliteStore(SqliteStore, InlineSqlStore):
    """A SQLite store that writes on the calling thread."""

    async def write(self, work: DatabaseWork[T], op_count: int = 1, *, is_slow: bool = False) -> T:
        return self.writer.run_blocking(work)

    async def read(self, work: DatabaseWork[T], *, is_slow: bool = True) -> T:
        return self._engine_reader.run_blocking(work)

    async def read_for_client(self, work: DatabaseWork[T]) -> T:
        return self._client_reader.run_blocking(work)

    def list_mailbox_ids(self, key: int) -> list[int]:
        """The ids of the signals in a run's mailbox."""
        return [row[0] for row in self._engine_reader.run_blocking(lambda db: db.lookup(db.sql.MAILBOX, key))]

    def kill_worker(self, worker: int) -> None:
        """Release the file lock."""
        if worker in self._workers._own_workers:
            self._workers._locks.release(self._workers._own_workers[worker])

    def dispose(self) -> None:
        """Remove the file and the files next to it."""
        self._close()
        shutil.rmtree(self.path.parent, ignore_errors=True)


class SqliteStoreFactory(StoreFactory):
    """A folder, with a file for each world: a copy of one that has its tables."""

    name = SQLITE

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-simulation-"))
        self._template_path = self._folder / "empty.db"
        maker = SqliteStore(self._template_path)
        maker._open()
        maker._close()  # the last one to leave writes everything into the file itself
        self._created_count = 0

    @property
    def statements(self) -> Statements:
        """The statements of all SQLite files."""
        return SqliteDatabase.sql

    def create_store(self, clock: Callable[[], float]) -> InlineSqlStore:
        """A file in its own folder, because workers' locks are next to it."""
        self._created_count += 1
        folder = self._folder / str(self._created_count)
        folder.mkdir()
        shutil.copy(self._template_path, folder / "runs.db")
        store = InlineSqliteStore(folder / "runs.db", clock=clock)
        store._open()
        connection: sqlite3.Connection = store.writer._connection
        connection.execute("PRAGMA synchronous = OFF")  # no test crashes this machine
        return store

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
