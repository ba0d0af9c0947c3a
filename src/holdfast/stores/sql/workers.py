"""Workers: registering, announcing workflows, retiring, and declaring dead ones dead.

Each store notices in its own way that a worker may be dead. This module checks again, in the transaction that declares
it dead and releases its runs.
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
"""Live events that are read to find the steps that were in flight when a run's worker died."""


class PresumedDeadWorker(NamedTuple):
    """A worker that seems to be dead."""

    id: int
    name: str
    host: str
    pid: int
    is_listener: bool = False


def worker_to_row(worker: NewWorker, token: str) -> Row:
    """The columns that a worker sets: token, name, host, pid, workflows, queues, is_listener."""
    queues = None if worker.queues is None else names_to_json(worker.queues)
    is_listener = 1 if worker.is_listener else 0
    return (token, worker.name, worker.host, worker.pid, names_to_json(worker.workflows), queues, is_listener)


def retire_worker(db: Database, worker: int, now: float, *, only_if_idle: bool = False) -> bool:
    """Mark a worker as retired, and release its runs without counting a delivery: see ``Workers.retire``."""
    db.begin()
    if db.query_one(db.sql.LOCK_LEASE, worker) is not None:
        if only_if_idle and db.query(db.sql.LOCK_CLAIMED_RUNS, (worker,)):
            db.commit()
            return False
        db.execute(db.sql.SET_WORKER_STATE, ("retired", worker))
        transaction = Transaction(db, now)
        for (key,) in db.query(db.sql.CLAIMED_WITH_BUDGET, (worker,)):
            transaction.release_reservations(key)
        transaction.flush()
        db.execute(db.sql.RELEASE_ALL_RUNS, (now, worker))
        db.execute(db.sql.WAKE_PARKED_BY, (now, worker))
    db.commit()
    return True


def announce_workflows(
    db: Database, reader: RowReader, specs: Sequence[WorkflowSpec], worker: int | None, now: float
) -> None:
    """Announce workflows. The last one with a name and version counts, and known ones are not written again."""
    known = {row[0]: reader.read_spec(row) for row in db.query(db.sql.SPECS)}
    announced = {make_served_name(spec.name, spec.version): spec for spec in specs}
    changed = [
        spec_to_row(spec, known[name].announced_at if name in known else now)
        for name, spec in sorted(announced.items())
        if known.get(name) != spec
    ]
    row = None if worker is None else db.query_one(db.sql.WORKER, worker)
    before = () if row is None else reader.read_worker(row).workflows
    after = () if row is None else merge_workflows(before, list_served_names(specs))
    if not changed and after == before:
        return
    db.begin()
    if changed:
        db.write(db.sql.PUT_SPEC, changed)
    if after != before:
        db.execute(db.sql.SET_WORKER_WORKFLOWS, (names_to_json(after), worker))
    db.commit()


def declare_dead(
    db: Database,
    workers: Sequence[PresumedDeadWorker],
    is_dead: Callable[[PresumedDeadWorker, float, float], bool],
    now: float,
) -> ReapResult:
    """Declare workers dead if they still seem dead, and release their runs.

    ``is_dead`` gets the last renewal and the end of a worker's lease, which cannot change until the commit.
    """
    db.begin()
    transaction = Transaction(db, now)
    dead_workers: list[int] = []
    dead_runs: list[str] = []
    released: list[Row] = []
    for worker in workers:
        row = db.query_one(db.sql.LOCK_LEASE, worker.id)
        if row is None or not is_dead(worker, *row):
            continue
        db.execute(db.sql.SET_WORKER_STATE, ("dead", worker.id))
        dead_workers.append(worker.id)
        held = db.query(db.sql.LOCK_CLAIMED_RUNS, (worker.id,))
        db.execute(db.sql.WAKE_PARKED_BY, (now, worker.id))  # after waiting for a park that was under way
        for key, run_id, delivery_count, max_deliveries, suspicion in held:
            effect = worker_deaths.get_worker_death_effect(delivery_count, max_deliveries, suspicion, len(held))
            if effect.is_dead:
                rows = db.query(db.sql.NEW_LIVE_EVENTS, (key, 0, _MAX_EVENTS_READ))
                description = describe_worker(*worker[1:4], is_listener=worker.is_listener)
                live_events = [LiveEvent(*row[1:]) for row in rows]
                error = run_errors.encode_death_error(run_id, effect.delivery_count, description, live_events)
                db.write(db.sql.MARK_RUN_DEAD, [(effect.delivery_count, error, now, key)])
                transaction.handle_run_end(key, RunState.DEAD, error, now)
                dead_runs.append(run_id)
            else:
                released.append((now, effect.delivery_count, effect.suspicion, key))
                transaction.release_reservations(key)
    if released:
        db.write(db.sql.REQUEUE_RUN, released)
    transaction.flush()
    db.commit()
    return ReapResult(tuple(dead_workers), len(released), tuple(dead_runs))
