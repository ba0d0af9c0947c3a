# ruff: noqa: D102 - what the methods of a store are for is said once, in the contract
"""The SQLite store: which connection does what, and how workers on one file notice each other's writes.

A process polls ``PRAGMA data_version``, which changes when another connection has written: every ``POLL_INTERVAL_S``
seconds, and every ``IDLE_POLL_INTERVAL_S`` when nothing has changed for ``IDLE_AFTER_S``.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from holdfast.core.records import Attempt
from holdfast.errors import StoreError, StoreReadOnly, StoreUnavailable, UsageError
from holdfast.stores.contract import DEFAULT_NAMESPACE, NewWorker, ReapResult
from holdfast.stores.leases import LeaseWindow
from holdfast.stores.operations import Op, OpResult, OpStatus, Run
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.group_commit import GroupCommit
from holdfast.stores.sql.rows import RowReader
from holdfast.stores.sql.step_transactions import resolve_attempt
from holdfast.stores.sql.store import DatabaseWork, SqlStore, T
from holdfast.stores.sql.workers import PresumedDeadWorker, declare_dead, retire_worker
from holdfast.stores.sqlite import connections, step_transactions
from holdfast.stores.sqlite import statements as sql
from holdfast.stores.sqlite import workers as registry
from holdfast.stores.sqlite.connection_worker import ConnectionWorker
from holdfast.stores.sqlite.database import register_search_function
from holdfast.stores.sqlite.errors import to_store_error
from holdfast.stores.sqlite.step_transactions import SqliteStepTransaction
from holdfast.stores.sqlite.worker_locks import WorkerLocks
from holdfast.stores.urls import validate_namespace, with_namespace

POLL_INTERVAL_S, IDLE_POLL_INTERVAL_S, IDLE_AFTER_S = 0.02, 0.05, 1.0
"""How often ``wait_for_change`` looks, in seconds: less often when nothing has changed for a while, to idle cheaply."""
RENEWAL_TIMEOUT_S = 2.0
"""How long a lease renewal waits for the lock: well below a lease, since the renewer has to try again."""
ABANDON_TIMEOUT_S = 1.0
"""How long ``abandon`` waits for the lock: it holds up whoever calls it, and leases end by themselves."""
_MAX_LIVE_CACHE_AGE_S = 1.0


def path_for_namespace(default_path: Path, namespace: str) -> Path:
    """The file in which a namespace of the database at ``default_path`` is kept: beside it, and of the same kind."""
    if namespace == DEFAULT_NAMESPACE:
        return default_path
    return default_path.with_name(f"{default_path.stem}.{namespace}{default_path.suffix}").resolve()


class SqliteStore(SqlStore):
    """Journals in one SQLite file, shared by the processes of one machine."""

    def __init__(
        self, path: str | Path, *, namespace: str = DEFAULT_NAMESPACE, clock: Callable[[], float] = time.time
    ) -> None:
        base = Path(path).expanduser().resolve()
        self.namespace = validate_namespace(namespace)
        self.path = path_for_namespace(base, self.namespace)
        self.url = with_namespace(f"sqlite:///{base}", self.namespace)
        self._clock = clock
        self._reader = RowReader(str(self.path))
        self._locks = WorkerLocks(self.path)
        self._write_worker: ConnectionWorker | None = None
        self._read_worker: ConnectionWorker | None = None
        self._client_read_worker: ConnectionWorker | None = None
        self._renew_worker: ConnectionWorker | None = None
        self._renewer_lock = threading.Lock()
        self._group_commit = GroupCommit(self._commit)
        self._step_lock = asyncio.Lock()
        """Held while a step of this process has the file's write lock."""
        self._own_workers: dict[int, str] = {}
        """Workers registered through this object that have not retired: id -> token."""
        self._seen_data_version: int | None = None
        self._changed_at = 0.0
        self._live_cache: list[registry.LiveWorker] | None = None
        self._live_cache_version: int | None = None
        self._live_cache_read_at = 0.0

    # Opening and closing

    async def open(self) -> None:
        if self._write_worker is None:
            await asyncio.get_running_loop().run_in_executor(None, self._open)

    def _open(self) -> None:
        connections.prepare_folder(self.path)
        with ExitStack() as opened:
            try:
                writer = connections.open_writer(self.path)  # first: it makes sure that there is something to read
                opened.callback(writer.close)
                reader = connections.open_reader(self.path)
                opened.callback(reader.close)
                browser = connections.open_reader(self.path)
            except sqlite3.DatabaseError as error:
                raise to_store_error(error, self.path) from error
            opened.pop_all()
        register_search_function(browser)
        self._group_commit = GroupCommit(self._commit)  # not that of a loop that was closed in the middle of a commit
        self._write_worker = ConnectionWorker(writer, self.path, "writer", is_writer=True)
        self._read_worker = ConnectionWorker(reader, self.path, "reader")
        self._client_read_worker = ConnectionWorker(browser, self.path, "browser")
        self._seen_data_version = self._write_worker.read_data_version()

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        """Close the lines; whoever has not retired lets go of its lock, so that others need not wait for its lease."""
        lines = (self._renew_worker, self._client_read_worker, self._read_worker, self._write_worker)
        self._renew_worker = self._client_read_worker = self._read_worker = self._write_worker = None
        for line in lines:
            if line is not None:
                line.close()
        for token in self._own_workers.values():
            self._locks.release(token)
        self._own_workers.clear()
        self._live_cache = None
        self._step_lock = asyncio.Lock()  # whoever still holds the old one belongs to a loop that may be gone

    def abandon(self) -> None:
        """Retire this object's workers as well: the process lives, so nothing took them down."""
        if self._write_worker is not None:
            for worker, token in list(self._own_workers.items()):
                with suppress(StoreError, UsageError):
                    self._write_worker.run_blocking(
                        partial(retire_worker, worker=worker, now=self._clock()), ABANDON_TIMEOUT_S
                    )
                    self._locks.remove(token)
        self._close()

    @property
    def _writer(self) -> ConnectionWorker:
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

    # Which line does what

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        return await self._group_commit.commit(ops) if ops else []

    async def _write(self, work: DatabaseWork[T], op_count: int = 1, *, is_slow: bool = False) -> T:
        return await self._writer.write(work, op_count, slow=is_slow)

    async def _read(self, work: DatabaseWork[T], *, is_slow: bool = True) -> T:
        return await (
            self._engine_reader.run_in_thread(work) if is_slow else self._engine_reader.run_inline_if_free(work)
        )

    async def _read_for_client(self, work: DatabaseWork[T]) -> T:
        return await self._client_reader.run_in_thread(work)

    # Steps

    async def begin_step_transaction(
        self, run: Run, attempt: Attempt, *, is_sync: bool, timeout_s: float | None = None
    ) -> SqliteStepTransaction | None:
        self._writer.check_files_unchanged()  # a new connection would make new files
        await self._step_lock.acquire()  # they would only wait for each other in the database, and less fairly
        connection = None
        try:
            connection = await asyncio.to_thread(step_transactions.begin_transaction, self.path, run)
        except sqlite3.DatabaseError as error:
            raise await asyncio.to_thread(to_store_error, error, self.path) from error
        finally:
            if connection is None:
                self._step_lock.release()
        if connection is None:
            return None

        def ask() -> Awaitable[OpStatus]:
            return self._write(lambda db: resolve_attempt(db, run, attempt, self._clock()))

        return SqliteStepTransaction(connection, self.path, run, attempt, self._step_lock.release, ask)

    # Workers

    async def register_worker(self, worker: NewWorker, lease_s: float) -> int:
        token = secrets.token_hex(8)
        if worker.is_listener:  # no process of this machine: there is nothing to lock
            return await self._write(lambda db: registry.register_worker(db, worker, token, self._clock(), lease_s))
        try:
            self._locks.acquire(token)
        except OSError as error:
            raise StoreReadOnly(
                f"the lock file of this worker cannot be made in {self._locks.folder} ({error.strerror}). Give this "
                f"process write access to the folder of {self.path.name}."
            ) from error
        try:
            now = self._clock()
            number = await self._write(lambda db: registry.register_worker(db, worker, token, now, lease_s))
        except BaseException:
            self._locks.remove(token)
            raise
        self._own_workers[number] = token
        self._live_cache = None
        return number

    async def renew_listener_lease(self, worker: int, lease_s: float) -> bool:
        def keep(db: Database) -> bool:
            now = self._clock()
            return db.execute(sql.RENEW_LISTENER_LEASE, (now + lease_s, now, worker)) == 1

        return await self._write(keep)

    def renew_lease(self, worker: int, lease_s: float) -> bool:
        def renew(db: Database) -> bool:
            now = self._clock()
            return db.execute(sql.RENEW_LEASE, (now + lease_s, now, worker)) == 1

        return self._get_renewer().run_blocking(renew, RENEWAL_TIMEOUT_S)

    def _get_renewer(self) -> ConnectionWorker:
        """The heartbeat's own connection, opened by its thread when it first needs it."""
        with self._renewer_lock:
            if self._renew_worker is None:
                self._writer.check_files_unchanged()
                try:
                    self._renew_worker = ConnectionWorker(
                        connections.open_renewer(self.path), self.path, "renewer", is_writer=True
                    )
                except sqlite3.DatabaseError as error:
                    raise to_store_error(error, self.path) from error
            return self._renew_worker

    async def retire_worker(self, worker: int) -> None:
        await self._write(lambda db: retire_worker(db, worker, self._clock()))
        self._live_cache = None
        token = self._own_workers.pop(worker, None)
        if token is not None:
            self._locks.remove(token)

    async def reap_dead_workers(
        self, except_worker: int | None = None, window: LeaseWindow | None = None, *, include_listeners: bool = False
    ) -> ReapResult:
        now = self._clock()
        counted = window or LeaseWindow(0.0, now)
        suspects = registry.find_presumed_dead(await self._list_live_workers(), self._locks, except_worker, counted)
        listeners: list[PresumedDeadWorker] = []
        if include_listeners:
            found = await self._read(lambda db: registry.find_expired_listeners(db, counted), is_slow=False)
            listeners = [one for one in found if one.id != except_worker]
        if not suspects and not listeners:
            return ReapResult()

        def is_dead(suspect: PresumedDeadWorker, beat_at: float, lease_until: float) -> bool:
            if counted.has_expired(beat_at, lease_until):
                return True
            return not suspect.is_listener and self._locks.is_free(suspects[suspect].token)

        reaped = await self._write(lambda db: declare_dead(db, [*suspects, *listeners], is_dead, now))
        self._live_cache = None
        for worker in suspects.values():
            if worker.id in reaped.worker_ids:
                self._locks.remove(worker.token)
        return reaped

    async def _list_live_workers(self) -> list[registry.LiveWorker]:
        version = self._writer.read_data_version()
        stale = time.monotonic() - self._live_cache_read_at > _MAX_LIVE_CACHE_AGE_S
        if self._live_cache is None or version != self._live_cache_version or stale:
            self._live_cache = await self._read(registry.list_live_workers, is_slow=False)
            self._live_cache_version = version
            self._live_cache_read_at = time.monotonic()
        return self._live_cache

    # Change

    async def wait_for_change(self, timeout_s: float, *, follow_runs: bool = True) -> bool:
        """Poll ``data_version`` on the writing line, where it does not move with this object's own commits."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            version, now = self._writer.read_data_version(), loop.time()
            if version is not None and version != self._seen_data_version:
                self._seen_data_version = version
                self._changed_at = now
                return True
            if now >= deadline:
                return False
            tick = POLL_INTERVAL_S if now - self._changed_at < IDLE_AFTER_S else IDLE_POLL_INTERVAL_S
            await asyncio.sleep(min(tick, deadline - now))

    def now(self) -> float:
        return self._clock()
