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
from holdfast.stores.contract import Store, Worker
from holdfast.stores.operations import Cancel, Run
from holdfast.stores.queues import KeptQueue
from holdfast.stores.rules import is_isolated

if TYPE_CHECKING:
    from holdfast.reports.run_info import RunInfo

_HIGHER_BUDGET = "a higher budget"
"""As the wait of a refused model call is told: see ``agents.models.model_call``."""


class Stall(NamedTuple):
    """What keeps an unfinished run from going on."""

    short: str
    """In a few words, for a list."""
    advice: str
    """In a sentence, with what to do about it."""
    does: str | None = None
    """What that is, if it is one thing: ``resume``, ``lift`` (the switch) or ``worker`` (start one)."""


class Surroundings(NamedTuple):
    """What it depends on whether a run goes on, at one moment."""

    workers: Collection[Worker]
    off: Collection[str]
    """The workflows that are switched off."""
    now: float
    queues: Mapping[str, KeptQueue]
    """Those with limits that some of the runs in question wait in."""


async def look_around(store: Store, runs: Iterable[Run] = ()) -> Surroundings:
    """Who is there to execute runs, what is switched off, and how the queues are that these runs wait in."""
    now = store.now()
    names = {run.queue for run in runs if _is_in_line(run, now)}
    queues = {one.name: one for one in await store.queues(names)} if names else {}
    return Surroundings(await store.workers(), await store.switched_off(), now, queues)


def _is_in_line(run: Run, now: float) -> bool:
    """Whether a run would be taken, if it were not for the limits of its queue."""
    is_due = run.wake_at is not None and run.wake_at <= now
    is_asked = run.cancel is not Cancel.NO  # those need no place
    return run.limited and run.state in (RunState.PENDING, RunState.WAITING) and is_due and not is_asked


def is_alive(worker: Worker, now: float) -> bool:
    """Whether a worker can still be expected to do something."""
    if worker.state != "live" or worker.lease_until < now:
        return False
    return worker.by_lease or worker.host != socket.gethostname() or _has_process(worker.pid)


def _has_process(pid: int) -> bool:
    if os.name == "nt":
        return True  # signal 0 is no harmless question there; the lease tells in a while
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it is somebody else's, so it is there
    return True


def is_held(run: Run, around: Surroundings) -> bool:
    """Whether a live worker has the run in its hands."""
    return run.state is RunState.RUNNING and any(
        worker.id == run.owner and is_alive(worker, around.now) for worker in around.workers
    )


def is_cancelling(run: Run) -> bool:
    """Whether somebody has asked for the run to be cancelled, and it has not ended yet."""
    return run.cancel is not Cancel.NO and not run.state.is_terminal


def is_paused(run: Run) -> bool:
    """Whether somebody has paused the run; one that ended before its worker heard of it is not."""
    return run.paused_at is not None and not run.state.is_terminal


def is_short(run: Run | RunInfo) -> bool:
    """Whether the run waits for a higher budget; once it has been given one, it is to be woken."""
    return run.state is RunState.WAITING and run.wake_at is None and _HIGHER_BUDGET in run.waits_for


def stall_of(run: Run, around: Surroundings) -> Stall | None:
    """Why an unfinished run does not go on; ``None`` if somebody takes care of it."""
    if run.state.is_terminal:
        return None
    if run.paused_at is not None:
        resume = shlex.join(["holdfast", "resume", run.id])
        return Stall("paused", f"run {run.id!r} is paused: `{resume}` lets it go on", "resume")
    if run.workflow in around.off:
        return Stall("workflow is switched off", how_to_switch_on(run.workflow), "lift")
    if is_held(run, around):
        return None
    alive = [worker for worker in around.workers if is_alive(worker, around.now)]
    unserved = served_versions.why_unserved(run.workflow, run.version, run.queue, alive)
    if unserved is not None and run.by_delivery:
        nobody = f"nobody listens to {run.workflow!r}"
        return Stall(nobody, f"{nobody}, where run {run.id!r} waits to be taken: start the program that does", "worker")
    if unserved is not None:
        return Stall(unserved.short, unserved.advice, "worker")
    if is_isolated(run.suspicion):
        return Stall(
            "waits for a worker that holds nothing else",
            f"workers died while they held run {run.id!r}, so it is tried apart from others: a worker that holds "
            f"nothing else takes it first, and any worker after three leases",
        )
    queue = around.queues.get(run.queue)
    return None if queue is None or not _is_in_line(run, around.now) else _stall_in_line(run, queue, around.now)


