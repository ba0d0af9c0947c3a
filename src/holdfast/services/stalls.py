"""Which workers are alive, and why an unfinished run does not continue.

A worker is registered as ``live`` until another worker declares it dead. So a reader checks for itself, without
changing anything: the lease may have expired, or the process on this machine may be gone. For a listener there is only
the lease, whatever its host says.
"""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.states import RunState
from holdfast.stores import served_versions
from holdfast.stores.contract import Store
from holdfast.stores.operations import CancelState, Run
from holdfast.stores.queues import QueueStatus
from holdfast.stores.worker_deaths import is_isolated
from holdfast.stores.workers import Worker

if TYPE_CHECKING:
    from holdfast.reports.run_info import RunInfo

_BUDGET_WAIT = "a higher budget"
"""Part of ``waits_for`` of a run whose model call was refused: see ``agents.models.model_call``."""


class Stall(NamedTuple):
    """The reason why an unfinished run does not continue."""

    summary: str
    """A few words, for a list."""
    advice: str
    """A sentence, with what to do about it."""
    action: str | None = None
    """What to do, if it is one thing: ``resume``, ``enable`` (the workflow), or ``worker`` (start one)."""


@dataclass(frozen=True)
class RunEnvironment:
    """What decides at one time whether runs continue."""

    workers: Collection[Worker]
    disabled: Collection[str]
    """Disabled workflows."""
    now: float
    queues: Mapping[str, QueueStatus]
    """The queues with limits that the runs wait in."""

    @cached_property
    def live_workers(self) -> Mapping[int, Worker]:
        """The workers that can still be expected to continue their runs, by id."""
        return {worker.id: worker for worker in self.workers if is_alive(worker, self.now)}

    def explain_unserved(self, run: Run) -> served_versions.UnservedReason | None:
        """Why none of the live workers claims this run. Runs of a list have few different reasons."""
        key = (run.workflow, run.version, run.queue)
        if key not in self._unserved:
            self._unserved[key] = served_versions.explain_unserved(*key, tuple(self.live_workers.values()))
        return self._unserved[key]

    async def with_queues(self, store: Store, runs: Iterable[Run]) -> RunEnvironment:
        """The same, with the queues that these runs wait in now."""
        now = store.now()
        names = {run.queue for run in runs if run.is_limited and _is_queued(run, now)}
        if not names:
            return self
        return replace(self, now=now, queues={one.name: one for one in await store.queues.list(names)})

    @cached_property
    def _unserved(self) -> dict[tuple[str, str, str], served_versions.UnservedReason | None]:
        return {}


async def read_environment(store: Store, runs: Iterable[Run] = ()) -> RunEnvironment:
    """The workers, the disabled workflows, and the queues that these runs wait in."""
    now = store.now()
    environment = RunEnvironment(await store.list_workers(), await store.disabled_workflows.get_all(), now, {})
    return await environment.with_queues(store, runs)


def _is_queued(run: Run, now: float) -> bool:
    """Whether only the limits of its queue keep a run from being claimed."""
    is_due = run.wake_at is not None and run.wake_at <= now
    needs_place = run.cancel_state is CancelState.NONE  # a run that is to be cancelled needs none
    return run.is_limited and run.state in (RunState.PENDING, RunState.WAITING) and is_due and needs_place


def is_alive(worker: Worker, now: float) -> bool:
    """Whether a worker can still be expected to continue its runs."""
    if worker.state != "live" or worker.lease_expires_at < now:
        return False
    return worker.is_listener or worker.host != socket.gethostname() or _is_process_alive(worker.pid)


def _is_process_alive(pid: int) -> bool:
    if os.name == "nt":
        return True  # signal 0 is not harmless there; the lease will expire soon
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it belongs to another user, so it exists
    return True


def is_claimed(run: Run, environment: RunEnvironment) -> bool:
    """Whether a live worker holds the run."""
    return run.state is RunState.RUNNING and run.owner in environment.live_workers


def is_cancelling(run: Run) -> bool:
    """Whether a cancel was requested and the run has not ended yet."""
    return run.cancel_state is not CancelState.NONE and not run.state.is_terminal


def is_paused(run: Run) -> bool:
    """Whether the run is paused. A run that ended before its worker noticed the pause is not."""
    return run.paused_at is not None and not run.state.is_terminal


def is_waiting_for_budget(run: Run | RunInfo) -> bool:
    """Whether the run waits for a higher budget. Once it has one, it is about to be woken and waits no longer."""
    return run.state is RunState.WAITING and run.wake_at is None and _BUDGET_WAIT in run.waits_for


