"""The SQLite store: which connection does what, and how processes on one file notice each other's writes.

A process polls ``PRAGMA data_version``, which changes when another connection has written: every ``POLL_INTERVAL_S``
seconds, and every ``IDLE_POLL_INTERVAL_S`` when nothing has changed for ``IDLE_AFTER_S``.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from holdfast.errors import StoreUnavailable
from holdfast.stores.contract import DEFAULT_NAMESPACE
from holdfast.stores.operations import Op, OpResult
from holdfast.stores.sql.database_access import DatabaseWork, T
from holdfast.stores.sql.group_commit import GroupCommit
from holdfast.stores.sql.rows import RowReader
from holdfast.stores.sql.store import SqlStore
from holdfast.stores.sqlite import connections
from holdfast.stores.sqlite.connection_worker import ConnectionWorker
from holdfast.stores.sqlite.database import register_search_function
from holdfast.stores.sqlite.errors import to_store_error
from holdfast.stores.sqlite.step_transactions import SqliteStepTransactions
from holdfast.stores.sqlite.workers import SqliteWorkers
from holdfast.stores.urls import validate_namespace, with_namespace

POLL_INTERVAL_S, IDLE_POLL_INTERVAL_S, IDLE_AFTER_S = 0.02, 0.05, 1.0
"""Poll intervals of ``wait_for_change`` in seconds: longer when nothing has changed for a while, to idle cheaply."""


def path_for_namespace(default_path: Path, namespace: str) -> Path:
    """The file of a namespace of the database at ``default_path``: in the same folder, with the same extension."""
    if namespace == DEFAULT_NAMESPACE:
        return default_path
    return default_path.with_name(f"{default_path.stem}.{namespace}{default_path.suffix}").resolve()


class SqliteStore(SqlStore):
    """Journals in one SQLite file, shared by the processes of one machine."""

    def __init__(
        self, path: str | Path, *, namespace: str = DEFAULT_NAMESPACE, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__()
        base = Path(path).expanduser().resolve()
        self.namespace = validate_namespace(namespace)
        self.path = path_for_namespace(base, self.namespace)
        self.url = with_namespace(f"sqlite:///{base}", self.namespace)
        self._clock = clock
        self.reader = RowReader(str(self.path))
        self._write_worker: ConnectionWorker | None = None
        self._read_worker: ConnectionWorker | None = None
        self._client_read_worker: ConnectionWorker | None = None
        self._group_commit = GroupCommit(self._commit)
        self.workers = self._workers = SqliteWorkers(self)
        self.step_transactions = self._step_transactions = SqliteStepTransactions(self)
        self._seen_data_version: int | None = None
        self._changed_at = 0.0

    # Opening and closing

    async def open(self) -> None:
        if self._write_worker is None:
            await asyncio.get_running_loop().run_in_executor(None, self._open)

    def _open(self) -> None:
        connections.prepare_folder(self.path)
        with ExitStack() as opened:
            try:
                writer = connections.open_writer(self.path)  # first: it creates the file
                opened.callback(writer.close)
                reader = connections.open_reader(self.path)
                opened.callback(reader.close)
                client_reader = connections.open_reader(self.path)
            except sqlite3.DatabaseError as error:
                raise to_store_error(error, self.path) from error
            opened.pop_all()
        register_search_function(client_reader)
        self._group_commit = GroupCommit(self._commit)  # the old one may wait for a closed loop
        self._write_worker = ConnectionWorker(writer, self.path, "writer", is_writer=True)
        self._read_worker = ConnectionWorker(reader, self.path, "reader")
        self._client_read_worker = ConnectionWorker(client_reader, self.path, "browser")
        self._seen_data_version = self._write_worker.read_data_version()

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        self._workers.close_renewer()
        connection_workers = (self._client_read_worker, self._read_worker, self._write_worker)
        self._client_read_worker = self._read_worker = self._write_worker = None
        for connection_worker in connection_workers:
            if connection_worker is not None:
                connection_worker.close()
        self._workers.release_locks()
        self._step_transactions.reset()

    def abandon(self) -> None:
        """Retire this object's workers as well: the process lives, so they did not die."""
        if self._write_worker is not None:
            self._workers.abandon(self._write_worker)
        self._close()

    @property
    def writer(self) -> ConnectionWorker:
        """The connection that writes."""
        return self._require_open(self._write_worker)

    @property
    def _engine_reader(self) -> ConnectionWorker:
        return self._require_open(self._read_worker)

    @property
    def _client_reader(self) -> ConnectionWorker:
        return self._require_open(self._client_read_worker)

    def _require_open(self, connection_worker: ConnectionWorker | None) -> ConnectionWorker:
        if connection_worker is None:
            raise StoreUnavailable(f"{self.path} is not open: call open() first (or it has been closed)")
        return connection_worker

    # Which connection does what

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        return await self._group_commit.commit(ops) if ops else []

    async def write(self, work: DatabaseWork[T], op_count: int = 1, *, is_slow: bool = False) -> T:
        return await self.writer.write(work, op_count, slow=is_slow)

    async def read(self, work: DatabaseWork[T], *, is_slow: bool = True) -> T:
        reader = self._engine_reader
        return await (reader.run_inline_if_short(work) if is_slow else reader.run_inline_if_free(work))

    async def read_for_client(self, work: DatabaseWork[T]) -> T:
        return await self._client_reader.run_inline_if_short(work)

    # Change

    async def wait_for_change(self, timeout_s: float, *, follow_runs: bool = True) -> bool:
        """Poll ``data_version`` on the connection that writes: there it does not change with its own commits."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            version, now = self.writer.read_data_version(), loop.time()
            if version is not None and version != self._seen_data_version:
                self._seen_data_version = version
                self._changed_at = now
                return True
            if now >= deadline:
                return False
            interval = POLL_INTERVAL_S if now - self._changed_at < IDLE_AFTER_S else IDLE_POLL_INTERVAL_S
            await asyncio.sleep(min(interval, deadline - now))

    def now(self) -> float:
        return self._clock()
