"""Reading histories, rows, and counts. ``run_lists`` reads lists."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

from holdfast.core.records import Record, Signal
from holdfast.core.states import RunState
from holdfast.errors import StoreCorrupt
from holdfast.stores.claims import NewSignals
from holdfast.stores.contract import History, RunUsage, WorkflowSpec
from holdfast.stores.operations import OpResult, Run, StartResult
from holdfast.stores.sql.database import Database, InvalidText, Row
from holdfast.stores.sql.payloads import fill_records, fill_runs, fill_signals, log_unreadable, raise_unreadable
from holdfast.stores.sql.rows import RowReader, describe_record, read_each
from holdfast.stores.sql.statements import MAX_INT64
from holdfast.stores.utf8 import is_encodable
from holdfast.stores.workers import Worker

log = logging.getLogger("holdfast.stores")


def get_run(db: Database, reader: RowReader, run_id: str) -> Run | None:
    """One run's row. Large payloads stay references."""
    row = db.query_one(db.sql.GET_RUN, run_id) if is_encodable(run_id) else None
    return None if row is None else reader.read_run(row)


def get_runs(db: Database, reader: RowReader, run_ids: Sequence[str]) -> list[Run]:
    """The rows of the runs that exist. An unreadable one is left out and logged."""
    wanted = [*filter(is_encodable, run_ids)]
    try:
        rows = db.query(db.sql.GET_RUNS_BY_ID, (db.to_list_parameter(wanted),))
    except InvalidText:
        rows = [row for run_id in dict.fromkeys(wanted) if (row := _get_row(db, run_id)) is not None]
    return log_unreadable(fill_runs(db, reader, read_each(rows, reader.read_run)))


def _get_row(db: Database, run_id: str) -> Row | None:
    try:
        return db.query_one(db.sql.GET_RUN, run_id)
    except InvalidText as error:
        log.warning("run %r cannot be read: %s", run_id, error)
        return None


def read_runs(
    db: Database, reader: RowReader, keys: Sequence[int], *, and_commit: bool = False
) -> list[Run | StoreCorrupt]:
    """The rows of runs, in order, or the error for one that cannot be read. Large payloads stay references.

    Raises ``StoreCorrupt`` if a row is missing: the keys come from an index in the same transaction.
    """
    query = db.query_and_commit if and_commit else db.query
    try:
        rows = {row[0]: row for row in query(db.sql.GET_RUNS_BY_KEY, (db.to_list_parameter(keys),))}
    except InvalidText:
        read = [_read_run_alone(db, reader, key) for key in keys]
        if and_commit:
            db.commit()
        return read
    read_run, found = reader.read_run, list[Run | StoreCorrupt]()
    for key in keys:
        row = rows.get(key)
        if row is None:
            raise reader.make_missing_error(key)
        try:
            found.append(read_run(row))
        except StoreCorrupt as problem:
            found.append(problem)
    return found


def _read_run_alone(db: Database, reader: RowReader, key: int) -> Run | StoreCorrupt:
    try:
        row = db.query_one(db.sql.GET_RUN_BY_KEY, key)
        if row is None:
            raise reader.make_missing_error(key)
    except InvalidText as error:
        return reader.make_unreadable_error(f"run {get_run_name(db, key)!r}", str(error))
    try:
        return reader.read_run(row)
    except StoreCorrupt as problem:
        return problem


def fill_results(db: Database, reader: RowReader, results: Sequence[OpResult]) -> list[OpResult]:
    """Answers with the large payloads of their runs.

    A lost payload must not fail the other answers: it is logged, and the run keeps the reference, which is not a valid
    payload.
    """
    runs = iter(fill_runs(db, reader, [answer.run for answer in results if isinstance(answer, StartResult)]))
    filled: list[OpResult] = []
    for answer in results:
        if isinstance(answer, StartResult):
            run = next(runs)
            if isinstance(run, StoreCorrupt):
                log.warning("%s", run)
            else:
                answer = answer._replace(run=run)
        filled.append(answer)
    return filled


# Histories


def read_histories(db: Database, reader: RowReader, keys: Sequence[int]) -> list[History]:
    """The histories of these runs, in one snapshot."""
    db.begin_snapshot()
    begun = db.list_begun_runs(keys)
    prefetch_histories(db, begun)
    found = dict(zip(begun, look_up_histories(db, reader, begun), strict=True))
    db.commit()
    return [found.get(key) or History([], {}, [], {}) for key in keys]


def prefetch_histories(db: Database, keys: Sequence[int]) -> None:
    """Announce ``look_up_histories``."""
    runs = [(key,) for key in keys]
    db.prefetch(dict.fromkeys((db.sql.JOURNAL, db.sql.ATTEMPTS, db.sql.MAILBOX, db.sql.LINKED_RUNS), runs))


def look_up_histories(db: Database, reader: RowReader, keys: Sequence[int]) -> list[History]:
    """The histories of these runs, in the current transaction or as prefetched."""
    return [
        History(
            records=_read_journal(db, reader, key),
            attempts=reader.read_attempts(db.lookup(db.sql.ATTEMPTS, key)),
            signals=read_mailbox(db, reader, key),
            links={row[0]: (row[1], row[2]) for row in db.lookup(db.sql.LINKED_RUNS, key)},
        )
        for key in keys
    ]


