"""An index of the history of one execution: the outcome of each command, by the command's position.

``journals`` puts these outcomes in order, as records.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from holdfast.admission.usage import Usage
from holdfast.codec import encode_error
from holdfast.core.records import Attempt, Record, RecordKind, Signal
from holdfast.core.states import RunState
from holdfast.errors import RunNotFound, StepFailed
from holdfast.stores.run_errors import encode_child_failure, make_unknown_outcome_error
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.awaited_run import AwaitedRun, found_run_from_json
from holdfast.stores.temporal.carried_records import unpack, unpack_attempts, unpack_signal_ids
from holdfast.stores.temporal.payloads import from_payload, load_json
from holdfast.stores.temporal.program_journal import ProgramJournal
from holdfast.stores.temporal.run_events import (
    RUN_STATES,
    ChildEnded,
    EndResult,
    EndStatus,
    EventBatch,
    EventBatchReader,
    RunEvent,
    SignalReceived,
    StepEnded,
    get_attributes,
    get_event_time,
    timer_from_summary,
)
from holdfast.stores.temporal.run_memo import APPROVALS_KEY, RUN_MEMO_KEY


@dataclass(frozen=True, slots=True)
class ChildRun:
    """A run that was started as a child, or awaited because it already existed."""

    run_id: str
    workflow: str
    is_awaited: bool


@dataclass(slots=True)
class ApprovalEntry:
    """An approval, and its answer."""

    memo_entry: dict[str, Any]
    """Its last entry in the memo."""
    answer: bytes | None = None
    answered_at: float | None = None
    is_open: bool = True

    @property
    def position(self) -> int:
        """The position of the command that waits for the answer."""
        return int(self.memo_entry["position"])


@dataclass
class Outcomes:
    """The index of one execution's history."""

    carried_records: list[Record] = field(default_factory=list[Record])
    """Records of the executions before it."""
    carried_signals: list[Signal] = field(default_factory=list[Signal])
    """Signals to the executions before it that no record has consumed."""
    carried_attempts: dict[int, Attempt] = field(default_factory=dict[int, Attempt])
    """A program's steps in flight in the executions before it, by position."""
    signal_ids: set[str] = field(default_factory=set[str])
    """Deduplication ids of all signals that were sent to the run."""
    batches: list[EventBatch] = field(default_factory=list[EventBatch])
    unseen_events: list[RunEvent] = field(default_factory=list[RunEvent])
    """Events that no completed workflow task has delivered to the code yet."""
    ended_steps: dict[int, StepEnded] = field(default_factory=dict[int, StepEnded])
    """Includes the activities that waited for a run."""
    step_previews: dict[int, str] = field(default_factory=dict[int, str])
    """The arguments of steps, shortened."""
    children: dict[int, ChildRun] = field(default_factory=dict[int, ChildRun])
    child_ends: dict[int, ChildEnded] = field(default_factory=dict[int, ChildEnded])
    approvals: dict[str, ApprovalEntry] = field(default_factory=dict[str, ApprovalEntry])
    issued_positions: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    """Positions of commands, by the number of the event that completed the workflow task which issued them."""
    timer_positions: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    """Positions of timers, in the same way."""
    usage: Usage = field(default_factory=Usage)
    program: ProgramJournal | None = None
    """The journal, if the run's code is a program."""
    is_closed: bool = False
    end_task_event_id: int = 0
    """The number of the event that completed the workflow task which ended the run."""


def read_outcomes(events: Sequence[HistoryEvent]) -> Outcomes:
    """The index of these events of one execution, from its first on."""
    outcomes = Outcomes()
    if not events:
        return outcomes
    start = events[0].workflow_execution_started_event_attributes
    _, outcomes.carried_records, outcomes.carried_signals = unpack(start.input.payloads)
    outcomes.carried_attempts = unpack_attempts(start.input.payloads)
    outcomes.signal_ids = unpack_signal_ids(start.input.payloads)
    _index_approvals(outcomes, start.memo.fields.get(APPROVALS_KEY), None)
    for event in events:
        _index_event(outcomes, event)
    reader = EventBatchReader()
    outcomes.batches = list(reader.read(events))
    outcomes.unseen_events = reader.unseen_events
    if outcomes.program is not None:
        outcomes.program.add_batches(outcomes.batches)
        outcomes.usage += outcomes.program.usage
    delivered = [run_event for batch in outcomes.batches for run_event in batch.events]
    for run_event in delivered:
        if isinstance(run_event, StepEnded):
            outcomes.ended_steps[run_event.position] = run_event
            if run_event.usage:
                outcomes.usage += usage_from_note(run_event.usage)
        elif isinstance(run_event, ChildEnded):
            outcomes.child_ends[run_event.position] = run_event
    outcomes.signal_ids |= {
        get_dedup_id(run_event)
        for run_event in (*delivered, *outcomes.unseen_events)
        if isinstance(run_event, SignalReceived)
        and run_event.name != identifiers.ANSWER_SIGNAL
        and len(run_event.payloads) > 1
    }
    return outcomes


