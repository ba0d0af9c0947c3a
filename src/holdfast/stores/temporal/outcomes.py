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
from holdfast.core.records import Kind, Record, Signal
from holdfast.core.states import RunState
from holdfast.errors import RunNotFound, StepFailed
from holdfast.stores.rules import child_failure, unknown_outcome
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.carried_records import unpack
from holdfast.stores.temporal.payloads import data_of, plain
from holdfast.stores.temporal.run_events import (
    STATES,
    Batch,
    ChildEnded,
    Ended,
    How,
    Signalled,
    StepEnded,
    read_batches,
)
from holdfast.stores.temporal.run_memo import HEAD, QUESTIONS


@dataclass(frozen=True, slots=True)
class Child:
    """A run that was started as a child, or was looked for because it was there."""

    run_id: str
    workflow: str
    awaited: bool


@dataclass(slots=True)
class Asked:
    """A question to people, and what has become of it."""

    shown: dict[str, Any]
    """As it stood in the memo last."""
    answer: bytes | None = None
    answered_at: float | None = None
    is_open: bool = True

    @property
    def position(self) -> int:
        """The command that waits."""
        return int(self.shown["position"])


@dataclass
class Outcomes:
    """What one execution's history holds."""

    carried: list[Record] = field(default_factory=list[Record])
    """Records of the executions before it."""
    brought: list[Signal] = field(default_factory=list[Signal])
    """Signals that came before it, and were not heard yet."""
    batches: list[Batch] = field(default_factory=list[Batch])
    steps: dict[int, StepEnded] = field(default_factory=dict[int, StepEnded])
    """Also those that have waited for a run."""
    previews: dict[int, str] = field(default_factory=dict[int, str])
    """The arguments of steps, shortened."""
    children: dict[int, Child] = field(default_factory=dict[int, Child])
    ends: dict[int, ChildEnded] = field(default_factory=dict[int, ChildEnded])
    timers: dict[int, str] = field(default_factory=dict[int, str])
    questions: dict[str, Asked] = field(default_factory=dict[str, Asked])
    issued: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    """Positions of commands, by the number of the event that completed the workflow task which has issued them."""
    set_in: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    """Positions of timers, in the same way."""
    used: Usage = field(default_factory=Usage)
    closed: bool = False
    ends_in: int = 0
    """The number of the event that completed the workflow task with which the run has ended."""


def read_outcomes(events: Sequence[HistoryEvent]) -> Outcomes:
    """What these events of one execution, from its first on, hold."""
    found = Outcomes()
    if not events:
        return found
    given = events[0].workflow_execution_started_event_attributes
    _, found.carried, found.brought = unpack(given.input.payloads)
    _note_questions(found, given.memo.fields.get(QUESTIONS), None)
    for event in events:
        _read(found, event)
    found.batches = list(read_batches(events))
    for batch in found.batches:
        for happening in batch.happenings:
            if isinstance(happening, StepEnded):
                found.steps[happening.position] = happening
                if happening.usage:
                    found.used += usage_in(happening.usage)
            elif isinstance(happening, ChildEnded):
                found.ends[happening.position] = happening
    return found


def _read(found: Outcomes, event: HistoryEvent) -> None:
    kind = event.event_type
    if kind == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
        step = event.activity_task_scheduled_event_attributes
        position, name = identifiers.position_of(step.activity_id), step.activity_type.name
        found.issued.setdefault(step.workflow_task_completed_event_id, set()).add(position)
        if name == identifiers.AWAIT_RUN:
            asked: dict[str, Any] = plain(step.input.payloads[0])
            known = found.children.get(position)
            workflow = known.workflow if known is not None else ""
            found.children[position] = Child(asked["run_id"], workflow, asked["wait"])
        else:
            found.previews[position] = str(plain(step.input.payloads[0])) if step.input.payloads else ""
    elif kind == EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
        child = event.start_child_workflow_execution_initiated_event_attributes
        head: dict[str, Any] = plain(child.memo.fields[HEAD]) if HEAD in child.memo.fields else {}
        position = head.get("position", 0)
        found.issued.setdefault(child.workflow_task_completed_event_id, set()).add(position)
        found.children[position] = Child(child.workflow_id, child.workflow_type.name, head.get("awaited", False))
    elif kind == EventType.EVENT_TYPE_TIMER_STARTED:
        summary = str(plain(event.user_metadata.summary) or "")
        if summary not in (identifiers.DELAY, identifiers.DEADLINE):
            position = identifiers.timer_position(summary)
            if position is not None:
                task = event.timer_started_event_attributes.workflow_task_completed_event_id
                found.set_in.setdefault(task, set()).add(position)
                found.timers[position] = identifiers.timer_name(summary)
    elif kind == EventType.EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED:
        changed = event.workflow_properties_modified_event_attributes
        memo = changed.upserted_memo.fields
        if QUESTIONS in memo:
            _note_questions(found, memo[QUESTIONS], changed.workflow_task_completed_event_id)
    elif kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
        signal = event.workflow_execution_signaled_event_attributes
        if signal.signal_name == identifiers.ANSWER:
            question = found.questions.get(str(plain(signal.input.payloads[0])))
            if question is not None and question.is_open and question.answer is None:
                question.answer = data_of(signal.input.payloads[1])
                question.answered_at = event.event_time.ToNanoseconds() / 1e9
    elif event.event_type in _ENDS:
        found.closed = True
        found.ends_in = getattr(event, _ENDS[event.event_type]).workflow_task_completed_event_id