def _stall_in_line(run: Run, queue: KeptQueue, now: float) -> Stall | None:
    """What keeps a run in a queue with limits."""
    why = why_nothing_begins(queue, now, begun=run.epoch > 0) or _why_not_of_key(run, queue)
    if why is None:
        return None
    if queue.paused_at is not None:
        resume = shlex.join(["holdfast", "queues", "resume", queue.name])
        waits = f"run {run.id!r} waits in queue {queue.name!r}, which is paused"
        return Stall(why, f"{waits}: `{resume}` lets its runs go on")
    show = shlex.join(["holdfast", "queues", "show", queue.name])
    return Stall(why, f"run {run.id!r} {why}: `{show}` tells how it is there")


def why_nothing_begins(queue: KeptQueue, now: float, *, begun: bool = False) -> str | None:
    """Why a queue lets no run through now; one that has ``begun`` needs nothing of its rates. ``None``: it does."""
    limits = queue.limits
    if queue.paused_at is not None:
        return f"queue {queue.name!r} is paused"
    if limits.concurrency is not None and queue.running >= limits.concurrency:
        return f"waits for a place in queue {queue.name!r} ({queue.running} of {limits.concurrency} running)"
    if queue.next_at > now and not begun:
        until = datetime.fromtimestamp(queue.next_at).astimezone()
        rates = " and ".join(map(str, limits.rates))
        return f"waits until {until:%H:%M:%S} for the rate of queue {queue.name!r} ({rates})"
    return None


def why_keys_wait(queue: KeptQueue) -> str | None:
    """That a queue lets runs begin, but none of those that wait: their keys have no place."""
    most, waiting = queue.limits.key_concurrency, [one for one in queue.keys if one.waiting]
    if most is None or not waiting or sum(one.waiting for one in waiting) < queue.waiting:
        return None
    has_place = any(one.running < most for one in waiting)
    return None if has_place else f"all that wait in queue {queue.name!r} are of keys without a place ({most} of each)"


def _why_not_of_key(run: Run, queue: KeptQueue) -> str | None:
    """Why a queue passes over the runs of this one's key, as far as its row tells."""
    most = queue.limits.key_concurrency
    running = next((one.running for one in queue.keys if one.key == run.queue_key), 0)
    if most is None or running < most:
        return None
    whose = f"key {run.queue_key!r}" if run.queue_key else "runs without a key"
    return f"waits for a place in queue {queue.name!r} ({whose}: {running} of {most} running)"


def why_stalled(run: Run, around: Surroundings) -> str | None:
    """The same, as the sentence that says what to do about it."""
    stall = stall_of(run, around)
    return None if stall is None else stall.advice


def how_to_switch_on(workflow: str) -> str:
    """That a workflow is switched off, and what to do about it."""
    lift = shlex.join(["holdfast", "kill", workflow, "--lift"])
    return f"workflow {workflow!r} is switched off: `{lift}` lets its runs go on"


def why_unserved(workflow: str, workers: Iterable[Worker], now: float) -> str | None:
    """Why nobody executes runs of a workflow, of whatever version, and what to do about it."""
    unserved = served_versions.why_unserved(
        workflow, None, None, [worker for worker in workers if is_alive(worker, now)]
    )
    return None if unserved is None else unserved.advice
