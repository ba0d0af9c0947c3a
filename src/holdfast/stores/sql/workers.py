"""Workers: registering, announcing what they can do, leaving, and burying those that are gone.

How a store comes to suspect that a worker is dead is its own business; here it is looked at once more, in the
transaction that declares it dead and frees its runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast.core.states import RunState
from holdfast.stores import rules
from holdfast.stores.contract import NewWorker, Reaped, WorkflowSpec
from holdfast.stores.operations import Notice
from holdfast.stores.served_versions import names_served, served_name
from holdfast.stores.sql.database import Database, Row
from holdfast.stores.sql.rows import Reader, names_text, spec_row
from holdfast.stores.sql.transaction import Transaction

_MOST_TOLD = 1000
"""Notices that are looked through for what a run was doing when it died."""


class Suspect(NamedTuple):
    """A worker that seems to be dead."""

    id: int
    name: str
    host: str
    pid: int
    by_lease: bool = False


def worker_row(worker: NewWorker, token: str) -> Row:
    """What a worker tells of itself: token, name, host, pid, workflows, queues, by_lease."""
    queues = None if worker.queues is None else names_text(worker.queues)
    by_lease = 1 if worker.by_lease else 0
    return (token, worker.name, worker.host, worker.pid, names_text(worker.workflows), queues, by_lease)


def retire(db: Database, worker: int, now: float) -> None:
    """Mark a worker as gone in good order, and give back what it holds without counting a delivery."""
    db.begin()
    if db.one(db.sql.LEASE, worker) is not None:
        db.change(db.sql.END_WORKER, ("retired", worker))
        transaction = Transaction(db, now)
        for (key,) in db.ask(db.sql.HELD_WITH_BUDGET, (worker,)):
            transaction.freed(key)
        transaction.flush()
        db.change(db.sql.RELEASE_ALL, (now, worker))
        db.change(db.sql.WAKE_PARKED_BY, (now, worker))
    db.commit()


def publish(db: Database, reader: Reader, specs: Sequence[WorkflowSpec], worker: int | None, now: float) -> None:
    """Announce workflows, the last one of a name and version; nothing is written when all of it is known already."""
    known = {row[0]: reader.spec(row) for row in db.ask(db.sql.SPECS)}
    last = {served_name(spec.name, spec.version): spec for spec in specs}
    news = [(name, spec) for name, spec in sorted(last.items()) if known.get(name) != spec]
    row = None if worker is None else db.one(db.sql.WORKER, worker)
    served = () if row is None else reader.worker(row).workflows
    serves = () if row is None else rules.joined(served, names_served(specs))
    if not news and serves == served:
        return
    db.begin()
    if news:
        db.write(
            db.sql.PUBLISH,
            [spec_row(spec, known[name].announced_at if name in known else now) for name, spec in news],
        )
    if serves != served:
        db.change(db.sql.SERVE, (names_text(serves), worker))
    db.commit()


def bury(
    db: Database, suspects: Sequence[Suspect], is_dead: Callable[[Suspect, float, float], bool], now: float
) -> Reaped:
    """Declare the suspects dead that still deserve it, and free their runs.

    ``is_dead`` is asked with the last renewal and the end of a worker's lease; nobody prolongs it meanwhile.
    """
    db.begin()
    transaction = Transaction(db, now)
    dead_workers: list[int] = []
    dead_runs: list[str] = []
    freed: list[Row] = []
    for suspect in suspects:
        row = db.one(db.sql.LEASE, suspect.id)
        if row is None or not is_dead(suspect, *row):
            continue
        db.change(db.sql.END_WORKER, ("dead", suspect.id))
        dead_workers.append(suspect.id)
        held = db.ask(db.sql.HELD_RUNS, (suspect.id,))
        db.change(db.sql.WAKE_PARKED_BY, (now, suspect.id))  # after waiting for a park that was under way
        for key, run_id, deliveries, most, suspicion in held:
            after = rules.after_death(deliveries, most, suspicion, len(held))
            if after.is_dead:
                who = rules.describe_worker(suspect.name, suspect.host, suspect.pid, by_lease=suspect.by_lease)
                told = [Notice(*row[1:]) for row in db.ask(db.sql.NEW_NOTICES, (key, 0, _MOST_TOLD))]
                error = rules.death_error(run_id, after.deliveries, who, told)
                db.write(db.sql.KILL_RUN, [(after.deliveries, error, now, key)])
                transaction.ended(key, RunState.DEAD, error, now)
                dead_runs.append(run_id)
            else:
                freed.append((now, after.deliveries, after.suspicion, key))
                transaction.freed(key)
    if freed:
        db.write(db.sql.FREE_RUN, freed)
    transaction.flush()
    db.commit()
    return Reaped(tuple(dead_workers), len(freed), tuple(dead_runs))
