"""Carrying out operations: one call, one transaction.

Records alone, which are most of what is ever committed, are inserted by a statement that contains its own fence check;
for the single record of a sequential run, that statement is the whole transaction. All else is a *batch*: the
transaction takes the write lock, reads the fence of every run it touches once, and then decides in Python, keeping in
mind what earlier operations of the batch have changed. Writes are gathered in one *lane* per table, where consecutive
ones with the same text become one ``executemany``. Within a lane the order of operations is kept; between lanes it does
not matter, as long as a lane is flushed before its table is read.

A batch assumes that its records are new. If SQLite finds that one is there already, the batch was handed in before
(see the contract on repeats): it is rolled back and carried out again *carefully*, looking before each append.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from holdfast.core.records import Kind
from holdfast.core.states import TERMINAL, RunState
from holdfast.stores import rules
from holdfast.stores.contract import (
    Answer,
    AppendRecord,
    FinishRun,
    NewRun,
    NoteAttempt,
    Op,
    ParkRun,
    ReleaseRun,
    ReopenRun,
    Run,
    SendSignal,
    Started,
    StartRun,
    Verdict,
)
from holdfast.stores.sqlite import statements as sql
from holdfast.stores.sqlite.connections import roll_back
from holdfast.stores.sqlite.rows import Reader, Row, attempt_row, names_text, record_row


def carry_out(connection: sqlite3.Connection, ops: Sequence[Op], now: float, reader: Reader) -> list[Answer]:
    """Carry out ``ops`` durably, and answer each."""
    if (records := _plain_records(ops)) is not None and _append(connection, records):
        return [Verdict.DONE] * len(records)
    try:
        return _transact(connection, Batch(connection, now, reader, careful=False), ops)
    except sqlite3.IntegrityError:
        roll_back(connection)
        return _transact(connection, Batch(connection, now, reader, careful=True), ops)


def _plain_records(ops: Sequence[Op]) -> list[Row] | None:
    """The rows of a batch that consists of records only, without side effects."""
    rows: list[Row] = []
    for op in ops:
        if type(op) is not AppendRecord or op.consume is not None or op.clear_attempt or op.reset_deliveries:
            return None
        rows.append(record_row(op))
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


def _transact(connection: sqlite3.Connection, batch: Batch, ops: Sequence[Op]) -> list[Answer]:
    connection.execute("BEGIN IMMEDIATE")
    answers = batch.carry_out(ops)
    connection.execute("COMMIT")
    return answers


class _Fence:
    """What a batch knows of a run: its row, and what earlier operations of the batch have made of it."""

    __slots__ = ("epoch", "key", "state")

    def __init__(self, key: int, epoch: int, state: str) -> None:
        self.key = key
        self.epoch = epoch
        self.state = state


class Batch:
    """The operations of one transaction."""

    def __init__(self, connection: sqlite3.Connection, now: float, reader: Reader, *, careful: bool) -> None:
        self._connection = connection
        self._now = now
        self._reader = reader
        self._careful = careful
        self._by_key: dict[int, _Fence] = {}
        self._by_id: dict[str, _Fence] = {}
        self._live: dict[int, bool] = {}
        self._lanes: dict[str, list[tuple[str, list[Row]]]] = {"records": [], "attempts": [], "signals": [], "runs": []}

    def carry_out(self, ops: Sequence[Op]) -> list[Answer]:
        """Decide and write; the caller commits."""
        self._read_fences(ops)
        answers: list[Answer] = []
        for op in ops:
            match op:
                case AppendRecord():
                    answers.append(self._append(op))
                case NoteAttempt():
                    answers.append(self._note_attempt(op))
                case FinishRun():
                    answers.append(self._finish(op))
                case ParkRun():
                    answers.append(self._park(op))
                case ReleaseRun():
                    answers.append(self._release(op))
                case SendSignal():
                    answers.append(self._send(op))
                case StartRun():
                    answers.append(self._start(op))
                case ReopenRun():
                    answers.append(self._reopen(op))
        for lane in self._lanes:
            self._flush(lane)
        return answers

    # The fence

    def _read_fences(self, ops: Sequence[Op]) -> None:
        keys: set[int] = set()
        ids: set[str] = set()
        for op in ops:
            if isinstance(op, SendSignal | ReopenRun):
                ids.add(op.run_id)
            elif not isinstance(op, StartRun):
                keys.add(op.key)
        wanted = list(keys)
        while len(wanted) > 1:
            piece, wanted = wanted[: sql.FENCES_AT_ONCE], wanted[sql.FENCES_AT_ONCE :]
            piece += piece[-1:] * (sql.FENCES_AT_ONCE - len(piece))
            self._note_fences(self._connection.execute(sql.FENCES_BY_KEY, piece))
        if wanted:
            self._note_fences(self._connection.execute(sql.FENCE, wanted))
        if ids:
            self._note_fences(self._connection.execute(sql.FENCES_BY_ID, (names_text(ids),)))

    def _note_fences(self, rows: sqlite3.Cursor) -> None:
        for key, run_id, epoch, state in rows:
            fence = self._by_key.get(key) or _Fence(key, epoch, state)
            self._by_key[key] = self._by_id[run_id] = fence

    def _held(self, key: int, epoch: int) -> _Fence | None:
        """The run, if an operation under ``epoch`` may change it."""
        fence = self._by_key.get(key)
        return fence if fence is not None and rules.holds(fence.state, fence.epoch, epoch) else None

    # Lanes

    def _later(self, lane: str, statement: str, row: Row) -> None:
        groups = self._lanes[lane]
        if groups and groups[-1][0] is statement:
            groups[-1][1].append(row)
        else:
            groups.append((statement, [row]))

    def _flush(self, lane: str) -> None:
        groups = self._lanes[lane]
        for statement, rows in groups:
            if len(rows) == 1:
                self._connection.execute(statement, rows[0])
            else:
                self._connection.executemany(statement, rows)
        groups.clear()

    def _one(self, statement: str, *values: Any) -> Row | None:
        return self._connection.execute(statement, values).fetchone()

    # Operations on a held run

    def _append(self, op: AppendRecord) -> Verdict:
        held = self._held(op.key, op.record.epoch)
        if held is None or self._careful:
            self._flush("records")
            present = self._one(sql.RECORD_EPOCH, op.key, op.record.seq)
            if present is not None:
                if held is not None and op.clear_attempt:  # the note of it was repeated as well
                    self._later("attempts", sql.CLEAR_ATTEMPT, (op.key, op.record.position))
                return Verdict.DONE if present[0] == op.record.epoch else Verdict.FENCED
            if held is None:
                return Verdict.FENCED
        self._later("records", sql.APPEND, record_row(op))
        if op.consume is not None:
            self._later("signals", sql.CONSUME_SIGNAL, (op.consume, op.key))
        if op.clear_attempt:
            self._later("attempts", sql.CLEAR_ATTEMPT, (op.key, op.record.position))
        if op.reset_deliveries:
            self._later("runs", sql.RESET_DELIVERIES, (op.key,))
        return Verdict.DONE

    def _note_attempt(self, op: NoteAttempt) -> Verdict:
        if self._held(op.key, op.epoch) is None:
            return Verdict.FENCED
        self._later("attempts", sql.NOTE_ATTEMPT, attempt_row(op))
        return Verdict.DONE

    def _finish(self, op: FinishRun) -> Verdict:
        fence = self._by_key.get(op.key)
        if fence is None:
            return Verdict.FENCED
        if not rules.holds(fence.state, fence.epoch, op.epoch):
            return Verdict.DONE if rules.is_finish_repeat(fence.state, fence.epoch, op) else Verdict.FENCED
        self._later("runs", sql.FINISH_RUN, (op.state, op.output, op.error, op.at, op.key))
        fence.state = op.state
        return Verdict.DONE

    def _park(self, op: ParkRun) -> Verdict:
        fence = self._by_key.get(op.key)
        if fence is None:
            return Verdict.FENCED
        if not rules.holds(fence.state, fence.epoch, op.epoch):
            return Verdict.DONE if rules.is_park_repeat(fence.state, fence.epoch, op.epoch) else Verdict.FENCED
        if op.next_seq is not None:
            self._flush("records")
            if self._one(sql.RECORD_EPOCH, op.key, op.next_seq) is not None:
                return Verdict.FENCED
        if op.signals:
            self._flush("signals")
            if self._one(sql.HAS_SIGNAL, op.key, names_text(op.signals)):
                return Verdict.REFUSED
        ready = None if op.wake_at is None else 0
        self._later("runs", sql.PARK_RUN, (ready, op.wake_at, op.waits_for, op.key))
        fence.state = RunState.WAITING
        return Verdict.DONE

    def _release(self, op: ReleaseRun) -> Verdict:
        fence = self._held(op.key, op.epoch)
        if fence is None:
            return Verdict.FENCED
        self._later("runs", sql.RELEASE_RUN, (self._now, op.key))
        fence.state = RunState.PENDING
        return Verdict.DONE

    # Operations from outside

    def _send(self, op: SendSignal) -> Verdict:
        fence = self._by_id.get(op.run_id)
        if fence is None:
            return Verdict.UNKNOWN_RUN
        if op.dedup is not None and self._one(sql.HAS_SIGNAL_KEY, fence.key, op.dedup):
            return Verdict.DUPLICATE
        if fence.state in TERMINAL:
            return Verdict.ENDED
        if op.dedup is not None:
            self._connection.execute(sql.NOTE_SIGNAL_KEY, (fence.key, op.dedup))
        self._later("signals", sql.SEND_SIGNAL, (fence.key, op.name, op.at, op.payload))
        if fence.state == RunState.WAITING:
            self._later("runs", sql.WAKE_RUN, (self._now, fence.key))
        return Verdict.DONE

    def _reopen(self, op: ReopenRun) -> Verdict:
        fence = self._by_id.get(op.run_id)
        if fence is None:
            return Verdict.UNKNOWN_RUN
        if fence.state not in rules.REOPENABLE:
            return Verdict.ENDED
        self._flush("records")
        last = self._one(sql.LAST_RECORD, fence.key)
        if last is not None and last[1] == Kind.STEP and not last[2]:
            if rules.is_outcome_unknown(last[3]) and not op.run_again:
                return Verdict.REFUSED
            self._connection.execute(sql.REMOVE_RECORD, (fence.key, last[0]))
        elif last is not None and last[1] == Kind.DEADLINE:
            self._connection.execute(sql.REMOVE_RECORD, (fence.key, last[0]))
        self._later("runs", sql.REOPEN_RUN, (self._now, self._now, fence.key))
        fence.state = RunState.PENDING
        return Verdict.DONE

    # Starting

    def _start(self, op: StartRun) -> Started:
        new = op.run
        self._flush("runs")
        if op.join_orphan and (joined := self._join(new)) is not None:
            return joined
        owner = op.claim_as if op.claim_as is not None and self._is_live(op.claim_as) else None
        wake_at = rules.first_wake(new, self._now) if owner is None else None
        run = Run(
            key=0, id=new.id, workflow=new.workflow, queue=new.queue,
            state=RunState.PENDING if owner is None else RunState.RUNNING, epoch=0 if owner is None else 1,
            owner=owner, starter=new.starter, deliveries=0, max_deliveries=new.max_deliveries, wake_at=wake_at,
            waits_for="", priority=new.priority, deadline=new.deadline, inputs=new.inputs, digest=new.digest,
            seed=new.seed, output=None, error=None, tags=new.tags, python=new.python, created_at=new.created_at,
            finished_at=None,
        )  # fmt: skip
        ready = None if wake_at is None else int(wake_at <= self._now)
        cursor = self._connection.execute(
            sql.START_RUN,
            (
                run.id, run.workflow, run.queue, run.state, run.epoch, run.owner, run.starter, run.max_deliveries,
                ready, run.wake_at, run.priority, run.deadline, new.generated_id, run.python, run.created_at,
                run.digest, run.seed, names_text(run.tags), run.inputs,
            ),
        )  # fmt: skip
        if cursor.rowcount == 0:
            return self._present(new)
        assert cursor.lastrowid is not None
        run = replace(run, key=cursor.lastrowid)
        self._by_key[run.key] = self._by_id[run.id] = _Fence(run.key, run.epoch, run.state)
        return Started(run, created=True)

    def _join(self, new: NewRun) -> Started | None:
        """The run that is there under this id (this start may be a repeat), else an orphan, else nothing."""
        if self._one(sql.GET_RUN, new.id):
            return self._present(new)
        row = self._one(sql.FIND_ORPHAN, new.workflow, new.digest)
        if row is None:
            return None
        orphan = self._reader.run(row)
        self._connection.execute(sql.ADOPT_ORPHAN, (new.starter, orphan.key))
        return Started(replace(orphan, starter=new.starter), created=False)

    def _present(self, new: NewRun) -> Started:
        row = self._one(sql.GET_RUN, new.id)
        assert row is not None
        run = self._reader.run(row)
        return Started(run, created=run.seed == new.seed)

    def _is_live(self, worker: int) -> bool:
        """Whether a worker may hold runs: nobody would ever free those of a dead one."""
        live = self._live.get(worker)
        if live is None:
            live = self._live[worker] = self._one(sql.IS_LIVE, worker) is not None
        return live
