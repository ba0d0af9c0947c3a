"""``runs.ready``: whether a run may be claimed, and how. The numbers are stored.

NULL stands for a run that waits for no time: it is running, has ended, is parked until a signal, or is paused.
``runs.due_as`` says what a run's ``ready`` becomes when it is due.
"""

from __future__ import annotations

from enum import IntEnum


class Ready(IntEnum):
    """How a run that is not running may be claimed."""

    TIMER = 0
    """It becomes due at ``wake_at``."""
    DUE = 1
    """By any worker that serves it."""
    UNBEGUN = 2
    """By the limits of its queue, as a run that has not begun yet."""
    BEGUN = 3
    """By the limits of its queue, as a run that only wants its place back."""
    ASIDE_UNBEGUN = 4
    """Like ``UNBEGUN``, but its key is at its limits: claims pass it over until that may have changed."""
    ASIDE_BEGUN = 5
    EXEMPT = 6
    """It is to be cancelled, and needs no place in its queue."""
    SUSPECT = 7
    """Alone: workers that held it died without a new record (see ``suspects``)."""


LIMITED_READY = f"({Ready.UNBEGUN}, {Ready.BEGUN}, {Ready.EXEMPT})"
"""The ``ready`` of runs that claims from limited queues read; the condition of ``runs_queued``."""
KEYED_READY = f"({Ready.UNBEGUN}, {Ready.BEGUN}, {Ready.ASIDE_UNBEGUN}, {Ready.ASIDE_BEGUN})"
"""The ``ready`` of runs that count for their key; the condition of ``runs_of_keys``."""
ASIDE_READY = f"({Ready.ASIDE_UNBEGUN}, {Ready.ASIDE_BEGUN})"


def ready_when_due(suspicion: str = "suspicion", cancelled: str = "cancel <> ''") -> str:
    """What ``ready`` becomes when a run is due, as an expression."""
    return (
        f"CASE WHEN {suspicion} > 1 THEN {Ready.SUSPECT} WHEN due_as > {Ready.DUE} AND {cancelled} "
        f"THEN {Ready.EXEMPT} ELSE due_as END"
    )


READY_WHEN_DUE = ready_when_due()
