"""What a history tells a run, workflow task by workflow task.

**Why not event by event.** Workflow code sees what has happened whenever a worker takes a *workflow task*: then
everything that came since the last one is told at once. In which order the SDK tells it is its own affair, and has
changed between releases. So Holdfast puts what one workflow task brings into an order of its own (``EventRank``, then a
number), in the worker and here alike. Whoever reads a history can therefore tell what the code has seen, and when,
without the SDK: to bring a run back in another process, to show it, to retry or fork it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, NamedTuple

from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent

from holdfast.codec import encode_error
from holdfast.core.states import RunState
from holdfast.errors import StepFailed
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.payloads import from_payload, get_first_data, get_note, load_json
from holdfast.stores.temporal.run_memo import RUN_MEMO_KEY


class EventRank(IntEnum):
    """What comes first among the things that one workflow task brings."""

    SIGNAL = 0
    """By arrival."""
    UPDATE = 1
    """By arrival: whoever takes a question back does not get ahead of an answer."""
    CANCEL = 2
    TIMER = 3
    """By when they are due, then by place; the deadline before all. After a while without a worker, many have rung."""
    STEP = 4
    """By position, like the next one."""
    CHILD_STARTED = 5
    CHILD = 6
    """By the position that has started it."""


class EndStatus(IntEnum):
    """How an activity or a child has ended."""

    COMPLETED = 0
    FAILED = 1
    TIMED_OUT = 2
    """It was not heard of for too long."""
    CANCELLED = 3
    DEAD = 4
    TERMINATED = 5
    HANDED_OVER = 6
    """Its worker was told to stop."""


class EndResult(NamedTuple):
    """What came of an activity or a child."""

    status: EndStatus
    payload: bytes
    """The encoded value, or the encoded error."""


@dataclass(frozen=True, slots=True)
class SignalReceived:
    """A signal came."""

    name: str
    payloads: tuple[Payload, ...]
    at: float


@dataclass(frozen=True, slots=True)
class UpdateReceived:
    """A step of the run has asked for a change of it, and is told what came of that."""

    id: str
    name: str
    payloads: tuple[Payload, ...]


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Somebody wants the run to be cancelled."""


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer is due."""

    position: int | None
    """``None``: it is the run's deadline."""
    due_at: float = 0.0


@dataclass(frozen=True, slots=True)
class DelayElapsed:
    """The run may begin."""


@dataclass(frozen=True, slots=True)
class StepEnded:
    """An activity has ended."""

    position: int
    result: EndResult
    name: str = ""
    started_at: float = 0.0
    attempts: int = 1
    worker: str = ""
    preview: str = ""
    usage: str = ""
    is_compensation: bool = False
    is_await: bool = False
    """It has waited for a run, and carried out no step."""


@dataclass(frozen=True, slots=True)
class ChildStarted:
    """A child is there; or not, because there is a run under its id."""

    position: int
    run_id: str
    is_new: bool = True


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """A child has ended."""

    position: int
    run_id: str
    result: EndResult
    name: str = ""


RunEvent = (
    SignalReceived
    | UpdateReceived
    | CancelRequested
    | DelayElapsed
    | TimerFired
    | StepEnded
    | ChildStarted
    | ChildEnded
)


def get_sort_key(event: RunEvent, arrival_index: int) -> tuple[int, float, int]:
    """Where something stands among all that one workflow task brings; ``arrival_index`` counts these."""
    match event:
        case SignalReceived():
            return EventRank.SIGNAL, 0, arrival_index
        case UpdateReceived():
            return EventRank.UPDATE, 0, arrival_index
        case CancelRequested():
            return EventRank.CANCEL, 0, 0
        case DelayElapsed():
            return EventRank.SIGNAL, 0, -1
        case TimerFired():
            return EventRank.TIMER, event.due_at, -1 if event.position is None else event.position
        case StepEnded():
            return EventRank.STEP, 0, event.position
        case ChildStarted():
            return EventRank.CHILD_STARTED, 0, event.position
        case ChildEnded():
            return EventRank.CHILD, 0, event.position


