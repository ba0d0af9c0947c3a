"""Replacing references to large payloads by the payloads, many at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from holdfast.core.records import Record, Signal
from holdfast.errors import StoreCorrupt
from holdfast.stores.journal_pages import make_placeholder
from holdfast.stores.operations import Run
from holdfast.stores.sql import blobs
from holdfast.stores.sql.blobs import PayloadDamage, is_reference
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.rows import RowReader, describe_record

log = logging.getLogger("holdfast.stores")

T = TypeVar("T")

_PAYLOAD_COLUMNS = ("inputs", "output", "error")


def has_references(run: Run) -> bool:
    """Whether a row has references instead of payloads."""
    return (
        is_reference(run.inputs)
        or (run.output is not None and is_reference(run.output))
        or (run.error is not None and is_reference(run.error))
    )


def fill_runs(db: Database, reader: RowReader, runs: Sequence[Run]) -> list[Run | StoreCorrupt]:
    """Rows with their large payloads, or the error for a row with an unreadable one."""
    wanted = [value for run in runs for value in _get_payloads(run) if is_reference(value)]
    if not wanted:
        return list(runs)
    found = blobs.fetch_payloads(db, wanted)
    return [_fill_run(reader, run, found) for run in runs]


def _get_payloads(run: Run) -> Iterable[Any]:
    return (run.inputs, run.output, run.error)


def _fill_run(reader: RowReader, run: Run, found: dict[bytes, bytes | PayloadDamage]) -> Run | StoreCorrupt:
    changes: dict[str, bytes] = {}
    for name, value in zip(_PAYLOAD_COLUMNS, _get_payloads(run), strict=True):
        content = found.get(value) if is_reference(value) else None
        if isinstance(content, PayloadDamage):
            return reader.make_unreadable_error(f"the {name} of run {run.id!r}", content.problem)
        if content is not None:
            changes[name] = content
    return replace(run, **changes) if changes else run


def shorten_runs(db: Database, reader: RowReader, runs: Sequence[Run]) -> list[Run | StoreCorrupt]:
    """Rows for a list: their size stands for large inputs and outputs, and only errors are read."""
    large = [run for run in runs if has_references(run)]
    if not large:
        return list(runs)
    sizes = blobs.fetch_sizes(db, [v for run in large for v in (run.inputs, run.output) if v and is_reference(v)])
    errors = blobs.fetch_payloads(db, [run.error for run in large if run.error and is_reference(run.error)])

    def shorten(value: Any) -> Any:
        return make_placeholder(sizes.get(value)) if is_reference(value) else value

    short = [replace(run, inputs=shorten(run.inputs), output=shorten(run.output)) for run in runs]
    return [_fill_run(reader, run, errors) for run in short]


def raise_unreadable(values: Iterable[T | StoreCorrupt]) -> list[T]:
    """The values; raises the first error among them."""
    readable: list[T] = []
    for value in values:
        if isinstance(value, StoreCorrupt):
            raise value
        readable.append(value)
    return readable


def log_unreadable(values: Iterable[T | StoreCorrupt]) -> list[T]:
    """The values without the errors, which are logged."""
    readable: list[T] = []
    for value in values:
        if isinstance(value, StoreCorrupt):
            log.warning("%s", value)
        else:
            readable.append(value)
    return readable


def fill_records(db: Database, reader: RowReader, records: list[Record], run_id: Callable[[], str]) -> list[Record]:
    """A journal with its large payloads. Raises ``StoreCorrupt`` for an unreadable one."""
    wanted = [record.payload for record in records if record.payload is not None and is_reference(record.payload)]
    if not wanted:
        return records
    found = blobs.fetch_payloads(db, wanted)
    filled: list[Record] = []
    for record in records:
        content = None if record.payload is None else found.get(record.payload)
        if isinstance(content, PayloadDamage):
            name = describe_record(run_id(), record.seq, record.name, record.position)
            raise reader.make_unreadable_error(name, content.problem)
        filled.append(record if content is None else record._replace(payload=content))
    return filled


def fill_signals(
    db: Database, reader: RowReader, signals: Sequence[Signal], run_id: Callable[[], str]
) -> list[Signal | StoreCorrupt]:
    """A mailbox with its large payloads, or the error for a signal with an unreadable one."""
    wanted = [signal.payload for signal in signals if is_reference(signal.payload)]
    if not wanted:
        return list(signals)
    found = blobs.fetch_payloads(db, wanted)
    filled: list[Signal | StoreCorrupt] = []
    for signal in signals:
        content = found.get(signal.payload)
        if isinstance(content, PayloadDamage):
            row_name = f"signal {signal.id} ({signal.name!r}) to run {run_id()!r}"
            filled.append(reader.make_unreadable_error(row_name, content.problem))
        else:
            filled.append(signal if content is None else signal._replace(payload=content))
    return filled
