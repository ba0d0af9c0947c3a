"""Which recorded call a program's call is.

A *program* is code that Holdfast does not schedule: it may use threads, its own event loops, and clocks. After a crash
it runs again from its beginning, and its calls may come in another order than the first time. So a call is matched with
the recorded one by its content, and by its order within a logical thread:

- A **logical thread** is a task or a thread of the program that makes calls. The code that a call executes in the
  program, such as an agent's tool, is a logical thread of its own.
- Within a logical thread, a call is the first recorded call with the same kind, name, and content that the thread has
  not made again yet.
- A new logical thread is matched by its first call with a recorded thread, of the same call's code if it is in one.
- A **named** thread is matched by its name, so a change of its first call is noticed, too. The loop of a framework that
  runs in a task of its own has one, and so has each call of ``once`` with a key.

Threads may begin alike and differ later, such as two branches that first read the same settings. Which is which shows
in the first call that differs: if another recorded thread continues with it, and the calls so far had the same
outcomes, the two change places.

If a thread has recorded outcomes left and makes a call that matches none of them, the program has changed, and nobody
can tell whether they still mean what they meant: see ``find``. A changed *first* call of a thread without a name looks
like a new thread. But a new thread makes no ``once`` call that is recorded in a thread that has not started again.

The journal has a ``CALL`` record for each call, with what identifies it (``CallIdentity``). The call's position says
which record is its outcome. The record is written together with the first outcome that follows, so it costs no commit
of its own; a call that is lost with its process was made by a program that makes it again.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import deque
from collections.abc import Collection, Iterator
from typing import NamedTuple

from holdfast.core.commands import Outcome
from holdfast.core.records import Record, RecordKind

_encode_compact = json.JSONEncoder(separators=(",", ":")).encode

MAIN_THREAD = 0
"""The number of the thread in which the program's function runs."""
FIRST_NAMED_THREAD = 1 << 32
"""The numbers of named threads are digests of their names, and start here."""


_FirstCall = tuple[int, RecordKind, str, str]
"""The container of a thread, and the kind, name, and digest of its first call."""


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

    __slots__ = ("identity", "is_intended", "name", "outcome", "position", "record")

    def __init__(self, position: int, name: str, identity: CallIdentity) -> None:
        self.position = position
        self.name = name
        self.identity = identity
        self.outcome: Outcome | None = None
        """The recorded outcome, until the program has got it."""
        self.record: Record | None = None
        """The record of the outcome, if it was there before the program ran."""
        self.is_intended = False
        """Whether an earlier process was about to execute this ``once`` step, and may have."""

    @property
    def must_match(self) -> bool:
        """Whether the program may not pass over it: it has an outcome, or may have had an effect."""
        return self.outcome is not None or self.is_intended

    @property
    def is_unrepeated(self) -> bool:
        """Whether an earlier process made it, and has recorded its outcome, and the program has not made it again."""
        return self.record is not None and self.outcome is not None


class LogicalThread:
    """A task or thread of the program that makes calls."""

    def __init__(self, container: int = -1) -> None:
        self.container = container
        self.number = -1
        """-1 until its first call."""
        self.unmatched: deque[LoggedCall] = deque()
        """Recorded calls that it has not made again, in order."""
        self.repeated: list[LoggedCall] | None = None
        """Those that it has made again, as long as another thread may be meant; ``None``: it is this one."""
        self.is_new = False
        """It was no recorded thread when it made its first call."""


