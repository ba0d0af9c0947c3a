"""Reading: histories, rows and counts, each a function of a connection (lists are in ``listing``)."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from holdfast.core.records import Record, Signal
from holdfast.core.states import RunState
from holdfast.errors import StoreCorrupt
from holdfast.stores.contract import History, Request, RunUsage, Worker, WorkflowSpec
from holdfast.stores.operations import Answer, Run, Started
from holdfast.stores.sqlite import statements as sql
from holdfast.stores.sqlite.faults import is_not_text
from holdfast.stores.sqlite.payloads import fill_records, fill_runs, fill_signals
from holdfast.stores.sqlite.rows import Reader, Row, names_text, record_name

log = logging.getLogger("holdfast.stores")


def get(connection: sqlite3.Connection, reader: Reader, run_id: str) -> Run | None:
    """One run's row, with references where its large payloads are."""
    row = connection.execute(sql.GET_RUN, (run_id,)).fetchone()
    return None if row is None else reader.run(row)


def get_many(connection: sqlite3.Connection, reader: Reader, run_ids: Sequence[str]) -> list[Run]:
    """The rows of those that exist."""
    rows = connection.execute(sql.GET_RUNS_BY_ID, (names_text(run_ids),))
    return whole(connection, reader, [reader.run(row) for row in rows])


def read_runs(connection: sqlite3.Connection, reader: Reader, keys: Sequence[int]) -> list[Run | StoreCorrupt]:
    """The rows of runs, in order, with references where large payloads are; for one that cannot be read, why not."""
    try:
        rows = {row[0]: row for row in connection.execute(sql.GET_RUNS_BY_KEY, (json.dumps(list(keys)),))}
        return [_run_or_problem(reader, rows[key]) for key in keys]
    except sqlite3.OperationalError as error:
        if not is_not_text(error):
            raise
    return [_read_run(connection, reader, key) for key in keys]


def _run_or_problem(reader: Reader, row: Row) -> Run | StoreCorrupt:
    try:
        return reader.run(row)
    except StoreCorrupt as problem:
        return problem


def _read_run(connection: sqlite3.Connection, reader: Reader, key: int) -> Run | StoreCorrupt:
    try:
        row = connection.execute(sql.GET_RUN_BY_KEY, (key,)).fetchone()
    except sqlite3.OperationalError as error:
        if not is_not_text(error):
            raise
        return reader.unreadable(f"run {key_name(connection, key)!r}", str(error))
    return _run_or_problem(reader, row)


def whole(connection: sqlite3.Connection, reader: Reader, runs: Sequence[Run]) -> list[Run]:
    """Rows with their large payloads."""
    found: list[Run] = []
    for run in fill_runs(connection, reader, runs):
        if isinstance(run, StoreCorrupt):
            raise run
        found.append(run)
    return found


def whole_answers(connection: sqlite3.Connection, reader: Reader, answers: Sequence[Answer]) -> list[Answer]:
    """Answers whose runs have their large payloads.

    They are no concern of the other answers when they are lost: whoever reads such a run finds the reference, which is
    no payload.
    """
    started = [answer for answer in answers if isinstance(answer, Started)]
    filled = iter(fill_runs(connection, reader, [answer.run for answer in started]))
    told: list[Answer] = []
    for answer in answers:
        run = next(filled) if isinstance(answer, Started) else None
        if isinstance(run, StoreCorrupt):
            log.warning("%s", run)
        told.append(answer._replace(run=run) if isinstance(answer, Started) and isinstance(run, Run) else answer)
    return told


# Histories


def histories(connection: sqlite3.Connection, reader: Reader, keys: Sequence[int]) -> list[History]:
    """The histories of these runs, all as of one moment."""
    connection.execute("BEGIN")
    found = [
        History(
            records=_journal(connection, reader, key),
            attempts=reader.attempts(connection.execute(sql.ATTEMPTS, (key,))),
            signals=_mailbox(connection, reader, key),
            links={row[0]: (row[1], row[2]) for row in connection.execute(sql.LINKED, (key,))},
        )
        for key in keys
    ]
    connection.execute("COMMIT")
    return found


def _journal(connection: sqlite3.Connection, reader: Reader, key: int) -> list[Record]:
    try:
        records = reader.records(connection.execute(sql.JOURNAL, (key,)))
    except sqlite3.OperationalError as error:
        if not is_not_text(error):
            raise
        records = None
    if records is None:
        records = _read_singly(connection, reader, key)
    return fill_records(connection, reader, records, lambda: key_name(connection, key))


