"""Claims: which runs are due, and taking them.

Due runs stand in claiming order in the index ``runs_ready``, one stretch for each workflow. A run whose time has come
is first moved there from the timers (at most ``PROMOTE`` at a time: after a long pause, a million timers may be due).
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Collection, Sequence

from holdfast.core.states import RunState
from holdfast.errors import StoreCorrupt
from holdfast.stores import rules
from holdfast.stores.operations import Run
from holdfast.stores.sqlite import statements as sql
from holdfast.stores.sqlite.queries import read_runs, switched_off
from holdfast.stores.sqlite.rows import Reader, names_text
from holdfast.stores.sqlite.transaction import Transaction

log = logging.getLogger("holdfast.stores")

PROMOTE = 10_000


class Wanted:
    """The workflows and queues that a worker serves."""

    def __init__(self, workflows: Collection[str], queues: Collection[str] | None) -> None:
        self.workflows = tuple(sorted(set(workflows)))
        self.values = {
            "workflows": names_text(self.workflows),
            "queues": None if queues is None else names_text(queues),
        }
        """As the statements take them."""


def has_due(connection: sqlite3.Connection, wanted: Wanted, now: float) -> bool:
    """Whether there is anything to claim, asked first because it costs no lock."""
    return connection.execute(sql.HAS_DUE, {**wanted.values, "now": now}).fetchone()[0] == 1


def claim(
    connection: sqlite3.Connection, reader: Reader, worker: int, wanted: Wanted, limit: int, now: float
) -> list[Run]:
    """Take up to ``limit`` due runs, with references where their large payloads are."""
    connection.execute("BEGIN IMMEDIATE")
    runs: list[Run] = []
    if connection.execute(sql.IS_LIVE, (worker,)).fetchone():
        keys = _due(connection, wanted, limit, now)
        connection.executemany(sql.CLAIM, [(worker, key) for key in keys])
        read = read_runs(connection, reader, keys)
        runs = [run for run in read if isinstance(run, Run)]
        broken = [(key, run) for key, run in zip(keys, read, strict=True) if isinstance(run, StoreCorrupt)]
        if broken:
            _fail(connection, broken, now)
    connection.execute("COMMIT")
    return runs


def fail(connection: sqlite3.Connection, broken: Sequence[tuple[int, StoreCorrupt]], now: float) -> None:
    """End claimed runs that cannot be read."""
    connection.execute("BEGIN IMMEDIATE")
    _fail(connection, broken, now)
    connection.execute("COMMIT")


def _fail(connection: sqlite3.Connection, broken: Sequence[tuple[int, StoreCorrupt]], now: float) -> None:
    transaction = Transaction(connection, now)
    for key, problem in broken:
        error = rules.corrupt_error(str(problem))
        if connection.execute(sql.FAIL_UNREADABLE, (error, now, key)).rowcount:
            log.error("a run is ended, because it cannot be read: %s", problem)
            transaction.ended(key, RunState.FAILED, error, now)
    transaction.flush()


def _due(connection: sqlite3.Connection, wanted: Wanted, limit: int, now: float) -> list[int]:
    due: list[tuple[int, int]] = []
    off = switched_off(connection)
    for workflow in wanted.workflows:
        if workflow in off:
            continue
        connection.execute(sql.PROMOTE_DUE, (workflow, now, PROMOTE))
        rows = connection.execute(sql.DUE, {**wanted.values, "workflow": workflow, "limit": limit})
        due.extend((-priority, key) for priority, key in rows)
    due.sort()
    return [key for _, key in due[:limit]]


def next_wake(connection: sqlite3.Connection, wanted: Wanted) -> float | None:
    """When the next run becomes due; if one is due already, a time in the past."""
    ready = connection.execute(sql.NEXT_READY, wanted.values).fetchone()[0]
    if ready is not None:
        return ready
    return connection.execute(sql.NEXT_TIMER, wanted.values).fetchone()[0]
