"""Claims: which runs are due, and taking them.

Due runs stand in claiming order in the index ``runs_ready``, one stretch for each workflow. A run whose time has come
is first moved there from the timers (at most ``PROMOTE`` at a time: after a long pause, a million timers may be due).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection

from holdfast.stores.contract import Run
from holdfast.stores.sqlite import statements as sql
from holdfast.stores.sqlite.rows import Reader, names_text

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
    """Take up to ``limit`` due runs."""
    connection.execute("BEGIN IMMEDIATE")
    runs: list[Run] = []
    if connection.execute(sql.IS_LIVE, (worker,)).fetchone():
        keys = _due(connection, wanted, limit, now)
        connection.executemany(sql.CLAIM, [(worker, key) for key in keys])
        rows = {row[0]: row for row in connection.execute(sql.GET_RUNS_BY_KEY, (json.dumps(keys),))}
        runs = [reader.run(rows[key]) for key in keys]
    connection.execute("COMMIT")
    return runs


def _due(connection: sqlite3.Connection, wanted: Wanted, limit: int, now: float) -> list[int]:
    due: list[tuple[int, int]] = []
    for workflow in wanted.workflows:
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