def _index_event(outcomes: Outcomes, event: HistoryEvent) -> None:
    kind = event.event_type
    if kind == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
        step = event.activity_task_scheduled_event_attributes
        if step.activity_type.name == identifiers.PROGRAM_ACTIVITY:
            outcomes.program = outcomes.program or ProgramJournal(
                list(outcomes.carried_records), dict(outcomes.carried_attempts)
            )
            return
        position, name = identifiers.parse_activity_position(step.activity_id), step.activity_type.name
        outcomes.issued_positions.setdefault(step.workflow_task_completed_event_id, set()).add(position)
        if name == identifiers.AWAIT_RUN_ACTIVITY:
            awaited = AwaitedRun.from_json(from_payload(step.input.payloads[0]))
            child = outcomes.children.get(position)
            outcomes.children[position] = ChildRun(
                awaited.run_id, "" if child is None else child.workflow, awaited.wait
            )
        else:
            outcomes.step_previews[position] = str(load_json(step.input.payloads[0])) if step.input.payloads else ""
    elif kind == EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
        new = event.start_child_workflow_execution_initiated_event_attributes
        head: dict[str, Any] = load_json(new.memo.fields[RUN_MEMO_KEY]) if RUN_MEMO_KEY in new.memo.fields else {}
        position = head.get("position", 0)
        outcomes.issued_positions.setdefault(new.workflow_task_completed_event_id, set()).add(position)
        outcomes.children[position] = ChildRun(new.workflow_id, new.workflow_type.name, head.get("is_awaited", False))
    elif kind == EventType.EVENT_TYPE_TIMER_STARTED:
        summary = str(load_json(event.user_metadata.summary) or "")
        if summary != identifiers.DELAY_SUMMARY and (position := timer_from_summary(summary).position) is not None:
            task = event.timer_started_event_attributes.workflow_task_completed_event_id
            outcomes.timer_positions.setdefault(task, set()).add(position)
    elif kind == EventType.EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED:
        changed = event.workflow_properties_modified_event_attributes
        memo = changed.upserted_memo.fields
        if APPROVALS_KEY in memo:
            _index_approvals(outcomes, memo[APPROVALS_KEY], changed.workflow_task_completed_event_id)
    elif kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
        signal = event.workflow_execution_signaled_event_attributes
        if signal.signal_name == identifiers.ANSWER_SIGNAL:
            approval = outcomes.approvals.get(str(load_json(signal.input.payloads[0])))
            if approval is not None and approval.is_open and approval.answer is None:
                approval.answer = from_payload(signal.input.payloads[1])
                approval.answered_at = get_event_time(event)
    elif kind in _CLOSE_EVENTS:
        outcomes.is_closed = True
        outcomes.end_task_event_id = get_attributes(event).workflow_task_completed_event_id


_CLOSE_EVENTS = (
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
)
"""The ends that a workflow task brings about."""


def _index_approvals(outcomes: Outcomes, payload: Any, task: int | None) -> None:
    """Take over the open approvals from the memo. Approvals that the memo no longer has are closed."""
    if payload is None:
        return
    memo_entries: list[dict[str, Any]] = load_json(payload) or []
    entries_by_id = {str(entry["id"]): entry for entry in memo_entries}
    for id, approval in outcomes.approvals.items():
        approval.is_open = id in entries_by_id
    for id, entry in entries_by_id.items():
        if id in outcomes.approvals:
            outcomes.approvals[id].memo_entry = entry
        else:
            outcomes.approvals[id] = ApprovalEntry(entry)
            if task is not None:
                outcomes.issued_positions.setdefault(task, set()).add(int(entry["position"]))


def usage_from_note(note: str) -> Usage:
    """The usage in the note on a step's result."""
    usage: dict[str, Any] = json.loads(note)
    usage.pop("model", None)
    return Usage(**usage)


# Records of outcomes: `base` has the record's number, position, name, and time


def make_step_record(base: Record, event: StepEnded, run_id: str) -> Record:
    """The record of a step."""
    ok = event.result.status is EndStatus.COMPLETED
    return base._replace(
        ok=ok,
        payload=event.result.payload if ok else encode_step_failure(event.result, base.name, run_id),
        started_at=event.started_at or base.at,
        attempts=event.attempts,
        worker=compute_worker_id(event.worker),
        preview=event.preview,
    )


