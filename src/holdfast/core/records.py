"""A run's journal: what happened to the run, in the order in which the workflow saw it.

A *command* is something that the workflow issues (a step, a timer, a signal, another run); commands are numbered in the
order of issue. A *record* is the outcome of one command. The journal is the list of records in the order in which they
were delivered to the workflow, so ``seq`` says when, and ``(kind's stream, position)`` says to which command. ``seq``
rises, and has gaps where a retry has removed a record.

All commands except timers share one stream of positions; timers have their own, so that wrapping a recorded step in
``asyncio.timeout`` does not move the steps after it. The run's deadline and its cancellation are in neither stream,
because workflow code does not issue them. Nor is a patch: code decides it, but waits for nothing.

The calls of a *program* come in a different order each time it runs. So each of its commands also has a record of kind
``CALL``, which says which of the program's calls got the position: see ``program_calls``.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

TupleT = TypeVar("TupleT", bound=tuple[Any, ...])


def make_constructor(kind: type[TupleT]) -> Callable[[tuple[Any, ...]], TupleT]:
    """A function that makes a named tuple from a tuple of all its fields.

    It takes a third of the time of a call of the class: for what each step makes.
    """
    return partial(cast(Any, tuple).__new__, kind)


class RecordKind(IntEnum):
    """What kind of command a record is the outcome of. The numbers are stored: never reuse one."""

    STEP = 1
    TIMER = 2
    SIGNAL = 3
    DEADLINE = 4
    CHILD = 5
    """A run that the workflow waits for has ended."""
    START = 6
    """An independent run was started; the payload is its id."""
    COMPENSATION = 7
    """A recorded step was undone, because the run failed or was cancelled."""
    CANCEL = 8
    """The run was cancelled, and its holder has begun to interrupt it."""
    APPROVAL = 9
    """A person has answered an approval; the payload says what, who, and when."""
    PATCH = 10
    """The run takes the new branch of a change in its code: see ``patches``."""
    CALL = 11
    """A program has made the call that has this position; the payload identifies the call: see ``program_calls``."""

    has_position: bool
    """Whether it is the outcome of a command in the stream that all commands except timers share."""
    has_live_events: bool
    """Whether such a command has live events while it is in flight."""

    @property
    def label(self) -> str:
        """The word for people."""
        return self.name.lower()


for _kind in RecordKind:
    _kind.has_position = _kind not in (
        RecordKind.TIMER, RecordKind.DEADLINE, RecordKind.CANCEL, RecordKind.PATCH, RecordKind.CALL,
    )  # fmt: skip
    _kind.has_live_events = _kind in (RecordKind.STEP, RecordKind.COMPENSATION, RecordKind.CHILD)


SESSION_STEP = "session"
"""The first step of a run in a session: its output is the id of the previous run."""

RESTORED_POSITION = -1
"""The position of an attempt that belongs to the whole run: the run was restored from a backup, at the time ``at`` of
the attempt. It is the intent of every ``once`` step that the run may have started after the backup was made."""

WAIT_KINDS = (RecordKind.SIGNAL, RecordKind.CHILD, RecordKind.APPROVAL)
"""Commands that need no process once they have started."""


class Record(NamedTuple):
    """The outcome of one command, as the journal has it."""

    seq: int
    kind: RecordKind
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
    """How many attempts it took; 0 if a person has settled it."""
    worker: int = 0
    """The worker that recorded it (``workers.id`` in the store)."""
    epoch: int = 0
    """The claim of the run under which it was recorded: see ``Run.epoch`` in the store."""
    preview: str = ""
    """The arguments, shortened, for people to read; never used in replay."""

    @property
    def is_settled(self) -> bool:
        """Whether a person, and not an attempt, has decided the outcome, because it was unknown."""
        return self.attempts == 0


class Attempt(NamedTuple):
    """The state of a step that has no outcome yet. The row is deleted when the outcome is recorded."""

    position: int
    attempt: int
    """The number of the attempt that was started last."""
    intent: bool = False
    """A ``once`` step was about to start: without an outcome, it must never start again."""
    progress: bytes | None = None
    """What the step last passed to ``heartbeat``."""
    error: str = ""
    """Why the previous attempt failed, for people to read."""
    at: float = 0.0
    name: str = ""
    """The step's name, for people to read."""
    outcome: bytes | None = None
    """The encoded value of a transactional step: it was committed with the step's changes, and only its record is
    missing. The step must never run again."""
    retry_at: float | None = None
    """When the next attempt is due; ``None``: the step does not wait."""
    failing_since: float | None = None
    """When the first attempt failed; ``None``: none has."""

    def may_have_begun(self, step: str, earlier: Attempt | None) -> bool:
        """Whether a ``once`` step without a record may have begun before its run was restored from a backup.

        ``self`` is the attempt at ``RESTORED_POSITION``, and ``earlier`` what is known of the step itself: since it
        has begun again, or a person has said that it did not happen, that is newer.
        """
        return earlier is None or earlier.name not in ("", step) or earlier.at <= self.at