def _read_journal(db: Database, reader: RowReader, key: int) -> list[Record]:
    try:
        records = reader.read_records(db.lookup(db.sql.JOURNAL, key))
    except InvalidText:
        records = None
    if records is None:
        records = _read_records_singly(db, reader, key)
    return fill_records(db, reader, records, lambda: get_run_name(db, key))


def read_new_records(db: Database, reader: RowReader, run: Run, after_seq: int, limit: int) -> list[Record]:
    """The records of a run after a ``seq``. Large payloads stay references."""
    try:
        rows = db.query(db.sql.NEW_RECORDS, (run.key, after_seq, limit))
    except InvalidText:
        _read_records_singly(db, reader, run.key)  # raises an error that names the record
        raise
    return [reader.read_record(row, run.id) for row in rows]


def _read_records_singly(db: Database, reader: RowReader, key: int) -> list[Record]:
    """Read a damaged journal record by record, to find the one that is damaged."""
    run_id = get_run_name(db, key)
    records: list[Record] = []
    for seq, position, name in db.query(db.sql.JOURNAL_POSITIONS, (key,)):
        try:
            [row] = db.query(db.sql.GET_RECORD, (key, seq))
        except InvalidText as error:
            row_name = describe_record(run_id, seq, _decode_text(name), position)
            raise reader.make_unreadable_error(row_name, str(error)) from None
        records.append(reader.read_record(row, run_id))
    return records


def read_mailbox(db: Database, reader: RowReader, key: int) -> list[Signal]:
    """The signals to a run that are not consumed yet."""
    signals = [Signal(*row) for row in db.lookup(db.sql.MAILBOX, key)]
    return raise_unreadable(fill_signals(db, reader, signals, lambda: get_run_name(db, key)))


def get_run_name(db: Database, key: int) -> str:
    """The id of a run, even if it is not valid text."""
    row = db.query_one(db.sql.RUN_ID_BYTES, key)
    return f"with key {key}" if row is None else _decode_text(row[0])


def _decode_text(text: object) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)


# Held runs


def make_new_signals(rows: Sequence[Row], after: int) -> NewSignals:
    """The rows of ``statements.NEW_SIGNALS`` after the cursor ``after``. Large payloads stay references."""
    signals = [(row[0], Signal(*row[1:-1])) for row in rows if row[0] is not None]
    return NewSignals(signals, max((row[-1] for row in rows), default=after))


def fill_new_signals(db: Database, reader: RowReader, found: Sequence[tuple[int, Signal]]) -> list[tuple[int, Signal]]:
    """Signals with their large payloads.

    A signal with a lost payload is logged and left out, because it must not affect other runs. Its own run fails when
    its history is read for the next claim.
    """
    return [
        (key, filled)
        for key, signal in found
        for filled in log_unreadable(fill_signals(db, reader, [signal], partial(get_run_name, db, key)))
    ]


# Counts, workers, and workflows


def count_runs(db: Database, reader: RowReader, max_ended: int | None) -> Mapping[tuple[str, RunState], int]:
    """The number of runs for each workflow and state. Runs in an unknown state are left out."""
    counts: dict[tuple[str, RunState], int] = {}
    if max_ended is None:
        rows = db.query(db.sql.COUNT_RUNS)
    else:
        ended = [state.value for state in RunState if state.is_terminal]
        unfinished = [state.value for state in RunState if not state.is_terminal]
        rows = [
            row
            for states, max_count in ((ended, max_ended), (unfinished, MAX_INT64))
            for row in db.query(db.sql.COUNT_RUNS_UP_TO, (db.to_list_parameter(states), max_count))
            if row[2]
        ]
    for workflow, state, count in rows:
        try:
            counts[workflow, reader.read_state(state, f"a run of {workflow!r}")] = count
        except StoreCorrupt as problem:
            log.warning("%d runs are not counted: %s", count, problem)
    return counts


def count_unfinished_runs(db: Database, workflows: Collection[str] | None) -> Mapping[tuple[str, str], int]:
    """The number of unfinished runs of each version of all workflows, or of these."""
    names = [row[0] for row in db.query(db.sql.KNOWN_WORKFLOWS)] if workflows is None else set(workflows)
    rows = db.query(db.sql.COUNT_UNFINISHED, (db.to_list_parameter(names),))
    return {(workflow, version): count for workflow, version, count in rows}


def get_usages(db: Database, reader: RowReader, run_ids: Sequence[str]) -> dict[str, RunUsage]:
    """The usage and budgets of runs."""
    found = {
        row[0]: reader.read_usage(row)
        for row in db.query(db.sql.USAGES, (db.to_list_parameter(filter(is_encodable, run_ids)),))
    }
    return {run_id: usage for run_id, usage in found.items() if usage != RunUsage()}


def list_workers(db: Database, reader: RowReader, extra_ids: Collection[int]) -> list[Worker]:
    """Workers that are live, that unfinished runs refer to, or that have one of these ids."""
    return read_each(db.query(db.sql.WORKERS, (db.to_list_parameter(extra_ids),)), reader.read_worker)


def make_workflow_specs(rows: Iterable[Row], reader: RowReader) -> dict[str, WorkflowSpec]:
    """The rows of ``statements.SPECS``, by name."""
    return dict(read_each(rows, lambda row: (row[0], reader.read_spec(row))))
