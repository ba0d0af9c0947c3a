"""Which records a failure comes from.

An exception that a workflow sees because of a record carries the record's ``FailureOrigin``. When the workflow ends
with an exception, the origins found in it tell which records ended the run, and what had been asked for before the
first of them was delivered: everything the workflow issued later, it issued because of that. So a retry can continue
from there without knowing the code (see ``records.Rewind``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_ORIGINS_KEY = "holdfast: origin"
"""Where an exception keeps its origin: no identifier, so it is taken for none of the exception's own attributes."""


class FailureOrigin(NamedTuple):
    """The record that something in the workflow comes from, and what had been asked for when it was delivered."""

    seq: int
    command_count: int
    timer_count: int


def mark_origin(error: BaseException, *origins: FailureOrigin) -> None:
    """The workflow sees this exception because of these records."""
    vars(error)[_ORIGINS_KEY] = list(origins)


def has_origin(error: BaseException) -> bool:
    """Whether the workflow sees this very exception because of a record."""
    return bool(vars(error).get(_ORIGINS_KEY))


def iter_exception_chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, what it was raised from, and so on."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def find_origins(error: BaseException, seen: set[int] | None = None) -> list[FailureOrigin]:
    """The records that an exception comes from: its own, else that of what it was raised from; all of a group's."""
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