def timer_from_summary(summary: str) -> TimerFired:
    """A timer that is due, by what is written on it."""
    return TimerFired(identifiers.parse_timer_position(summary), identifiers.parse_timer_due(summary))


def sort_events(events: Sequence[RunEvent]) -> tuple[RunEvent, ...]:
    """What one workflow task brings, as the code is told it."""
    numbered = sorted(enumerate(events), key=lambda one: get_sort_key(one[1], one[0]))
    return tuple(happening for _, happening in numbered)


def split_stages(events: Sequence[RunEvent]) -> Iterator[Sequence[RunEvent]]:
    """The same, in pieces: the code goes as far as it can with the messages before it hears of anything else.

    As a rule the SDK hands out messages by themselves, and lets the workflow run before it tells the rest of what a
    workflow task brings (there is a flag of its own for histories in which it does not). So these are two stages here,
    whatever the SDK does.
    """
    for is_message in (True, False):
        stage = [one for one in events if isinstance(one, SignalReceived | UpdateReceived | DelayElapsed) is is_message]
        if stage:
            yield stage


@dataclass(frozen=True, slots=True)
class EventBatch:
    """All that one workflow task has told the code."""

    at: float
    """The time, as the code was told it."""
    events: tuple[RunEvent, ...]
    patches: tuple[str, ...] = ()
    """The changes whose new way the code has taken in it."""
    completed_event_id: int = 0
    """The number of the event with which it was completed."""


@dataclass
class _ReaderState:
    """What is remembered from event to event."""

    timers: dict[int, TimerFired | DelayElapsed] = field(default_factory=dict[int, "TimerFired | DelayElapsed"])
    activities: dict[int, _ScheduledActivity] = field(default_factory=dict[int, "_ScheduledActivity"])
    children: dict[int, tuple[int, str, str]] = field(default_factory=dict[int, tuple[int, str, str]])


@dataclass
class _ScheduledActivity:
    position: int
    name: str
    preview: str
    is_compensation: bool
    is_await: bool
    started_at: float = 0.0
    attempts: int = 1
    worker: str = ""


def read_batches(events: Iterable[HistoryEvent]) -> Iterator[EventBatch]:
    """What these events of one execution, from its first on, have told the code."""
    yield from EventBatchReader().read(events)


class EventBatchReader:
    """Reads a history in pieces, as it grows. A piece ends where a workflow task was completed, with all that the task
    has asked for, or later: the server writes that down in one go."""

    def __init__(self) -> None:
        self._state = _ReaderState()
        self._pending_events: list[tuple[int, RunEvent]] = []
        self._task_started_at: dict[int, float] = {}

    def read(self, events: Iterable[HistoryEvent]) -> Iterator[EventBatch]:
        """What the next events have told the code."""
        told: EventBatch | None = None
        for event in events:
            kind = event.event_type
            if kind == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED:
                self._task_started_at[event.event_id] = event.event_time.ToNanoseconds() / 1e9
            elif kind == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                if told is not None:
                    yield told
                told = self._complete_task(event)
            elif kind == EventType.EVENT_TYPE_MARKER_RECORDED:
                if told is not None and (name := _get_patch_id(event)):
                    told = replace(told, patches=(*told.patches, name))
            elif kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
                # Written down by the workflow task that has heard of it.
                asked = event.workflow_execution_update_accepted_event_attributes.accepted_request
                update = UpdateReceived(asked.meta.update_id, asked.input.name, tuple(asked.input.args.payloads))
                if told is not None:
                    told = replace(told, events=sort_events([*told.events, update]))
            elif (happening := _read_event(event, self._state)) is not None:
                self._pending_events.append((event.event_id, happening))
        if told is not None:
            yield told

    def _complete_task(self, event: HistoryEvent) -> EventBatch:
        began = event.workflow_task_completed_event_attributes.started_event_id
        now = [happening for number, happening in self._pending_events if number < began]
        self._pending_events = [(number, happening) for number, happening in self._pending_events if number >= began]
        at = self._task_started_at.pop(began)
        self._task_started_at.clear()
        return EventBatch(at, sort_events(now), (), event.event_id)


