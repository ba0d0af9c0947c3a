"""Following a run: what is new of it, all read at one moment."""

from __future__ import annotations

from holdfast.core.records import Record
from holdfast.core.states import TERMINAL
from holdfast.errors import StoreCorrupt
from holdfast.stores.live_events import Feed
from holdfast.stores.operations import Notice, Run
from holdfast.stores.sql import queries
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.payloads import fill_records, shorten_runs
from holdfast.stores.sql.rows import Reader
from holdfast.stores.utf8 import is_proper


def feed(db: Database, reader: Reader, run_id: str, after_seq: int, after_notice: int, limit: int) -> Feed | None:
    """What is new of a run."""
    db.begin_reading()  # one moment
    run = queries.get(db, reader, run_id)
    found = None
    if run is not None:
        rows = db.ask(db.sql.NEW_NOTICES, (run.key, after_notice, limit))
        told = [(row[0], Notice(*row[1:])) for row in rows]
        records = fill_records(db, reader, queries.new_records(db, reader, run, after_seq, limit), lambda: run_id)
        found = Feed(readable(db, reader, run, whole=run.state in TERMINAL), records, told)
    db.commit()
    return found


def readable(db: Database, reader: Reader, run: Run, *, whole: bool) -> Run:
    """The row with its large payloads; unless it is to be whole, they are told by their size."""
    if whole:
        return queries.whole(db, reader, [run])[0]
    [read] = shorten_runs(db, reader, [run])
    if isinstance(read, StoreCorrupt):
        raise read
    return read


def last_record(db: Database, reader: Reader, run_id: str, name: str) -> Record | None:
    """The newest record of this name that is ok."""
    row = db.one(db.sql.LAST_RECORD, run_id, name) if is_proper(run_id) and is_proper(name) else None
    if row is None:
        return None
    return fill_records(db, reader, [reader.record(row, run_id)], lambda: run_id)[0]
