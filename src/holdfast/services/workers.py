"""The processes that claim runs, as clients see them."""

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
"""Maximum number of runs listed for a worker."""


@dataclass(frozen=True, slots=True)
class ClaimedRun:
    """A run that a worker holds."""

    id: str
    workflow: str


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A process that claims runs."""

    id: int
    name: str
    host: str
    """Its machine; for a listener, its network address."""
    pid: int
    state: str
    """``live``, ``retired`` (stopped cleanly), or ``dead``."""
    is_alive: bool
    """Its lease has not expired."""
    is_listener: bool
    """It receives deliveries over HTTP, or only sends heartbeats."""
    workflows: tuple[str, ...]
    """What it serves; ``name@version`` if there is a version."""
    queues: tuple[str, ...] | None
    """``None``: all queues."""
    started_at: UtcDatetime
    heartbeat_at: UtcDatetime
    lease_until: UtcDatetime
    claimed_runs: tuple[ClaimedRun, ...]
    """The runs that it holds, newest first, at most 20; for a dead worker, those that no other worker took over yet."""
    has_more_runs: bool
    """It holds more than these."""

    @property
    def location(self) -> str:
        """``host:pid``, after the worker's name if it has one. The process of a listener is not known."""
        return format_worker_location(self.name, self.host, self.pid, is_listener=self.is_listener)

    @classmethod
    def from_row(cls, worker: Worker, now: float, claimed_runs: Sequence[Run]) -> WorkerInfo:
        """The worker in a row, with the runs that it holds."""
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
    """Live workers, and those that unfinished runs refer to, with the runs that they hold."""
    now = store.now()
    found: list[WorkerInfo] = []
    for one in await store.list_workers():
        held = await store.list_runs(RunFilter(owner=one.id), limit=MAX_CLAIMED_RUNS + 1)
        found.append(WorkerInfo.from_row(one, now, held))
    return found
