"""Putting large payloads back where references to them stand, many at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from holdfast.core.records import Record, Signal
from holdfast.errors import StoreCorrupt
from holdfast.stores.journal_pages import make_placeholder
from holdfast.stores.operations import Run
from holdfast.stores.sql import blobs
from holdfast.stores.sql.blobs import PayloadDamage, is_reference
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.rows import RowReader, describe_record

_PAYLOAD_COLUMNS = ("inputs", "output", "error")


def has_references(run: Run) -> bool:
    """Whether a row has references where its payloads should be."""
    return is_reference(run.inputs) or is_reference(run.output) or is_reference(run.error)


def fill_runs(db: Database, reader: RowReader, runs: Sequence[Run]) -> list[Run | StoreCorrupt]:
    """Rows with their large payloads; for each that cannot be had, why not."""
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
    """Rows for a list: large inputs and outputs are named by their size, and only errors are read."""
    lacking = [run for run in runs if has_references(run)]
    if not lacking:
        return list(runs)
    sizes = blobs.fetch_sizes(db, [v for run in lacking for v in (run.inputs, run.output) if v and is_reference(v)])
    errors = blobs.fetch_payloads(db, [run.error for run in lacking if run.error and is_reference(run.error)])

    def short(value: Any) -> Any:
        return make_placeholder(sizes.get(value)) if is_reference(value) else value

    return [_fill_run(reader, replace(run, inputs=short(run.inputs), output=short(run.output)), errors) for run in runs]


def fill_records(db: Database, reader: RowReader, records: list[Record], run_id: Callable[[], str]) -> list[Record]:
    """A journal with its large payloads."""
    wanted: list[bytes] = []
    for record in records:
        payload: Any = record.payload
        if payload is None:
            continue
        if is_reference(payload):
            wanted.append(payload)
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
    """A mailbox with its large payloads; for each that cannot be had, why not."""
    wanted = [signal.payload for signal in signals if is_reference(signal.payload)]
    if not wanted:
        return list(signals)
    found = blobs.fetch_payloads(db, wanted)
    filled: list[Signal | StoreCorrupt] = []
    for signal in signals:
        content = found.get(signal.payload)
        if isinstance(content, PayloadDamage):
            filled.append(
                reader.make_unreadable_error(
                    f"signal {signal.id} ({signal.name!r}) to run {run_id()!r}", content.problem
                )
            )
        else:
            filled.append(signal if content is None else signal._replace(payload=content))
    return filled
