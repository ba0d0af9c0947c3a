"""Carrying out operations: one call, one transaction.

Records alone, which are most of what is ever committed, are inserted by a statement that contains its own fence check;
for the single record of a sequential run, that statement is the whole transaction. All else is a *batch*: see
``transaction`` for what its operations share.

A batch assumes that its records are new. If SQLite finds that one is there already, the batch was handed in before
(see the contract on repeats): it is rolled back and carried out again *carefully*, looking before each append.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import chain

from holdfast.core.records import Kind
from holdfast.stores.approvals import AnswerApproval, AskApproval, RemindApproval, WithdrawApproval
from holdfast.stores.carrying import Carrier
from holdfast.stores.memories import DeleteMemory, PutMemory
from holdfast.stores.operations import (
    Answer,
    AppendRecord,
    AwaitRun,
    CancelRun,
    FinishRun,
    ForkRun,
    NoteAttempt,
    Op,
    ParkRun,
    PauseRun,
    ReleaseRun,
    ReopenRun,
    ReserveUsage,
    ResumeRun,
    SendSignal,
    SetBudget,
    StartRun,
    TellNotices,
    Verdict,
)
from holdfast.stores.sqlite import statements as sql
from holdfast.stores.sqlite.asking import Asking
from holdfast.stores.sqlite.blobs import NOTHING, Parcel
from holdfast.stores.sqlite.connections import roll_back
from holdfast.stores.sqlite.holding import Holding
from holdfast.stores.sqlite.requests import Requests
from holdfast.stores.sqlite.rows import Reader, Row, record_row
from holdfast.stores.sqlite.starting import Starting


def carry_out(
    connection: sqlite3.Connection, ops: Sequence[Op], now: float, reader: Reader, parcel: Parcel = NOTHING
) -> list[Answer]:
    """Carry out ``ops`` durably, and answer each. ``parcel`` has their large payloads."""
    if not parcel.rows and (records := _plain_records(ops)) is not None and _append(connection, records):
        return [Verdict.DONE] * len(records)
    try:
        return _transact(connection, ops, now, reader, parcel, careful=False)
    except sqlite3.IntegrityError:
        roll_back(connection)
        return _transact(connection, ops, now, reader, parcel, careful=True)


def _plain_records(ops: Sequence[Op]) -> list[Row] | None:
    """The rows of a batch that consists of records only, without side effects."""
    rows: list[Row] = []
    for op in ops:
        if type(op) is not AppendRecord or op.consume is not None or op.clear_attempt or op.reset_deliveries:
            return None
        if op.record.kind is Kind.CANCEL or op.used is not None or op.memory is not None or op.clear_notices:
            return None
        rows.append(record_row(op.key, op.record, op.record.payload))
    return rows


def _append(connection: sqlite3.Connection, rows: list[Row]) -> bool:
    """Append all of them or none. False: some are fenced, or there already; a batch finds out which."""
    try:
        if len(rows) == 1:
            return connection.execute(sql.APPEND_FENCED[1], rows[0]).rowcount == 1
        connection.execute("BEGIN IMMEDIATE")
        if _append_many(connection, rows) == len(rows):
            connection.execute("COMMIT")
            return True
    except sqlite3.IntegrityError:
        pass
    roll_back(connection)
    return False


def _append_many(connection: sqlite3.Connection, rows: list[Row]) -> int:
    """Append those that are not fenced, in as few statements as possible, and return their number."""
    appended = done = 0
    for count, statement in sql.APPEND_FENCED.items():
        while len(rows) - done >= count:
            values = list(chain.from_iterable(rows[done : done + count]))
            appended += connection.execute(statement, values).rowcount
            done += count
    return appended


def _transact(
    connection: sqlite3.Connection, ops: Sequence[Op], now: float, reader: Reader, parcel: Parcel, *, careful: bool
) -> list[Answer]:
    connection.execute("BEGIN IMMEDIATE")
    answers = Batch(connection, ops, now, reader, parcel, careful=careful).carry_out()
    connection.execute("COMMIT")
    return answers


class Batch(Holding, Requests, Starting, Asking, Carrier):
    """The operations of one transaction."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        ops: Sequence[Op],
        now: float,
        reader: Reader,
        parcel: Parcel,
        *,
        careful: bool,
    ) -> None:
        super().__init__(connection, now, parcel=parcel)
        self._ops = ops
        self._reader = reader
        self._careful = careful
        self._live = {}

    def carry_out(self) -> list[Answer]:
        """Decide and write; the caller commits."""
        self._look_ahead()
        answers = [self._carry_out(op) for op in self._ops]
        self.flush()
        return answers

    def _look_ahead(self) -> None:
        """Read the fences of all runs that the operations touch, and note which runs they are to end."""
        keys: set[int] = set()
        ids: set[str] = set()
        cancelled: list[str] = []
        for op in self._ops:
            match op:
                case AppendRecord() | NoteAttempt() | ReserveUsage() | ParkRun() | ReleaseRun() | TellNotices():
                    keys.add(op.key)
                case AskApproval() | RemindApproval() | WithdrawApproval():
                    keys.add(op.key)
                case StartRun():
                    if op.link is not None:
                        keys.add(op.link.parent)
                case AwaitRun():
                    keys.add(op.link.parent)
                case ForkRun():
                    ids.add(op.source)
                case FinishRun():
                    keys.add(op.key)
                    self._ending.add(op.key)
                case CancelRun():
                    ids.add(op.run_id)
                    cancelled.append(op.run_id)
                case SendSignal() | PauseRun() | ResumeRun() | ReopenRun() | SetBudget():
                    ids.add(op.run_id)
                case AnswerApproval() | PutMemory() | DeleteMemory():
                    pass
        self.read_fences(keys, ids)
        self._ending.update(self._by_id[run_id].key for run_id in cancelled if run_id in self._by_id)
