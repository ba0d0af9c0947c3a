"""What is kept for the case that a run goes wrong: which steps can be undone, and what a retry would take back.

An exception that a workflow sees because of a record carries the record's ``Origin``. When the workflow ends with an
exception, the origins found in it tell which records ended the run, and what had been asked for before the first of
them was delivered: everything the workflow issued later, it issued because of that. So a retry can go on from there
without knowing the code (see ``records.Rewind``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from holdfast.core.records import Record, Rewind

_ORIGIN = "holdfast: origin"
"""Where an exception keeps its origin: no identifier, so it is taken for none of the exception's own attributes."""


class Origin(NamedTuple):
    """The record that something in the workflow comes from, and what had been asked for when it was delivered."""

    seq: int
    positions: int
    timers: int


class Call(Protocol):
    """What the core asks of the call of a step."""

    @property
    def is_once(self) -> bool:
        """Whether nobody may run it a second time."""
        ...

    @property
    def is_undoable(self) -> bool:
        """Whether it has a compensation."""
        ...

    def undo(self, payload: bytes) -> tuple[str, Any] | None:
        """Name and call of what undoes it, from its recorded output; ``None``: that leaves nothing to undo."""
        ...


class UndoLog:
    """The steps of a run that were done and can be undone, in the order of their records."""

    def __init__(self) -> None:
        self.undone = 0
        """How many of them have been."""
        self._steps: list[tuple[Record, Call]] = []
        self._once: list[Record] = []
        self._failures: list[int] = []
        """The ``seq`` of every failure that may be tried again."""

    def failed(self, record: Record) -> None:
        """A command has failed, whether the workflow saw that or had cancelled it meanwhile."""
        self._failures.append(record.seq)

    def done(self, record: Record, call: Call) -> None:
        """A step has its outcome."""
        if record.ok and call.is_undoable:
            self._steps.append((record, call))
        if call.is_once:
            self._once.append(record)

    def pop(self) -> tuple[Record, Call]:
        """The last step that has not been undone."""
        return self._steps.pop()

    def __bool__(self) -> bool:
        return bool(self._steps)

    def rewind(self, origins: list[Origin], given_up: Mapping[int, int], *, undone: bool) -> Rewind | None:
        """What a retry takes back from a run that ended because of these records.

        ``given_up`` are the positions of runs that the workflow no longer waits for, and which record it had seen last
        when it stopped.
        """
        if not origins:
            return Rewind((), 0, 0, undone=True) if undone else None
        first = min(origins)
        # Failures behind the first are no results that are paid for: kept, they would end the run once more.
        seqs = tuple(sorted({origin.seq for origin in origins} | {seq for seq in self._failures if seq > first.seq}))
        before = tuple(position for position, seen in given_up.items() if seen < first.seq)
        rewind = Rewind(seqs, first.positions, first.timers, undone, given_up=before)
        return rewind._replace(once=tuple(sorted(record.seq for record in self._once if rewind.takes(record))))


def mark_origin(error: BaseException, *origins: Origin) -> None:
    """The workflow sees this exception because of these records."""
    vars(error)[_ORIGIN] = list(origins)


def has_origin(error: BaseException) -> bool:
    """Whether the workflow sees this very exception because of a record."""
    return bool(vars(error).get(_ORIGIN))


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """An exception, what it was raised from, and so on."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def origins_of(error: BaseException, seen: set[int] | None = None) -> list[Origin]:
    """The records that an exception comes from: its own, else that of what it was raised from; all of a group's."""
    seen = set() if seen is None else seen  # a member may be raised in the handler of its own group
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        origins: list[Origin] | None = vars(current).get(_ORIGIN)
        if origins is not None:
            return origins
        members: tuple[BaseException, ...] = getattr(current, "exceptions", ())  # of a group
        if isinstance(current, BaseExceptionGroup) and (found := [o for one in members for o in origins_of(one, seen)]):
            return found
        current = current.__cause__ or current.__context__
    return []
