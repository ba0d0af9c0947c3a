"""The states of a run, and the effects of a step."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from holdfast.errors import UsageError


class RunState(StrEnum):
    """The state of a run; the last four are terminal."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DEAD = "dead"

    @property
    def is_terminal(self) -> bool:
        """Whether the run has ended (only an explicit retry reopens it)."""
        return self in TERMINAL_STATES


TERMINAL_STATES = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED, RunState.DEAD})
UNFINISHED_STATES = frozenset({RunState.PENDING, RunState.RUNNING, RunState.WAITING})


def parse_run_states(given: RunState | str | Collection[RunState | str]) -> list[RunState]:
    """One state, or several, as users name them. Raises ``UsageError``."""
    try:
        return [RunState(state) for state in ([given] if isinstance(given, str) else given)]
    except ValueError as error:
        raise UsageError(f"{error}; the states are {', '.join(RunState)}") from None


class Effect(StrEnum):
    """What a step does to the world, and so what may happen to it after a crash.

    ``read`` may run again. ``idempotent`` may run again, and has a stable key to make that harmless. ``once`` never
    runs again: if its worker dies in flight, its outcome is unknown.
    """

    READ = "read"
    IDEMPOTENT = "idempotent"
    ONCE = "once"