def make_restored_attempt(restored_from: str, at: float) -> Attempt:
    """The attempt at ``RESTORED_POSITION`` of a run that was restored from this backup, at this time."""
    return Attempt(RESTORED_POSITION, 0, intent=True, at=at, name=restored_from)


class Signal(NamedTuple):
    """A value that was sent into a run and that no record has consumed yet.

    The end of an awaited run arrives the same way, and so does a person's answer.
    """

    id: int
    name: str
    """For the end of a run: the state in which it ended. For an answer: its approval."""
    payload: bytes
    """For the end of a run: its output, or its error (``null`` when it has neither)."""
    sent_at: float
    position: int | None = None
    """For the end of a run and for an answer: the position of the command that waits; ``None`` for a signal."""


class RewindPoint(NamedTuple):
    """The point to which a retry has rewound a run: commands and draws after it differ from the earlier ones."""

    position: int
    """How many commands had been issued when the first of the removed failures was delivered."""
    seq: int
    """The ``seq`` of that failure. Code that has not seen a record with this number repeats its earlier draws."""


class Rewind(NamedTuple):
    """What a retry removes from the journal, so that the run continues from where it went wrong.

    Only the worker that executes the code knows this, so it is written with the run's end. The failed records ended the
    run, or are failures after the first one that did. Whatever the workflow issued after it had seen the first one, it
    issued because of that: those records are removed as well. What had been issued before stays, even if its outcome
    came later, because it is paid for. Patches and a program's calls stay.
    """

    failed_seqs: tuple[int, ...]
    """The ``seq`` of the failed records."""
    command_count: int
    """How many commands had been issued when the first of them was delivered."""
    timer_count: int
    """How many timers had been set by then."""
    is_compensated: bool = False
    """Compensations have undone what is recorded, so the run cannot continue from there."""
    once_seqs: tuple[int, ...] = ()
    """The ``seq`` of removed records of ``once`` steps, which would run a second time."""
    abandoned_positions: tuple[int, ...] = ()
    """Positions of runs that the workflow no longer waited for by then: they stay as they are."""

    @property
    def point(self) -> RewindPoint:
        """The point to which the retry rewinds, if it removes anything."""
        return RewindPoint(self.command_count, min(self.failed_seqs))

    def should_remove(self, record: Record) -> bool:
        """Whether a retry removes this record."""
        first = min(self.failed_seqs, default=None)
        if first is None or record.seq < first or record.kind in (RecordKind.PATCH, RecordKind.CALL):
            return False  # a patch may have been decided before the failure was seen, whatever its `seq`
        if record.seq in self.failed_seqs or not (record.kind.has_position or record.kind is RecordKind.TIMER):
            return True
        return record.position >= (self.timer_count if record.kind is RecordKind.TIMER else self.command_count)
