"""The events of a history that a run's code sees, grouped by workflow task.

**Why not event by event.** Workflow code sees events only when a worker executes a *workflow task*, which delivers
everything since the last one. The order in which the SDK delivers them is up to the SDK, and has changed between
releases. So Holdfast sorts the events of one workflow task in an order of its own (``EventRank``, then a number), both
in the worker and here. A reader of a history can therefore tell what the code saw, and when, without the SDK: to
rebuild a run in another process, to show it, to retry or fork it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
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
    """The order of the events that one workflow task delivers."""

    SIGNAL = 0
    """By arrival."""
    UPDATE = 1
    """By arrival: withdrawing an approval does not overtake an answer."""
    CANCEL = 2
    TIMER = 3
    """By due time, then by position; the deadline first. After a time without a worker, many timers have fired."""
    STEP = 4
    """By position, like the next two."""
    CHILD_STARTED = 5
    CHILD = 6


class EndStatus(IntEnum):
    """How an activity or a child ended."""

    COMPLETED = 0
    FAILED = 1
    TIMED_OUT = 2
    """It sent no heartbeat for too long."""
    CANCELLED = 3
    DEAD = 4
    TERMINATED = 5
    HANDED_OVER = 6
    """Its worker stopped."""


class EndResult(NamedTuple):
    """The outcome of an activity or a child."""

    status: EndStatus
    payload: bytes = b"null"
    """The encoded value, or the encoded error."""


@dataclass(frozen=True, slots=True)
class SignalReceived:
    """A signal arrived."""

    name: str
    payloads: tuple[Payload, ...]
    at: float


@dataclass(frozen=True, slots=True)
class UpdateReceived:
    """A step of the run asked for a change to it, and waits for the answer."""

    id: str
    name: str
    payloads: tuple[Payload, ...]


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """A caller asked for the run to be cancelled."""


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer is due."""

    position: int | None
    """``None`` for the run's deadline."""
    due_at: float = 0.0
    """0 for the run's deadline, which comes before all timers."""
    name: str = ""


@dataclass(frozen=True, slots=True)
class DelayElapsed:
    """The run may begin."""


@dataclass(frozen=True, slots=True)
class StepEnded:
    """An activity ended."""

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
    """It waited for a run instead of executing a step."""


@dataclass(frozen=True, slots=True)
class ProgramStopped:
    """The activity of a program ended."""

    reason: str
    """The state in which the run ends, or why the program does not run any more (``identifiers.STOP_NOTE``)."""
    payload: bytes = b"null"
    """The output, or the error."""
    rewind: dict[str, Any] | None = None
    """What a retry takes back."""


@dataclass(frozen=True, slots=True)
class ChildStarted:
    """A child started, or did not because its id is taken."""

    position: int
    run_id: str
    is_new: bool = True


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """A child ended."""

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
    | ProgramStopped
    | ChildStarted
    | ChildEnded
)


def format_timer_summary(position: int, name: str, due_at: float) -> str:
    """The summary of a timer, which people read in Temporal's UI and ``timer_from_summary`` parses."""
    return f"timer {position + 1}: {name}, due {datetime.fromtimestamp(due_at, UTC).isoformat(timespec='microseconds')}"


def timer_from_summary(summary: str) -> TimerFired:
    """The event of a timer with this summary, when it fires."""
    if summary == identifiers.DEADLINE_SUMMARY:
        return TimerFired(None)
    number, _, rest = summary.removeprefix("timer ").partition(": ")
    name, _, due = rest.rpartition(", due ")
    return TimerFired(int(number) - 1, datetime.fromisoformat(due).timestamp(), name)


def get_sort_key(event: RunEvent, arrival_index: int) -> tuple[int, float, int]:
    """The sort key of an event of a workflow task; ``arrival_index`` is its index among them."""
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
        case ProgramStopped():
            return EventRank.STEP, 0, -1
        case ChildStarted():
            return EventRank.CHILD_STARTED, 0, event.position
        case ChildEnded():
            return EventRank.CHILD, 0, event.position


def sort_events(events: Sequence[RunEvent]) -> tuple[RunEvent, ...]:
    """The events of one workflow task in the order in which the code sees them."""
    numbered = sorted(enumerate(events), key=lambda pair: get_sort_key(pair[1], pair[0]))
    return tuple(event for _, event in numbered)


