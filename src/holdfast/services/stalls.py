"""Which workers are alive, and whether anything keeps a run from going on.

A worker is registered as ``live`` until somebody finds it dead, and only workers look. So whoever only reads looks for
itself, without changing anything: a lease that has passed, or a process on this machine that is gone. Of a worker by
lease there is only the lease, wherever it says that it runs.
"""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
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
"""As the wait of a refused model call is told: see ``agents.models.model_call``."""


class Stall(NamedTuple):
    """What keeps an unfinished run from going on."""

    summary: str
    """In a few words, for a list."""
    advice: str
    """In a sentence, with what to do about it."""
    action: str | None = None
    """What that is, if it is one thing: ``resume``, ``enable`` (the workflow) or ``worker`` (start one)."""


class RunEnvironment(NamedTuple):
    """What it depends on whether a run goes on, at one moment."""

    workers: Collection[Worker]
    disabled: Collection[str]
    """The workflows that are disabled."""
    now: float
    queues: Mapping[str, QueueStatus]
    """Those with limits that some of the runs in question wait in."""


async def read_environment(store: Store, runs: Iterable[Run] = ()) -> RunEnvironment:
    """Who is there to execute runs, what is disabled, and how the queues are that these runs wait in."""
    now = store.now()
    names = {run.queue for run in runs if _is_queued(run, now)}
    queues = {one.name: one for one in await store.queues.list(names)} if names else {}
    return RunEnvironment(await store.list_workers(), await store.disabled_workflows.get_all(), now, queues)


def _is_queued(run: Run, now: float) -> bool:
    """Whether a run would be taken, if it were not for the limits of its queue."""
    is_due = run.wake_at is not None and run.wake_at <= now
    is_asked = run.cancel_state is not CancelState.NONE  # those need no place
    return run.is_limited and run.state in (RunState.PENDING, RunState.WAITING) and is_due and not is_asked


def is_alive(worker: Worker, now: float) -> bool:
    """Whether a worker can still be expected to do something."""
    if worker.state != "live" or worker.lease_expires_at < now:
        return False
    return worker.is_listener or worker.host != socket.gethostname() or _is_process_alive(worker.pid)


def _is_process_alive(pid: int) -> bool:
    if os.name == "nt":
        return True  # signal 0 is no harmless question there; the lease tells in a while
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it is somebody else's, so it is there
    return True


def is_claimed(run: Run, environment: RunEnvironment) -> bool:
    """Whether a live worker has the run in its hands."""
    return run.state is RunState.RUNNING and any(
        worker.id == run.owner and is_alive(worker, environment.now) for worker in environment.workers
    )


def is_cancelling(run: Run) -> bool:
    """Whether somebody has asked for the run to be cancelled, and it has not ended yet."""
    return run.cancel_state is not CancelState.NONE and not run.state.is_terminal


def is_paused(run: Run) -> bool:
    """Whether somebody has paused the run; one that ended before its worker heard of it is not."""
    return run.paused_at is not None and not run.state.is_terminal


def is_waiting_for_budget(run: Run | RunInfo) -> bool:
    """Whether the run waits for a higher budget; once it has been given one, it is to be woken."""
    return run.state is RunState.WAITING and run.wake_at is None and _BUDGET_WAIT in run.waits_for


def find_stall(run: Run, environment: RunEnvironment) -> Stall | None:
    """Why an unfinished run does not go on; ``None`` if somebody takes care of it."""
    if run.state.is_terminal:
        return None
    if run.paused_at is not None:
        resume = shlex.join(["holdfast", "resume", run.id])
        return Stall("paused", f"run {run.id!r} is paused: `{resume}` lets it go on", "resume")
    if run.workflow in environment.disabled:
        return Stall("workflow is disabled", describe_disabled(run.workflow), "enable")
    if is_claimed(run, environment):
        return None
    alive = [worker for worker in environment.workers if is_alive(worker, environment.now)]
    unserved = served_versions.explain_unserved(run.workflow, run.version, run.queue, alive)
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
    return (
        None
        if queue is None or not _is_queued(run, environment.now)
        else _find_queue_stall(run, queue, environment.now)
    )


def _find_queue_stall(run: Run, queue: QueueStatus, now: float) -> Stall | None:
    """What keeps a run in a queue with limits."""
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
    """Why a queue lets no run through now; one that ``has_started`` needs nothing of its rates. ``None``: it does."""
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
    """That a queue lets runs begin, but none of those that wait: their keys have no place."""
    most, waiting = queue.limits.key_concurrency, [one for one in queue.keys if one.waiting_count]
    if most is None or not waiting or sum(one.waiting_count for one in waiting) < queue.waiting_count:
        return None
    has_place = any(one.running_count < most for one in waiting)
    return None if has_place else f"all that wait in queue {queue.name!r} are of keys without a place ({most} of each)"


def _explain_blocked_key(run: Run, queue: QueueStatus) -> str | None:
    """Why a queue passes over the runs of this one's key, as far as its row tells."""
    most = queue.limits.key_concurrency
    running = next((one.running_count for one in queue.keys if one.key == run.queue_key), 0)
    if most is None or running < most:
        return None
    whose = f"key {run.queue_key!r}" if run.queue_key else "runs without a key"
    return f"waits for a place in queue {queue.name!r} ({whose}: {running} of {most} running)"


def explain_stall(run: Run, environment: RunEnvironment) -> str | None:
    """The same, as the sentence that says what to do about it."""
    stall = find_stall(run, environment)
    return None if stall is None else stall.advice


def describe_disabled(workflow: str) -> str:
    """That a workflow is disabled, and what to do about it."""
    enable = shlex.join(["holdfast", "enable", workflow])
    return f"workflow {workflow!r} is disabled: `{enable}` lets its runs continue"


def explain_unserved(workflow: str, workers: Iterable[Worker], now: float) -> str | None:
    """Why nobody executes runs of a workflow, of whatever version, and what to do about it."""
    unserved = served_versions.explain_unserved(
        workflow, None, None, [worker for worker in workers if is_alive(worker, now)]
    )
    return None if unserved is None else unserved.message
