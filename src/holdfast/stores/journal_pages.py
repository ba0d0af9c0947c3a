"""Pages of a journal: some of a run's records, and a summary of the whole.

A reader of five hundred records does not make the store read a journal of a hundred thousand. The store counts what was
recorded under which claim, and by which worker.
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
    """The records of one kind from one claim of the run."""

    epoch: int
    worker: int
    kind: RecordKind
    record_count: int
    first_seq: int
    last_seq: int


@dataclass(frozen=True, slots=True)
class JournalPage:
    """A run with a page of its journal, its attempts, and its mailbox, all read at one moment."""

    run: Run
    records: Sequence[Record]
    omitted_sizes: Mapping[int, int]
    """The sizes of large payloads that were not read, by ``seq``. These records have no payload."""
    segments: Sequence[JournalSegment]
    """The segments of the whole journal, oldest first."""
    attempts: Mapping[int, Attempt]
    signals: Sequence[Signal]


def make_journal_page(run: Run, history: History, after_seq: int, limit: int | None) -> JournalPage:
    """The page of a run whose whole history was read."""
    page = [record for record in history.records if record.seq > after_seq]
    return JournalPage(run, page[:limit], {}, group_segments(history.records), history.attempts, history.signals)


def group_segments(records: Iterable[Record]) -> list[JournalSegment]:
    """The segments of a journal."""
    found: dict[tuple[int, int, RecordKind], JournalSegment] = {}
    for record in records:
        key = record.epoch, record.worker, record.kind
        segment = found.get(key) or JournalSegment(*key, 0, record.seq, record.seq)
        found[key] = segment._replace(record_count=segment.record_count + 1, last_seq=record.seq)
    return list(found.values())


PLACEHOLDER_END = ", see holdfast show)"


def make_placeholder(size: int | None) -> bytes:
    """A JSON text that replaces a large payload that is not read."""
    if size is None:
        return b'"(missing)"'
    text = f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
    return f'"({text}{PLACEHOLDER_END}"'.encode()
