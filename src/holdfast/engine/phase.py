"""What a driver does with its run, and what the workflow's code does."""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """What a driver does with its run."""

    LOADING = "loading"
    """The workflow's code is still being imported."""
    REPLAYING = "replaying"
    RESUMING = "resuming"
    """The replay is done. A requested cancel, and the timers that are due, are recorded before anything starts."""
    LIVE = "live"
    ENDING = "ending"
    """The end of the run is being written."""
    PARKING = "parking"
    """The park of the run is being written."""
    GONE = "gone"
    """The run is no longer in memory."""


class TurnState(Enum):
    """What the workflow's code does."""

    IDLE = "idle"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    """It has more to do than fits into one slice, and continues when other tasks of the process had their turn."""
