"""Reads of many runs in one round trip."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast.stores.operations import Run
from holdfast.stores.postgres.adapters import TextArray
from holdfast.stores.postgres.database import PgDatabase
from holdfast.stores.sql import queries
from holdfast.stores.sql.payloads import fill_runs, log_unreadable, raise_unreadable
from holdfast.stores.sql.rows import RowReader, read_each
from holdfast.stores.utf8 import is_encodable


def read_each_run(db: PgDatabase, reader: RowReader, run_ids: Sequence[str]) -> list[Run | None]:
    """The rows of these runs, in order; ``None`` for one that does not exist. Raises for one that cannot be read."""
    rows = db.query(db.sql.GET_RUNS_BY_ID, (TextArray(filter(is_encodable, run_ids)),))
    runs = raise_unreadable(fill_runs(db, reader, [reader.read_run(row) for row in rows]))
    by_id = {run.id: run for run in runs}
    return [by_id.get(run_id) for run_id in run_ids]


def read_ended_runs(db: PgDatabase, reader: RowReader, run_ids: Sequence[str]) -> tuple[list[Run], Collection[str]]:
    """See ``Store.get_ended_runs``. Most of these runs have not ended yet, and are only counted."""
    wanted = {*filter(is_encodable, run_ids)}
    rows = db.query(db.sql.ENDED_RUNS, (TextArray(wanted),))
    unfinished_count, ended_rows = rows[0][0], [row[1:] for row in rows if row[1] is not None]
    ended = log_unreadable(fill_runs(db, reader, read_each(ended_rows, reader.read_run)))
    if unfinished_count + len(ended) == len(wanted):
        return ended, {*run_ids} - wanted
    return ended, {*run_ids} - {run.id for run in queries.get_runs(db, reader, run_ids)}