def compute_worker_id(identity: str) -> int:
    """A number for a worker, from its identity in Temporal; 0 if that is unknown."""
    return zlib.crc32(identity.encode()) % 99_999 + 1 if identity else 0


def encode_step_failure(result: EndResult, name: str, run_id: str) -> bytes:
    """The encoded error of a step that ended without a value."""
    if result.status in (EndStatus.FAILED, EndStatus.DEAD):
        return result.payload
    if result.status is EndStatus.CANCELLED:
        return encode_error(StepFailed(f"step {name!r} was cancelled in Temporal", name))
    return encode_error(make_unknown_outcome_error(run_id, name))


def unpack_child_result(result: EndResult) -> tuple[RunState, bytes | None, bytes | None]:
    """State, output and error of a child."""
    state = RUN_STATES.get(result.status, RunState.FAILED)
    if state is RunState.COMPLETED:
        return state, result.payload, None
    if result.status is EndStatus.TERMINATED:
        return state, None, encode_error(StepFailed("the run was terminated in Temporal", ""))
    if result.status is EndStatus.TIMED_OUT:
        return state, None, encode_error(StepFailed("the run ran into a time-out of Temporal's", ""))
    return state, None, result.payload


def make_child_record(base: Record, run_id: str, result: EndResult) -> Record:
    """The record of a run that the code waited for."""
    state, output, error = unpack_child_result(result)
    return _make_end_record(base, run_id, state, output, error)


def make_awaited_record(base: Record, child: ChildRun, event: StepEnded) -> Record:
    """The record of a run that is not a child, after an activity waited for it or found it."""
    found = found_run_from_json(event.result.payload) if event.result.status is EndStatus.COMPLETED else None
    if found is None:
        error = encode_error(RunNotFound(f"there is no run {child.run_id!r} to wait for", child.run_id))
        kind = RecordKind.CHILD if child.is_awaited else RecordKind.START
        return base._replace(kind=kind, ok=False, payload=error, preview=child.run_id)
    base = base._replace(name=base.name or found.workflow)
    if not child.is_awaited:
        return make_start_record(base, child.run_id)
    return _make_end_record(base, child.run_id, found.state, found.output or b"null", found.error)


def _make_end_record(base: Record, run_id: str, state: RunState, output: bytes | None, error: bytes | None) -> Record:
    ok = state is RunState.COMPLETED
    payload = output if ok else encode_child_failure(run_id, state, error)
    return base._replace(kind=RecordKind.CHILD, ok=ok, payload=payload, preview=run_id)


def make_start_record(base: Record, run_id: str) -> Record:
    """The record of a run that the code started."""
    return base._replace(kind=RecordKind.START, payload=json.dumps(run_id).encode(), preview=run_id)


def collect_signals(outcomes: Outcomes) -> list[Signal]:
    """The signals that the code could consume, each once: the carried ones, then those that arrived."""
    delivered = (run_event for batch in outcomes.batches for run_event in batch.events)
    return [*outcomes.carried_signals, *read_signals(delivered, len(outcomes.carried_signals))]


def read_signals(events: Iterable[RunEvent], signal_count: int) -> list[Signal]:
    """The signals among these events, each once; ``signal_count`` is the number of the last signal before them."""
    signals: list[Signal] = []
    seen_ids: set[str] = set()
    for event in events:
        if isinstance(event, SignalReceived):
            signal = signal_from_event(event, seen_ids, signal_count + len(signals) + 1)
            if signal is not None:
                signals.append(signal)
    return signals


def signal_from_event(event: SignalReceived, seen_ids: set[str], number: int) -> Signal | None:
    """The signal; ``None`` for a message of Holdfast itself, and for a duplicate of a signal in ``seen_ids``."""
    if event.name in (identifiers.PAUSE_SIGNAL, identifiers.RESUME_SIGNAL, identifiers.ANSWER_SIGNAL):
        return None
    dedup_id = get_dedup_id(event)
    if dedup_id and dedup_id in seen_ids:
        return None
    seen_ids.add(dedup_id)
    return Signal(number, event.name, get_signal_payload(event), event.at)


def get_dedup_id(event: SignalReceived) -> str:
    """The deduplication id of a signal; ``""`` if it has none."""
    return str(load_json(event.payloads[1])) if len(event.payloads) > 1 else ""


def get_signal_payload(event: SignalReceived) -> bytes:
    """The value of a signal."""
    return from_payload(event.payloads[0]) if event.payloads else b"null"
