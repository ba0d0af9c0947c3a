"""Rows to values and back. An unreadable row raises an error with its name; nothing is guessed."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, cast

from holdfast.admission.usage import BudgetLimits, Usage
from holdfast.core.records import Attempt, Record, RecordKind, Rewind, RewindPoint
from holdfast.core.states import RunState
from holdfast.errors import StoreCorrupt
from holdfast.stores.contract import RunUsage, WorkflowSpec
from holdfast.stores.journal_pages import JournalSegment
from holdfast.stores.operations import CancelState, FinishRun, NewRun, Run
from holdfast.stores.rules import get_first_wake_at
from holdfast.stores.run_errors import encode_corrupt_error
from holdfast.stores.served_versions import make_served_name, split_served_name
from holdfast.stores.sql.database import Row
from holdfast.stores.sql.ready_states import ReadyState
from holdfast.stores.usage_accounts import UsageAccount
from holdfast.stores.workers import Worker

log = logging.getLogger("holdfast.stores")

T = TypeVar("T")

_STATES = {state.value: state for state in RunState}
_CANCELS = {cancel.value: cancel for cancel in CancelState}
_KINDS = {kind.value: kind for kind in RecordKind}
_EMPTY_LIST = "[]"
_MAX_CACHED_SPECS = 1024


def read_each(rows: Iterable[Row], read: Callable[[Row], T]) -> list[T]:
    """The values in the rows. An unreadable one is left out and logged."""
    found: list[T] = []
    for row in rows:
        try:
            found.append(read(row))
        except StoreCorrupt as problem:
            log.warning("%s", problem)
    return found


def names_to_json(names: Iterable[str]) -> str:
    """The stored form of a list of names."""
    return json.dumps(list(names), ensure_ascii=False) if names else _EMPTY_LIST


def record_to_row(key: int, r: Record, payload: bytes | None) -> Row:
    """The columns of ``statements.APPEND_RECORD``; exact ints, because drivers look for an adapter of anything else.

    ``payload`` is in its stored form: a reference, if it is large.
    """
    return (
        key, r.seq, int(r.kind), r.position, 1 if r.ok else 0, r.at, r.started_at, r.attempts, r.worker, r.epoch,
        r.name, r.preview, payload,
    )  # fmt: skip


class QueuePosition(NamedTuple):
    """The position of a run in its queue."""

    due_state: int = 1
    """Its ``ready_state`` when it is due: ``DUE`` in a queue without limits; else ``UNSTARTED`` or ``STARTED``."""
    turn: int = 0
    dedup_key: str = ""
    is_debounced: bool = False

    @property
    def is_limited(self) -> bool:
        """Whether its queue has limits."""
        return self.due_state > 1


UNLIMITED_POSITION = QueuePosition()


def run_to_row(
    new: NewRun,
    owner: int | None,
    now: float,
    inputs: bytes | None,
    previous: str,
    has_budget: bool,
    position: QueuePosition = UNLIMITED_POSITION,
) -> Row:
    """The columns of ``statements.runs.NEW_RUN_VALUES``, for the run that ``rules.make_run`` makes.

    ``inputs`` is in its stored form: a reference, if they are large.
    """
    state, epoch, ready, wake_at = "running", 1, None, None
    if owner is None:
        wake_at = get_first_wake_at(new, now)
        state, epoch, ready = "pending", 0, position.due_state if wake_at <= now else int(ReadyState.TIMER)
    clock_started_at = new.created_at if new.clock_started_at is None else new.clock_started_at
    points = json.dumps(new.rewind_points) if new.rewind_points else _EMPTY_LIST
    return (
        new.id, new.workflow, new.queue, state, epoch, owner, new.starter, new.max_deliveries, ready, wake_at,
        new.priority, new.deadline, 1 if new.has_generated_id else 0, new.python_version, new.created_at,
        clock_started_at, new.parent, new.forked_from, points, new.digest, new.seed,
        names_to_json(new.tags), inputs, new.session, previous, 1 if has_budget else 0, new.version, new.queue_key,
        position.due_state, position.turn, position.dedup_key, 1 if position.is_debounced else 0,
        1 if new.is_delivery else 0, new.trace_parent,
    )  # fmt: skip


def finish_to_row(op: FinishRun, output: bytes | None, error: bytes | None) -> Row:
    """The values with which a run ends, and its key. ``output`` and ``error`` are in their stored form."""
    return (op.state, output, error, op.at, rewind_to_json(op.rewind), op.key)


def rewind_to_json(rewind: Rewind | None) -> str | None:
    """The stored form of a rewind."""
    return None if rewind is None else json.dumps(rewind)


def attempt_to_row(key: int, a: Attempt) -> Row:
    """The columns of ``statements.SAVE_ATTEMPT``."""
    return (key, a.position, a.attempt, a.intent, a.progress, a.error, a.at, a.name, a.retry_at, a.failing_since)


def account_to_row(account: UsageAccount) -> Row:
    """The columns of ``statements.PUT_ACCOUNT``."""
    u, r = account.used, account.reserved
    return (
        account.key, account.parent_key, u.calls, u.input_tokens, u.output_tokens, u.cached_tokens, u.nano_usd,
        u.unpriced, u.seconds, r.calls, r.input_tokens, r.nano_usd, limits_to_json(account.budget),
        json.dumps(account.short_positions) if account.short_positions else "",
    )  # fmt: skip


def limits_to_json(limits: BudgetLimits | None) -> str | None:
    """The stored form of a budget."""
    return None if limits is None else json.dumps(limits)


def parse_limits_or_zero(text: Any, run_id: str) -> BudgetLimits:
    """The budget of a run. One that cannot be read admits nothing until it is set again."""
    limits = _parse_limits(text)
    if limits is None:
        log.warning("the budget of run %r cannot be read (%r): it counts as used up until it is set anew", run_id, text)
    return limits or BudgetLimits(0, 0, 0, 0.0)


def _parse_limits(text: Any) -> BudgetLimits | None:
    try:
        values: Any = json.loads(text)
        limits = BudgetLimits(*values)
    except (TypeError, ValueError):
        return None
    return limits if all(value is None or isinstance(value, int | float) for value in values) else None


def spec_to_row(spec: WorkflowSpec, announced_at: float) -> Row:
    """The columns of ``statements.PUT_SPEC``."""
    return (
        make_served_name(spec.name, spec.version), names_to_json(spec.parameters), spec.id_template, spec.queue,
        spec.timeout_s, names_to_json(spec.tags), limits_to_json(spec.budget), 1 if spec.is_agent else 0,
        spec.max_deliveries, announced_at, spec.queue_key_template, 1 if spec.is_address else 0, spec.inputs_schema,
    )  # fmt: skip


def describe_record(run_id: str, seq: int, name: str, position: int) -> str:
    """The name of a record in an error message."""
    return f"record {seq} of run {run_id!r} ({name!r} at position {position})"


class RowReader:
    """Converts the rows of one database to values. Large payloads stay references: see ``payloads``."""

    def __init__(self, database: str) -> None:
        self._database = database
        self.read_spec: Callable[[Row], WorkflowSpec] = lru_cache(_MAX_CACHED_SPECS)(self._parse_spec)
        """Converts a row of ``statements.SPECS``. A start reads those of its workflow."""

    def make_unreadable_error(self, row_name: str, problem: str) -> StoreCorrupt:
        """The error for a row that this version of Holdfast cannot have written."""
        return StoreCorrupt(
            f"{self._database}: {row_name} cannot be read: {problem}. It was written by a newer Holdfast or changed by "
            f"hand; upgrade Holdfast, or repair the row."
        )

    def make_missing_error(self, key: int) -> StoreCorrupt:
        """The error for a run that is in an index and not in its table: the database itself is damaged."""
        return StoreCorrupt(
            f"{self._database} is damaged: an index lists the run with key {key}, and the table does not have its row. "
            f"Stop all workers and check it (SQLite: PRAGMA integrity_check; PostgreSQL: pg_amcheck). REINDEX repairs "
            f"an index that is wrong; otherwise recover what can be read, or go back to a backup."
        )

    def read_run(self, row: Row) -> Run:
        """A row of ``statements.RUN_COLUMNS``."""
        state, cancel = _STATES.get(row[4]), _CANCELS.get(row[24])
        if state is None:
            raise self.make_unreadable_error(f"run {row[1]!r}", f"unknown state {row[4]!r}")
        if cancel is None:
            raise self.make_unreadable_error(f"run {row[1]!r}", f"unknown cancel_state {row[24]!r}")
        tags = () if row[19] == _EMPTY_LIST else self._read_names(row[19], f"run {row[1]!r}")
        rewind = None if row[26] is None else self.read_rewind(row[26], f"run {row[1]!r}")
        points = () if row[29] == _EMPTY_LIST else self._read_rewind_points(row[29], f"run {row[1]!r}")
        values = list(row)
        values[4], values[19], values[24], values[26], values[29] = state, tags, cancel, rewind, points
        values[32], values[35], values[36] = row[32] == 1, row[35] > 1, row[36] == 1
        return Run(*values)

    def read_as_failed(self, row: Row, problem: StoreCorrupt) -> Run:
        """An unreadable row, as a run that has failed because of that."""
        error = encode_corrupt_error(str(problem))
        values: Row = (*row[:4], RunState.FAILED, *row[5:18], error, (), *row[20:24], CancelState.NONE, None, None)
        return Run(
            *values, parent=row[27], forked_from=row[28], session=row[30], previous_run=row[31],
            has_budget=row[32] == 1, version=row[33], queue_key=row[34], is_limited=row[35] > 1,
            is_delivery=row[36] == 1, suspicion=row[37], trace_parent=row[38],
        )  # fmt: skip

    def read_rewind(self, text: Any, row_name: str) -> Rewind | None:
        """What a retry removes, from a row named ``row_name``."""
        if text is None:
            return None
        try:
            failed, commands, timers, is_compensated, *lists = json.loads(text)
            once, abandoned = (tuple(map(int, numbers)) for numbers in lists)
            return Rewind(tuple(map(int, failed)), int(commands), int(timers), bool(is_compensated), once, abandoned)
        except (TypeError, ValueError):
            raise self.make_unreadable_error(row_name, f"{text!r} does not tell what a retry takes back") from None

    def _read_rewind_points(self, text: Any, row_name: str) -> tuple[RewindPoint, ...]:
        try:
            return tuple(RewindPoint(int(position), int(seq)) for position, seq in json.loads(text))
        except (TypeError, ValueError):
            raise self.make_unreadable_error(row_name, f"{text!r} is not a JSON list of pairs of numbers") from None

    def read_record(self, r: Row, run_id: str) -> Record:
        """One record, from a row in the order of ``Record``'s fields."""
        kind = _KINDS.get(r[1])
        if kind is None:
            raise self.make_unreadable_error(describe_record(run_id, r[0], r[3], r[2]), f"unknown kind {r[1]!r}")
        return Record(r[0], kind, r[2], r[3], r[4] == 1, *r[5:])

    def read_records(self, rows: Iterable[Row]) -> list[Record] | None:
        """A run's journal, from rows in the order of ``Record``'s fields; ``None``: a row is unreadable."""
        kinds = _KINDS
        try:
            return [
                Record(
                    r[0], kinds[r[1]], r[2], r[3], r[4] == 1, r[5], r[6], r[7], r[8], r[9], r[10], r[11]
                )
                for r in rows
            ]  # fmt: skip
        except (KeyError, TypeError):
            return None

    def read_segment(self, row: Row, run_id: str) -> JournalSegment:
        """A part of a journal, from a row in the order of ``JournalSegment``'s fields."""
        epoch, worker, number, record_count, first_seq, last_seq = row
        kind = _KINDS.get(number)
        if kind is None:
            raise self.make_unreadable_error(f"record {first_seq} of run {run_id!r}", f"unknown kind {number!r}")
        return JournalSegment(epoch, worker, kind, record_count, first_seq, last_seq)

    def read_attempts(self, rows: Iterable[Row]) -> dict[int, Attempt]:
        """A run's steps in flight, by position."""
        return {r[0]: Attempt(r[0], r[1], r[2] == 1, *r[3:]) for r in rows}

    def read_worker(self, row: Row) -> Worker:
        """A row of ``statements.WORKER_COLUMNS``."""
        row_name = f"worker {row[0]}"
        queues = None if row[6] is None else self._read_names(row[6], row_name)
        values: Row = (*row[:5], self._read_names(row[5], row_name), queues, *row[7:10], row[10] == 1)
        return Worker(*values)

    def _parse_spec(self, row: Row) -> WorkflowSpec:
        row_name = f"workflow {row[0]!r}"
        parameters, tags, budget = self._read_names(row[1], row_name), self._read_names(row[5], row_name), None
        if row[6] is not None:
            budget = _parse_limits(row[6])
            if budget is None:
                raise self.make_unreadable_error(row_name, f"{row[6]!r} is not a budget")
        name, version = split_served_name(row[0])
        return WorkflowSpec(
            name, parameters, row[2], row[3], row[4], tags, budget, row[7] == 1, row[8], version, row[10],
            is_address=row[11] == 1, inputs_schema=row[12], announced_at=row[9],
        )  # fmt: skip

    def read_usage(self, row: Row) -> RunUsage:
        """A row of ``statements.USAGES``."""
        budget = None if row[8] is None else parse_limits_or_zero(row[8], row[0])
        return RunUsage(Usage(*row[1:8]), budget)

    def read_state(self, text: str, row_name: str) -> RunState:
        """A state, from a row named ``row_name``."""
        state = _STATES.get(text)
        if state is None:
            raise self.make_unreadable_error(row_name, f"unknown state {text!r}")
        return state

    def _read_names(self, text: Any, row_name: str) -> tuple[str, ...]:
        if text == _EMPTY_LIST:
            return ()
        try:
            names: Any = json.loads(text)
        except (TypeError, ValueError):
            names = None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in cast("list[Any]", names)):
            raise self.make_unreadable_error(row_name, f"{text!r} is not a JSON list of names")
        return tuple(cast("list[str]", names))
