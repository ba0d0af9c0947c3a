"""Workers on a SQLite file: registering, and finding out which of them are gone.

``reap_dead`` is called several times a second, so it must cost next to nothing while everybody lives. The list
of live workers is kept, and read again when somebody has written or after a second; testing a few file locks takes
microseconds. Only when there is a suspect does a transaction begin, which looks again before it declares anybody dead.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
import time
from collections.abc import Sequence
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
"""How long a lease renewal waits for the lock: well below a lease, since the renewer has to try again."""
ABANDON_TIMEOUT_S = 1.0
"""How long ``abandon`` waits for the lock: it holds up whoever calls it, and leases end by themselves."""
_MAX_LIVE_CACHE_AGE_S = 1.0


class LiveWorker(NamedTuple):
    """What ``reap_dead`` needs to know of a worker."""

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
        """Whoever has not retired lets go of its lock, so that others need not wait for its lease."""
        for token in self._own_workers.values():
            self._locks.release(token)
        self._own_workers.clear()
        self._live_cache = None

    def abandon(self, writer: ConnectionWorker) -> None:
        """Retire this object's workers without a loop."""
        for worker, token in list(self._own_workers.items()):
            with suppress(StoreError, UsageError):
                writer.run_blocking(partial(retire_worker, worker=worker, now=self._store.now()), ABANDON_TIMEOUT_S)
                self._locks.remove(token)

    async def register(self, worker: NewWorker, lease_s: float) -> int:
        token = secrets.token_hex(8)
        if worker.is_listener:  # no process of this machine: there is nothing to lock
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
        def keep(db: Database) -> bool:
            now = self._store.now()
            return db.execute(sql.RENEW_LISTENER_LEASE, (now + lease_s, now, worker)) == 1

        return await self._store.write(keep)

    def renew_lease(self, worker: int, lease_s: float) -> bool:
        def renew(db: Database) -> bool:
            now = self._store.now()
            return db.execute(sql.RENEW_LEASE, (now + lease_s, now, worker)) == 1

        return self._get_renewer().run_blocking(renew, RENEWAL_TIMEOUT_S)

    def _get_renewer(self) -> ConnectionWorker:
        """The heartbeat's own connection, opened by its thread when it first needs it."""
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

    async def retire(self, worker: int) -> None:
        await self._store.write(lambda db: retire_worker(db, worker, self._store.now()))
        self._live_cache = None
        token = self._own_workers.pop(worker, None)
        if token is not None:
            self._locks.remove(token)

    async def reap_dead(
        self, except_worker: int | None = None, window: LeaseWindow | None = None, *, include_listeners: bool = False
    ) -> ReapResult:
        now = self._store.now()
        counted = window or LeaseWindow(0.0, now)
        suspects = _find_presumed_dead(await self._list_live_workers(), self._locks, except_worker, counted)
        listeners: list[PresumedDeadWorker] = []
        if include_listeners:
            found = await self._store.read(lambda db: _find_expired_listeners(db, counted), is_slow=False)
            listeners = [one for one in found if one.id != except_worker]
        if not suspects and not listeners:
            return ReapResult()

        def is_dead(suspect: PresumedDeadWorker, beat_at: float, lease_until: float) -> bool:
            if counted.has_expired(beat_at, lease_until):
                return True
            return not suspect.is_listener and self._locks.is_free(suspects[suspect].token)

        reaped = await self._store.write(lambda db: declare_dead(db, sorted([*suspects, *listeners]), is_dead, now))
        self._live_cache = None
        for worker in suspects.values():
            if worker.id in reaped.worker_ids:
                self._locks.remove(worker.token)
        return reaped

    async def _list_live_workers(self) -> list[LiveWorker]:
        version = self._store.writer.read_data_version()
        stale = time.monotonic() - self._live_cache_read_at > _MAX_LIVE_CACHE_AGE_S
        if self._live_cache is None or version != self._live_cache_version or stale:
            self._live_cache = await self._store.read(_list_live_workers, is_slow=False)
            self._live_cache_version = version
            self._live_cache_read_at = time.monotonic()
        return self._live_cache


def _insert_worker(db: Database, worker: NewWorker, token: str, now: float, lease_s: float) -> int:
    """Write a worker's row; its lock is held already, unless it is one by lease."""
    [(number,)] = db.query(sql.REGISTER_WORKER, (*worker_to_row(worker, token), now, now + lease_s, now))
    return number


def _list_live_workers(db: Database) -> list[LiveWorker]:
    """All workers that nobody has declared dead or retired, but for those by lease."""
    return [LiveWorker(*row) for row in db.query(sql.LIVE_WORKERS)]


def _find_expired_listeners(db: Database, window: LeaseWindow) -> list[PresumedDeadWorker]:
    """Workers by lease whose lease has passed within ``window``; they have no lock here."""
    return [PresumedDeadWorker(*row, is_listener=True) for row in db.query(sql.EXPIRED_LISTENERS, window)]


def _find_presumed_dead(
    workers: Sequence[LiveWorker], locks: WorkerLocks, me: int | None, window: LeaseWindow
) -> dict[PresumedDeadWorker, LiveWorker]:
    """Those whose process is gone, or whose lease has passed within ``window``."""
    found: dict[PresumedDeadWorker, LiveWorker] = {}
    for worker in workers:
        if worker.id == me:
            continue
        if locks.is_free(worker.token) or window.has_expired(worker.heartbeat_at, worker.lease_expires_at):
            found[PresumedDeadWorker(worker.id, worker.name, worker.host, worker.pid)] = worker
    return found
