"""Which records a failure comes from.

An exception that a workflow sees because of a record carries the record's ``FailureOrigin``. When the workflow ends
with an exception, its origins say which records ended the run, and how many commands had been issued before the first
of them was delivered: everything that the workflow issued later, it issued because of it. So a retry can continue from
there without knowing the code (see ``records.Rewind``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_ORIGINS_KEY = "holdfast: origin"
"""The attribute that holds an exception's origins: not an identifier, so it cannot be one of its own attributes."""


class FailureOrigin(NamedTuple):
    """The record that caused an exception, and how much had been issued when the record was delivered."""

    seq: int
    command_count: int
    timer_count: int


def mark_origin(error: BaseException, *origins: FailureOrigin) -> None:
    """Note that the workflow sees this exception because of these records."""
    vars(error)[_ORIGINS_KEY] = list(origins)


def has_origin(error: BaseException) -> bool:
    """Whether the workflow sees this exception because of a record."""
    return bool(vars(error).get(_ORIGINS_KEY))


def iter_exception_chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, the one it was raised from, and so on."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def find_origins(error: BaseException, seen: set[int] | None = None) -> list[FailureOrigin]:
    """The origins of an exception: its own, else those of the one it was raised from; of a group, those of all."""
    seen = set() if seen is None else seen  # a member may be raised in the handler of its own group
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        origins: list[FailureOrigin] | None = vars(current).get(_ORIGINS_KEY)
        if origins is not None:
            return origins
        members: tuple[BaseException, ...] = getattr(current, "exceptions", ())  # of a group
        if isinstance(current, BaseExceptionGroup) and (
            found := [o for one in members for o in find_origins(one, seen)]
        ):
            return found
        current = current.__cause__ or current.__context__
    return []
