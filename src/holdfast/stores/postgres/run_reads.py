"""Reads of many runs in one round trip."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, cast

from holdfast.errors import StoreCorrupt
from holdfast.stores.operations import Run
from holdfast.stores.postgres.adapters import TextArray
from holdfast.stores.postgres.statements import PgStatements
from holdfast.stores.sql.payloads import fill_runs, has_references, log_unreadable, raise_unreadable
from holdfast.stores.sql.rows import read_each
from holdfast.stores.utf8 import is_encodable

if TYPE_CHECKING:
    from holdfast.stores.postgres.store import PgStore


async def read_each_run(store: PgStore, run_ids: Sequence[str]) -> list[Run | None]:
    """The rows of these runs, in order; ``None`` for one that does not exist. Raises for one that cannot be read."""
    wanted = TextArray(filter(is_encodable, run_ids))
    rows = await store.query(lambda db: (db.sql.GET_RUNS_BY_ID, (wanted,)))
    by_id = {run.id: run for run in raise_unreadable(await _fill_runs(store, [*map(store.reader.read_run, rows)]))}
    return [by_id.get(run_id) for run_id in run_ids]


async def read_ended_runs(store: PgStore, run_ids: Sequence[str]) -> tuple[list[Run], Collection[str]]:
    """See ``Store.get_ended_runs``. Most of these runs have not ended yet, and are only counted."""
    wanted = TextArray({*filter(is_encodable, run_ids)})
    rows = await store.query(lambda db: (cast(PgStatements, db.sql).ENDED_RUNS, (wanted,)))
    unfinished_count, ended_rows = rows[0][0], [row[1:] for row in rows if row[1] is not None]
    ended = log_unreadable(await _fill_runs(store, read_each(ended_rows, store.reader.read_run)))
    if unfinished_count + len(ended) == len(wanted):
        return ended, {*run_ids}.difference(wanted)
    return ended, {*run_ids} - {run.id for run in await store.get_runs(run_ids)}


async def _fill_runs(store: PgStore, runs: Sequence[Run]) -> Sequence[Run | StoreCorrupt]:
    """These runs with their large payloads."""
    if not any(map(has_references, runs)):
        return runs
    return await store.read(lambda db: fill_runs(db, store.reader, runs))
