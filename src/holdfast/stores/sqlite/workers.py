"""Workers on a SQLite file: registering, and finding out which of them are gone.

``reap_dead_workers`` is called several times a second, so it must cost next to nothing while everybody lives. The list
of live workers is kept, and read again when somebody has written or after a second; testing a few file locks takes
microseconds. Only when there is a suspect does a transaction begin, which looks again before it declares anybody dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.stores.contract import NewWorker
from holdfast.stores.leases import LeaseWindow
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.workers import PresumedDeadWorker, worker_to_row
from holdfast.stores.sqlite import statements as sql
from holdfast.stores.sqlite.worker_locks import WorkerLocks


class LiveWorker(NamedTuple):
    """What ``reap_dead_workers`` needs to know of a worker."""

    id: int
    token: str
    name: str
    host: str
    pid: int
    heartbeat_at: float
    lease_expires_at: float


def register_worker(db: Database, worker: NewWorker, token: str, now: float, lease_s: float) -> int:
    """Write a worker's row; its lock is held already, unless it is one by lease."""
    [(number,)] = db.query(sql.REGISTER_WORKER, (*worker_to_row(worker, token), now, now + lease_s, now))
    return number


def list_live_workers(db: Database) -> list[LiveWorker]:
    """All workers that nobody has declared dead or retired, but for those by lease."""
    return [LiveWorker(*row) for row in db.query(sql.LIVE_WORKERS)]


def find_expired_listeners(db: Database, window: LeaseWindow) -> list[PresumedDeadWorker]:
    """Workers by lease whose lease has passed within ``window``; they have no lock here."""
    return [PresumedDeadWorker(*row, is_listener=True) for row in db.query(sql.EXPIRED_LISTENERS, window)]


def find_presumed_dead(
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