def split_stages(events: Sequence[RunEvent]) -> Iterator[Sequence[RunEvent]]:
    """These events in up to two stages: the code runs as far as it can with messages before it sees anything else.

    Normally the SDK delivers messages first, and lets the workflow run before it delivers the rest of a workflow task.
    (It has a flag for histories in which it does not.) So these are two stages here, whatever the SDK does.
    """
    for is_message in (True, False):
        stage = [
            event for event in events if isinstance(event, SignalReceived | UpdateReceived | DelayElapsed) is is_message
        ]
        if stage:
            yield stage


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Everything that one workflow task delivered to the code."""

    at: float
    """The time that the code saw."""
    events: tuple[RunEvent, ...]
    patches: tuple[str, ...] = ()
    """The patches that the code took in it."""
    completed_event_id: int = 0
    """The number of the event that completed it."""


def read_batches(events: Iterable[HistoryEvent]) -> Iterator[EventBatch]:
    """What these events of one execution, from its first on, delivered to the code."""
    yield from EventBatchReader().read(events)


class EventBatchReader:
    """Reads a history in pieces, as it grows.

    A piece ends where a workflow task was completed, together with everything that the task asked for, or later: the
    server writes these events at once.
    """

    def __init__(self) -> None:
        self._timers: dict[int, TimerFired | DelayElapsed] = {}
        """Timers, activities and children that have not ended, by the number of the event that started them."""
        self._activities: dict[int, StepEnded] = {}
        self._children: dict[int, ChildEnded] = {}
        self._pending_events: list[tuple[int, RunEvent]] = []
        self._task_started_at: dict[int, float] = {}

    @property
    def unseen_events(self) -> list[RunEvent]:
        """The events that no completed workflow task has delivered to the code yet."""
        return [run_event for _, run_event in self._pending_events]

    def read(self, events: Iterable[HistoryEvent]) -> Iterator[EventBatch]:
        """What the next events delivered to the code."""
        batch: EventBatch | None = None
        for event in events:
            kind = event.event_type
            if kind == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED:
                self._task_started_at[event.event_id] = get_event_time(event)
            elif kind == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                if batch is not None:
                    yield batch
                batch = self._complete_task(event)
            elif kind == EventType.EVENT_TYPE_MARKER_RECORDED:
                if batch is not None and (name := _get_patch_id(event)):
                    batch = replace(batch, patches=(*batch.patches, name))
            elif kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
                # Written by the workflow task that received it.
                request = event.workflow_execution_update_accepted_event_attributes.accepted_request
                update = UpdateReceived(request.meta.update_id, request.input.name, tuple(request.input.args.payloads))
                if batch is not None:
                    batch = replace(batch, events=sort_events([*batch.events, update]))
            elif (run_event := self._read_event(event)) is not None:
                self._pending_events.append((event.event_id, run_event))
        if batch is not None:
            yield batch

    def _complete_task(self, event: HistoryEvent) -> EventBatch:
        started_id = event.workflow_task_completed_event_attributes.started_event_id
        delivered = [run_event for number, run_event in self._pending_events if number < started_id]
        self._pending_events = [pair for pair in self._pending_events if pair[0] >= started_id]
        at = self._task_started_at.pop(started_id)
        self._task_started_at.clear()
        return EventBatch(at, sort_events(delivered), (), event.event_id)

    def _read_event(self, event: HistoryEvent) -> RunEvent | None:
        """What an event delivers to the code, if anything."""
        kind = event.event_type
        if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
            signal = event.workflow_execution_signaled_event_attributes
            return SignalReceived(signal.signal_name, tuple(signal.input.payloads), get_event_time(event))
        if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED:
            return CancelRequested()
        if kind == EventType.EVENT_TYPE_TIMER_STARTED:
            summary = load_json(event.user_metadata.summary)
            is_delay = summary == identifiers.DELAY_SUMMARY
            self._timers[event.event_id] = DelayElapsed() if is_delay else timer_from_summary(summary)
        elif kind == EventType.EVENT_TYPE_TIMER_FIRED:
            return self._timers[event.timer_fired_event_attributes.started_event_id]
        return self._read_activity(event) or self._read_child(event)

    def _read_activity(self, event: HistoryEvent) -> StepEnded | None:
        kind = event.event_type
        if kind == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            new = event.activity_task_scheduled_event_attributes
            name, args = new.activity_type.name, new.input.payloads
            if name == identifiers.PROGRAM_ACTIVITY:
                return None  # its updates say what has happened
            self._activities[event.event_id] = StepEnded(
                identifiers.parse_activity_position(new.activity_id),
                _NO_RESULT,
                name,
                preview=str(load_json(args[0])) if args else "",
                is_compensation=bool(args) and get_note(args[0], "kind") == "compensation",
                is_await=name == identifiers.AWAIT_RUN_ACTIVITY,
            )
        elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            started = event.activity_task_started_event_attributes
            if started.scheduled_event_id not in self._activities:
                return None
            self._activities[started.scheduled_event_id] = replace(
                self._activities[started.scheduled_event_id],
                started_at=get_event_time(event),
                attempts=started.attempt,
                worker=started.identity,
            )
        elif (status := _ACTIVITY_END_STATUSES.get(kind)) is not None:
            attributes = get_attributes(event)
            if attributes.scheduled_event_id not in self._activities:
                return None
            payloads = attributes.result.payloads if status is EndStatus.COMPLETED else ()
            usage = get_note(payloads[0], "usage") if payloads else ""
            activity = self._activities.pop(attributes.scheduled_event_id)
            return replace(activity, result=_read_result(attributes, status), usage=usage)
        return None

    def _read_child(self, event: HistoryEvent) -> ChildStarted | ChildEnded | None:
        kind = event.event_type
        if kind == EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
            new = event.start_child_workflow_execution_initiated_event_attributes
            head: dict[str, Any] = load_json(new.memo.fields[RUN_MEMO_KEY])
            self._children[event.event_id] = ChildEnded(
                head.get("position", 0), new.workflow_id, _NO_RESULT, new.workflow_type.name
            )
        elif kind == EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED:
            child = self._children[event.child_workflow_execution_started_event_attributes.initiated_event_id]
            return ChildStarted(child.position, child.run_id)
        elif kind == EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_FAILED:
            failed = event.start_child_workflow_execution_failed_event_attributes
            child = self._children.pop(failed.initiated_event_id)
            return ChildStarted(child.position, child.run_id, is_new=False)
        elif (status := _CHILD_END_STATUSES.get(kind)) is not None:
            attributes = get_attributes(event)
            child = self._children.pop(attributes.initiated_event_id)
            return replace(child, result=_read_result(attributes, status))
        return None


_NO_RESULT = EndResult(EndStatus.CANCELLED)
"""Stands for the result of an activity or a child that has not ended."""

_ACTIVITY_END_STATUSES: dict[int, EndStatus] = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: EndStatus.COMPLETED,
    EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: EndStatus.FAILED,
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: EndStatus.FAILED,  # its failure says that it timed out
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: EndStatus.CANCELLED,
}
_CHILD_END_STATUSES: dict[int, EndStatus] = {
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED: EndStatus.COMPLETED,
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_FAILED: EndStatus.FAILED,
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_CANCELED: EndStatus.CANCELLED,
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TERMINATED: EndStatus.TERMINATED,
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TIMED_OUT: EndStatus.TIMED_OUT,
}


def get_event_time(event: HistoryEvent) -> float:
    """When an event was written, in seconds since 1970."""
    return event.event_time.ToNanoseconds() / 1e9


def get_attributes(event: HistoryEvent) -> Any:
    """The message of an event that belongs to its type."""
    return getattr(event, event.WhichOneof("attributes") or "")


def _read_result(attributes: Any, status: EndStatus) -> EndResult:
    if status is EndStatus.COMPLETED:
        return EndResult(status, get_first_data(attributes.result.payloads))
    return result_from_failure(attributes.failure) if status is EndStatus.FAILED else EndResult(status)


def _get_patch_id(event: HistoryEvent) -> str:
    """The patch that a marker records; ``""`` for other markers."""
    marker = event.marker_recorded_event_attributes
    if marker.marker_name != "core_patch":
        return ""
    for payloads in marker.details.values():
        for payload in payloads.payloads:
            details = json.loads(payload.data)
            if isinstance(details, dict) and "id" in details:
                return str(details["id"])  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
    return ""


def result_from_failure(failure: Failure) -> EndResult:
    """The outcome of an activity, a child or a run that ended with this failure."""
    while failure.HasField("activity_failure_info") or failure.HasField("child_workflow_execution_failure_info"):
        failure = failure.cause
    if failure.HasField("application_failure_info"):
        info = failure.application_failure_info
        if info.type == identifiers.HANDOVER_FAILURE:
            return EndResult(EndStatus.HANDED_OVER)
        if info.details.payloads and (ending := get_note(info.details.payloads[0], identifiers.ENDING_NOTE)):
            status = EndStatus.DEAD if ending == RunState.DEAD else EndStatus.FAILED
            return EndResult(status, from_payload(info.details.payloads[0]))
    for name, status in _FAILURE_STATUSES.items():
        if failure.HasField(name):  # pyright: ignore[reportArgumentType]
            return EndResult(status)
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
"""The state of a run that ended with this status; with any other status, the run failed."""
