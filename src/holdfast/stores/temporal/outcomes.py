"""What the history of an execution holds of each command's outcome, by the command's place.

This is an index, made in one pass: ``journals`` puts what is in it into order.
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
from holdfast.core.records import Record, RecordKind, Signal
from holdfast.core.states import RunState
from holdfast.errors import RunNotFound, StepFailed
from holdfast.stores.run_errors import encode_child_failure, make_unknown_outcome_error
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.carried_records import unpack
from holdfast.stores.temporal.payloads import from_payload, load_json
from holdfast.stores.temporal.run_events import (
    RUN_STATES,
    ChildEnded,
    EndResult,
    EndStatus,
    EventBatch,
    SignalReceived,
    StepEnded,
    read_batches,
)
from holdfast.stores.temporal.run_memo import APPROVALS_KEY, RUN_MEMO_KEY


@dataclass(frozen=True, slots=True)
class ChildRun:
    """A run that was started as a child, or was looked for because it was there."""

    run_id: str
    workflow: str
    is_awaited: bool


@dataclass(slots=True)
class ApprovalEntry:
    """A question to people, and what has become of it."""

    memo_entry: dict[str, Any]
    """As it stood in the memo last."""
    answer: bytes | None = None
    answered_at: float | None = None
    is_open: bool = True

    @property
    def position(self) -> int:
        """The command that waits."""
        return int(self.memo_entry["position"])


@dataclass
class Outcomes:
    """What one execution's history holds."""

    carried_records: list[Record] = field(default_factory=list[Record])
    """Records of the executions before it."""
    carried_signals: list[Signal] = field(default_factory=list[Signal])
    """Signals that came before it, and were not heard yet."""
    batches: list[EventBatch] = field(default_factory=list[EventBatch])
    ended_steps: dict[int, StepEnded] = field(default_factory=dict[int, StepEnded])
    """Also those that have waited for a run."""
    step_previews: dict[int, str] = field(default_factory=dict[int, str])
    """The arguments of steps, shortened."""
    children: dict[int, ChildRun] = field(default_factory=dict[int, ChildRun])
    child_ends: dict[int, ChildEnded] = field(default_factory=dict[int, ChildEnded])
    timer_names: dict[int, str] = field(default_factory=dict[int, str])
    approvals: dict[str, ApprovalEntry] = field(default_factory=dict[str, ApprovalEntry])
    issued_positions: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    """Positions of commands, by the number of the event that completed the workflow task which has issued them."""
    timer_positions: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    """Positions of timers, in the same way."""
    usage: Usage = field(default_factory=Usage)
    is_closed: bool = False
    end_task_event_id: int = 0
    """The number of the event that completed the workflow task with which the run has ended."""


def read_outcomes(events: Sequence[HistoryEvent]) -> Outcomes:
    """What these events of one execution, from its first on, hold."""
    found = Outcomes()
    if not events:
        return found
    given = events[0].workflow_execution_started_event_attributes
    _, found.carried_records, found.carried_signals = unpack(given.input.payloads)
    _index_approvals(found, given.memo.fields.get(APPROVALS_KEY), None)
    for event in events:
        _index_event(found, event)
    found.batches = list(read_batches(events))
    for batch in found.batches:
        for happening in batch.events:
            if isinstance(happening, StepEnded):
                found.ended_steps[happening.position] = happening
                if happening.usage:
                    found.usage += usage_from_note(happening.usage)
            elif isinstance(happening, ChildEnded):
                found.child_ends[happening.position] = happening
    return found


