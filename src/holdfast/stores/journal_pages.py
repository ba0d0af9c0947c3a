"""What there is to tell of a run without its whole journal: a page of its records, and what the rest amounts to.

A journal of a hundred thousand records is not read for somebody who looks at five hundred of them. What is told of the
whole (how much was recorded under which lease, and by whom) is counted by the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.records import Attempt, Record, RecordKind, Signal
from holdfast.stores.operations import Run

if TYPE_CHECKING:
    from holdfast.stores.contract import History


class JournalSegment(NamedTuple):
    """The records of one kind that were recorded under one lease."""

    epoch: int
    worker: int
    kind: RecordKind
    record_count: int
    first_seq: int
    """The ``seq`` of the first of them."""
    last_seq: int


@dataclass(frozen=True, slots=True)
class JournalPage:
    """A run, a page of its journal, and what is known beside that, all read at one moment."""

    run: Run
    records: Sequence[Record]
    omitted_sizes: Mapping[int, int]
    """The sizes of large payloads of the page that were not read, by ``seq``: those records have none."""
    segments: Sequence[JournalSegment]
    """Of the whole journal, those that began first come first."""
    attempts: Mapping[int, Attempt]
    signals: Sequence[Signal]


def make_journal_page(run: Run, history: History, after_seq: int, limit: int | None) -> JournalPage:
    """The outline of a run whose history was read."""
    page = [record for record in history.records if record.seq > after_seq]
    return JournalPage(run, page[:limit], {}, group_segments(history.records), history.attempts, history.signals)


def group_segments(records: Iterable[Record]) -> list[JournalSegment]:
    """What a journal amounts to, from its records."""
    found: dict[tuple[int, int, RecordKind], JournalSegment] = {}
    for record in records:
        place = record.epoch, record.worker, record.kind
        known = found.get(place)
        if known is None:
            found[place] = JournalSegment(*place, 1, record.seq, record.seq)
        else:
            found[place] = known._replace(record_count=known.record_count + 1, last_seq=record.seq)
    return list(found.values())


def make_placeholder(size: int | None) -> bytes:
    """What stands for a large payload of a run where it is not read, as JSON text."""
    if size is None:
        return b'"(missing)"'
    words = f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
    return f'"({words}, see holdfast show)"'.encode()
