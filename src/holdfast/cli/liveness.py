"""What commands ask about runs and workers; what keeps a run from going on is told by ``client.stalls``."""

from __future__ import annotations

from holdfast.client.stalls import (
    Stall,
    Surroundings,
    how_to_switch_on,
    is_alive,
    is_held,
    look_around,
    stall_of,
    why_stalled,
    why_unserved,
)
from holdfast.core.states import RunState
from holdfast.stores.contract import Worker
from holdfast.stores.operations import Cancel, Run
from holdfast.stores.rules import place_of_worker

__all__ = [
    "Stall",
    "Surroundings",
    "how_to_switch_on",
    "is_alive",
    "is_cancelling",
    "is_held",
    "is_paused",
    "is_short",
    "kind_of",
    "look_around",
    "place_of",
    "stall_of",
    "why_stalled",
    "why_unserved",
]

_HIGHER_BUDGET = "a higher budget"
"""As the wait of a refused model call is told: see ``agents.models.calls``."""


def place_of(worker: Worker) -> str:
    """``host:pid``, after the worker's name if it has another one; a listener's process is not known."""
    return place_of_worker(worker.name, worker.host, worker.pid, by_lease=worker.by_lease)


def kind_of(worker: Worker | None) -> str:
    """What to call it: a worker by lease is a process elsewhere, that listens to a server."""
    return "listener" if worker is not None and worker.by_lease else "worker"


def is_cancelling(run: Run) -> bool:
    """Whether somebody has asked for the run to be cancelled, and it has not ended yet."""
    return run.cancel is not Cancel.NO and not run.state.is_terminal


def is_paused(run: Run) -> bool:
    """Whether somebody has paused the run; one that ended before its worker heard of it is not."""
    return run.paused_at is not None and not run.state.is_terminal


def is_short(run: Run) -> bool:
    """Whether the run waits for a higher budget; once it has been given one, it is to be woken."""
    return run.state is RunState.WAITING and run.wake_at is None and _HIGHER_BUDGET in run.waits_for
