"""Carrying out operations: one call, one transaction.

Most commits consist of plain records. These are inserted by a statement that contains its own fence check; for the
single record of a sequential run, that statement is the whole transaction. Everything else is a *batch*: see
``transaction`` for what its operations share. A batch prefetches: before its first operation, it tells the database
everything that its operations will read, so that one round trip is enough.

A batch assumes that its records and runs are new. If the database finds that one exists, the batch was submitted before
(see the contract on repeats), or another process has started the same run at the same moment. Then it is rolled back
and carried out again with ``check_existing``, which looks for each record before it appends it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from holdfast.core.records import RecordKind
from holdfast.stores.approvals import AnswerApproval, RemindApproval, RequestApproval, WithdrawApproval
from holdfast.stores.audit_log import AuditEvent
from holdfast.stores.daily_usage import make_increment
from holdfast.stores.memories import DeleteMemory, PutMemory
from holdfast.stores.operations import (
    AppendLiveEvents,
    AppendRecord,
    AwaitRun,
    CancelRun,
    FinishRun,
    ForkRun,
    Op,
    OpResult,
    OpStatus,
    ParkRun,
    PauseRun,
    ReleaseRun,
    ReopenRun,
    ReserveUsage,
    ResumeRun,
    SaveAttempt,
    SendSignal,
    SetBudget,
    StartRun,
)
from holdfast.stores.shared_operations import SharedOperations
from holdfast.stores.sql.approval_operations import ApprovalOperations
from holdfast.stores.sql.blobs import NO_BLOBS, BlobBatch, is_large
from holdfast.stores.sql.claimed_run_operations import ClaimedRunOperations
from holdfast.stores.sql.client_operations import ClientOperations
from holdfast.stores.sql.database import Database, Row, WriteConflict
from holdfast.stores.sql.queue_placement import TurnAllocator
from holdfast.stores.sql.rows import RowReader, record_to_row
from holdfast.stores.sql.server_data import increment_to_row
from holdfast.stores.sql.start_operations import StartOperations, list_needed_links
from holdfast.stores.sql.statements import Statements
from holdfast.stores.sql.transaction import FencedRun
from holdfast.stores.sql.usage_accounts import SqlUsageAccounts
from holdfast.stores.utf8 import is_encodable

BeforeCommit = Callable[[Database, Sequence[OpResult], float], None]
"""Called with the answers and the time when everything is written that the operations write."""


def apply_ops(
    db: Database,
    ops: Sequence[Op],
    now: float,
    reader: RowReader,
    blob_batch: BlobBatch = NO_BLOBS,
    before_commit: BeforeCommit | None = None,
) -> list[OpResult]:
    """Commit ``ops``, and answer each. ``blob_batch`` has their large payloads."""
    if before_commit is None and (records := get_plain_record_rows(ops)) is not None:
        usages = get_usage_rows(cast("Sequence[AppendRecord]", ops))
        if usages is not None and db.append_fenced(records, usages):
            return [OpStatus.DONE] * len(records)
    try:
        return _run_transaction(db, ops, now, reader, blob_batch, before_commit, check_existing=False)
    except WriteConflict:
        db.roll_back()
        return _run_transaction(db, ops, now, reader, blob_batch, before_commit, check_existing=True)


def get_plain_record_rows(ops: Sequence[Op]) -> list[Row] | None:
    """The rows of operations that only append records, with usage, but without other side effects and large values.

    ``None`` if any operation does more.
    """
    rows: list[Row] = []
    cancel = RecordKind.CANCEL
    for op in ops:
        if type(op) is not AppendRecord:
            return None
        key, record, consumed_signal_id, clear_attempt, reset, _, memory, clear_live_events, _, _ = op
        if clear_attempt or reset or clear_live_events or record.kind is cancel:
            return None
        if consumed_signal_id is not None or memory is not None:
            return None
        payload = record.payload
        if payload is not None and is_large(payload):
            return None
        rows.append(record_to_row(key, record, payload))
    return rows


class PlainOps(NamedTuple):
    """Operations that do not depend on each other, and have no effects but their own."""

    records: list[Row]
    finishes: list[FinishRun]
    starts: list[StartRun]
    usages: list[Row]
    """See ``get_usage_rows``."""

    @property
    def size(self) -> int:
        """The size of their payloads."""
        ended, inputs = (
            (len(op.output or op.error or b"") for op in self.finishes),
            (len(op.run.inputs) for op in self.starts),
        )
        return sum(len(row[-1] or b"") for row in self.records) + sum(ended) + sum(inputs)


def split_plain_ops(ops: Sequence[Op]) -> PlainOps | None:
    """The rows of records, the ends of runs, and starts, if the operations are nothing else, and small.

    ``None`` also if the order of some operations matters.
    """
    finishes, starts = [op for op in ops if type(op) is FinishRun], [op for op in ops if type(op) is StartRun]
    others = [op for op in ops if type(op) is not FinishRun and type(op) is not StartRun] if finishes or starts else ops
    rows = get_plain_record_rows(others)
    if rows is None or not all(map(_is_plain_start, starts)):
        return None
    usages = get_usage_rows(cast("Sequence[AppendRecord]", others))
    keys, ids = {op.key for op in finishes}, {op.run.id for op in starts}
    is_plain = len(keys) == len(finishes) and keys.isdisjoint(row[0] for row in rows) and len(ids) == len(starts)
    is_small = not any(value and is_large(value) for op in finishes for value in (op.output, op.error))
    if usages is None or not (is_plain and is_small):
        return None
    return PlainOps(rows, finishes, starts, usages)


def get_usage_rows(ops: Sequence[AppendRecord]) -> list[Row] | None:
    """The usages of records, as rows of ``ADD_DAILY_USAGE`` with the seconds at the end.

    ``None`` if one of them counts for no day.
    """
    rows: list[Row] = []
    for op in ops:
        if op.used is not None:
            increment = make_increment(op.used, op.model, op.record.at)
            if increment is None:
                return None
            rows.append((*increment_to_row(op.key, increment), op.used.seconds))
    return rows


def _is_plain_start(op: StartRun) -> bool:
    """Whether a start only creates a run, if its id is new, and its workflow and queue have no restrictions."""
    new = op.run
    is_alone = op.link is None and op.claim_event is None and new.budget is None and not new.restored_from
    return is_alone and not (op.join_orphan or new.dedup_key or new.session or new.tags or is_large(new.inputs))


def _run_transaction(
    db: Database,
    ops: Sequence[Op],
    now: float,
    reader: RowReader,
    blob_batch: BlobBatch,
    before_commit: BeforeCommit | None,
    *,
    check_existing: bool,
) -> list[OpResult]:
    db.begin()
    answers = Batch(db, ops, now, reader, blob_batch, check_existing=check_existing).apply()
    if before_commit is not None:
        before_commit(db, answers, now)
    db.commit()
    return answers


class Batch(
    ClaimedRunOperations,
    ClientOperations,
    StartOperations,
    ApprovalOperations,
    SharedOperations[FencedRun, SqlUsageAccounts],
):
    """The operations of one transaction."""

    def __init__(
        self,
        db: Database,
        ops: Sequence[Op],
        now: float,
        reader: RowReader,
        blob_batch: BlobBatch,
        *,
        check_existing: bool,
    ) -> None:
        super().__init__(db, now, blob_batch=blob_batch)
        self._ops = ops
        self._reader = reader
        self._check_existing = check_existing
        self._live_workers = {}
        self._free_keys = deque()
        self._newest_by_session = {}
        self._new_signal_keys = set()
        self._delivery_resets = set()
        self._turn_allocator = TurnAllocator(db, now)
        self._dedup_owners = {}

    def apply(self) -> list[OpResult]:
        """Decide and write. The caller commits."""
        self._prefetch()
        answers = [self._apply_op(op) for op in self._ops]
        self.flush()
        return answers

    def _answer_approval(self, op: AnswerApproval) -> OpStatus:
        return super()._answer_approval(op) if is_encodable(op.id) else OpStatus.UNKNOWN_APPROVAL

    def _prefetch(self) -> None:
        """Read the fences of all runs that the operations touch, and everything else that they are sure to read."""
        plan = _PrefetchPlan(self._sql)
        for op in self._ops:
            plan.add(op, check_existing=self._check_existing)
        self._ending_keys = plan.ending_keys
        plan.lookups[self._sql.LINKS] = set(list_needed_links(self._ops))
        plan.lookups[self._sql.WAITERS] = {(key,) for key in self._ending_keys}
        if self._ending_keys or plan.cancelled_ids:
            plan.lookups[self._sql.HAS_LEFTOVERS] = {()}
        if plan.sessions:
            self._db.lock_sessions(plan.sessions)
        if plan.account_keys:
            self._db.lock_accounts(plan.account_keys)
        if plan.turn_keys:
            self._db.lock_turns(plan.turn_keys)
        if plan.start_count:
            self._db.prefetch_keys(plan.start_count)
        self._db.prefetch({statement: parameters for statement, parameters in plan.lookups.items() if parameters})
        ids = filter(is_encodable, plan.ids)  # no other ids exist
        self.read_fences(plan.keys, ids, plan.ending_keys)  # last: a remote database sends everything before together
        self._ending_keys.update(
            self._runs_by_id[run_id].key for run_id in plan.cancelled_ids if run_id in self._runs_by_id
        )


class _PrefetchPlan:
    """What the operations of a batch will touch and read."""

    def __init__(self, sql: Statements) -> None:
        self._sql = sql
        self.keys: set[int] = set()
        self.ids: set[str] = set()
        self.ending_keys: set[int] = set()
        """Runs that are likely to end."""
        self.cancelled_ids: list[str] = []
        self.sessions: set[tuple[str, str]] = set()
        self.account_keys: set[int] = set()
        self.lookups: dict[str, set[Row]] = {}
        self.turn_keys: set[tuple[str, int, str]] = set()
        """Queue, priority, and queue key of the runs to start."""
        self.start_count = 0

    def add(self, op: Op, *, check_existing: bool) -> None:
        match op:
            case AppendRecord():
                self.keys.add(op.key)
                if check_existing:
                    self._add_lookup(self._sql.RECORD_EPOCH, op.key, op.record.seq)
                if op.used is not None:
                    self.account_keys.add(op.key)
            case ParkRun():
                self.keys.add(op.key)
                if op.next_seq is not None:
                    self._add_lookup(self._sql.RECORD_EPOCH, op.key, op.next_seq)
                if not op.is_pause:
                    self._add_lookup(self._sql.MAILBOX_NAMES, op.key)
            case FinishRun():
                self.keys.add(op.key)
                self.ending_keys.add(op.key)
            case ReserveUsage():
                self.keys.add(op.key)
                self.account_keys.add(op.key)
            case ReleaseRun():
                self.keys.add(op.key)
                if op.error is not None:
                    self.ending_keys.add(op.key)
                    self._add_lookup(self._sql.DELIVERY_COUNTS, op.key)
            case SaveAttempt() | AppendLiveEvents() | RequestApproval() | RemindApproval() | WithdrawApproval():
                self.keys.add(op.key)
            case StartRun() | ForkRun():
                self._add_start(op)
            case AwaitRun():
                self.keys.add(op.link.parent_key)
                self.ids.add(op.run_id)
            case CancelRun():
                self.ids.add(op.run_id)
                self.cancelled_ids.append(op.run_id)
            case SendSignal() | PauseRun() | ResumeRun() | ReopenRun() | SetBudget():
                self.ids.add(op.run_id)
            case AnswerApproval() | PutMemory() | DeleteMemory() | AuditEvent():
                pass

    def _add_start(self, op: StartRun | ForkRun) -> None:
        self.start_count += 1
        self.ids.add(op.run.id)
        self._add_lookup(self._sql.DISABLED_WORKFLOWS)
        self._add_lookup(self._sql.LOCK_QUEUE_TURNS, op.run.queue)
        self.turn_keys.add((op.run.queue, op.run.priority, op.run.queue_key))
        if op.run.dedup_key:
            self._add_lookup(self._sql.DEDUP_OWNER, op.run.queue, op.run.dedup_key)
        if op.run.session:
            self.sessions.add((op.run.workflow, op.run.session))
            self._add_lookup(self._sql.NEWEST_IN_SESSION, op.run.workflow, op.run.session)
        if isinstance(op, ForkRun):
            self.ids.add(op.source_run)
            return
        if op.link is not None:
            self.keys.add(op.link.parent_key)
        if op.claim_as is not None:
            self._add_lookup(self._sql.IS_WORKER_LIVE, op.claim_as)

    def _add_lookup(self, statement: str, *parameters: Any) -> None:
        self.lookups.setdefault(statement, set()).add(parameters)
