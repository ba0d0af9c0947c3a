"""Reading: histories, lists and counts, each a function of a connection."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from holdfast.core.records import Signal
from holdfast.core.states import RunState
from holdfast.stores.contract import History, Run, RunFilter, Worker, WorkflowSpec
from holdfast.stores.sqlite import statements as sql
from holdfast.stores.sqlite.rows import Reader, names_text

_BEYOND_ALL_KEYS = (1 << 63) - 1


def get(connection: sqlite3.Connection, reader: Reader, run_id: str) -> Run | None:
    """One run's row."""
    row = connection.execute(sql.GET_RUN, (run_id,)).fetchone()
    return None if row is None else reader.run(row)


def get_many(connection: sqlite3.Connection, reader: Reader, run_ids: Sequence[str]) -> list[Run]:
    """The rows of those that exist."""
    return [reader.run(row) for row in connection.execute(sql.GET_RUNS_BY_ID, (names_text(run_ids),))]


def histories(connection: sqlite3.Connection, reader: Reader, keys: Sequence[int]) -> list[History]:
    """The histories of these runs, all as of one moment."""
    connection.execute("BEGIN")
    found = [
        History(
            records=reader.records(connection.execute(sql.JOURNAL, (key,)), key),
            attempts=reader.attempts(connection.execute(sql.ATTEMPTS, (key,))),
            signals=reader.signals(connection.execute(sql.MAILBOX, (key,))),
        )
        for key in keys
    ]
    connection.execute("COMMIT")
    return found


def new_signals(connection: sqlite3.Connection, worker: int, after: int) -> list[tuple[int, Signal]]:
    """Signals above ``after`` for the runs that ``worker`` holds."""
    return [(row[0], Signal(*row[1:])) for row in connection.execute(sql.NEW_SIGNALS, (after, worker))]


def list_runs(
    connection: sqlite3.Connection, reader: Reader, where: RunFilter, limit: int, before: int | None
) -> list[Run]:
    """Runs that match, newest first.

    The index ``runs_listed`` holds the keys of each workflow and state in order. So a list that is narrowed by either
    takes the newest of each stretch that it asks for, and the newest of those: its cost does not grow with the table.
    """
    filters, values = _conditions(where)
    below = _BEYOND_ALL_KEYS if before is None else before
    if where.workflow is None and not where.states:
        rows = connection.execute(sql.LIST_RUNS.format(filters=filters), (below, *values, limit))
        return [reader.run(row) for row in rows]
    if where.workflow is not None:
        workflows = [where.workflow]
    else:
        workflows = [row[0] for row in connection.execute(sql.KNOWN_WORKFLOWS)]
    keys: list[int] = []
    statement = sql.LIST_KEYS.format(filters=filters)
    for workflow in workflows:
        for state in where.states or RunState:
            keys.extend(row[0] for row in connection.execute(statement, (workflow, state, below, *values, limit)))
    newest = sorted(set(keys), reverse=True)[:limit]
    rows = {row[0]: row for row in connection.execute(sql.GET_RUNS_BY_KEY, (json.dumps(newest),))}
    return [reader.run(rows[key]) for key in newest]


def _conditions(where: RunFilter) -> tuple[str, list[Any]]:
    """The further conditions of a list, as SQL text and the values bound to it."""
    text = ""
    values: list[Any] = []
    for name, value in (
        ("tag", where.tag),
        ("id_prefix", where.id_prefix),
        ("created_after", where.created_after),
        ("created_before", where.created_before),
    ):
        if value is not None:
            condition = sql.FILTERS[name]
            text += condition
            values.extend([value] * condition.count("?"))
    return text, values


def count_runs(connection: sqlite3.Connection, reader: Reader) -> Mapping[tuple[str, RunState], int]:
    """How many runs there are for each workflow and state."""
    return {
        (workflow, reader.state(state, f"a run of {workflow!r}")): count
        for workflow, state, count in connection.execute(sql.COUNT_RUNS)
    }


def workers(connection: sqlite3.Connection, reader: Reader, also: Collection[int]) -> list[Worker]:
    """Workers that are live, or that unfinished runs refer to, or that are asked for by id."""
    return [reader.worker(row) for row in connection.execute(sql.WORKERS, (json.dumps(list(also)),))]


def specs(connection: sqlite3.Connection, reader: Reader) -> dict[str, WorkflowSpec]:
    """All workflows ever announced."""
    return {row[0]: reader.spec(row) for row in connection.execute(sql.SPECS)}
