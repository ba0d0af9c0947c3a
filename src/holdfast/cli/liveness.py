"""Which workers are alive, and whether anything keeps a run from going on.

A worker is registered as ``live`` until somebody finds it dead, and only workers look. So a reading command looks for
itself, without changing anything: a lease that has passed, or a process on this machine that is gone.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterable
from typing import NamedTuple

from holdfast.cli.wording import command
from holdfast.core.states import RunState
from holdfast.stores.contract import Store, Worker
from holdfast.stores.operations import Cancel, Run

_HIGHER_BUDGET = "a higher budget"
"""As the wait of a refused model call is told: see ``agents.models.calls``."""


class Stall(NamedTuple):
    """What keeps an unfinished run from going on."""

    short: str
    """In a few words, for a list."""
    advice: str
    """In a sentence, with what to do about it."""


class Surroundings(NamedTuple):
    """What it depends on whether a run goes on, at one moment."""

    workers: Collection[Worker]
    off: Collection[str]
    """The workflows that are switched off."""
    now: float


async def look_around(store: Store) -> Surroundings:
    """Who is there to execute runs, and what is switched off."""
    return Surroundings(await store.workers(), await store.switched_off(), store.now())


def is_alive(worker: Worker, now: float) -> bool:
    """Whether a worker can still be expected to do something."""
    if worker.state != "live" or worker.lease_until < now:
        return False
    return worker.host != socket.gethostname() or _has_process(worker.pid)


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


def place_of(worker: Worker) -> str:
    """``host:pid``, after the worker's name if it has another one."""
    place = f"{worker.host}:{worker.pid}"
    return place if worker.name in ("", place) else f"{worker.name} at {place}"


def is_cancelling(run: Run) -> bool:
    """Whether somebody has asked for the run to be cancelled, and it has not ended yet."""
    return run.cancel is not Cancel.NO and not run.state.is_terminal


def is_paused(run: Run) -> bool:
    """Whether somebody has paused the run; one that ended before its worker heard of it is not."""
    return run.paused_at is not None and not run.state.is_terminal


def is_short(run: Run) -> bool:
    """Whether the run waits for a higher budget; once it has been given one, it is to be woken."""
    return run.state is RunState.WAITING and run.wake_at is None and _HIGHER_BUDGET in run.waits_for


def is_held(run: Run, around: Surroundings) -> bool:
    """Whether a live worker has the run in its hands."""
    return run.state is RunState.RUNNING and any(
        worker.id == run.owner and is_alive(worker, around.now) for worker in around.workers
    )


def stall_of(run: Run, around: Surroundings) -> Stall | None:
    """Why an unfinished run does not go on; ``None`` if somebody takes care of it."""
    if run.state.is_terminal:
        return None
    if run.paused_at is not None:
        return Stall("paused", f"run {run.id!r} is paused: `{command('resume', run.id)}` lets it go on")
    if run.workflow in around.off:
        return Stall("workflow is switched off", how_to_switch_on(run.workflow))
    if is_held(run, around):
        return None
    unserved = why_unserved(run.workflow, run.queue, around.workers, around.now)
    return None if unserved is None else Stall("no live worker serves it", unserved)


def why_stalled(run: Run, around: Surroundings) -> str | None:
    """The same, as the sentence that says what to do about it."""
    stall = stall_of(run, around)
    return None if stall is None else stall.advice


def how_to_switch_on(workflow: str) -> str:
    """That a workflow is switched off, and what to do about it."""
    return f"workflow {workflow!r} is switched off: `{command('kill', workflow, '--lift')}` lets its runs go on"


def why_unserved(workflow: str, queue: str | None, workers: Iterable[Worker], now: float) -> str | None:
    """Why nobody executes runs of a workflow (in this queue, if one is given), and what to do about it."""
    able = [worker for worker in workers if workflow in worker.workflows and is_alive(worker, now)]
    if not able:
        return f"no live worker serves workflow {workflow!r}: start one with `holdfast worker module:{workflow}`"
    if queue is not None and not any(worker.queues is None or queue in worker.queues for worker in able):
        return (
            f"no live worker for workflow {workflow!r} serves queue {queue!r}: "
            f"start one with `holdfast worker module:{workflow} --queue {queue}`"
        )
    return None
