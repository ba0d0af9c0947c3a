"""Claims: which runs are due, and taking them.

Due runs stand in claiming order in an index, one stretch for each version of a workflow: those that nobody serves are
in nobody's way. A run whose time has come is first moved there from the timers (at most ``PROMOTE`` at a time: after a
long pause, a million timers may be due).
Both are the business of ``Database.due``.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

from holdfast.core.states import RunState
from holdfast.errors import StoreCorrupt
from holdfast.stores import rules
from holdfast.stores.operations import Run
from holdfast.stores.serving import split_name
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.queries import read_runs, switched_off
from holdfast.stores.sql.rows import Reader
from holdfast.stores.sql.transaction import Transaction

log = logging.getLogger("holdfast.stores")

PROMOTE = 10_000


class Wanted:
    """The workflows, in which versions, and the queues that a worker serves."""

    def __init__(self, workflows: Collection[str], queues: Collection[str] | None) -> None:
        self.workflows = tuple(sorted({split_name(name) for name in workflows}))
        self.queues = None if queues is None else tuple(sorted(set(queues)))

    def values(self, db: Database) -> dict[str, Any]:
        """As statements take them."""
        queues = None if self.queues is None else db.listed(self.queues)
        return {**db.served(self.workflows), "queues": queues}


def has_due(db: Database, wanted: Wanted, now: float) -> bool:
    """Whether there is anything to claim, asked first because it costs no lock."""
    return db.ask(db.sql.HAS_DUE, {**wanted.values(db), "now": now})[0][0] == 1


def claim(db: Database, reader: Reader, worker: int, wanted: Wanted, limit: int, now: float) -> list[Run]:
    """Take up to ``limit`` due runs, with references where their large payloads are."""
    db.begin()
    runs: list[Run] = []
    db.foresee({db.sql.IS_LIVE: [(worker,)], db.sql.SWITCHES: [()]})
    if db.lookup(db.sql.IS_LIVE, worker):
        off = switched_off(db)
        served = [(name, version) for name, version in wanted.workflows if name not in off]
        keys = db.due(served, wanted.queues, limit, now)
        if keys:
            db.write(db.sql.CLAIM, [(worker, key) for key in keys])
        read = read_runs(db, reader, keys)
        runs = [run for run in read if isinstance(run, Run)]
        broken = [(key, run) for key, run in zip(keys, read, strict=True) if isinstance(run, StoreCorrupt)]
        if broken:
            _fail(db, broken, now)
    db.commit()
    return runs


def fail(db: Database, broken: Sequence[tuple[int, StoreCorrupt]], now: float) -> None:
    """End claimed runs that cannot be read."""
    db.begin()
    _fail(db, broken, now)
    db.commit()


def _fail(db: Database, broken: Sequence[tuple[int, StoreCorrupt]], now: float) -> None:
    transaction = Transaction(db, now)
    for key, problem in broken:
        error = rules.corrupt_error(str(problem))
        if db.change(db.sql.FAIL_UNREADABLE, (error, now, key)):
            log.error("a run is ended, because it cannot be read: %s", problem)
            transaction.ended(key, RunState.FAILED, error, now)
    transaction.flush()


def next_wake(db: Database, wanted: Wanted) -> float | None:
    """When the next run becomes due; if one is due already, a time in the past."""
    values = wanted.values(db)
    ready = db.ask(db.sql.NEXT_READY, values)[0][0]
    if ready is not None:
        return ready
    return db.ask(db.sql.NEXT_TIMER, values)[0][0]
