"""What every store decides alike: the fence, harmless repeats, and what a death leaves behind.

A store reads a row and asks here what the contract says about it, so that the stores cannot drift apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from holdfast.core.states import TERMINAL, RunState
from holdfast.stores.contract import FinishRun, NewRun

REOPENABLE = frozenset({RunState.FAILED, RunState.DEAD})


def holds(state: str, epoch: int, fence: int) -> bool:
    """Whether an operation under ``fence`` may still change a run that is in ``state`` under ``epoch``."""
    return epoch == fence and state == "running"


def is_finish_repeat(state: str, epoch: int, op: FinishRun) -> bool:
    """Whether ``op`` had been carried out before.

    The state must agree: ``reap`` can have ended the run as ``dead`` under the same epoch.
    """
    return epoch == op.epoch and state == op.state and op.state in TERMINAL


def is_park_repeat(state: str, epoch: int, fence: int) -> bool:
    """Whether the run is parked already, under the same epoch."""
    return epoch == fence and state == "waiting"


def first_wake(run: NewRun, now: float) -> float:
    """The ``wake_at`` of a run that is created ``pending``: a start time in the past means now."""
    return max(run.available_at, min(run.created_at, now))


def joined(workflows: Iterable[str], more: Iterable[str]) -> tuple[str, ...]:
    """The workflows of a worker that has announced some more."""
    return tuple(dict.fromkeys((*workflows, *more)))


def describe_worker(name: str, host: str, pid: int) -> str:
    """A worker in words."""
    place = f"{host}:{pid}"
    return place if name in ("", place) else f"{name} at {place}"


def is_outcome_unknown(payload: bytes | None) -> bool:
    """Whether a failed step's payload says that nobody knows whether the step happened."""
    return payload is not None and b'"holdfast.errors.StepOutcomeUnknown"' in payload


def death_error(run_id: str, deliveries: int, worker: str) -> bytes:
    """The encoded error of a run that took its worker down too often (the codec's shape for errors)."""
    times = "once" if deliveries == 1 else f"{deliveries} times in a row"
    message = (
        f"run {run_id!r} took its worker down {times} without recording anything new (last worker {worker}). "
        f"Look at what its next step does to the process (memory, a crash in native code, os._exit), "
        f"then let it go on with: holdfast retry {run_id}"
    )
    error: dict[str, Any] = {
        "type": "holdfast.errors.RunDead",
        "qualname": "RunDead",
        "message": message,
        "args": None,
        "attributes": {"run_id": run_id, "state": "dead", "error": ""},
        "traceback": "",
        "cause": None,
    }
    return json.dumps(error, ensure_ascii=False, separators=(",", ":")).encode()
