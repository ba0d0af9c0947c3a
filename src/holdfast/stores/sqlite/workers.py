"""Workers on a SQLite file: registering them, and finding dead ones.

``reap_dead`` is called several times a second, so it must cost next to nothing while all workers live. The list of live
workers is cached, and read again after another process has written, or after a second. Testing a few file locks takes
microseconds. Only if a worker seems dead does a transaction begin, which checks again before it declares one dead.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from holdfast.errors import StoreError, StoreReadOnly, UsageError
from holdfast.stores.leases import LeaseWindow
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.workers import PresumedDeadWorker, declare_dead, retire_worker, worker_to_row
from holdfast.stores.sqlite import connections
from holdfast.stores.sqlite import statements as sql
from holdfast.stores.sqlite.connection_worker import ConnectionWorker
from holdfast.stores.sqlite.errors import to_store_error
from holdfast.stores.sqlite.worker_locks import WorkerLocks
from holdfast.stores.workers import NewWorker, ReapResult, Workers

if TYPE_CHECKING:
    from holdfast.stores.sqlite.store import SqliteStore

RENEWAL_TIMEOUT_S = 2.0
"""How long a lease renewal waits for the lock: well below a lease, so that it can be tried again."""
ABANDON_TIMEOUT_S = 1.0
"""How long ``abandon`` waits for the lock: it blocks its caller, and leases expire anyway."""
_MAX_LIVE_CACHE_AGE_S = 1.0


class LiveWorker(NamedTuple):
    """What ``reap_dead`` needs to know about a worker."""

    id: int
    token: str
    name: str
    host: str
    pid: int
    heartbeat_at: float
    lease_expires_at: float


class SqliteWorkers(Workers):
    """The workers on a SQLite file."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._locks = WorkerLocks(store.path)
        self._own_workers: dict[int, str] = {}
        """Workers registered through this object that have not retired: id -> token."""
        self._renew_worker: ConnectionWorker | None = None
        self._renewer_lock = threading.Lock()
        self._live_cache: list[LiveWorker] | None = None
        self._live_cache_version: int | None = None
        self._live_cache_read_at = 0.0

    def close_renewer(self) -> None:
        """Close the heartbeat's own connection."""
        renewer, self._renew_worker = self._renew_worker, None
        if renewer is not None:
            renewer.close()

    def release_locks(self) -> None:
        """Release the locks of workers that have not retired, so that others need not wait for their leases."""
        for token in self._own_workers.values():
            self._locks.release(token)
        self._own_workers.clear()
        self._live_cache = None

    def abandon(self, writer: ConnectionWorker) -> None:
        """Retire this object's workers without an event loop."""
        for worker, token in list(self._own_workers.items()):
            with suppress(StoreError, UsageError):
                writer.run_blocking(partial(retire_worker, worker=worker, now=self._store.now()), ABANDON_TIMEOUT_S)
                self._locks.remove(token)

    async def register(self, worker: NewWorker, lease_s: float) -> int:
        token = secrets.token_hex(8)
        if worker.is_listener:  # its process is not on this machine, so there is nothing to lock
            return await self._store.write(lambda db: _insert_worker(db, worker, token, self._store.now(), lease_s))
        try:
            self._locks.acquire(token)
        except OSError as error:
            raise StoreReadOnly(
                f"the lock file of this worker cannot be made in {self._locks.folder} ({error.strerror}). Give this "
                f"process write access to the folder of {self._store.path.name}."
            ) from error
        try:
            now = self._store.now()
            number = await self._store.write(lambda db: _insert_worker(db, worker, token, now, lease_s))
        except BaseException:
            self._locks.remove(token)
            raise
        self._own_workers[number] = token
        self._live_cache = None
        return number

    async def renew_listener_lease(self, worker: int, lease_s: float) -> bool:
        return await self._store.write(lambda db: self._renew(db, sql.RENEW_LISTENER_LEASE, worker, lease_s))

    def renew_lease(self, worker: int, lease_s: float) -> bool:
        return self._get_renewer().run_blocking(
            lambda db: self._renew(db, sql.RENEW_LEASE, worker, lease_s), RENEWAL_TIMEOUT_S
        )

    def _renew(self, db: Database, statement: str, worker: int, lease_s: float) -> bool:
        now = self._store.now()
        return db.execute(statement, (now + lease_s, now, worker)) == 1

    def _get_renewer(self) -> ConnectionWorker:
        """The heartbeat's own connection. The heartbeat's thread opens it at its first use."""
        with self._renewer_lock:
            if self._renew_worker is None:
                self._store.writer.check_files_unchanged()
                try:
                    self._renew_worker = ConnectionWorker(
                        connections.open_renewer(self._store.path), self._store.path, "renewer", is_writer=True
                    )
                except sqlite3.DatabaseError as error:
                    raise to_store_error(error, self._store.path) from error
            return self._renew_worker

    async def retire(self, worker: int, *, only_if_idle: bool = False) -> bool:
        if not await self._store.write(
            lambda db: retire_worker(db, worker, self._store.now(), only_if_idle=only_if_idle)
        ):
            return False
        self._store.notify_work()
        self._live_cache = None
        token = self._own_workers.pop(worker, None)
        if token is not None:
            self._locks.remove(token)
        return True

    async def reap_dead(
        self, except_worker: int | None = None, window: LeaseWindow | None = None, *, include_listeners: bool = False
    ) -> ReapResult:
        now = self._store.now()
        lease_window = window or LeaseWindow(0.0, now)
        presumed_dead: list[PresumedDeadWorker] = []
        tokens: dict[int, str] = {}
        for worker in await self._list_live_workers():
            has_expired = lease_window.has_expired(worker.heartbeat_at, worker.lease_expires_at)
            if worker.id != except_worker and (self._locks.is_free(worker.token) or has_expired):
                presumed_dead.append(PresumedDeadWorker(worker.id, worker.name, worker.host, worker.pid))
                tokens[worker.id] = worker.token
        if include_listeners:
            found = await self._store.read(lambda db: _find_expired_listeners(db, lease_window), is_slow=False)
            presumed_dead += [listener for listener in found if listener.id != except_worker]
        if not presumed_dead:
            return ReapResult()

        def is_dead(worker: PresumedDeadWorker, heartbeat_at: float, lease_expires_at: float) -> bool:
            if lease_window.has_expired(heartbeat_at, lease_expires_at):
                return True
            return worker.id in tokens and self._locks.is_free(tokens[worker.id])

        reaped = await self._store.write(lambda db: declare_dead(db, sorted(presumed_dead), is_dead, now))
        self._live_cache = None
        for worker_id in tokens.keys() & set(reaped.worker_ids):
            self._locks.remove(tokens[worker_id])
        return reaped

    async def _list_live_workers(self) -> list[LiveWorker]:
        version = self._store.writer.read_data_version()
        is_stale = time.monotonic() - self._live_cache_read_at > _MAX_LIVE_CACHE_AGE_S
        if self._live_cache is None or version != self._live_cache_version or is_stale:
            self._live_cache = await self._store.read(_list_live_workers, is_slow=False)
            self._live_cache_version = version
            self._live_cache_read_at = time.monotonic()
        return self._live_cache


def _insert_worker(db: Database, worker: NewWorker, token: str, now: float, lease_s: float) -> int:
    """Write a worker's row. Its lock is held already, unless it is a listener."""
    [(number,)] = db.query(sql.REGISTER_WORKER, (*worker_to_row(worker, token), now, now + lease_s, now))
    return number


def _list_live_workers(db: Database) -> list[LiveWorker]:
    """All live workers except listeners."""
    return [LiveWorker(*row) for row in db.query(sql.LIVE_WORKERS)]


def _find_expired_listeners(db: Database, window: LeaseWindow) -> list[PresumedDeadWorker]:
    """Listeners whose lease has expired within ``window``. They have no file locks."""
    return [PresumedDeadWorker(*row, is_listener=True) for row in db.query(sql.EXPIRED_LISTENERS, window)]
