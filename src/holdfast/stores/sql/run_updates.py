"""Following a run: its updates, in one snapshot."""

from __future__ import annotations

from holdfast.core.records import Record
from holdfast.core.states import TERMINAL_STATES
from holdfast.stores.live_events import RunUpdates
from holdfast.stores.operations import LiveEvent, Run
from holdfast.stores.sql import queries
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.payloads import fill_records, fill_runs, raise_unreadable, shorten_runs
from holdfast.stores.sql.rows import RowReader
from holdfast.stores.utf8 import is_encodable


def read_run_updates(
    db: Database, reader: RowReader, run_id: str, after_seq: int, after_event_id: int, limit: int
) -> RunUpdates | None:
    """Records and live events of a run after the given ones."""
    db.begin_snapshot()
    run = queries.get_run(db, reader, run_id)
    updates = None
    if run is not None:
        rows = db.query(db.sql.NEW_LIVE_EVENTS, (run.key, after_event_id, limit))
        live_events = [(row[0], LiveEvent(*row[1:])) for row in rows]
        records = fill_records(db, reader, queries.read_new_records(db, reader, run, after_seq, limit), lambda: run_id)
        row = fill_run(db, reader, run, include_large_payloads=run.state in TERMINAL_STATES)
        updates = RunUpdates(row, records, live_events)
    db.commit()
    return updates


def fill_run(db: Database, reader: RowReader, run: Run, *, include_large_payloads: bool) -> Run:
    """The row with its large payloads, or with their sizes instead."""
    fill = fill_runs if include_large_payloads else shorten_runs
    return raise_unreadable(fill(db, reader, [run]))[0]


def read_last_record(db: Database, reader: RowReader, run_id: str, name: str) -> Record | None:
    """The newest record with this name that is ``ok``."""
    row = db.query_one(db.sql.LAST_RECORD, run_id, name) if is_encodable(run_id) and is_encodable(name) else None
    if row is None:
        return None
    return fill_records(db, reader, [reader.read_record(row, run_id)], lambda: run_id)[0]
