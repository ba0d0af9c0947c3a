"""Which workers are alive, and whether any of them can take a run further.

A worker is registered as ``live`` until somebody finds it dead, and only workers look. So a reading command looks for
itself, without changing anything: a lease that has passed, or a process on this machine that is gone.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable

from holdfast.core.states import RunState
from holdfast.stores.contract import Run, Worker


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


def why_stalled(run: Run, workers: Iterable[Worker], now: float) -> str | None:
    """Why an unfinished run does not go on, and what to do about it; ``None`` if somebody takes care of it."""
    if run.state.is_terminal:
        return None
    alive = {worker.id: worker for worker in workers if is_alive(worker, now)}
    if run.state is RunState.RUNNING and run.owner in alive:
        return None
    able = [worker for worker in alive.values() if run.workflow in worker.workflows]
    if not able:
        return (
            f"no live worker serves workflow {run.workflow!r}: start one with `holdfast worker module:{run.workflow}`"
        )
    if not any(worker.queues is None or run.queue in worker.queues for worker in able):
        return (
            f"no live worker for workflow {run.workflow!r} serves queue {run.queue!r}: "
            f"start one with `holdfast worker module:{run.workflow} --queue {run.queue}`"
        )
    return None
