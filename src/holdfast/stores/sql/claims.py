"""Claims: which runs are due, and taking them.

Due runs stand in claiming order in an index, one stretch for each version of a workflow: those that nobody serves are
in nobody's way. A run whose time has come is first moved there from the timers (at most ``PROMOTE`` at a time: after a
long pause, a million timers may be due). Both are the business of ``Database.due``. Queues with limits are the business
of ``limited_queues``, runs that are isolated that of ``suspects``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any

from holdfast.core.states import RunState
from holdfast.errors import StoreCorrupt
from holdfast.stores import rules
from holdfast.stores.operations import Run
from holdfast.stores.served_versions import split_name
from holdfast.stores.sql import limited_queues, suspects
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.queries import read_runs, switched_off
from holdfast.stores.sql.rows import Reader
from holdfast.stores.sql.transaction import Transaction

log = logging.getLogger("holdfast.stores")

PROMOTE = 10_000
"""So many timers of a version of a workflow become due at a time."""


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


def claim(
    db: Database,
    reader: Reader,
    worker: int,
    wanted: Wanted,
    limit: int,
    now: float,
    time: Callable[[float | None], float],
    suspects_after: float | None,
) -> list[Run]:
    """Take up to ``limit`` due runs, with references where their large payloads are.

    ``time`` tells what time it is later than ``now``, if the database says this.
    """
    db.begin()
    runs: list[Run] = []
    before = None if suspects_after is None else now - suspects_after
    asked = {**limited_queues.questions(db, wanted.queues), **suspects.questions(db, wanted.workflows, before)}
    db.foresee({db.sql.IS_LIVE: [(worker,)], db.sql.SWITCHES: [()], **asked})
    if db.lookup(db.sql.IS_LIVE, worker):
        off = switched_off(db)
        served = [(name, version) for name, version in wanted.workflows if name not in off]
        limited = limited_queues.held(db, wanted.queues, time)
        if keys := suspects.choose(db, limited, served, wanted.queues, limit, before):
            limited = []  # nothing that these keep has changed
        elif limited:
            keys = limited_queues.choose(db, limited, served, wanted.queues, limit, now)
        else:
            keys = [key for _, key in db.due(served, wanted.queues, limit, now)]
        if keys:
            db.write(db.sql.CLAIM, [(worker, key) for key in keys])
        for queue in limited:
            queue.keep(db)
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


def next_wake(db: Database, wanted: Wanted, now: float) -> float | None:
    """When the next run can be taken, as far as is known; if one can be already, a time in the past."""
    values = wanted.values(db)
    [(ready, limited, suspect)] = db.ask(db.sql.NEXT_READY, values)
    if ready is not None:
        return ready
    if limited is not None and limited <= now:
        return limited
    timer = db.ask(db.sql.NEXT_TIMER, values)[0][0]
    return min((at for at in (limited, timer, suspect) if at is not None), default=None)
