"""Workers on a SQLite file: registering, and finding out which of them are gone.

``reap`` is called several times a second, so it must cost next to nothing while everybody lives. The list of live
workers is kept, and read again when somebody has written or after a second; testing a few file locks takes
microseconds. Only when there is a suspect does a transaction begin, which looks again before it declares anybody dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.stores.contract import NewWorker
from holdfast.stores.leases import LeaseWindow
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.workers import Suspect, worker_row
from holdfast.stores.sqlite import statements as sql
from holdfast.stores.sqlite.worker_locks import WorkerLocks


class LiveWorker(NamedTuple):
    """What ``reap`` needs to know of a worker."""

    id: int
    token: str
    name: str
    host: str
    pid: int
    beat_at: float
    lease_until: float


def register(db: Database, worker: NewWorker, token: str, now: float, lease: float) -> int:
    """Write a worker's row; its lock is held already, unless it is one by lease."""
    [(number,)] = db.ask(sql.REGISTER_WORKER, (*worker_row(worker, token), now, now + lease, now))
    return number


def live_workers(db: Database) -> list[LiveWorker]:
    """All workers that nobody has declared dead or retired, but for those by lease."""
    return [LiveWorker(*row) for row in db.ask(sql.LIVE_WORKERS)]


def listeners_over(db: Database, window: LeaseWindow) -> list[Suspect]:
    """Workers by lease whose lease has passed within ``window``; they have no lock here."""
    return [Suspect(*row, by_lease=True) for row in db.ask(sql.LISTENERS_OVER, window)]


def suspects(
    workers: Sequence[LiveWorker], locks: WorkerLocks, me: int | None, window: LeaseWindow
) -> dict[Suspect, LiveWorker]:
    """Those whose process is gone, or whose lease has passed within ``window``."""
    found: dict[Suspect, LiveWorker] = {}
    for worker in workers:
        if worker.id == me:
            continue
        if locks.is_free(worker.token) or window.has_passed(worker.beat_at, worker.lease_until):
            found[Suspect(worker.id, worker.name, worker.host, worker.pid)] = worker
    return found
