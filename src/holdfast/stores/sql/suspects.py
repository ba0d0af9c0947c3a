"""Claims of suspects: runs whose workers have died more than once without a new record (see ``worker_deaths``).

A suspect that may be claimed has ``ReadyState.SUSPECT``, whatever its queue, so an ordinary claim never reads one.
Suspects have their own index, which is nearly always empty. In a limited queue a suspect needs a slot, like any run
that has started, unless a cancel is requested.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from holdfast.admission.queue_limits import Admission, QueueAdmission
from holdfast.stores import worker_deaths
from holdfast.stores.sql.database import Database, Row
from holdfast.stores.sql.limited_queues import LimitedQueue, ServedVersions

MAX_SUSPECTS_READ = 1000
"""Suspects of a version that a claim reads, the most suspicious first."""


class SuspectRun(NamedTuple):
    """A suspect that is due."""

    key: int
    queue: str
    queue_key: str
    priority: int
    suspicion: int
    is_limited: int
    is_cancelled: int


def get_lookups(db: Database, served: ServedVersions, due_before: float | None) -> dict[str, Collection[Row]]:
    """The lookups that a claim prefetches for suspects that were due before a time; ``None``: it reads none."""
    if due_before is None:
        return {}
    return {db.sql.SUSPECTS: [(workflow, version, due_before, MAX_SUSPECTS_READ) for workflow, version in served]}


def choose_runs(
    db: Database,
    limited: Sequence[LimitedQueue],
    served: ServedVersions,
    queues: Collection[str] | None,
    limit: int,
    due_before: float | None,
) -> list[int]:
    """Lock the suspects that a claim takes, and return their keys; none: the claim takes ordinary runs."""
    lookups = get_lookups(db, served, due_before).get(db.sql.SUSPECTS, ())
    found = [SuspectRun(*row) for values in lookups for row in db.lookup(db.sql.SUSPECTS, *values)]
    in_queues = [run for run in found if queues is None or run.queue in queues]
    if not in_queues:
        return []
    chosen = worker_deaths.choose_suspects(in_queues, limit, QueueSlots(db, limited).take_slot)
    if not chosen:
        return []
    locked = {row[0] for row in db.query(db.sql.LOCK_DUE, (db.to_list_parameter([run.key for run in chosen]),))}
    return [run.key for run in chosen if run.key in locked]


class QueueSlots:
    """The free slots of limited queues for started runs, while a claim has these queues locked."""

    def __init__(self, db: Database, limited: Sequence[LimitedQueue]) -> None:
        self._db = db
        self._queues = {queue.name: queue for queue in limited}
        self._gates: dict[str, QueueAdmission] = {}

    def take_slot(self, run: SuspectRun) -> bool:
        """Take a slot for a run. Returns whether there was one."""
        if not run.is_limited:
            return True
        if run.queue not in self._queues:
            return False  # the queue is paused, or another claim has locked it
        gate = self._get_gate(run.queue)
        if not run.is_cancelled and gate.decide(run.queue_key, has_started=True) is not Admission.ADMITTED:
            return False
        gate.admit(run.queue_key, has_started=True)
        return True

    def _get_gate(self, queue: str) -> QueueAdmission:
        if queue not in self._gates:
            running = {row[0]: row[1] for row in self._db.lookup(self._db.sql.RUNNING_COUNTS, queue)}
            self._gates[queue] = QueueAdmission(
                self._queues[queue].limits, 0.0, running_by_key=running, rate_usage={}, rate_usage_by_key={}
            )
        return self._gates[queue]
