"""Limits what a run starts in Temporal at a time.

Temporal accepts 4 MB in one message, and 2,000 open activities and 2,000 open children of a run. It stops a run that
asks for more at once, or retries its workflow task forever. So starts over the limit wait here until an earlier one is
accepted or has ended. The order follows from the history alone, so it is the same in a live and in a rebuilt run.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.stores.temporal.payload_storage import MIN_EXTERNAL_BYTES

MAX_ACTIVITIES = 1000
MAX_CHILDREN = 1800
MAX_UNACCEPTED_BYTES = 2_000_000
"""The maximum size of the inputs of children that Temporal has not accepted yet. Histories depend on these numbers, so
they cannot change for existing runs."""

_BASE_MESSAGE_BYTES = 1000
"""The size of a child without its inputs, and of a reference to an external payload."""


def estimate_message_size(inputs: bytes, *, external_payloads: bool) -> int:
    """The size of a child with these inputs in a message."""
    return _BASE_MESSAGE_BYTES + (0 if external_payloads and len(inputs) >= MIN_EXTERNAL_BYTES else len(inputs))


class StartLimiter:
    """Starts activities or children in order, within the limits.

    Args:
        max_in_flight: how many may be in flight.
        max_bytes: the total size of those in flight that Temporal has not accepted yet.
    """

    def __init__(self, max_in_flight: int, max_bytes: int = MAX_UNACCEPTED_BYTES) -> None:
        self._max_in_flight = max_in_flight
        self._max_bytes = max_bytes
        self._unaccepted_bytes = 0
        self._in_flight: dict[int, int] = {}
        self._waiting: dict[int, tuple[int, Callable[[], None]]] = {}

    def start_when_possible(self, position: int, start: Callable[[], None], size: int = 0) -> None:
        """Call ``start`` as soon as the limits allow it, perhaps now."""
        self._waiting[position] = size, start
        self._start_waiting()

    def note_accepted(self, position: int) -> None:
        """Temporal has accepted it, so its size no longer counts."""
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
        """Do not start this one; false if it has already started."""
        return self._waiting.pop(position, None) is not None

    def _start_waiting(self) -> None:
        while self._waiting:
            position, (size, start) = next(iter(self._waiting.items()))
            is_full = len(self._in_flight) >= self._max_in_flight or self._unaccepted_bytes + size > self._max_bytes
            if is_full and self._in_flight:
                return
            del self._waiting[position]
            self._in_flight[position] = size
            self._unaccepted_bytes += size
            start()