def find_stall(run: Run, environment: RunEnvironment) -> Stall | None:
    """Why an unfinished run does not continue; ``None`` if a worker holds it or will claim it."""
    if run.state.is_terminal:
        return None
    if run.paused_at is not None:
        resume = shlex.join(["holdfast", "resume", run.id])
        return Stall("paused", f"run {run.id!r} is paused: `{resume}` lets it go on", "resume")
    if run.workflow in environment.disabled:
        return Stall("workflow is disabled", describe_disabled(run.workflow), "enable")
    if is_claimed(run, environment):
        return None
    unserved = environment.explain_unserved(run)
    if unserved is not None and run.is_delivery:
        nobody = f"nobody listens to {run.workflow!r}"
        return Stall(nobody, f"{nobody}, where run {run.id!r} waits to be taken: start the program that does", "worker")
    if unserved is not None:
        return Stall(unserved.summary, unserved.message, "worker")
    if is_isolated(run.suspicion):
        return Stall(
            "waits for a worker that holds nothing else",
            f"workers died while they held run {run.id!r}, so it is tried apart from others: a worker that holds "
            f"nothing else takes it first, and any worker after three leases",
        )
    queue = environment.queues.get(run.queue)
    if queue is None or not _is_queued(run, environment.now):
        return None
    return _find_queue_stall(run, queue, environment.now)


def _find_queue_stall(run: Run, queue: QueueStatus, now: float) -> Stall | None:
    """Why the limits of its queue hold a run back."""
    why = explain_blocked_queue(queue, now, has_started=run.epoch > 0) or _explain_blocked_key(run, queue)
    if why is None:
        return None
    if queue.paused_at is not None:
        resume = shlex.join(["holdfast", "queues", "resume", queue.name])
        waits = f"run {run.id!r} waits in queue {queue.name!r}, which is paused"
        return Stall(why, f"{waits}: `{resume}` lets its runs go on")
    show = shlex.join(["holdfast", "queues", "show", queue.name])
    return Stall(why, f"run {run.id!r} {why}: `{show}` tells how it is there")


def explain_blocked_queue(queue: QueueStatus, now: float, *, has_started: bool = False) -> str | None:
    """Why a queue lets no run start now, if so. Rates do not apply to a run that ``has_started``."""
    limits = queue.limits
    if queue.paused_at is not None:
        return f"queue {queue.name!r} is paused"
    if limits.concurrency is not None and queue.running_count >= limits.concurrency:
        return f"waits for a place in queue {queue.name!r} ({queue.running_count} of {limits.concurrency} running)"
    if queue.next_start_at > now and not has_started:
        until = datetime.fromtimestamp(queue.next_start_at).astimezone()
        rates = " and ".join(map(str, limits.rates))
        return f"waits until {until:%H:%M:%S} for the rate of queue {queue.name!r} ({rates})"
    return None


def explain_blocked_keys(queue: QueueStatus) -> str | None:
    """Why a queue that lets runs start holds all waiting ones back: their keys are at their concurrency limit."""
    limit, waiting = queue.limits.key_concurrency, [one for one in queue.keys if one.waiting_count]
    if limit is None or not waiting or sum(one.waiting_count for one in waiting) < queue.waiting_count:
        return None
    has_place = any(one.running_count < limit for one in waiting)
    return None if has_place else f"all that wait in queue {queue.name!r} are of keys without a place ({limit} of each)"


def _explain_blocked_key(run: Run, queue: QueueStatus) -> str | None:
    """Why the queue passes over runs with the key of this one, if its status shows that."""
    limit = queue.limits.key_concurrency
    running = next((one.running_count for one in queue.keys if one.key == run.queue_key), 0)
    if limit is None or running < limit:
        return None
    key = f"key {run.queue_key!r}" if run.queue_key else "runs without a key"
    return f"waits for a place in queue {queue.name!r} ({key}: {running} of {limit} running)"


def explain_stall(run: Run, environment: RunEnvironment) -> str | None:
    """The advice about the stall of a run, if it has one."""
    stall = find_stall(run, environment)
    return None if stall is None else stall.advice


def describe_disabled(workflow: str) -> str:
    """A sentence that a workflow is disabled, and what to do about it."""
    enable = shlex.join(["holdfast", "enable", workflow])
    return f"workflow {workflow!r} is disabled: `{enable}` lets its runs continue"


def explain_unserved(workflow: str, workers: Iterable[Worker], now: float) -> str | None:
    """Why no worker executes runs of any version of a workflow, and what to do about it; ``None`` if one does."""
    alive = [worker for worker in workers if is_alive(worker, now)]
    unserved = served_versions.explain_unserved(workflow, None, None, alive)
    return None if unserved is None else unserved.message