_ENDS: dict[int, str] = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: "workflow_execution_completed_event_attributes",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: "workflow_execution_failed_event_attributes",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: "workflow_execution_canceled_event_attributes",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW: ("workflow_execution_continued_as_new_event_attributes"),
}


def _note_questions(found: Outcomes, payload: Any, task: int | None) -> None:
    """The questions as they are now: those that are not among them are open no more."""
    if payload is None:
        return
    asked_now: list[dict[str, Any]] = plain(payload) or []
    now = {str(one["id"]): one for one in asked_now}
    for id, asked in found.questions.items():
        asked.is_open = id in now
    for id, shown in now.items():
        if id in found.questions:
            found.questions[id].shown = shown
        else:
            found.questions[id] = Asked(shown)
            if task is not None:
                found.issued.setdefault(task, set()).add(int(shown["position"]))


def usage_in(note: str) -> Usage:
    """What a step has used, by the note on its result."""
    told: dict[str, Any] = json.loads(note)
    told.pop("model", None)
    return Usage(**told)


# What is recorded of an outcome


def step_record(seq: int, kind: Kind, name: str, ended: StepEnded, at: float, run_id: str) -> Record:
    """The record of a step that has ended so."""
    ok = ended.ended.how is How.COMPLETED
    return Record(
        seq, kind, ended.position, name, ok, ended.ended.payload if ok else step_failure(ended.ended, name, run_id), at,
        ended.started_at or at, ended.attempts, worker_id(ended.worker), preview=ended.preview,
    )  # fmt: skip


def worker_id(identity: str) -> int:
    """The number of a worker, by what it calls itself in Temporal; 0: that is not known."""
    return zlib.crc32(identity.encode()) % 99_999 + 1 if identity else 0


def step_failure(ended: Ended, name: str, run_id: str) -> bytes:
    """The encoded error of a step that has ended so, without a value."""
    if ended.how in (How.FAILED, How.DEAD):
        return ended.payload
    if ended.how is How.CANCELLED:
        return encode_error(StepFailed(f"step {name!r} was cancelled in Temporal", name))
    return encode_error(unknown_outcome(run_id, name))


def child_end(ended: Ended) -> tuple[RunState, bytes | None, bytes | None]:
    """State, output and error of a run that has ended so."""
    state = STATES.get(ended.how, RunState.FAILED)
    if state is RunState.COMPLETED:
        return state, ended.payload, None
    if ended.how in (How.TERMINATED, How.TIMED_OUT):
        words = "was terminated in Temporal" if ended.how is How.TERMINATED else "ran into a time-out of Temporal's"
        return state, None, encode_error(StepFailed(f"the run {words}", ""))
    return state, None, ended.payload


def child_record(seq: int, position: int, name: str, run_id: str, ended: Ended, at: float) -> Record:
    """The record of a run that was waited for, and has ended so."""
    state, output, error = child_end(ended)
    ok = state is RunState.COMPLETED
    payload = output if ok else child_failure(run_id, state, error)
    return Record(seq, Kind.CHILD, position, name, ok, payload, at, at, preview=run_id)


def awaited_record(seq: int, position: int, name: str, child: Child, ended: StepEnded, at: float) -> Record:
    """The record of a run that is no child, after an activity has waited for it or found it."""
    kind = Kind.CHILD if child.awaited else Kind.START
    told: Any = json.loads(ended.ended.payload) if ended.ended.how is How.COMPLETED else None
    name = name or ("" if told is None else str(told[0]))
    if told is None:
        error = encode_error(RunNotFound(f"there is no run {child.run_id!r} to wait for", child.run_id))
        return Record(seq, kind, position, name, False, error, at, at, preview=child.run_id)
    if kind is Kind.START:
        return start_record(seq, position, name, child.run_id, at)
    _, _, state, output, error_text = told
    ok = state == RunState.COMPLETED
    error = None if error_text is None else str(error_text).encode()
    payload = str(output or "null").encode() if ok else child_failure(child.run_id, RunState(state), error)
    return Record(seq, kind, position, name, ok, payload, at, at, preview=child.run_id)


def start_record(seq: int, position: int, name: str, run_id: str, at: float) -> Record:
    """The record of a run that was started."""
    return Record(seq, Kind.START, position, name, True, json.dumps(run_id).encode(), at, at, preview=run_id)


def sent(signals: Iterable[Signal], batches: Iterable[Batch]) -> list[Signal]:
    """The signals that were sent to a run, by whoever, each once: those brought along, then those that came."""
    found = list(signals)
    seen: set[str] = set()
    for batch in batches:
        for happening in batch.happenings:
            if isinstance(happening, Signalled) and (signal := signal_in(happening, seen, len(found) + 1)) is not None:
                found.append(signal)
    return found


def signal_in(told: Signalled, seen: set[str], number: int) -> Signal | None:
    """What was sent; ``None`` for a message of Holdfast's own, and for what was sent before under the same id."""
    if told.name in (identifiers.PAUSE, identifiers.RESUME, identifiers.ANSWER):
        return None
    dedup = str(plain(told.values[1])) if len(told.values) > 1 else ""
    if dedup and dedup in seen:
        return None
    seen.add(dedup)
    return Signal(number, told.name, data_of(told.values[0]) if told.values else b"null", told.at)
