"""The workers of the soak and their faults. The seed decides which worker is hit, how, and when.

``kill`` is SIGKILL. ``stop`` is SIGSTOP, with SIGCONT after the lease has expired and another worker holds the runs.
``term`` is SIGTERM: the worker finishes its steps in flight and hands over the rest. ``hurry`` is SIGTERM twice: it
hands over at once. A worker that ends is replaced.
"""

from __future__ import annotations

import math
import random
import signal
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from app_processes import App, World
from soak_expectations import LETTERS, WORKFLOWS

from waits import wait_until_sync

WORKER_COUNT = 4
LEASE = 1.5
GRACE = 10.0
"""Grace period after SIGTERM: longer than any step."""
MAX_SHUTDOWN_S = GRACE + 10.0
"""A worker that takes longer to end after SIGTERM hangs."""
MIN_WORKERS = 2
"""At least as many workers stay available to take over runs."""
KINDS = ("kill", "stop", "term", "hurry")
FAULT_MIX = ("kill", "kill", "kill", "stop", "stop", "term", "term", "hurry")
"""Faults have this proportion, in an order that the seed decides."""
LOCK_STOP_S = 0.4
"""A stop that takes longer hit a worker that held the write lock, which was resumed and stopped again."""
READY_DELAY_S = 0.2
"""A worker has installed its signal handlers this long after it is ready."""


class Fault(NamedTuple):
    """A signal that was sent to a worker."""

    kind: str
    pid: int
    at: float
    end: float
    """When a stopped worker is resumed; infinity for other kinds."""


@dataclass
class WorkerProcess:
    """One worker process."""

    app: App
    started_at: float
    ready_at: float = 0.0
    faults: list[Fault] = field(default_factory=list)

    @property
    def last(self) -> Fault | None:
        """Its latest fault."""
        return self.faults[-1] if self.faults else None

    @property
    def is_stopped(self) -> bool:
        return self.last is not None and self.last.kind == "stop" and self.last.end > time.time()

    @property
    def is_leaving(self) -> bool:
        return self.last is not None and self.last.kind != "stop"


def draw_faults(rng: random.Random) -> Iterator[tuple[float, str]]:
    """An endless series of faults: the delay after the previous one, and the kind."""
    while True:
        bag = list(FAULT_MIX)
        rng.shuffle(bag)
        for kind in bag:
            yield rng.uniform(0.3, 1.0), kind