def _index_event(outcomes: Outcomes, event: HistoryEvent) -> None:
    kind = event.event_type
    if kind == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
        step = event.activity_task_scheduled_event_attributes
        position, name = identifiers.parse_activity_position(step.activity_id), step.activity_type.name
        outcomes.issued_positions.setdefault(step.workflow_task_completed_event_id, set()).add(position)
        if name == identifiers.AWAIT_RUN_ACTIVITY:
            asked: dict[str, Any] = load_json(step.input.payloads[0])
            known = outcomes.children.get(position)
            workflow = known.workflow if known is not None else ""
            outcomes.children[position] = ChildRun(asked["run_id"], workflow, asked["wait"])
        else:
            outcomes.step_previews[position] = str(load_json(step.input.payloads[0])) if step.input.payloads else ""
    elif kind == EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
        child = event.start_child_workflow_execution_initiated_event_attributes
        head: dict[str, Any] = load_json(child.memo.fields[RUN_MEMO_KEY]) if RUN_MEMO_KEY in child.memo.fields else {}
        position = head.get("position", 0)
        outcomes.issued_positions.setdefault(child.workflow_task_completed_event_id, set()).add(position)
        outcomes.children[position] = ChildRun(
            child.workflow_id, child.workflow_type.name, head.get("is_awaited", False)
        )
    elif kind == EventType.EVENT_TYPE_TIMER_STARTED:
        summary = str(load_json(event.user_metadata.summary) or "")
        if summary not in (identifiers.DELAY_SUMMARY, identifiers.DEADLINE_SUMMARY):
            position = identifiers.parse_timer_position(summary)
            if position is not None:
                task = event.timer_started_event_attributes.workflow_task_completed_event_id
                outcomes.timer_positions.setdefault(task, set()).add(position)
                outcomes.timer_names[position] = identifiers.parse_timer_name(summary)
    elif kind == EventType.EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED:
        changed = event.workflow_properties_modified_event_attributes
        memo = changed.upserted_memo.fields
        if APPROVALS_KEY in memo:
            _index_approvals(outcomes, memo[APPROVALS_KEY], changed.workflow_task_completed_event_id)
    elif kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
        signal = event.workflow_execution_signaled_event_attributes
        if signal.signal_name == identifiers.ANSWER_SIGNAL:
            question = outcomes.approvals.get(str(load_json(signal.input.payloads[0])))
            if question is not None and question.is_open and question.answer is None:
                question.answer = from_payload(signal.input.payloads[1])
                question.answered_at = event.event_time.ToNanoseconds() / 1e9
    elif event.event_type in _CLOSE_EVENT_FIELDS:
        outcomes.is_closed = True
        outcomes.end_task_event_id = getattr(
            event, _CLOSE_EVENT_FIELDS[event.event_type]
        ).workflow_task_completed_event_id


_CLOSE_EVENT_FIELDS: dict[int, str] = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: "workflow_execution_completed_event_attributes",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: "workflow_execution_failed_event_attributes",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: "workflow_execution_canceled_event_attributes",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW: ("workflow_execution_continued_as_new_event_attributes"),
}


def _index_approvals(outcomes: Outcomes, payload: Any, task: int | None) -> None:
    """The questions as they are now: those that are not among them are open no more."""
    if payload is None:
        return
    asked_now: list[dict[str, Any]] = load_json(payload) or []
    now = {str(one["id"]): one for one in asked_now}
    for id, asked in outcomes.approvals.items():
        asked.is_open = id in now
    for id, shown in now.items():
        if id in outcomes.approvals:
            outcomes.approvals[id].memo_entry = shown
        else:
            outcomes.approvals[id] = ApprovalEntry(shown)
            if task is not None:
                outcomes.issued_positions.setdefault(task, set()).add(int(shown["position"]))


def usage_from_note(note: str) -> Usage:
    """What a step has used, by the note on its result."""
    told: dict[str, Any] = json.loads(note)
    told.pop("model", None)
    return Usage(**told)


# What is recorded of an outcome


def make_step_record(seq: int, kind: RecordKind, name: str, event: StepEnded, at: float, run_id: str) -> Record:
    """The record of a step that has ended so."""
    ok = event.result.status is EndStatus.COMPLETED
    return Record(
        seq, kind, event.position, name, ok,
        event.result.payload if ok else encode_step_failure(event.result, name, run_id), at, event.started_at or at,
        event.attempts, compute_worker_id(event.worker), preview=event.preview,
    )  # fmt: skip


