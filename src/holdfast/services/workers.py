"""The processes that take up runs, as clients see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast.services.stalls import is_alive
from holdfast.services.timestamps import moment
from holdfast.stores.contract import RunFilter, Store, Worker
from holdfast.stores.operations import Run
from holdfast.stores.rules import place_of_worker

MOST_HELD = 20
"""Runs that are named of each worker."""


@dataclass(frozen=True, slots=True)
class HeldRun:
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
    alive: bool
    """Its lease has not passed."""
    listener: bool
    """It takes deliveries over HTTP, or only sends heartbeats."""
    workflows: tuple[str, ...]
    """What it serves; with a version behind an @, if that has one."""
    queues: tuple[str, ...] | None
    """The queues that it serves; ``None``: all."""
    started_at: datetime
    beat_at: datetime
    """Its last heartbeat."""
    lease_until: datetime
    runs: tuple[HeldRun, ...]
    """What it holds, the newest first, twenty at most; of a dead one, what nobody took yet."""
    more_runs: bool
    """It holds more than these."""

    @property
    def place(self) -> str:
        """``host:pid``, after the worker's name if it has another one; a listener's process is not known."""
        return place_of_worker(self.name, self.host, self.pid, by_lease=self.listener)

    @classmethod
    def of(cls, worker: Worker, now: float, held: Sequence[Run]) -> WorkerInfo:
        """From its row, and the runs that it holds."""
        return cls(
            id=worker.id,
            name=worker.name,
            host=worker.host,
            pid=worker.pid,
            state=worker.state,
            alive=is_alive(worker, now),
            listener=worker.by_lease,
            workflows=tuple(worker.workflows),
            queues=None if worker.queues is None else tuple(worker.queues),
            started_at=moment(worker.started_at),
            beat_at=moment(worker.beat_at or worker.started_at),
            lease_until=moment(worker.lease_until),
            runs=tuple(HeldRun(run.id, run.workflow) for run in held[:MOST_HELD]),
            more_runs=len(held) > MOST_HELD,
        )


async def read_workers(store: Store) -> list[WorkerInfo]:
    """The workers that are live, and those that unfinished runs refer to; with the runs that they hold."""
    now = store.now()
    found: list[WorkerInfo] = []
    for one in await store.workers():
        held = await store.list_runs(RunFilter(owner=one.id), limit=MOST_HELD + 1)
        found.append(WorkerInfo.of(one, now, held))
    return found
