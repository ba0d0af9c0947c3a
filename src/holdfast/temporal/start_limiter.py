"""How much a run asks of Temporal at a time.

Temporal takes 4 MB in one message, and at most 2,000 activities and 2,000 children of a run that have not ended. A run
that asks for more in one go is stopped, or its workflow task is tried for ever. So what is too much waits here until
something before it is there, or over. Who waits when follows from the history, live as when a run is brought back.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.stores.temporal.payload_storage import LARGE

MOST_ACTIVITIES = 1000
MOST_CHILDREN = 1800
MOST_BYTES = 2_000_000
"""Of inputs of children that are not known to have been started. What follows from these numbers is in histories: they
cannot be changed for runs that are under way."""

_REFERENCE = 1000
"""Bytes of a child without its inputs, and of a reference to a payload that is kept apart."""


def cost(inputs: bytes, *, apart: bool) -> int:
    """What a child with these inputs takes of a message."""
    return _REFERENCE + (0 if apart and len(inputs) >= LARGE else len(inputs))


class Pace:
    """Lets things begin one after the other, as far as there is room.

    Args:
        most: how many may be under way.
        most_bytes: how many bytes those may have together that nobody has accepted yet.
    """

    def __init__(self, most: int, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self._under_way: dict[int, int] = {}
        self._waiting: dict[int, tuple[int, Callable[[], None]]] = {}

    def ask(self, position: int, begin: Callable[[], None], size: int = 0) -> None:
        """Begin this when there is room: now, or later."""
        self._waiting[position] = size, begin
        self._go_on()

    def accepted(self, position: int) -> None:
        """It is there, and needs no place in a message any more."""
        if position in self._under_way:
            self._bytes -= self._under_way[position]
            self._under_way[position] = 0
            self._go_on()

    def over(self, position: int) -> None:
        """It has ended."""
        self.accepted(position)
        if self._under_way.pop(position, None) is not None:
            self._go_on()

    def drop(self, position: int) -> bool:
        """Nobody wants it any more. Whether it has not begun, and never will."""
        return self._waiting.pop(position, None) is not None

    def _go_on(self) -> None:
        while self._waiting:
            position, (size, begin) = next(iter(self._waiting.items()))
            is_full = len(self._under_way) >= self._most or self._bytes + size > self._most_bytes
            if is_full and self._under_way:
                return
            del self._waiting[position]
            self._under_way[position] = size
            self._bytes += size
            begin()
