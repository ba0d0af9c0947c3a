"""Carrying out operations: one call, one transaction.

Records alone, which are most of what is ever committed, are inserted by a statement that contains its own fence check;
for the single record of a sequential run, that statement is the whole transaction. All else is a *batch*: see
``transaction`` for what its operations share. A batch looks ahead: all that its operations are going to ask for, of
which there may be much, it tells the database before the first of them, so that it can be read in one round trip.

A batch assumes that its records and its runs are new. If the database finds that one is there already, the batch was
handed in before (see the contract on repeats), or somebody else has started the same run in this moment: it is rolled
back and carried out again *carefully*, looking before each append.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from holdfast.core.records import Kind
from holdfast.stores.approvals import AnswerApproval, AskApproval, RemindApproval, WithdrawApproval
from holdfast.stores.memories import DeleteMemory, PutMemory
from holdfast.stores.operation_handler import Carrier
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
from holdfast.stores.sql.approval_operations import Asking
from holdfast.stores.sql.blobs import NOTHING, Parcel, is_large
from holdfast.stores.sql.claimed_run_operations import Holding
from holdfast.stores.sql.client_operations import Requests
from holdfast.stores.sql.database import Collision, Database, Row
from holdfast.stores.sql.queue_placement import Turns
from holdfast.stores.sql.rows import Reader, record_row
from holdfast.stores.sql.start_operations import Starting, links_wanted
from holdfast.stores.sql.statements import Statements
from holdfast.stores.utf8 import is_proper


def carry_out(db: Database, ops: Sequence[Op], now: float, reader: Reader, parcel: Parcel = NOTHING) -> list[Answer]:
    """Carry out ``ops`` durably, and answer each. ``parcel`` has their large payloads."""
    if (records := plain_records(ops)) is not None and db.append_fenced(records):
        return [Verdict.DONE] * len(records)
    try:
        return _transact(db, ops, now, reader, parcel, careful=False)
    except Collision:
        db.roll_back()
        return _transact(db, ops, now, reader, parcel, careful=True)


def plain_records(ops: Sequence[Op]) -> list[Row] | None:
    """The rows of a batch that consists of records only, without side effects and large values."""
    rows: list[Row] = []
    for op in ops:
        if type(op) is not AppendRecord or op.consume is not None or op.clear_attempt or op.reset_deliveries:
            return None
        if op.record.kind is Kind.CANCEL or op.used is not None or op.memory is not None or op.clear_notices:
            return None
        payload = op.record.payload
        if payload is not None and is_large(payload):
            return None
        rows.append(record_row(op.key, op.record, payload))
    return rows


def _transact(
    db: Database, ops: Sequence[Op], now: float, reader: Reader, parcel: Parcel, *, careful: bool
) -> list[Answer]:
    db.begin()
    answers = Batch(db, ops, now, reader, parcel, careful=careful).carry_out()
    db.commit()
    return answers


class Batch(Holding, Requests, Starting, Asking, Carrier):
    """The operations of one transaction."""

    def __init__(
        self, db: Database, ops: Sequence[Op], now: float, reader: Reader, parcel: Parcel, *, careful: bool
    ) -> None:
        super().__init__(db, now, parcel=parcel)
        self._ops = ops
        self._reader = reader
        self._careful = careful
        self._live = {}
        self._keys = deque()
        self._newest_of = {}
        self._noted_keys = set()
        self._recorded = set()
        self._turns = Turns(db, now)
        self._dedups = {}

    def carry_out(self) -> list[Answer]:
        """Decide and write; the caller commits."""
        self._look_ahead()
        answers = [self._carry_out(op) for op in self._ops]
        self.flush()
        return answers

    def _look_ahead(self) -> None:
        """Read the fences of all runs that the operations touch, and all that is certain to be asked."""
        ahead = _Ahead(self._sql)
        for op in self._ops:
            ahead.note(op, careful=self._careful)
        self._ending = ahead.ending
        ahead.questions[self._sql.LINKS] = set(links_wanted(self._ops))
        ahead.questions[self._sql.WAITING] = {(key,) for key in self._ending}
        if self._ending or ahead.cancelled:
            ahead.questions[self._sql.LEFTOVERS] = {()}
        if ahead.sessions:
            self._db.lock_sessions(ahead.sessions)
        if ahead.accounts:
            self._db.lock_accounts(ahead.accounts)
        if ahead.turns:
            self._db.lock_turns(ahead.turns)
        if ahead.starts:
            self._db.foresee_keys(ahead.starts)
        self._db.foresee({statement: asked for statement, asked in ahead.questions.items() if asked})
        ids = filter(is_proper, ahead.ids)  # no run has another one
        self.read_fences(ahead.keys, ids, ahead.ending)  # last: a database that is far away sends all at once
        self._ending.update(self._by_id[run_id].key for run_id in ahead.cancelled if run_id in self._by_id)


class _Ahead:
    """What the operations of a batch are going to touch, and to ask."""

    def __init__(self, sql: Statements) -> None:
        self._sql = sql
        self.keys: set[int] = set()
        self.ids: set[str] = set()
        self.ending: set[int] = set()
        """Runs that are likely to end."""
        self.cancelled: list[str] = []
        self.sessions: set[tuple[str, str]] = set()
        self.accounts: set[int] = set()
        self.questions: dict[str, set[Row]] = {}
        self.turns: set[tuple[str, int, str]] = set()
        """The queues and keys of runs that are started."""
        self.starts = 0

    def note(self, op: Op, *, careful: bool) -> None:
        """One more operation."""
        match op:
            case AppendRecord():
                self.keys.add(op.key)
                if careful:
                    self._ask(self._sql.RECORD_EPOCH, op.key, op.record.seq)
                if op.used is not None:
                    self.accounts.add(op.key)
            case ParkRun():
                self.keys.add(op.key)
                if op.next_seq is not None:
                    self._ask(self._sql.RECORD_EPOCH, op.key, op.next_seq)
                if not op.paused:
                    self._ask(self._sql.SENT, op.key)
            case FinishRun():
                self.keys.add(op.key)
                self.ending.add(op.key)
            case ReserveUsage():
                self.keys.add(op.key)
                self.accounts.add(op.key)
            case ReleaseRun():
                self.keys.add(op.key)
                if op.error is not None:
                    self.ending.add(op.key)
                    self._ask(self._sql.DELIVERIES, op.key)
            case NoteAttempt() | TellNotices() | AskApproval() | RemindApproval() | WithdrawApproval():
                self.keys.add(op.key)
            case StartRun() | ForkRun():
                self._start(op)
            case AwaitRun():
                self.keys.add(op.link.parent)
                self.ids.add(op.run_id)
            case CancelRun():
                self.ids.add(op.run_id)
                self.cancelled.append(op.run_id)
            case SendSignal() | PauseRun() | ResumeRun() | ReopenRun() | SetBudget():
                self.ids.add(op.run_id)
            case AnswerApproval() | PutMemory() | DeleteMemory():
                pass

    def _start(self, op: StartRun | ForkRun) -> None:
        self.starts += 1
        self.ids.add(op.run.id)
        self._ask(self._sql.SWITCHES)
        self._ask(self._sql.QUEUE_TURN, op.run.queue)
        self.turns.add((op.run.queue, op.run.priority, op.run.queue_key))
        if op.run.dedup:
            self._ask(self._sql.DEDUP, op.run.queue, op.run.dedup)
        if op.run.session:
            self.sessions.add((op.run.workflow, op.run.session))
            self._ask(self._sql.NEWEST_OF_SESSION, op.run.workflow, op.run.session)
        if isinstance(op, ForkRun):
            self.ids.add(op.source)
            return
        if op.link is not None:
            self.keys.add(op.link.parent)
        if op.claim_as is not None:
            self._ask(self._sql.IS_LIVE, op.claim_as)

    def _ask(self, statement: str, *question: Any) -> None:
        self.questions.setdefault(statement, set()).add(question)
