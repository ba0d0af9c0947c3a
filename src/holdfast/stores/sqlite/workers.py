"""Workers on a SQLite file: registering, announcing what they can do, leaving, and finding out which of them are gone.

``reap`` is called about ten times a second, so it must cost next to nothing while everybody lives. The list of live
workers is kept, and read again when somebody has written or after a second; testing a few file locks takes
microseconds. Only when there is a suspect does a transaction begin, which looks again before it declares anybody dead.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.states import RunState
from holdfast.stores import rules
from holdfast.stores.contract import NewWorker, Reaped, WorkflowSpec
from holdfast.stores.sqlite import statements as sql
from holdfast.stores.sqlite.locks import WorkerLocks
from holdfast.stores.sqlite.rows import Reader, names_text, spec_row
from holdfast.stores.sqlite.transaction import Transaction


class LiveWorker(NamedTuple):
    """What ``reap`` needs to know of a worker."""

    id: int
    token: str
    name: str
    host: str
    pid: int
    lease_until: float


class Suspect(NamedTuple):
    """A worker that seems to be dead; when ``gone``, its lock is free, and there is no doubt."""

    worker: LiveWorker
    gone: bool


def register(connection: sqlite3.Connection, worker: NewWorker, token: str, now: float, lease: float) -> int:
    """Write a worker's row; its lock is held already."""
    queues = None if worker.queues is None else names_text(worker.queues)
    cursor = connection.execute(
        sql.REGISTER_WORKER,
        (token, worker.name, worker.host, worker.pid, names_text(worker.workflows), queues, now, now + lease, now),
    )
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def retire(connection: sqlite3.Connection, worker: int, now: float) -> None:
    """Mark a worker as gone in good order, and give back what it holds without counting a delivery."""
    connection.execute("BEGIN IMMEDIATE")
    if connection.execute(sql.END_WORKER, ("retired", worker)).rowcount:
        transaction = Transaction(connection, now)
        for (key,) in connection.execute(sql.HELD_WITH_BUDGET, (worker,)).fetchall():
            transaction.freed(key)
        transaction.flush()
        connection.execute(sql.RELEASE_ALL, (now, worker))
    connection.execute("COMMIT")


def publish(connection: sqlite3.Connection, reader: Reader, specs: Sequence[WorkflowSpec], worker: int | None) -> None:
    """Announce workflows, the last one of a name; nothing is written when all of it is known already."""
    known = {row[0]: reader.spec(row) for row in connection.execute(sql.SPECS)}
    news = [spec for spec in {spec.name: spec for spec in specs}.values() if known.get(spec.name) != spec]
    row = None if worker is None else connection.execute(sql.WORKER, (worker,)).fetchone()
    served = () if row is None else reader.worker(row).workflows
    serves = () if row is None else rules.joined(served, [spec.name for spec in specs])
    if not news and serves == served:
        return
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(
        sql.PUBLISH,
        [spec_row(spec) for spec in news],
    )
    if serves != served:
        connection.execute(sql.SERVE, (names_text(serves), worker))
    connection.execute("COMMIT")


def live_workers(connection: sqlite3.Connection) -> list[LiveWorker]:
    """All workers that nobody has declared dead or retired."""
    return [LiveWorker(*row) for row in connection.execute(sql.LIVE_WORKERS)]


def suspects(workers: Sequence[LiveWorker], locks: WorkerLocks, me: int | None, now: float) -> list[Suspect]:
    """Those whose process is gone, or whose lease has passed."""
    found: list[Suspect] = []
    for worker in workers:
        if worker.id == me:
            continue
        gone = locks.is_free(worker.token)
        if gone or worker.lease_until < now:
            found.append(Suspect(worker, gone))
    return found


def bury(connection: sqlite3.Connection, found: Sequence[Suspect], now: float) -> tuple[Reaped, list[str]]:
    """Declare the suspects dead that still deserve it, and free their runs. Also returns the dead ones' tokens."""
    connection.execute("BEGIN IMMEDIATE")
    transaction = Transaction(connection, now)
    dead_workers: list[int] = []
    tokens: list[str] = []
    dead_runs: list[str] = []
    released = 0
    for worker, gone in found:
        lease = connection.execute(sql.LEASE, (worker.id,)).fetchone()
        if lease is None or not (gone or lease[0] < now):
            continue
        connection.execute(sql.END_WORKER, ("dead", worker.id))
        dead_workers.append(worker.id)
        tokens.append(worker.token)
        for key, run_id, deliveries, most in connection.execute(sql.HELD_RUNS, (worker.id,)).fetchall():
            count = deliveries + 1
            if count >= most:
                who = rules.describe_worker(worker.name, worker.host, worker.pid)
                error = rules.death_error(run_id, count, who)
                connection.execute(sql.KILL_RUN, (count, error, now, key))
                transaction.ended(key, RunState.DEAD, error, now)
                dead_runs.append(run_id)
            else:
                connection.execute(sql.FREE_RUN, (now, count, key))
                transaction.freed(key)
                released += 1
    transaction.flush()
    connection.execute("COMMIT")
    return Reaped(tuple(dead_workers), released, tuple(dead_runs)), tokens