class CallLog:
    """The calls of one program."""

    def __init__(self, intended_positions: Collection[int] = ()) -> None:
        self.main_thread = LogicalThread()
        self.next_position = 0
        self._next_thread = MAIN_THREAD + 1
        self._threads: dict[int, dict[int, list[LoggedCall]]] = {}
        """The calls of recorded threads that the program has not started again, by container and number."""
        self._numbers_by_first_call: dict[_FirstCall, dict[int, None]] = {}
        """The numbers of these threads, in order, by container and first call: a program may start thousands."""
        self._similar_threads: dict[int, list[LogicalThread]] = {}
        """By container, threads that began as another recorded thread does."""
        self._named_threads: dict[tuple[int, int], LogicalThread] = {}
        """By container and number."""
        self._start_counts: dict[str, Iterator[int]] = {}
        """The numbers of the threads that a thread starts."""
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
        if identity.thread < FIRST_NAMED_THREAD:
            self._next_thread = max(self._next_thread, identity.thread + 1)
        if identity.thread == MAIN_THREAD:
            self.main_thread.unmatched.append(call)
            return
        threads = self._threads.setdefault(identity.container, {})
        if identity.thread not in threads and identity.thread < FIRST_NAMED_THREAD:
            self._get_numbers(call)[identity.thread] = None
        threads.setdefault(identity.thread, []).append(call)

    def get(self, position: int) -> LoggedCall | None:
        """The call with this position."""
        return self._calls.get(position)

    def list_calls(self) -> list[LoggedCall]:
        """All calls, by position."""
        return [self._calls[position] for position in sorted(self._calls)]

    # The program

    def get_named_thread(self, container: int, name: str) -> LogicalThread:
        """The thread with this name, in the code of this call."""
        digest = hashlib.blake2b(name.encode(), digest_size=6).digest()
        thread = LogicalThread(container)
        thread.number = FIRST_NAMED_THREAD + int.from_bytes(digest)
        return self._named_threads.setdefault((container, thread.number), thread)

    def make_thread_name(self, starter: LogicalThread, content: str) -> str:
        """A name for a thread that this one starts. It counts them, so that it is the same when the program runs again.

        A starter that has made no calls has no number yet, so it counts by the content of what it starts.
        """
        origin = content if starter.number < 0 else str(starter.number)
        key = f"{starter.container} {origin}"
        return f"{origin} {next(self._start_counts.setdefault(key, itertools.count()))}"

    def find(
        self, thread: LogicalThread, kind: RecordKind, name: str, digest: str, *, is_once: bool = False
    ) -> LoggedCall | None:
        """The recorded call that this call repeats; ``None``: it is new. The thread has then made it.

        A new call is refused with ``ProgramChanged`` if its thread has recorded calls left that must match, and a
        ``once`` call also if a thread that has not started again has it.
        """
        if thread.number < 0:
            found = self._bind_thread(thread, kind, name, digest)
        else:
            self._bind_named_thread(thread)
            found = _take(thread, kind, name, digest)
            if found is None and thread.repeated and self._change_places(thread, kind, name, digest):
                found = _take(thread, kind, name, digest)
        if found is not None:
            return found
        for call in thread.unmatched:
            if call.must_match:
                raise ProgramChanged(call)
        if is_once and thread.is_new:
            for calls in self._threads.get(thread.container, {}).values():
                for call in calls:
                    if call.must_match and _is_same(call, kind, name, digest):
                        raise ProgramChanged(call)
        return None

    def peek_position(self, thread: LogicalThread, digest: str) -> int:
        """The position that the thread's next call will have, if this is the digest of its content."""
        if thread.number < 0:
            threads = self._threads.get(thread.container, {})
            candidates = [calls[0] for number, calls in threads.items() if number < FIRST_NAMED_THREAD]
        else:
            self._bind_named_thread(thread)
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

    def take_from_unstarted(self, call: LoggedCall) -> None:
        """A thread makes a call that is recorded in one that has not started again."""
        threads = self._threads[call.identity.container]
        number = next(number for number, calls in threads.items() if call in calls)
        calls = threads.pop(number)
        self._get_numbers(calls[0]).pop(number, None)
        if left := [other for other in calls if other is not call]:
            threads[number] = left
            self._get_numbers(left[0])[number] = None

    def _get_numbers(self, first: LoggedCall) -> dict[int, None]:
        """The numbers of the threads that have not started again, and whose first call is the same as this one."""
        identity = first.identity
        first_call = identity.container, identity.kind, first.name, identity.digest
        return self._numbers_by_first_call.setdefault(first_call, {})

    def skip_unmatched(self, thread: LogicalThread) -> None:
        """The program takes another path here: its thread may pass over the calls that it has not made again."""
        thread.unmatched = deque(call for call in thread.unmatched if not call.must_match)

    def _bind_named_thread(self, thread: LogicalThread) -> None:
        if thread.number >= FIRST_NAMED_THREAD:
            thread.unmatched.extend(self._threads.get(thread.container, {}).pop(thread.number, ()))

    def _bind_thread(self, thread: LogicalThread, kind: RecordKind, name: str, digest: str) -> LoggedCall | None:
        """The first call of a thread decides which recorded thread it is."""
        threads = self._threads.get(thread.container, {})
        similar = self._numbers_by_first_call.get((thread.container, kind, name, digest))
        if not similar:
            thread.number, thread.is_new = self._next_thread, True
            self._next_thread += 1
            return None
        thread.number = next(iter(similar))
        del similar[thread.number]
        first, *rest = threads.pop(thread.number)
        thread.unmatched.extend(rest)
        known = self._similar_threads.setdefault(thread.container, [])
        if similar or any(other.repeated and _is_alike(other.repeated[0], first) for other in known):
            thread.repeated = [first]
            known.append(thread)
        return first

    def _change_places(self, thread: LogicalThread, kind: RecordKind, name: str, digest: str) -> bool:
        """Let the thread be another one that began like it and continues with this call, if there is one."""
        begun = thread.repeated or []
        threads = self._threads.get(thread.container, {})
        for number, calls in threads.items():
            is_alike = len(calls) > len(begun) and all(map(_is_alike, begun, calls))
            if is_alike and any(_is_same(call, kind, name, digest) for call in calls[len(begun) :]):
                del threads[number]
                threads[thread.number] = [*calls[: len(begun)], *thread.unmatched]
                numbers = self._get_numbers(calls[0])
                del numbers[number]
                numbers[thread.number] = None
                thread.number, thread.unmatched = number, deque(calls[len(begun) :])
                return True
        for other in self._similar_threads.get(thread.container, ()):
            repeated = other.repeated or []
            is_alike = len(repeated) == len(begun) and all(map(_is_alike, begun, repeated))
            if other is not thread and is_alike and any(_is_same(call, kind, name, digest) for call in other.unmatched):
                thread.number, other.number = other.number, thread.number
                thread.unmatched, other.unmatched = other.unmatched, thread.unmatched
                return True
        return False


class ProgramChanged(Exception):
    """A program makes a call that matches none of the recorded calls that its thread has left."""

    def __init__(self, recorded: LoggedCall) -> None:
        super().__init__(recorded.name)
        self.recorded = recorded
        """The first of these."""


def _take(thread: LogicalThread, kind: RecordKind, name: str, digest: str) -> LoggedCall | None:
    """The first recorded call that the thread has not made again and that is the same."""
    for call in thread.unmatched:
        if _is_same(call, kind, name, digest):
            thread.unmatched.remove(call)
            if thread.repeated is not None:
                thread.repeated.append(call)
            return call
    return None


def _is_alike(call: LoggedCall, other: LoggedCall) -> bool:
    """Whether two calls are the same, and had the same outcome."""
    return (
        _is_same(call, other.identity.kind, other.name, other.identity.digest)
        and call.record is not None
        and other.record is not None
        and (call.record.ok, call.record.payload) == (other.record.ok, other.record.payload)
    )


def _is_same(call: LoggedCall, kind: RecordKind, name: str, digest: str) -> bool:
    return call.name == name and call.identity.digest == digest and call.identity.kind is kind