def find_unseen_events(events: Sequence[HistoryEvent]) -> list[RunEvent]:
    """What has happened, and no completed workflow task has told the code yet."""
    reading = _ReaderState()
    last = 0
    found: list[tuple[int, RunEvent]] = []
    for event in events:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            last = event.workflow_task_completed_event_attributes.started_event_id
        elif (happening := _read_event(event, reading)) is not None:
            found.append((event.event_id, happening))
    return [happening for number, happening in found if number > last]


def _read_event(event: HistoryEvent, state: _ReaderState) -> RunEvent | None:
    """What an event tells the code, if it tells it anything."""
    kind = event.event_type
    at = event.event_time.ToNanoseconds() / 1e9
    if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
        signal = event.workflow_execution_signaled_event_attributes
        return SignalReceived(signal.signal_name, tuple(signal.input.payloads), at)
    if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED:
        return CancelRequested()
    if kind == EventType.EVENT_TYPE_TIMER_STARTED:
        summary = load_json(event.user_metadata.summary)
        is_delay = summary == identifiers.DELAY_SUMMARY
        state.timers[event.event_id] = DelayElapsed() if is_delay else timer_from_summary(summary)
    elif kind == EventType.EVENT_TYPE_TIMER_FIRED:
        return state.timers[event.timer_fired_event_attributes.started_event_id]
    return _read_activity(event, state, at) or _read_child(event, state)


def _read_activity(event: HistoryEvent, state: _ReaderState, at: float) -> StepEnded | None:
    kind = event.event_type
    if kind == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
        new = event.activity_task_scheduled_event_attributes
        name, given = new.activity_type.name, new.input.payloads
        state.activities[event.event_id] = _ScheduledActivity(
            identifiers.parse_activity_position(new.activity_id),
            name,
            str(load_json(given[0])) if given else "",
            bool(given) and get_note(given[0], "kind") == "compensation",
            name == identifiers.AWAIT_RUN_ACTIVITY,
        )
    elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
        begun = event.activity_task_started_event_attributes
        known = state.activities[begun.scheduled_event_id]
        known.started_at, known.attempts, known.worker = at, begun.attempt, begun.identity
    elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
        done = event.activity_task_completed_event_attributes
        payloads = done.result.payloads
        usage = get_note(payloads[0], "usage") if payloads else ""
        return _end_step(
            state, done.scheduled_event_id, EndResult(EndStatus.COMPLETED, get_first_data(payloads)), usage
        )
    elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED:
        failed = event.activity_task_failed_event_attributes
        return _end_step(state, failed.scheduled_event_id, result_from_failure(failed.failure))
    elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT:
        late = event.activity_task_timed_out_event_attributes
        return _end_step(state, late.scheduled_event_id, result_from_failure(late.failure))
    elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED:
        gone = event.activity_task_canceled_event_attributes
        return _end_step(state, gone.scheduled_event_id, EndResult(EndStatus.CANCELLED, b"null"))
    return None


def _end_step(state: _ReaderState, scheduled_event_id: int, result: EndResult, usage: str = "") -> StepEnded:
    known = state.activities.pop(scheduled_event_id)
    return StepEnded(
        known.position, result, known.name, known.started_at, known.attempts, known.worker, known.preview, usage,
        known.is_compensation, known.is_await,
    )  # fmt: skip


