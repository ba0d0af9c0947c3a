"""Lists of runs, newest first: a page costs the same in a table of a hundred runs and of a million.

A page is found in two steps: the keys of its runs, then their rows. The keys come from whatever narrows the list most
for certain: an owner, a parent, a tag, the beginning of an id or a span of time, if few runs have it (they are
counted, up to ``FEW``). Else the index ``runs_listed`` holds the keys of each workflow and state in order, so that a
list that is narrowed by either takes the newest of each stretch, and the newest of those. What is left of the
conditions is checked row by row. Only a search for text reads every run that the rest lets through.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from holdfast.core.states import RunState
from holdfast.errors import StoreCorrupt
from holdfast.stores.contract import RunFilter
from holdfast.stores.operations import Run
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.payloads import shorten_runs
from holdfast.stores.sql.queries import read_runs
from holdfast.stores.sql.rows import Reader

FEW = 2000
"""So many runs can be looked at one by one for a page."""
_BEYOND_ALL_KEYS = (1 << 63) - 1
_BEYOND_ALL_TIMES = 1e300

log = logging.getLogger("holdfast.stores")


def list_runs(db: Database, reader: Reader, where: RunFilter, limit: int, before: int | None) -> list[Run]:
    """Runs that match, newest first; one whose row cannot be read is left out."""
    below = _BEYOND_ALL_KEYS if before is None else before
    found: list[Run] = []
    conditions = _conditions(db, where)
    db.begin_reading()  # one moment
    narrowest = _narrowest(db, conditions)
    while (wanted := limit - len(found)) > 0:
        keys = _keys(db, where, conditions, narrowest, below, wanted)
        for run in _read(db, reader, keys):
            if isinstance(run, StoreCorrupt):
                log.warning("a run is left out of a list: %s", run)
            else:
                found.append(run)
        if len(keys) < wanted:
            break
        below = keys[-1]
    db.commit()
    return found


# The conditions


def _conditions(db: Database, where: RunFilter) -> dict[str, list[Any]]:
    """The values that are bound to each condition, by its name in ``statements.FILTERS``."""
    found: dict[str, list[Any]] = {}
    if where.states:
        found["states"] = [db.listed(state.value for state in where.states)]
    for name in ("workflow", "owner", "parent", "tag"):
        value = getattr(where, name)
        if value is not None:
            found[name] = [value]
    if where.id_prefix is not None:
        found["id_prefix"] = [where.id_prefix, where.id_prefix + chr(0x10FFFF)]
    if where.created_after is not None or where.created_before is not None:
        after = -_BEYOND_ALL_TIMES if where.created_after is None else where.created_after
        found["created"] = [after, _BEYOND_ALL_TIMES if where.created_before is None else where.created_before]
    if where.text is not None:
        found["text"] = [where.text]
    return found


def _filters(db: Database, conditions: dict[str, list[Any]], *without: str) -> tuple[str, list[Any]]:
    """Conditions as SQL text, and the values bound to it."""
    text = ""
    bound: list[Any] = []
    for name, values in conditions.items():
        if name == "text":
            condition, patterns = db.containing(values[0])
            text += condition
            bound += patterns
        elif name not in without:
            text += db.sql.FILTERS[name]
            bound += values
    return text, bound


# Keys


def _narrowest(db: Database, conditions: dict[str, list[Any]]) -> str | None:
    """The condition that so few runs fulfil that those can be looked at one by one, if there is one."""
    for name, statement in db.sql.HOW_MANY.items():
        if name in conditions and db.ask(statement, (*conditions[name], FEW))[0][0] < FEW:
            return name
    return None


def _keys(
    db: Database,
    where: RunFilter,
    conditions: dict[str, list[Any]],
    narrowest: str | None,
    below: int,
    limit: int,
) -> list[int]:
    """The keys of the next runs of a list."""
    if narrowest is None and "created" in conditions:
        # A long span of time. Keys rise with time, as far as clocks agree: pass over what is newer than all of it.
        newest = None
        if where.created_before is not None:
            newest = db.ask(db.sql.NEWEST_CREATED, conditions["created"])[0][0]
        below = below if newest is None else min(below, newest + 1)
    if narrowest is None and not (where.workflow is not None or where.states):
        narrowest = next((name for name in ("parent", "owner", "tag") if name in conditions), None)
    if narrowest is not None:
        text, bound = _filters(db, conditions, narrowest)
        statement = db.sql.LIST_BY[narrowest].format(filters=text)
        rows = db.ask(statement, (*conditions[narrowest], below, *bound, limit))
        return [row[0] for row in rows]
    if where.workflow is None and not where.states:
        text, bound = _filters(db, conditions)
        rows = db.ask(db.sql.LIST_BY_KEY.format(filters=text), (below, *bound, limit))
        return [row[0] for row in rows]
    return _from_stretches(db, where, conditions, below, limit)


def _from_stretches(
    db: Database, where: RunFilter, conditions: dict[str, list[Any]], below: int, limit: int
) -> list[int]:
    if where.workflow is not None:
        workflows: Sequence[str] = [where.workflow]
    else:
        workflows = [row[0] for row in db.ask(db.sql.KNOWN_WORKFLOWS)]
    text, bound = _filters(db, conditions, "workflow", "states")
    statement = db.sql.LIST_STRETCH.format(filters=text)
    keys: set[int] = set()
    for workflow in workflows:
        for state in where.states or RunState:
            keys.update(row[0] for row in db.ask(statement, (workflow, state, below, *bound, limit)))
    return sorted(keys, reverse=True)[:limit]


# Rows


def _read(db: Database, reader: Reader, keys: Sequence[int]) -> list[Run | StoreCorrupt]:
    read = read_runs(db, reader, keys)
    runs = [run for run in read if isinstance(run, Run)]
    return [*shorten_runs(db, reader, runs), *(run for run in read if isinstance(run, StoreCorrupt))]
