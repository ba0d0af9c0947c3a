"""Which workers are alive, and whether anything keeps a run from going on.

A worker is registered as ``live`` until somebody finds it dead, and only workers look. So whoever only reads looks for
itself, without changing anything: a lease that has passed, or a process on this machine that is gone.
"""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Collection, Iterable
from typing import NamedTuple

from holdfast.core.states import RunState
from holdfast.stores import serving
from holdfast.stores.contract import Store, Worker
from holdfast.stores.operations import Run


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
        resume = shlex.join(["holdfast", "resume", run.id])
        return Stall("paused", f"run {run.id!r} is paused: `{resume}` lets it go on")
    if run.workflow in around.off:
        return Stall("workflow is switched off", how_to_switch_on(run.workflow))
    if is_held(run, around):
        return None
    alive = [worker for worker in around.workers if is_alive(worker, around.now)]
    unserved = serving.why_unserved(run.workflow, run.version, run.queue, alive)
    return None if unserved is None else Stall(unserved.short, unserved.advice)


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
    unserved = serving.why_unserved(workflow, None, None, [worker for worker in workers if is_alive(worker, now)])
    return None if unserved is None else unserved.advice
