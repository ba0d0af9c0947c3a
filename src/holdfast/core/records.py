"""A run's journal: what happened to it, in the order the workflow saw it.

A *command* is something the workflow asked for (a step, a timer, a signal, another run); commands are numbered in the
order they are issued. A *record* is the outcome of one command. The journal is the list of records in the order in
which outcomes were handed to the workflow, so ``seq`` says when, and ``(kind's stream, position)`` says to which
command. ``seq`` rises, and has gaps where a retry has taken a record back.

All commands but timers share one stream of positions; timers have one of their own, so that wrapping a recorded step in
``asyncio.timeout`` does not move the steps behind it. The run's deadline and its cancellation are outside both: nobody
asked for them. So is a patch: code asks for it, but waits for nothing.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class RecordKind(IntEnum):
    """What kind of command a record is the outcome of. The numbers are stored: never reuse one."""

    STEP = 1
    TIMER = 2
    SIGNAL = 3
    DEADLINE = 4
    CHILD = 5
    """A run that the workflow waits for has ended."""
    START = 6
    """A run was started that goes its own way; the payload is its id."""
    COMPENSATION = 7
    """A recorded step was undone, because the run failed or was cancelled."""
    CANCEL = 8
    """Somebody asked for the run to be cancelled, and its holder has begun to do so."""
    APPROVAL = 9
    """A person has answered a question; the payload says what, who and when."""
    PATCH = 10
    """The run takes the new way of a change in its code: see ``patches``."""

    @property
    def label(self) -> str:
        """The word for people."""
        return self.name.lower()

    @property
    def has_position(self) -> bool:
        """Whether it is the outcome of a command in the stream that all share but timers."""
        return self not in (RecordKind.TIMER, RecordKind.DEADLINE, RecordKind.CANCEL, RecordKind.PATCH)


SESSION_STEP = "session"
"""The first step of a run that is in a session: it tells which run came before it."""

WAIT_KINDS = (RecordKind.SIGNAL, RecordKind.CHILD, RecordKind.APPROVAL)
"""Commands that, once they have been begun, need nobody here."""


class Record(NamedTuple):
    """The outcome of one command, as it stands in the journal."""

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
    """How many attempts it took; 0 for what a person has settled."""
    worker: int = 0
    """The worker that recorded it (``workers.id`` in the store)."""
    epoch: int = 0
    """Under which claim of the run it was recorded: see ``Run.epoch`` in the store."""
    preview: str = ""
    """The arguments, shortened, for people to read; never used in replay."""

    @property
    def is_settled(self) -> bool:
        """Whether a person has said what came of it, and no attempt: its outcome was unknown."""
        return self.attempts == 0


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
    outcome: bytes | None = None
    """The encoded value of a transactional step: it was committed with what the step did, and only its record is
    missing. Nobody may run the step again."""
    retry_at: float | None = None
    """The step waits: its next attempt is made then, and not earlier. ``None``: it does not wait."""
    failing_since: float | None = None
    """When its first attempt failed; ``None``: none has."""


class Signal(NamedTuple):
    """A value that was sent into a run and that no record has consumed yet.

    The end of a run that this one waits for comes the same way, and so does a person's answer.
    """

    id: int
    name: str
    """For the end of a run: the state in which it ended. For an answer: which question it was given to."""
    payload: bytes
    """For the end of a run: its output, or its error (``null`` when it has neither)."""
    sent_at: float
    position: int | None = None
    """For the end of a run and for an answer: the position of the command that waits; ``None`` for a signal."""


class RewindPoint(NamedTuple):
    """Where a retry has taken a run back to: what is issued and drawn after it differs from what was there before."""

    position: int
    """How many commands had been issued when the first of the removed failures was delivered."""
    seq: int
    """That failure's. Code that has not seen a record with this number makes the draws that it made before."""


class Rewind(NamedTuple):
    """What a retry takes back from the journal, so that the run goes on from where it went wrong.

    Known only to whoever executed the code, so it is written with the run's end. ``failed_seqs`` are the records that
    ended the run, and failures that came after the first of them. Whatever the workflow issued after it had seen the
    first, it issued because of that: those records go as well. What had been issued before stays, also if its outcome
    came later: it is paid for. Patches stay.
    """

    failed_seqs: tuple[int, ...]
    """Their ``seq``."""
    command_count: int
    """How many commands had been issued when the first of them was delivered."""
    timer_count: int
    """How many timers had been set by then."""
    is_compensated: bool = False
    """Compensations have undone what is recorded: nothing can go on from there."""
    once_seqs: tuple[int, ...] = ()
    """The ``seq`` of those that go and are of ``once`` steps, which would be run a second time."""
    abandoned_positions: tuple[int, ...] = ()
    """Positions of runs that the workflow had stopped waiting for by then: they stay as they are."""

    @property
    def point(self) -> RewindPoint:
        """Where the retry goes back to, if it removes anything."""
        return RewindPoint(self.command_count, min(self.failed_seqs))

    def should_remove(self, record: Record) -> bool:
        """Whether a retry takes this record back."""
        first = min(self.failed_seqs, default=None)
        if first is None or record.seq < first or record.kind is RecordKind.PATCH:
            return False  # a patch may have been decided before the failure was seen, whatever its `seq`
        if record.seq in self.failed_seqs or not (record.kind.has_position or record.kind is RecordKind.TIMER):
            return True
        return record.position >= (self.timer_count if record.kind is RecordKind.TIMER else self.command_count)
