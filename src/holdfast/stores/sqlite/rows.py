"""Rows to values and back. What cannot be read is reported with the row's name, never guessed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from holdfast.core.records import Attempt, Kind, Record, Signal
from holdfast.core.states import RunState
from holdfast.stores.contract import AppendRecord, NoteAttempt, Run, Worker, WorkflowSpec
from holdfast.stores.sqlite.faults import unreadable

Row = tuple[Any, ...]

_STATES = {state.value: state for state in RunState}
_KINDS = {kind.value: kind for kind in Kind}
_NO_NAMES = "[]"


def names_text(names: Iterable[str]) -> str:
    """A list of names as it is kept in a column, or handed to ``json_each``."""
    return json.dumps(list(names), ensure_ascii=False) if names else _NO_NAMES


def record_row(op: AppendRecord) -> Row:
    """The columns of ``statements.APPEND``; exact ints, because sqlite3 looks for an adapter of anything else."""
    r = op.record
    return (
        op.key, r.seq, int(r.kind), r.position, 1 if r.ok else 0, r.at, r.started_at, r.attempts, r.worker, r.epoch,
        r.name, r.preview, r.payload,
    )  # fmt: skip


def attempt_row(op: NoteAttempt) -> Row:
    """The columns of ``statements.NOTE_ATTEMPT``."""
    a = op.attempt
    return (op.key, a.position, a.attempt, a.intent, a.progress, a.error, a.at, a.name)


class Reader:
    """Turns the rows of one database into values."""

    def __init__(self, database: Path) -> None:
        self._database = database

    def run(self, row: Row) -> Run:
        """A row of ``statements.RUN_COLUMNS``."""
        state = _STATES.get(row[4])
        if state is None:
            raise unreadable(self._database, f"run {row[1]!r}", f"unknown state {row[4]!r}")
        tags = self._names(row[19], f"run {row[1]!r}")
        values: Row = (*row[:4], state, *row[5:19], tags, *row[20:])
        return Run(*values)

    def records(self, rows: Iterable[Row], key: int) -> list[Record]:
        """A run's journal, from rows in the order of ``Record``'s fields."""
        kinds = _KINDS
        try:
            return [
                Record(
                    r[0], kinds[r[1]], r[2], r[3], r[4] == 1, r[5], r[6], r[7], r[8], r[9], r[10], r[11]
                )
                for r in rows
            ]  # fmt: skip
        except KeyError as error:
            raise unreadable(self._database, f"a record of run {key}", f"unknown kind {error.args[0]!r}") from None

    def attempts(self, rows: Iterable[Row]) -> dict[int, Attempt]:
        """What is known of a run's open steps, by position."""
        return {r[0]: Attempt(r[0], r[1], r[2] == 1, r[3], r[4], r[5], r[6]) for r in rows}

    def signals(self, rows: Iterable[Row]) -> list[Signal]:
        """A run's mailbox."""
        return [Signal(*row) for row in rows]

    def worker(self, row: Row) -> Worker:
        """A row of ``statements.WORKER_COLUMNS``."""
        where = f"worker {row[0]}"
        queues = None if row[6] is None else self._names(row[6], where)
        values: Row = (*row[:5], self._names(row[5], where), queues, *row[7:])
        return Worker(*values)

    def spec(self, row: Row) -> WorkflowSpec:
        """A row of ``statements.SPECS``."""
        where = f"workflow {row[0]!r}"
        return WorkflowSpec(row[0], self._names(row[1], where), row[2], row[3], row[4], self._names(row[5], where))

    def state(self, text: str, where: str) -> RunState:
        """A state, from a row named ``where``."""
        state = _STATES.get(text)
        if state is None:
            raise unreadable(self._database, where, f"unknown state {text!r}")
        return state

    def _names(self, text: Any, where: str) -> tuple[str, ...]:
        if text == _NO_NAMES:
            return ()
        try:
            names: Any = json.loads(text)
        except (TypeError, ValueError):
            names = None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in cast("list[Any]", names)):
            raise unreadable(self._database, where, f"{text!r} is not a JSON list of names")
        return tuple(cast("list[str]", names))