def compute_worker_id(identity: str) -> int:
    """The number of a worker, by what it calls itself in Temporal; 0: that is not known."""
    return zlib.crc32(identity.encode()) % 99_999 + 1 if identity else 0


def encode_step_failure(result: EndResult, name: str, run_id: str) -> bytes:
    """The encoded error of a step that has ended so, without a value."""
    if result.status in (EndStatus.FAILED, EndStatus.DEAD):
        return result.payload
    if result.status is EndStatus.CANCELLED:
        return encode_error(StepFailed(f"step {name!r} was cancelled in Temporal", name))
    return encode_error(make_unknown_outcome_error(run_id, name))


def unpack_child_result(result: EndResult) -> tuple[RunState, bytes | None, bytes | None]:
    """State, output and error of a run that has ended so."""
    state = RUN_STATES.get(result.status, RunState.FAILED)
    if state is RunState.COMPLETED:
        return state, result.payload, None
    if result.status in (EndStatus.TERMINATED, EndStatus.TIMED_OUT):
        words = (
            "was terminated in Temporal"
            if result.status is EndStatus.TERMINATED
            else "ran into a time-out of Temporal's"
        )
        return state, None, encode_error(StepFailed(f"the run {words}", ""))
    return state, None, result.payload


def make_child_record(seq: int, position: int, name: str, run_id: str, result: EndResult, at: float) -> Record:
    """The record of a run that was waited for, and has ended so."""
    state, output, error = unpack_child_result(result)
    ok = state is RunState.COMPLETED
    payload = output if ok else encode_child_failure(run_id, state, error)
    return Record(seq, RecordKind.CHILD, position, name, ok, payload, at, at, preview=run_id)


def make_awaited_record(seq: int, position: int, name: str, child: ChildRun, event: StepEnded, at: float) -> Record:
    """The record of a run that is no child, after an activity has waited for it or found it."""
    kind = RecordKind.CHILD if child.is_awaited else RecordKind.START
    told: Any = json.loads(event.result.payload) if event.result.status is EndStatus.COMPLETED else None
    name = name or ("" if told is None else str(told[0]))
    if told is None:
        error = encode_error(RunNotFound(f"there is no run {child.run_id!r} to wait for", child.run_id))
        return Record(seq, kind, position, name, False, error, at, at, preview=child.run_id)
    if kind is RecordKind.START:
        return make_start_record(seq, position, name, child.run_id, at)
    _, _, state, output, error_text = told
    ok = state == RunState.COMPLETED
    error = None if error_text is None else str(error_text).encode()
    payload = str(output or "null").encode() if ok else encode_child_failure(child.run_id, RunState(state), error)
    return Record(seq, kind, position, name, ok, payload, at, at, preview=child.run_id)


def make_start_record(seq: int, position: int, name: str, run_id: str, at: float) -> Record:
    """The record of a run that was started."""
    return Record(seq, RecordKind.START, position, name, True, json.dumps(run_id).encode(), at, at, preview=run_id)


def collect_signals(signals: Iterable[Signal], batches: Iterable[EventBatch]) -> list[Signal]:
    """The signals that were sent to a run, by whoever, each once: those brought along, then those that came."""
    found = list(signals)
    seen: set[str] = set()
    for batch in batches:
        for happening in batch.events:
            if (
                isinstance(happening, SignalReceived)
                and (signal := signal_from_event(happening, seen, len(found) + 1)) is not None
            ):
                found.append(signal)
    return found


def signal_from_event(event: SignalReceived, seen_ids: set[str], number: int) -> Signal | None:
    """What was sent; ``None`` for a message of Holdfast's own, and for what was sent before under the same id."""
    if event.name in (identifiers.PAUSE_SIGNAL, identifiers.RESUME_SIGNAL, identifiers.ANSWER_SIGNAL):
        return None
    dedup = str(load_json(event.payloads[1])) if len(event.payloads) > 1 else ""
    if dedup and dedup in seen_ids:
        return None
    seen_ids.add(dedup)
    return Signal(number, event.name, from_payload(event.payloads[0]) if event.payloads else b"null", event.at)
