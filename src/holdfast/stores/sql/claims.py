"""Claims: which runs are due, and taking them.

Due runs are in claiming order in an index, one range for each version of a workflow, so a backlog that no worker serves
slows no claim. A run whose time has come is first moved there from the timers (at most ``MAX_PROMOTED_TIMERS`` at a
time: after a long pause, a million timers may be due). ``Database.lock_due_runs`` does both. ``limited_queues`` handles
queues with limits, and ``suspects`` isolated runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any

from holdfast.core.states import RunState
from holdfast.errors import StoreCorrupt
from holdfast.stores import rules
from holdfast.stores.operations import Run
from holdfast.stores.served_versions import split_served_name
from holdfast.stores.sql import limited_queues, suspects
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.queries import get_disabled_workflows, read_runs
from holdfast.stores.sql.rows import RowReader
from holdfast.stores.sql.transaction import Transaction

log = logging.getLogger("holdfast.stores")

MAX_PROMOTED_TIMERS = 10_000
"""So many timers of a version of a workflow become due at a time."""


class ClaimScope:
    """The workflows, in which versions, and the queues that a worker serves."""

    def __init__(self, workflows: Collection[str], queues: Collection[str] | None) -> None:
        self.workflows = tuple(sorted({split_served_name(name) for name in workflows}))
        self.queues = None if queues is None else tuple(sorted(set(queues)))

    def to_parameters(self, db: Database) -> dict[str, Any]:
        """As statements take them."""
        queues = None if self.queues is None else db.to_list_parameter(self.queues)
        return {**db.to_served_parameters(self.workflows), "queues": queues}


def has_due_runs(db: Database, scope: ClaimScope, now: float) -> bool:
    """Whether there is anything to claim, asked first because it costs no lock."""
    return db.query(db.sql.HAS_DUE, {**scope.to_parameters(db), "now": now})[0][0] == 1


def claim_runs(
    db: Database,
    reader: RowReader,
    worker: int,
    scope: ClaimScope,
    limit: int,
    now: float,
    get_time: Callable[[float | None], float],
    suspect_delay_s: float | None,
) -> list[Run]:
    """Take up to ``limit`` due runs, with references where their large payloads are.

    ``get_time`` tells what time it is later than ``now``, if the database says this.
    """
    db.begin()
    runs: list[Run] = []
    before = None if suspect_delay_s is None else now - suspect_delay_s
    asked = {**limited_queues.get_lookups(db, scope.queues), **suspects.get_lookups(db, scope.workflows, before)}
    db.prefetch({db.sql.IS_WORKER_LIVE: [(worker,)], db.sql.DISABLED_WORKFLOWS: [()], **asked})
    if db.lookup(db.sql.IS_WORKER_LIVE, worker):
        off = get_disabled_workflows(db)
        served = [(name, version) for name, version in scope.workflows if name not in off]
        limited = limited_queues.lock_limited_queues(db, scope.queues, get_time)
        if keys := suspects.choose_runs(db, limited, served, scope.queues, limit, before):
            limited = []  # nothing that these keep has changed
        elif limited:
            keys = limited_queues.choose_runs(db, limited, served, scope.queues, limit, now)
        else:
            keys = [key for _, key in db.lock_due_runs(served, scope.queues, limit, now)]
        if keys:
            db.write(db.sql.CLAIM_RUN, [(worker, key) for key in keys])
        for queue in limited:
            queue.save(db)
        read = read_runs(db, reader, keys)
        runs = [run for run in read if isinstance(run, Run)]
        broken = [(key, run) for key, run in zip(keys, read, strict=True) if isinstance(run, StoreCorrupt)]
        if broken:
            _end_unreadable(db, broken, now)
    db.commit()
    return runs


def fail_unreadable(db: Database, unreadable: Sequence[tuple[int, StoreCorrupt]], now: float) -> None:
    """End claimed runs that cannot be read."""
    db.begin()
    _end_unreadable(db, unreadable, now)
    db.commit()


def _end_unreadable(db: Database, unreadable: Sequence[tuple[int, StoreCorrupt]], now: float) -> None:
    transaction = Transaction(db, now)
    for key, problem in unreadable:
        error = rules.encode_corrupt_error(str(problem))
        if db.execute(db.sql.FAIL_UNREADABLE, (error, now, key)):
            log.error("a run is ended, because it cannot be read: %s", problem)
            transaction.handle_run_end(key, RunState.FAILED, error, now)
    transaction.flush()


def get_next_wake_at(db: Database, scope: ClaimScope, now: float) -> float | None:
    """When the next run can be taken, as far as is known; if one can be already, a time in the past."""
    values = scope.to_parameters(db)
    [(ready, limited, suspect)] = db.query(db.sql.NEXT_READY, values)
    if ready is not None:
        return ready
    if limited is not None and limited <= now:
        return limited
    timer = db.query(db.sql.NEXT_TIMER, values)[0][0]
    return min((at for at in (limited, timer, suspect) if at is not None), default=None)
