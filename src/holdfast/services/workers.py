"""The processes that take up runs, as clients see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.services.json_form import UtcDatetime
from holdfast.services.stalls import is_alive
from holdfast.services.timestamps import to_datetime
from holdfast.stores.contract import RunFilter, Store
from holdfast.stores.operations import Run
from holdfast.stores.workers import Worker, format_worker_location

MAX_CLAIMED_RUNS = 20
"""Runs that are named of each worker."""


@dataclass(frozen=True, slots=True)
class ClaimedRun:
    """A run in a worker's hands."""

    id: str
    workflow: str


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A process that takes up runs."""

    id: int
    name: str
    host: str
    """Its machine; of a listener, its network address."""
    pid: int
    state: str
    """``live``, ``retired`` (left in good order) or ``dead``."""
    is_alive: bool
    """Its lease has not passed."""
    is_listener: bool
    """It takes deliveries over HTTP, or only sends heartbeats."""
    workflows: tuple[str, ...]
    """What it serves; with a version behind an @, if that has one."""
    queues: tuple[str, ...] | None
    """The queues that it serves; ``None``: all."""
    started_at: UtcDatetime
    heartbeat_at: UtcDatetime
    """Its last heartbeat."""
    lease_until: UtcDatetime
    claimed_runs: tuple[ClaimedRun, ...]
    """What it holds, the newest first, twenty at most; of a dead one, what nobody took yet."""
    has_more_runs: bool
    """It holds more than these."""

    @property
    def location(self) -> str:
        """``host:pid``, after the worker's name if it has another one; a listener's process is not known."""
        return format_worker_location(self.name, self.host, self.pid, is_listener=self.is_listener)

    @classmethod
    def from_row(cls, worker: Worker, now: float, claimed_runs: Sequence[Run]) -> WorkerInfo:
        """From its row, and the runs that it holds."""
        return cls(
            id=worker.id,
            name=worker.name,
            host=worker.host,
            pid=worker.pid,
            state=worker.state,
            is_alive=is_alive(worker, now),
            is_listener=worker.is_listener,
            workflows=tuple(worker.workflows),
            queues=None if worker.queues is None else tuple(worker.queues),
            started_at=to_datetime(worker.started_at),
            heartbeat_at=to_datetime(worker.heartbeat_at or worker.started_at),
            lease_until=to_datetime(worker.lease_expires_at),
            claimed_runs=tuple(ClaimedRun(run.id, run.workflow) for run in claimed_runs[:MAX_CLAIMED_RUNS]),
            has_more_runs=len(claimed_runs) > MAX_CLAIMED_RUNS,
        )


async def list_workers(store: Store) -> list[WorkerInfo]:
    """The workers that are live, and those that unfinished runs refer to; with the runs that they hold."""
    now = store.now()
    found: list[WorkerInfo] = []
    for one in await store.list_workers():
        held = await store.list_runs(RunFilter(owner=one.id), limit=MAX_CLAIMED_RUNS + 1)
        found.append(WorkerInfo.from_row(one, now, held))
    return found
