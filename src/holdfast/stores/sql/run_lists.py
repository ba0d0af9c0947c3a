"""Lists of runs, newest first: a page costs the same in a table of a hundred runs and of a million.

A page is found in two steps: the keys of its runs, then their rows. The keys come from whatever narrows the list most
for certain: an owner, a parent, a tag, the beginning of an id or a span of time, if few runs have it (they are
counted, up to ``FEW``). Else an index holds the keys of each state in order, and another one those of each workflow and
state. So a list that is narrowed by either takes the newest of each of its states, in one round trip, and the newest of
those. What is left of the conditions is checked row by row; a search does that for so many rows and no more, and tells
how far it has come.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.core.states import RunState
from holdfast.errors import StoreCorrupt
from holdfast.stores.contract import Found, RunFilter
from holdfast.stores.operations import Run
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.payloads import shorten_runs
from holdfast.stores.sql.queries import read_runs
from holdfast.stores.sql.rows import Reader
from holdfast.stores.sql.statements import NO_END
from holdfast.stores.utf8 import is_proper

FEW = 2000
"""So many runs can be looked at one by one for a page."""
_BEYOND_ALL_TIMES = 1e300

log = logging.getLogger("holdfast.stores")


def list_runs(db: Database, reader: Reader, where: RunFilter, limit: int, before: int | None) -> list[Run]:
    """Runs that match, newest first; one whose row cannot be read is left out."""
    return search_runs(db, reader, where, limit, before, None).runs


def search_runs(
    db: Database, reader: Reader, where: RunFilter, limit: int, before: int | None, most: int | None
) -> Found:
    """The same, among the newest ``most`` of those that the index finds."""
    texts = (where.workflow, where.tag, where.id_prefix, where.text, where.parent)
    if not all(is_proper(text) for text in texts if text is not None):
        return Found([], None)
    below = NO_END if before is None else before
    found: list[Run] = []
    conditions = _conditions(db, where)
    db.begin_reading()  # one moment
    source = _source(db, where, conditions)
    below = min(below, _newest(db, where, conditions, source) + 1)
    floor, until = (0, None) if most is None else _floor(db, conditions, source, below, most)
    while (wanted := limit - len(found)) > 0:
        keys = _keys(db, conditions, source, below, floor, wanted)
        for run in _read(db, reader, keys):
            if isinstance(run, StoreCorrupt):
                log.warning("a run is left out of a list: %s", run)
            else:
                found.append(run)
        if len(keys) < wanted:
            break
        until = below = keys[-1]
    at = next((run.created_at for run in found[-1:] if run.key == until), None)
    if until is not None and at is None:
        [run] = read_runs(db, reader, [until])
        at = run.created_at if isinstance(run, Run) else None
    db.commit()
    return Found(found, until, at)


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


class _Source(NamedTuple):
    """Where the keys of a list come from."""

    name: str
    """``key``, ``stretch``, ``state``, or the condition that narrows it."""
    serves: tuple[str, ...] = ()
    """The conditions that need not be checked row by row."""
    few: bool = False
    """There are so few that those can be looked at one by one."""
    stretches: Sequence[tuple[str, ...]] = ()
    """States, each with the workflow if there is one; the keys of each are in order."""


def _source(db: Database, where: RunFilter, conditions: dict[str, list[Any]]) -> _Source:
    for name, statement in db.sql.HOW_MANY.items():
        if name in conditions and db.ask(statement, (*conditions[name], FEW))[0][0] < FEW:
            return _Source(name, (name,), few=True)
    if where.workflow is not None:
        stretches = [(where.workflow, state.value) for state in where.states or RunState]
        return _Source("stretch", ("workflow", "states"), stretches=stretches)
    if where.states:
        return _Source("state", ("states",), stretches=[(state.value,) for state in where.states])
    name = next((name for name in ("parent", "owner", "tag") if name in conditions), None)
    return _Source("key") if name is None else _Source(name, (name,))


def _newest(db: Database, where: RunFilter, conditions: dict[str, list[Any]], source: _Source) -> int:
    """No run that matches has a higher key: for a long span of time, what is newer than all of it is passed over."""
    newest = None
    if where.created_before is not None and not source.few:
        newest = db.ask(db.sql.NEWEST_CREATED, conditions["created"])[0][0]
    return NO_END - 1 if newest is None else newest


def _floor(
    db: Database, conditions: dict[str, list[Any]], source: _Source, below: int, most: int
) -> tuple[int, int | None]:
    """The lowest key to look at, and the same again if there may be something below it.

    What the index does not serve is checked row by row, for ``most`` rows.
    """
    places = source.stretches or [conditions.get(source.name, ())]
    if source.few or set(conditions) <= set(source.serves) or not places:
        return 0, None
    each = max(1, most // len(places))
    statement = f"SELECT count(*), min(found.key) FROM ({_statement(db, source).format(filters='')}) found"
    asked = [(*place, below, 0, each) for place in places]
    db.foresee({statement: asked})
    looked_at = [db.lookup(statement, *question)[0] for question in asked]
    last = max((lowest for count, lowest in looked_at if count == each), default=0)
    if not last or ("created" in conditions and not db.ask(db.sql.CREATED_BELOW, (*conditions["created"], last))):
        return last, None
    return last, last


def _statement(db: Database, source: _Source) -> str:
    match source.name:
        case "key":
            return db.sql.LIST_BY_KEY
        case "stretch":
            return db.sql.LIST_STRETCH
        case "state":
            return db.sql.LIST_STATE
        case name:
            return db.sql.LIST_BY[name]


def _keys(
    db: Database, conditions: dict[str, list[Any]], source: _Source, below: int, floor: int, limit: int
) -> list[int]:
    """The keys of the next runs of a list."""
    text, bound = _filters(db, conditions, *source.serves)
    statement = _statement(db, source).format(filters=text)
    if not source.stretches:
        rows = db.ask(statement, (*conditions.get(source.name, ()), below, floor, *bound, limit))
        return [row[0] for row in rows]
    asked = [(*stretch, below, floor, *bound, limit) for stretch in source.stretches]
    db.foresee({statement: asked})
    keys = {row[0] for question in asked for row in db.lookup(statement, *question)}
    return sorted(keys, reverse=True)[:limit]


# Rows


def _read(db: Database, reader: Reader, keys: Sequence[int]) -> list[Run | StoreCorrupt]:
    read = read_runs(db, reader, keys)
    runs = [run for run in read if isinstance(run, Run)]
    return [*shorten_runs(db, reader, runs), *(run for run in read if isinstance(run, StoreCorrupt))]
