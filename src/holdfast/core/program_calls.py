"""Which recorded call a program's call is.

A *program* is code that Holdfast does not schedule: it may use threads, its own event loops, and clocks. After a crash
it runs again from its beginning, and its calls may come in another order than the first time. So a call is matched with
the recorded one by its content, and by its order within a logical thread:

- A **logical thread** is a task or a thread of the program that makes calls. The code that a call executes in the
  program, such as an agent's tool, is a logical thread of its own.
- Within a logical thread, a call is the first recorded call with the same kind, name, and content that the thread has
  not made again yet.
- A new logical thread is matched by its first call with a recorded thread, of the same call's code if it is in one.

If a thread has recorded outcomes left and makes a call that matches none of them, the program has changed, and nobody
can tell whether they still mean what they meant: see ``find``.

The journal has a ``CALL`` record for each call, with what identifies it (``CallIdentity``). The call's position says
which record is its outcome. The record is written together with the first outcome that follows, so it costs no commit
of its own; a call that is lost with its process was made by a program that makes it again.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection
from typing import NamedTuple

from holdfast.core.commands import Outcome
from holdfast.core.records import Record, RecordKind

_encode_compact = json.JSONEncoder(separators=(",", ":")).encode

MAIN_THREAD = 0
"""The number of the thread in which the program's function runs."""


class CallIdentity(NamedTuple):
    """What identifies a call, besides its name: the payload of its ``CALL`` record."""

    kind: RecordKind
    """The kind of its command."""
    digest: str
    """A digest of its content; may be empty."""
    thread: int
    """The number of its logical thread."""
    container: int = -1
    """The position of the call that executes the thread's code; -1: none."""
    details: str = ""
    """JSON that describes the call, for people: the request of a model call, or the id of a tool call."""

    def encode(self) -> bytes:
        """The payload of the record."""
        return _encode_compact([int(self.kind), *self[1:]]).encode()

    @classmethod
    def decode(cls, payload: bytes) -> CallIdentity:
        """The identity in a record's payload."""
        kind, *rest = json.loads(payload)
        return cls(RecordKind(kind), *rest)


class LoggedCall:
    """A call of a program, recorded or new."""

    __slots__ = ("identity", "is_intended", "name", "outcome", "position")

    def __init__(self, position: int, name: str, identity: CallIdentity) -> None:
        self.position = position
        self.name = name
        self.identity = identity
        self.outcome: Outcome | None = None
        self.is_intended = False
        """Whether an earlier process was about to execute this ``once`` step, and may have."""

    @property
    def must_match(self) -> bool:
        """Whether the program may not pass over it: it has an outcome, or may have had an effect."""
        return self.outcome is not None or self.is_intended


class LogicalThread:
    """A task or thread of the program that makes calls."""

    def __init__(self, container: int = -1) -> None:
        self.container = container
        self.number = -1
        """-1 until its first call."""
        self.unmatched: deque[LoggedCall] = deque()
        """Recorded calls that it has not made again, in order."""


class CallLog:
    """The calls of one program."""

    def __init__(self, intended_positions: Collection[int] = ()) -> None:
        self.main_thread = LogicalThread()
        self.next_position = 0
        self._next_thread = MAIN_THREAD + 1
        self._threads: dict[int, dict[int, list[LoggedCall]]] = {}
        """The calls of recorded threads that the program has not started again, by container and number."""
        self._calls: dict[int, LoggedCall] = {}
        """By position."""
        self._intended_positions = intended_positions
        """Positions of ``once`` steps that an earlier process was about to execute, and may have."""
        self.main_thread.number = MAIN_THREAD

    # The journal

    def add_recorded(self, record: Record) -> None:
        """Add a call from the journal."""
        identity = CallIdentity.decode(record.payload or b"")
        call = self._calls[record.position] = LoggedCall(record.position, record.name, identity)
        call.is_intended = record.position in self._intended_positions
        self.next_position = max(self.next_position, record.position + 1)
        self._next_thread = max(self._next_thread, identity.thread + 1)
        if identity.thread == MAIN_THREAD:
            self.main_thread.unmatched.append(call)
            return
        threads = self._threads.setdefault(identity.container, {})
        threads.setdefault(identity.thread, []).append(call)

    def get(self, position: int) -> LoggedCall | None:
        """The call with this position."""
        return self._calls.get(position)

    def list_calls(self) -> list[LoggedCall]:
        """All calls, by position."""
        return [self._calls[position] for position in sorted(self._calls)]

    # The program

    def find(self, thread: LogicalThread, kind: RecordKind, name: str, digest: str) -> LoggedCall | None:
        """The recorded call that this call repeats; ``None``: it is new. The thread has then made it.

        A new call is refused with ``ProgramChanged`` if its thread has recorded calls left that must match.
        """
        if thread.number < 0:
            return self._bind_thread(thread, kind, name, digest)
        unmatched = thread.unmatched
        for call in unmatched:
            if _is_same(call, kind, name, digest):
                unmatched.remove(call)
                return call
        for call in unmatched:
            if call.must_match:
                raise ProgramChanged(call)
        return None

    def peek_position(self, thread: LogicalThread, digest: str) -> int:
        """The position that the thread's next call will have, if this is the digest of its content."""
        if thread.number < 0:
            candidates = [calls[0] for calls in self._threads.get(thread.container, {}).values()]
        else:
            candidates = list(thread.unmatched)
        return next((call.position for call in candidates if call.identity.digest == digest), self.next_position)

    def add(self, thread: LogicalThread, kind: RecordKind, name: str, digest: str, details: str = "") -> LoggedCall:
        """Add a new call at the next position."""
        identity = CallIdentity(kind, digest, thread.number, thread.container, details)
        call = self._calls[self.next_position] = LoggedCall(self.next_position, name, identity)
        self.next_position += 1
        return call

    def put_back(self, thread: LogicalThread, call: LoggedCall) -> None:
        """A call has ended without an outcome: if the program repeats it, it has the same position."""
        thread.unmatched.appendleft(call)

    def skip_unmatched(self, thread: LogicalThread) -> None:
        """The program takes another path here: its thread may pass over the calls that it has not made again."""
        thread.unmatched = deque(call for call in thread.unmatched if not call.must_match)

    def _bind_thread(self, thread: LogicalThread, kind: RecordKind, name: str, digest: str) -> LoggedCall | None:
        """The first call of a thread decides which recorded thread it is."""
        threads = self._threads.get(thread.container, {})
        for number, calls in threads.items():
            if _is_same(calls[0], kind, name, digest):
                del threads[number]
                thread.number = number
                thread.unmatched.extend(calls[1:])
                return calls[0]
        thread.number = self._next_thread
        self._next_thread += 1
        return None


class ProgramChanged(Exception):
    """A program makes a call that matches none of the recorded calls that its thread has left."""

    def __init__(self, recorded: LoggedCall) -> None:
        super().__init__(recorded.name)
        self.recorded = recorded
        """The first of these."""


def _is_same(call: LoggedCall, kind: RecordKind, name: str, digest: str) -> bool:
    return call.name == name and call.identity.digest == digest and call.identity.kind is kind
