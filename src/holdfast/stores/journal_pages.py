"""What there is to tell of a run without its whole journal: a page of its records, and what the rest amounts to.

A journal of a hundred thousand records is not read for somebody who looks at five hundred of them. What is told of the
whole (how much was recorded under which lease, and by whom) is counted by the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.records import Attempt, Kind, Record, Signal
from holdfast.stores.operations import Run

if TYPE_CHECKING:
    from holdfast.stores.contract import History


class Part(NamedTuple):
    """The records of one kind that were recorded under one lease."""

    epoch: int
    worker: int
    kind: Kind
    records: int
    first: int
    """The ``seq`` of the first of them."""
    last: int


@dataclass(frozen=True, slots=True)
class Outline:
    """A run, a page of its journal, and what is known beside that, all read at one moment."""

    run: Run
    records: Sequence[Record]
    left_out: Mapping[int, int]
    """The sizes of large payloads of the page that were not read, by ``seq``: those records have none."""
    parts: Sequence[Part]
    """Of the whole journal, those that began first come first."""
    attempts: Mapping[int, Attempt]
    signals: Sequence[Signal]


def outline_of(run: Run, history: History, after_seq: int, limit: int | None) -> Outline:
    """The outline of a run whose history was read."""
    page = [record for record in history.records if record.seq > after_seq]
    return Outline(run, page[:limit], {}, parts_of(history.records), history.attempts, history.signals)


def parts_of(records: Iterable[Record]) -> list[Part]:
    """What a journal amounts to, from its records."""
    found: dict[tuple[int, int, Kind], Part] = {}
    for record in records:
        place = record.epoch, record.worker, record.kind
        known = found.get(place)
        if known is None:
            found[place] = Part(*place, 1, record.seq, record.seq)
        else:
            found[place] = known._replace(records=known.records + 1, last=record.seq)
    return list(found.values())


def placeholder(size: int | None) -> bytes:
    """What stands for a large payload of a run where it is not read, as JSON text."""
    if size is None:
        return b'"(missing)"'
    words = f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
    return f'"({words}, see holdfast show)"'.encode()