def _read_singly(connection: sqlite3.Connection, reader: Reader, key: int) -> list[Record]:
    """A journal in which something is wrong: find out with which record."""
    run_id = key_name(connection, key)
    records: list[Record] = []
    for seq, position, name in connection.execute(sql.JOURNAL_PLACES, (key,)).fetchall():
        try:
            row = connection.execute(sql.JOURNAL_ENTRY, (key, seq)).fetchone()
        except sqlite3.OperationalError as error:
            where = record_name(run_id, seq, _words(name), position)
            raise reader.unreadable(where, str(error)) from None
        records.append(reader.record(row, run_id))
    return records


def _mailbox(connection: sqlite3.Connection, reader: Reader, key: int) -> list[Signal]:
    signals = reader.signals(connection.execute(sql.MAILBOX, (key,)))
    found: list[Signal] = []
    for signal in fill_signals(connection, reader, signals, lambda: key_name(connection, key)):
        if isinstance(signal, StoreCorrupt):
            raise signal
        found.append(signal)
    return found


def key_name(connection: sqlite3.Connection, key: int) -> str:
    """The id of a run, also if it is not proper text."""
    row = connection.execute(sql.ID_BYTES, (key,)).fetchone()
    return f"with key {key}" if row is None else _words(row[0])


def _words(text: object) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)


# Held runs


def new_signals(connection: sqlite3.Connection, worker: int, after: int) -> list[tuple[int, Signal]]:
    """Signals above ``after`` for the runs that ``worker`` holds, with references where large payloads are."""
    return [(row[0], Signal(*row[1:])) for row in connection.execute(sql.NEW_SIGNALS, (after, worker))]


def whole_signals(
    connection: sqlite3.Connection, reader: Reader, found: Sequence[tuple[int, Signal]]
) -> list[tuple[int, Signal]]:
    """Signals with their large payloads.

    One whose payload is lost is left out: it is no concern of the other runs. Its own run is stopped by its history
    when it is taken up the next time.
    """
    told: list[tuple[int, Signal]] = []
    for key, signal in found:
        [filled] = fill_signals(connection, reader, [signal], partial(key_name, connection, key))
        if isinstance(filled, StoreCorrupt):
            log.warning("%s", filled)
        else:
            told.append((key, filled))
    return told


def requests(connection: sqlite3.Connection, worker: int) -> list[Request]:
    """What has been asked of the runs that ``worker`` holds."""
    return [Request(key, cancel == 1, pause == 1) for key, cancel, pause in connection.execute(sql.REQUESTS, (worker,))]


# All the rest


def count_runs(connection: sqlite3.Connection, reader: Reader) -> Mapping[tuple[str, RunState], int]:
    """How many runs there are for each workflow and state; those in no state that there is are left out."""
    counts: dict[tuple[str, RunState], int] = {}
    for workflow, state, count in connection.execute(sql.COUNT_RUNS):
        try:
            counts[workflow, reader.state(state, f"a run of {workflow!r}")] = count
        except StoreCorrupt as problem:
            log.warning("%d runs are not counted: %s", count, problem)
    return counts


def usages(connection: sqlite3.Connection, reader: Reader, run_ids: Sequence[str]) -> dict[str, RunUsage]:
    """What runs have used, and their budgets."""
    found = {row[0]: reader.usage(row) for row in connection.execute(sql.USAGES, (names_text(run_ids),))}
    return {run_id: usage for run_id, usage in found.items() if usage != RunUsage()}


def workers(connection: sqlite3.Connection, reader: Reader, also: Collection[int]) -> list[Worker]:
    """Workers that are live, or that unfinished runs refer to, or that are asked for by id."""
    return [reader.worker(row) for row in connection.execute(sql.WORKERS, (json.dumps(list(also)),))]


def specs(connection: sqlite3.Connection, reader: Reader) -> dict[str, WorkflowSpec]:
    """All workflows ever announced."""
    return {row[0]: reader.spec(row) for row in connection.execute(sql.SPECS)}


def switched_off(connection: sqlite3.Connection) -> dict[str, float]:
    """The workflows that are switched off."""
    return dict(connection.execute(sql.SWITCHES).fetchall())
