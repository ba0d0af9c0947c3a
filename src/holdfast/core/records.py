"""A run's journal: what happened to it, in the order the workflow saw it.

A *command* is something the workflow asked for (a step, a timer, a signal); commands are numbered in the order they
are issued. A *record* is the outcome of one command. The journal is the list of records in the order in which outcomes
were handed to the workflow, so ``seq`` says when, and ``(kind's stream, position)`` says to which command.

Steps and signal waits share one stream of positions; timers have one of their own, so that wrapping a recorded step in
``asyncio.timeout`` does not move the steps behind it. The run's own deadline is outside both.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Kind(IntEnum):
    """What kind of command a record is the outcome of. The numbers are stored: never reuse one."""

    STEP = 1
    TIMER = 2
    SIGNAL = 3
    DEADLINE = 4

    @property
    def label(self) -> str:
        """The word for people."""
        return self.name.lower()


class Record(NamedTuple):
    """The outcome of one command, as it stands in the journal."""

    seq: int
    kind: Kind
    position: int
    name: str
    ok: bool
    payload: bytes | None
    """The encoded value when ``ok``, the encoded error when not; ``None`` for timers."""
    at: float
    """When the outcome was known (seconds since 1970); the run's own time is the largest seen so far."""
    started_at: float = 0.0
    """When the attempt that led to this outcome began, for people to read."""
    attempts: int = 1
    worker: int = 0
    """The worker that recorded it (``workers.id`` in the store)."""
    epoch: int = 0
    """The lease under which it was recorded."""
    preview: str = ""
    """The arguments, shortened, for people to read; never used in replay."""


class Attempt(NamedTuple):
    """What is known of a step that has no outcome yet. Its row goes when the outcome is recorded."""

    position: int
    attempt: int
    """The number of the attempt that was started last."""
    intent: bool = False
    """A ``once`` step was about to start: without an outcome, nobody may start it again."""
    progress: bytes | None = None
    """What the step last handed to ``heartbeat``."""
    error: str = ""
    """Why the previous attempt failed, for people to read."""
    at: float = 0.0
    name: str = ""
    """The step's name, for people to read."""


class Signal(NamedTuple):
    """A value that was sent into a run and that no record has consumed yet."""

    id: int
    name: str
    payload: bytes
    sent_at: float