def _read_child(event: HistoryEvent, state: _ReaderState) -> ChildStarted | ChildEnded | None:
    kind = event.event_type
    if kind == EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
        new = event.start_child_workflow_execution_initiated_event_attributes
        head: dict[str, Any] = load_json(new.memo.fields[RUN_MEMO_KEY])
        state.children[event.event_id] = head.get("position", 0), new.workflow_id, new.workflow_type.name
    elif kind == EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED:
        position, run_id, _ = state.children[event.child_workflow_execution_started_event_attributes.initiated_event_id]
        return ChildStarted(position, run_id)
    elif kind == EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_FAILED:
        refused = event.start_child_workflow_execution_failed_event_attributes
        position, run_id, _ = state.children.pop(refused.initiated_event_id)
        return ChildStarted(position, run_id, is_new=False)
    for field_name, how in _CHILD_END_STATUSES.items():
        if event.HasField(field_name):  # pyright: ignore[reportArgumentType]
            return _end_child(state, getattr(event, field_name), how)
    return None


_CHILD_END_STATUSES = {
    "child_workflow_execution_completed_event_attributes": EndStatus.COMPLETED,
    "child_workflow_execution_failed_event_attributes": EndStatus.FAILED,
    "child_workflow_execution_canceled_event_attributes": EndStatus.CANCELLED,
    "child_workflow_execution_terminated_event_attributes": EndStatus.TERMINATED,
    "child_workflow_execution_timed_out_event_attributes": EndStatus.TIMED_OUT,
}


def _end_child(state: _ReaderState, attributes: Any, status: EndStatus) -> ChildEnded:
    position, run_id, name = state.children.pop(attributes.initiated_event_id)
    if status is EndStatus.COMPLETED:
        ended = EndResult(status, get_first_data(attributes.result.payloads))
    elif status is EndStatus.FAILED:
        ended = result_from_failure(attributes.failure)
    else:
        ended = EndResult(status, b"null")
    return ChildEnded(position, run_id, ended, name)


def _get_patch_id(event: HistoryEvent) -> str:
    """The change that a marker stands for; ``""``: it is another marker."""
    marker = event.marker_recorded_event_attributes
    if marker.marker_name != "core_patch":
        return ""
    for payloads in marker.details.values():
        for payload in payloads.payloads:
            told = json.loads(payload.data)
            if isinstance(told, dict) and "id" in told:
                return str(told["id"])  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
    return ""


def result_from_failure(failure: Failure) -> EndResult:
    """What a failure says of how an activity, a child or a run has ended."""
    while failure.HasField("activity_failure_info") or failure.HasField("child_workflow_execution_failure_info"):
        failure = failure.cause
    if failure.HasField("application_failure_info"):
        told = failure.application_failure_info
        if told.type == identifiers.HANDOVER_FAILURE:
            return EndResult(EndStatus.HANDED_OVER, b"null")
        if told.details.payloads and (ending := get_note(told.details.payloads[0], identifiers.ENDING_NOTE)):
            how = EndStatus.DEAD if ending == RunState.DEAD else EndStatus.FAILED
            return EndResult(how, from_payload(told.details.payloads[0]))
    for name, how in _FAILURE_STATUSES.items():
        if failure.HasField(name):  # pyright: ignore[reportArgumentType]
            return EndResult(how, b"null")
    words = f"{failure.application_failure_info.type}: {failure.message}".removeprefix(": ")
    return EndResult(EndStatus.FAILED, encode_error(StepFailed(words, "")))


_FAILURE_STATUSES = {
    "timeout_failure_info": EndStatus.TIMED_OUT,
    "canceled_failure_info": EndStatus.CANCELLED,
    "terminated_failure_info": EndStatus.TERMINATED,
}

RUN_STATES = {
    EndStatus.COMPLETED: RunState.COMPLETED,
    EndStatus.CANCELLED: RunState.CANCELLED,
    EndStatus.DEAD: RunState.DEAD,
}
"""How a run stands that has ended so; any other has failed."""
