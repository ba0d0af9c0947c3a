"""How much a run asks of Temporal at a time.

Temporal takes 4 MB in one message, and at most 2,000 activities and 2,000 children of a run that have not ended. A run
that asks for more in one go is stopped, or its workflow task is tried for ever. So what is too much waits here until
something before it is there, or over. Who waits when follows from the history, live as when a run is brought back.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.stores.temporal.payload_storage import MIN_EXTERNAL_BYTES

MAX_ACTIVITIES = 1000
MAX_CHILDREN = 1800
MAX_UNACCEPTED_BYTES = 2_000_000
"""Of inputs of children that are not known to have been started. What follows from these numbers is in histories: they
cannot be changed for runs that are under way."""

_BASE_MESSAGE_BYTES = 1000
"""Bytes of a child without its inputs, and of a reference to a payload that is kept apart."""


def estimate_message_size(inputs: bytes, *, external_payloads: bool) -> int:
    """What a child with these inputs takes of a message."""
    return _BASE_MESSAGE_BYTES + (0 if external_payloads and len(inputs) >= MIN_EXTERNAL_BYTES else len(inputs))


class StartLimiter:
    """Lets things begin one after the other, as far as there is room.

    Args:
        max_in_flight: how many may be under way.
        max_bytes: how many bytes those may have together that nobody has accepted yet.
    """

    def __init__(self, max_in_flight: int, max_bytes: int = MAX_UNACCEPTED_BYTES) -> None:
        self._max_in_flight = max_in_flight
        self._max_bytes = max_bytes
        self._unaccepted_bytes = 0
        self._in_flight: dict[int, int] = {}
        self._waiting: dict[int, tuple[int, Callable[[], None]]] = {}

    def start_when_possible(self, position: int, start: Callable[[], None], size: int = 0) -> None:
        """Begin this when there is room: now, or later."""
        self._waiting[position] = size, start
        self._start_waiting()

    def note_accepted(self, position: int) -> None:
        """It is there, and needs no place in a message any more."""
        if position in self._in_flight:
            self._unaccepted_bytes -= self._in_flight[position]
            self._in_flight[position] = 0
            self._start_waiting()

    def note_ended(self, position: int) -> None:
        """It has ended."""
        self.note_accepted(position)
        if self._in_flight.pop(position, None) is not None:
            self._start_waiting()

    def discard_waiting(self, position: int) -> bool:
        """Nobody wants it any more. Whether it has not begun, and never will."""
        return self._waiting.pop(position, None) is not None

    def _start_waiting(self) -> None:
        while self._waiting:
            position, (size, begin) = next(iter(self._waiting.items()))
            is_full = len(self._in_flight) >= self._max_in_flight or self._unaccepted_bytes + size > self._max_bytes
            if is_full and self._in_flight:
                return
            del self._waiting[position]
            self._in_flight[position] = size
            self._unaccepted_bytes += size
            begin()
