"""``runs.ready_state``: whether a run may be claimed, and how. The numbers are stored.

NULL means that no time makes the run claimable: it is running, has ended, is parked until a signal, or is paused.
``runs.due_state`` is what a run's ``ready_state`` becomes when it is due.
"""

from __future__ import annotations

from enum import IntEnum


class ReadyState(IntEnum):
    """How a run that is not running may be claimed."""

    TIMER = 0
    """It becomes due at ``wake_at``."""
    DUE = 1
    """Any worker that serves it may claim it."""
    UNSTARTED = 2
    """It may be claimed within the limits of its queue, as a run that has not started yet."""
    STARTED = 3
    """It may be claimed within the limits of its queue, as a run that has started and only needs a slot."""
    THROTTLED_UNSTARTED = 4
    """Like ``UNSTARTED``, but its key is at its limits: claims do not read it until that may have changed."""
    THROTTLED_STARTED = 5
    EXEMPT = 6
    """A cancel is requested, so it needs no slot in its queue."""
    SUSPECT = 7
    """It is claimed alone: workers that held it died without a new record (see ``suspects``)."""


LIMITED_READY = f"({ReadyState.UNSTARTED}, {ReadyState.STARTED}, {ReadyState.EXEMPT})"
"""The ``ready_state`` of runs that claims from limited queues read; the condition of ``runs_queued``."""
KEYED_READY = (
    f"({ReadyState.UNSTARTED}, {ReadyState.STARTED}, {ReadyState.THROTTLED_UNSTARTED}, {ReadyState.THROTTLED_STARTED})"
)
"""The ``ready_state`` of runs that count for their key; the condition of ``runs_by_key``."""
THROTTLED_READY = f"({ReadyState.THROTTLED_UNSTARTED}, {ReadyState.THROTTLED_STARTED})"


def ready_when_due(suspicion: str = "suspicion", cancelled: str = "cancel_state <> ''") -> str:
    """The expression for what ``ready_state`` becomes when a run is due."""
    return (
        f"CASE WHEN {suspicion} > 1 THEN {ReadyState.SUSPECT} WHEN due_state > {ReadyState.DUE} AND {cancelled} "
        f"THEN {ReadyState.EXEMPT} ELSE due_state END"
    )


READY_WHEN_DUE = ready_when_due()
