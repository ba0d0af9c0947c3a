"""The stores on SQL, as a world can use them: they answer at once, and know no time but the world's.

Nothing of what they say to their databases is different: these are the stores that users run, with their statements and
transactions, and with the locks by which a process that is gone is told from one that stands still. Only what would
wait is left out: the threads (work is done where it is asked for), the event loop, and news, which a world spreads by
itself. So records alone, which the PostgreSQL store sends from the event loop, are sent by the thread's statement,
which is the same.

A *place* is where the databases of many worlds are, one after the other. Each world finds an empty one.
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
from holdfast.stores.sql.statements import Statements
from holdfast.stores.sql.store import Work
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.database import SqliteDatabase

T = TypeVar("T")

SQLITE = "sqlite"
"""The place of SQLite files; all others are the URLs of PostgreSQL servers."""


class SqlTwin(Store, ABC):
    """A store whose coroutines wait for nothing."""

    @abstractmethod
    def mailbox(self, key: int) -> list[int]:
        """The ids of what is in a run's mailbox."""

    @abstractmethod
    def kill_worker(self, worker: int) -> None:
        """Its process is gone, and with it its lock."""

    @abstractmethod
    def end(self) -> None:
        """Its world is over."""


class Place(ABC):
    """Where worlds have their databases."""

    name: str
    """Of the kind of store, as ``--store`` takes it."""

    @property
    @abstractmethod
    def statements(self) -> Statements:
        """Those that its worlds use: a bug can be planted there."""

    @abstractmethod
    def fresh(self, clock: Callable[[], float]) -> SqlTwin:
        """A store with nothing in it. There is one at a time."""

    @abstractmethod
    def close(self) -> None:
        """There will be no more worlds."""


@contextmanager
def opened(where: str | None) -> Iterator[Place | None]:
    """The place that goes by this name (see ``SQLITE``); ``None``: worlds have their databases in memory alone."""
    if where is None:
        yield None
        return
    if where == SQLITE:
        place: Place = SqlitePlace()
    else:
        from simulation.postgres import PgPlace  # only where there is a driver

        place = PgPlace(where)
    try:
        yield place
    finally:
        place.close()


@contextmanager
def where_of(store: str) -> Iterator[str | None]:
    """The place for this kind of store, as ``opened`` takes it: a server is started if one is needed."""
    if store == "postgres":
        from simulation.postgres import server

        with server() as url:
            yield url
    else:
        yield SQLITE if store == SQLITE else None


# SQLite


class SqliteAtOnce(SqliteStore, SqlTwin):
    """A SQLite file, written by whoever asks."""

    async def _write(self, work: Work[T], size: int = 1, *, slow: bool = False) -> T:
        return self._writer.blocking(work)

    async def _read(self, work: Work[T], *, slow: bool = True) -> T:
        return self._readers.blocking(work)

    async def _browse(self, work: Work[T]) -> T:
        return self._browsers.blocking(work)

    def mailbox(self, key: int) -> list[int]:
        """The ids of what is in a run's mailbox."""
        return [row[0] for row in self._readers.blocking(lambda db: db.lookup(db.sql.MAILBOX, key))]

    def kill_worker(self, worker: int) -> None:
        """Let go of the file lock."""
        if worker in self._mine:
            self._locks.drop(self._mine[worker])

    def end(self) -> None:
        """Remove the file, and what lies beside it."""
        self._close()
        shutil.rmtree(self.path.parent, ignore_errors=True)


class SqlitePlace(Place):
    """A folder, with a file for each world: a copy of one that has its tables."""

    name = SQLITE

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-simulation-"))
        self._empty = self._folder / "empty.db"
        maker = SqliteStore(self._empty)
        maker._open()
        maker._close()  # the last one to leave writes everything into the file itself
        self._made = 0

    @property
    def statements(self) -> Statements:
        """Those of all SQLite files."""
        return SqliteDatabase.sql

    def fresh(self, clock: Callable[[], float]) -> SqlTwin:
        """A file of its own, in a folder of its own, since the locks of workers lie beside it."""
        self._made += 1
        folder = self._folder / str(self._made)
        folder.mkdir()
        shutil.copy(self._empty, folder / "runs.db")
        store = SqliteAtOnce(folder / "runs.db", clock=clock)
        store._open()
        connection: sqlite3.Connection = store._writer._connection
        connection.execute("PRAGMA synchronous = OFF")  # nobody pulls the plug here
        return store

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
