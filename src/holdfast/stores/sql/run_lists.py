"""Lists of runs, newest first: a page costs the same in a table of a hundred runs and of a million.

A page is read in two steps: the keys of its runs, then their rows. The keys come from the condition that surely leaves
few runs: an owner, a parent, a tag, the beginning of an id, or a time range (the runs are counted, up to
``MAX_SMALL_SET``). Otherwise they come from an index that has the keys of each state in order, or from another one with
those of each workflow and state: the list takes the newest runs of each of its states, in one round trip, and the
newest of those. The remaining conditions are checked row by row. A search does that for a limited number of rows, and
returns how far it has come.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.core.states import RunState
from holdfast.errors import StoreCorrupt
from holdfast.stores.contract import RunFilter, RunSearchPage
from holdfast.stores.operations import Run
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.payloads import shorten_runs
from holdfast.stores.sql.queries import read_runs
from holdfast.stores.sql.rows import RowReader
from holdfast.stores.sql.statements import MAX_INT64
from holdfast.stores.utf8 import is_encodable

MAX_SMALL_SET = 2000
"""Runs that can be checked one by one for a page."""
_MAX_TIMESTAMP = 1e300

log = logging.getLogger("holdfast.stores")


def list_runs(db: Database, reader: RowReader, where: RunFilter, limit: int, before_key: int | None) -> list[Run]:
    """Runs that match, newest first. Unreadable rows are left out."""
    return search_runs(db, reader, where, limit, before_key, None).runs


def search_runs(
    db: Database, reader: RowReader, where: RunFilter, limit: int, before_key: int | None, max_scanned: int | None
) -> RunSearchPage:
    """The same, among the newest ``max_scanned`` runs that the index finds."""
    texts = (where.workflow, where.tag, where.id_prefix, where.text, where.parent)
    if not all(is_encodable(text) for text in texts if text is not None):
        return RunSearchPage([], None)
    below = MAX_INT64 if before_key is None else before_key
    found: list[Run] = []
    conditions = _bind_conditions(db, where)
    db.begin_snapshot()
    source = _choose_source(db, where, conditions)
    below = min(below, _find_max_key(db, where, conditions, source) + 1)
    min_key, cursor = (0, None) if max_scanned is None else _find_min_key(db, conditions, source, below, max_scanned)
    while (missing := limit - len(found)) > 0:
        keys = _read_keys(db, conditions, source, below, min_key, missing)
        for run in _read_rows(db, reader, keys):
            if isinstance(run, StoreCorrupt):
                log.warning("a run is left out of a list: %s", run)
            else:
                found.append(run)
        if len(keys) < missing:
            break
        cursor = below = keys[-1]
    created_at = next((run.created_at for run in found[-1:] if run.key == cursor), None)
    if cursor is not None and created_at is None:
        [run] = read_runs(db, reader, [cursor])
        created_at = run.created_at if isinstance(run, Run) else None
    db.commit()
    return RunSearchPage(found, cursor, created_at)


# The conditions


def _bind_conditions(db: Database, where: RunFilter) -> dict[str, list[Any]]:
    """The values of each condition, by its name in ``statements.FILTERS``."""
    found: dict[str, list[Any]] = {}
    if where.states:
        found["states"] = [db.to_list_parameter(state.value for state in where.states)]
    for name in ("workflow", "owner", "parent", "tag"):
        value = getattr(where, name)
        if value is not None:
            found[name] = [value]
    if where.id_prefix is not None:
        found["id_prefix"] = [where.id_prefix, where.id_prefix + chr(0x10FFFF)]
    if where.created_after is not None or where.created_before is not None:
        after = -_MAX_TIMESTAMP if where.created_after is None else where.created_after
        found["created"] = [after, _MAX_TIMESTAMP if where.created_before is None else where.created_before]
    if where.text is not None:
        found["text"] = [where.text]
    return found


def _build_filters(db: Database, conditions: dict[str, list[Any]], *excluded: str) -> tuple[str, list[Any]]:
    """Conditions as SQL text, and their values."""
    text = ""
    bound: list[Any] = []
    for name, values in conditions.items():
        if name == "text":
            condition, patterns = db.make_text_condition(values[0])
            text += condition
            bound += patterns
        elif name not in excluded:
            text += db.sql.FILTERS[name]
            bound += values
    return text, bound


# Keys


class _KeySource(NamedTuple):
    """Where the keys of a list come from."""

    name: str
    """``key``, ``workflow_and_state``, ``state``, or the name of the condition that leaves few runs."""
    covered_conditions: tuple[str, ...] = ()
    """The conditions that need not be checked row by row."""
    is_small: bool = False
    """There are few enough to check them one by one."""
    index_ranges: Sequence[tuple[str, ...]] = ()
    """States, or workflows and states. The index has the keys of each in order."""


def _choose_source(db: Database, where: RunFilter, conditions: dict[str, list[Any]]) -> _KeySource:
    for name, statement in db.sql.COUNT_BY_CONDITION.items():
        if name in conditions and db.query(statement, (*conditions[name], MAX_SMALL_SET))[0][0] < MAX_SMALL_SET:
            return _KeySource(name, (name,), is_small=True)
    if where.workflow is not None:
        ranges = [(where.workflow, state.value) for state in where.states or RunState]
        return _KeySource("workflow_and_state", ("workflow", "states"), index_ranges=ranges)
    if where.states:
        return _KeySource("state", ("states",), index_ranges=[(state.value,) for state in where.states])
    name = next((name for name in ("parent", "owner", "tag") if name in conditions), None)
    return _KeySource("key") if name is None else _KeySource(name, (name,))


def _find_max_key(db: Database, where: RunFilter, conditions: dict[str, list[Any]], source: _KeySource) -> int:
    """The highest key that can match: runs that are newer than a long time range need not be read."""
    newest = None
    if where.created_before is not None and not source.is_small:
        newest = db.query(db.sql.NEWEST_CREATED, conditions["created"])[0][0]
    return MAX_INT64 - 1 if newest is None else newest


def _find_min_key(
    db: Database, conditions: dict[str, list[Any]], source: _KeySource, below: int, max_scanned: int
) -> tuple[int, int | None]:
    """The lowest key to check, and the same key again if more runs below it may match.

    Conditions that the index does not cover are checked row by row, for ``max_scanned`` rows.
    """
    ranges = source.index_ranges or [conditions.get(source.name, ())]
    if source.is_small or set(conditions) <= set(source.covered_conditions) or not ranges:
        return 0, None
    max_rows = max(1, max_scanned // len(ranges))
    statement = f"SELECT count(*), min(found.key) FROM ({_get_statement(db, source).format(filters='')}) found"
    lookups = [(*values, below, 0, max_rows) for values in ranges]
    db.prefetch({statement: lookups})
    scanned = [db.lookup(statement, *lookup)[0] for lookup in lookups]
    last = max((min_key for count, min_key in scanned if count == max_rows), default=0)
    if not last or ("created" in conditions and not db.query(db.sql.HAS_CREATED_BELOW, (*conditions["created"], last))):
        return last, None
    return last, last


def _get_statement(db: Database, source: _KeySource) -> str:
    match source.name:
        case "key":
            return db.sql.LIST_BY_KEY
        case "workflow_and_state":
            return db.sql.LIST_BY_WORKFLOW_AND_STATE
        case "state":
            return db.sql.LIST_BY_STATE
        case name:
            return db.sql.LIST_BY_CONDITION[name]


def _read_keys(
    db: Database, conditions: dict[str, list[Any]], source: _KeySource, below: int, min_key: int, limit: int
) -> list[int]:
    """The keys of the next runs of a list."""
    text, bound = _build_filters(db, conditions, *source.covered_conditions)
    statement = _get_statement(db, source).format(filters=text)
    if not source.index_ranges:
        rows = db.query(statement, (*conditions.get(source.name, ()), below, min_key, *bound, limit))
        return [row[0] for row in rows]
    lookups = [(*values, below, min_key, *bound, limit) for values in source.index_ranges]
    db.prefetch({statement: lookups})
    keys = {row[0] for lookup in lookups for row in db.lookup(statement, *lookup)}
    return sorted(keys, reverse=True)[:limit]


# Rows


def _read_rows(db: Database, reader: RowReader, keys: Sequence[int]) -> list[Run | StoreCorrupt]:
    read = read_runs(db, reader, keys)
    runs = [run for run in read if isinstance(run, Run)]
    return [*shorten_runs(db, reader, runs), *(run for run in read if isinstance(run, StoreCorrupt))]
