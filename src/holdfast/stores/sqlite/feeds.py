"""Following a run: what is new of it, all read at one moment."""

from __future__ import annotations

import sqlite3

from holdfast.core.records import Record
from holdfast.core.states import TERMINAL
from holdfast.errors import StoreCorrupt
from holdfast.stores.notices import Feed
from holdfast.stores.operations import Notice, Run
from holdfast.stores.sqlite import queries
from holdfast.stores.sqlite import statements as sql
from holdfast.stores.sqlite.payloads import fill_records, shorten_runs
from holdfast.stores.sqlite.rows import Reader


def feed(
    connection: sqlite3.Connection, reader: Reader, run_id: str, after_seq: int, after_notice: int, limit: int
) -> Feed | None:
    """What is new of a run."""
    connection.execute("BEGIN")  # one moment
    run = queries.get(connection, reader, run_id)
    found = None
    if run is not None:
        rows = connection.execute(sql.NEW_NOTICES, (run.key, after_notice, limit))
        told = [(row[0], Notice(*row[1:])) for row in rows]
        rows = connection.execute(sql.NEW_RECORDS, (run.key, after_seq, limit))
        records = fill_records(connection, reader, [reader.record(row, run_id) for row in rows], lambda: run_id)
        found = Feed(_readable(connection, reader, run), records, told)
    connection.execute("COMMIT")
    return found


def _readable(connection: sqlite3.Connection, reader: Reader, run: Run) -> Run:
    """The row with its large payloads; until it has ended, only by their size."""
    if run.state in TERMINAL:
        return queries.whole(connection, reader, [run])[0]
    [read] = shorten_runs(connection, reader, [run])
    if isinstance(read, StoreCorrupt):
        raise read
    return read


def last_record(connection: sqlite3.Connection, reader: Reader, run_id: str, name: str) -> Record | None:
    """The newest record of this name that is ok."""
    row = connection.execute(sql.LAST_RECORD, (run_id, name)).fetchone()
    if row is None:
        return None
    return fill_records(connection, reader, [reader.record(row, run_id)], lambda: run_id)[0]