class WorkerFleet:
    """A constant number of workers."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.fault_counts: Counter[str] = Counter()
        self.recent_faults: deque[Fault] = deque(maxlen=300)
        self.lock_stop_count = 0
        """How often a worker was stopped while it held SQLite's write lock, which kept others from renewing leases."""
        self.shutdown_durations: deque[float] = deque(maxlen=10_000)
        """Seconds from SIGTERM to the end of the process."""
        self._random = random.Random(seed)
        self._faults = draw_faults(self._random)
        self._workers: dict[int, WorkerProcess] = {}
        self._ended: deque[WorkerProcess] = deque()
        self._stopped: list[WorkerProcess] = []
        self._next = (0.0, "")
        for _ in range(WORKER_COUNT):
            self._start_worker()

    def _start_worker(self) -> None:
        served = " ".join(WORKFLOWS)
        app = self.world.spawn("soak_worker.py", LEASE=LEASE, GRACE=GRACE, WORKFLOWS=served, LETTERS=LETTERS)
        self._workers[app.pid] = WorkerProcess(app, time.time())

    def schedule_first_fault(self) -> None:
        """Start injecting faults."""
        delay, kind = next(self._faults)
        self._next = (time.time() + delay, kind)

    # Polling

    def poll(self, *, inject_faults: bool) -> None:
        """Replace workers that ended, resume stopped ones, and inject the next fault."""
        now = time.time()
        for worker in list(self._workers.values()):
            self._check_worker(worker, now, replace=True)
        for worker in [worker for worker in self._stopped if not worker.is_stopped or not inject_faults]:
            self._resume(worker)
        at, kind = self._next
        if inject_faults and now >= at and (chosen := self._choose_worker(kind, now)) is not None:
            self._inject_fault(chosen, kind)
            delay, kind = next(self._faults)
            self._next = (time.time() + delay, kind)

    def _choose_worker(self, kind: str, now: float) -> WorkerProcess | None:
        able = [
            worker
            for worker in self._workers.values()
            if worker.ready_at
            and now - worker.ready_at > READY_DELAY_S
            and not worker.is_leaving
            and not worker.is_stopped
        ]
        return self._random.choice(able) if len(able) > MIN_WORKERS else None

    def _inject_fault(self, worker: WorkerProcess, kind: str) -> None:
        at, end = time.time(), math.inf
        match kind:
            case "kill":
                worker.app.send(signal.SIGKILL)
            case "stop":
                self.world.suspend(worker.app)
                self.lock_stop_count += time.time() - at > LOCK_STOP_S
                at = time.time()
                end = at + LEASE + self._random.uniform(0.5, 2.0)
                self._stopped.append(worker)
            case _:
                worker.app.send(signal.SIGTERM)
        if kind == "hurry":
            time.sleep(0.02)  # two at once would be one
            worker.app.send(signal.SIGTERM)
        fault = Fault(kind, worker.app.pid, at, end)
        worker.faults.append(fault)
        self.recent_faults.append(fault)
        self.fault_counts[kind] += 1

    def _resume(self, worker: WorkerProcess) -> None:
        last = worker.faults.pop()
        worker.faults.append(last._replace(end=time.time()))
        self._stopped.remove(worker)
        worker.app.send(signal.SIGCONT)

    def _check_worker(self, worker: WorkerProcess, now: float, *, replace: bool) -> None:
        app, last = worker.app, worker.last
        code = app.exit_code
        if code is None:
            if not worker.ready_at and "ready" in app.stdout_lines:
                worker.ready_at = now
            if worker.is_leaving and last is not None and now - last.at > MAX_SHUTDOWN_S:
                raise AssertionError(
                    f"told to stop {now - last.at:.1f} s ago, and still there: {self.dump_stacks(worker)}"
                )
            return
        kind = "" if last is None else last.kind
        expected = {"kill": -signal.SIGKILL, "term": 0, "hurry": 0}.get(kind)
        assert code == expected, f"a worker ended with {code} after {kind or 'nothing'}: {app}"
        assert "ERROR" not in app.stderr_messages, f"{app}"
        assert "Traceback" not in app.stderr_messages, f"{app}"
        if code == 0 and last is not None:
            self.shutdown_durations.append(now - last.at)
        del self._workers[app.pid]
        self._ended.append(worker)
        if replace:
            self._start_worker()

    # The end

    def shut_down(self) -> None:
        """Stop all workers, and wait until they have ended."""
        wait_until_sync(self._is_ready, "the last workers are there", describe=self.dump_stacks)
        time.sleep(READY_DELAY_S)
        now = time.time()
        for worker in self._workers.values():
            worker.app.send(signal.SIGTERM)
            worker.faults.append(Fault("term", worker.app.pid, now, math.inf))
        while self._workers:
            for worker in list(self._workers.values()):
                self._check_worker(worker, time.time(), replace=False)
            time.sleep(0.01)

    def _is_ready(self) -> bool:
        for worker in list(self._workers.values()):
            self._check_worker(worker, time.time(), replace=True)
        return all(worker.ready_at for worker in self._workers.values())

    # Looking up processes

    def get_process(self, pid: int, at: float) -> WorkerProcess:
        """The process that had this pid then."""
        found = self._find(pid, at)
        assert found is not None, f"there was no worker process {pid} at {at}"
        return found

    def is_known(self, pid: int, at: float) -> bool:
        """Whether the fleet still knows the process that had this pid then."""
        return self._find(pid, at) is not None

    def _find(self, pid: int, at: float) -> WorkerProcess | None:
        living = self._workers.get(pid)
        if living is not None and living.started_at <= at:
            return living
        return next(
            (worker for worker in reversed(self._ended) if worker.app.pid == pid and worker.started_at <= at), None
        )

    def forget(self, before: float) -> None:
        """Forget processes that ended before this time: no remaining run is that old."""
        while self._ended and (last := self._ended[0].last) is not None and last.at + MAX_SHUTDOWN_S < before:
            self._ended.popleft()

    def dump_stacks(self, only: WorkerProcess | None = None) -> str:
        """The stacks and the output of the living workers."""
        workers = [only] if only is not None else list(self._workers.values())
        for worker in workers:
            if worker.app.exit_code is None:
                worker.app.send(signal.SIGCONT)
                worker.app.send(signal.SIGUSR1)
        time.sleep(0.5)
        return "\n".join(str(worker.app) for worker in workers)
