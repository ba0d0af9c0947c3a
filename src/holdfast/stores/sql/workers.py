"""Workers: registering, announcing what they can do, leaving, and burying those that are gone.

How a store comes to suspect that a worker is dead is its own business; here it is looked at once more, in the
transaction that declares it dead and frees its runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast.core.states import RunState
from holdfast.stores import run_errors, worker_deaths
from holdfast.stores.contract import WorkflowSpec
from holdfast.stores.operations import LiveEvent
from holdfast.stores.served_versions import list_served_names, make_served_name
from holdfast.stores.sql.database import Database, Row
from holdfast.stores.sql.rows import RowReader, names_to_json, spec_to_row
from holdfast.stores.sql.transaction import Transaction
from holdfast.stores.workers import NewWorker, ReapResult, describe_worker, merge_workflows

_MAX_EVENTS_READ = 1000
"""Notices that are looked through for what a run was doing when it died."""


class PresumedDeadWorker(NamedTuple):
    """A worker that seems to be dead."""

    id: int
    name: str
    host: str
    pid: int
    is_listener: bool = False


def worker_to_row(worker: NewWorker, token: str) -> Row:
    """What a worker tells of itself: token, name, host, pid, workflows, queues, is_listener."""
    queues = None if worker.queues is None else names_to_json(worker.queues)
    is_listener = 1 if worker.is_listener else 0
    return (token, worker.name, worker.host, worker.pid, names_to_json(worker.workflows), queues, is_listener)


def retire_worker(db: Database, worker: int, now: float) -> None:
    """Mark a worker as gone in good order, and give back what it holds without counting a delivery."""
    db.begin()
    if db.query_one(db.sql.LOCK_LEASE, worker) is not None:
        db.execute(db.sql.SET_WORKER_STATE, ("retired", worker))
        transaction = Transaction(db, now)
        for (key,) in db.query(db.sql.CLAIMED_WITH_BUDGET, (worker,)):
            transaction.release_reservations(key)
        transaction.flush()
        db.execute(db.sql.RELEASE_ALL_RUNS, (now, worker))
        db.execute(db.sql.WAKE_PARKED_BY, (now, worker))
    db.commit()


def publish_workflows(
    db: Database, reader: RowReader, specs: Sequence[WorkflowSpec], worker: int | None, now: float
) -> None:
    """Announce workflows, the last one of a name and version; nothing is written when all of it is known already."""
    known = {row[0]: reader.read_spec(row) for row in db.query(db.sql.SPECS)}
    last = {make_served_name(spec.name, spec.version): spec for spec in specs}
    news = [(name, spec) for name, spec in sorted(last.items()) if known.get(name) != spec]
    row = None if worker is None else db.query_one(db.sql.WORKER, worker)
    served = () if row is None else reader.read_worker(row).workflows
    serves = () if row is None else merge_workflows(served, list_served_names(specs))
    if not news and serves == served:
        return
    db.begin()
    if news:
        db.write(
            db.sql.PUT_SPEC,
            [spec_to_row(spec, known[name].announced_at if name in known else now) for name, spec in news],
        )
    if serves != served:
        db.execute(db.sql.SET_WORKER_WORKFLOWS, (names_to_json(serves), worker))
    db.commit()


def declare_dead(
    db: Database,
    workers: Sequence[PresumedDeadWorker],
    is_dead: Callable[[PresumedDeadWorker, float, float], bool],
    now: float,
) -> ReapResult:
    """Declare the suspects dead that still deserve it, and free their runs.

    ``is_dead`` is asked with the last renewal and the end of a worker's lease; nobody prolongs it meanwhile.
    """
    db.begin()
    transaction = Transaction(db, now)
    dead_workers: list[int] = []
    dead_runs: list[str] = []
    freed: list[Row] = []
    for suspect in workers:
        row = db.query_one(db.sql.LOCK_LEASE, suspect.id)
        if row is None or not is_dead(suspect, *row):
            continue
        db.execute(db.sql.SET_WORKER_STATE, ("dead", suspect.id))
        dead_workers.append(suspect.id)
        held = db.query(db.sql.LOCK_CLAIMED_RUNS, (suspect.id,))
        db.execute(db.sql.WAKE_PARKED_BY, (now, suspect.id))  # after waiting for a park that was under way
        for key, run_id, deliveries, most, suspicion in held:
            after = worker_deaths.get_worker_death_effect(deliveries, most, suspicion, len(held))
            if after.is_dead:
                who = describe_worker(suspect.name, suspect.host, suspect.pid, is_listener=suspect.is_listener)
                told = [LiveEvent(*row[1:]) for row in db.query(db.sql.NEW_LIVE_EVENTS, (key, 0, _MAX_EVENTS_READ))]
                error = run_errors.encode_death_error(run_id, after.delivery_count, who, told)
                db.write(db.sql.MARK_RUN_DEAD, [(after.delivery_count, error, now, key)])
                transaction.handle_run_end(key, RunState.DEAD, error, now)
                dead_runs.append(run_id)
            else:
                freed.append((now, after.delivery_count, after.suspicion, key))
                transaction.release_reservations(key)
    if freed:
        db.write(db.sql.REQUEUE_RUN, freed)
    transaction.flush()
    db.commit()
    return ReapResult(tuple(dead_workers), len(freed), tuple(dead_runs))
