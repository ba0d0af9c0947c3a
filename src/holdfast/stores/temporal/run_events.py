"""What a history tells a run, workflow task by workflow task.

**Why not event by event.** Workflow code sees what has happened whenever a worker takes a *workflow task*: then
everything that came since the last one is told at once. In which order the SDK tells it is its own affair, and has
changed between releases. So Holdfast puts what one workflow task brings into an order of its own (``Rank``, then a
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
from holdfast.stores.temporal.payloads import data_of, first, note_of, plain
from holdfast.stores.temporal.run_memo import HEAD


class Rank(IntEnum):
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


class How(IntEnum):
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


class Ended(NamedTuple):
    """What came of an activity or a child."""

    how: How
    payload: bytes
    """The encoded value, or the encoded error."""


@dataclass(frozen=True, slots=True)
class Signalled:
    """A signal came."""

    name: str
    values: tuple[Payload, ...]
    at: float


@dataclass(frozen=True, slots=True)
class Updated:
    """A step of the run has asked for a change of it, and is told what came of that."""

    id: str
    name: str
    values: tuple[Payload, ...]


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """Somebody wants the run to be cancelled."""


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer is due."""

    position: int | None
    """``None``: it is the run's deadline."""
    due: float = 0.0


@dataclass(frozen=True, slots=True)
class DelayOver:
    """The run may begin."""


@dataclass(frozen=True, slots=True)
class StepEnded:
    """An activity has ended."""

    position: int
    ended: Ended
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
    ended: Ended
    name: str = ""


Happening = Signalled | Updated | CancelAsked | DelayOver | TimerFired | StepEnded | ChildStarted | ChildEnded


def place(happening: Happening, arrived: int) -> tuple[int, float, int]:
    """Where something stands among all that one workflow task brings; ``arrived`` counts these."""
    match happening:
        case Signalled():
            return Rank.SIGNAL, 0, arrived
        case Updated():
            return Rank.UPDATE, 0, arrived
        case CancelAsked():
            return Rank.CANCEL, 0, 0
        case DelayOver():
            return Rank.SIGNAL, 0, -1
        case TimerFired():
            return Rank.TIMER, happening.due, -1 if happening.position is None else happening.position
        case StepEnded():
            return Rank.STEP, 0, happening.position
        case ChildStarted():
            return Rank.CHILD_STARTED, 0, happening.position
        case ChildEnded():
            return Rank.CHILD, 0, happening.position


def rung(summary: str) -> TimerFired:
    """A timer that is due, by what is written on it."""
    return TimerFired(identifiers.timer_position(summary), identifiers.timer_due(summary))


def in_order(happenings: Sequence[Happening]) -> tuple[Happening, ...]:
    """What one workflow task brings, as the code is told it."""
    numbered = sorted(enumerate(happenings), key=lambda one: place(one[1], one[0]))
    return tuple(happening for _, happening in numbered)


def in_stages(happenings: Sequence[Happening]) -> Iterator[Sequence[Happening]]:
    """The same, in pieces: the code goes as far as it can with the messages before it hears of anything else.

    As a rule the SDK hands out messages by themselves, and lets the workflow run before it tells the rest of what a
    workflow task brings (there is a flag of its own for histories in which it does not). So these are two stages here,
    whatever the SDK does.
    """
    for is_message in (True, False):
        stage = [one for one in happenings if isinstance(one, Signalled | Updated | DelayOver) is is_message]
        if stage:
            yield stage


@dataclass(frozen=True, slots=True)
class Batch:
    """All that one workflow task has told the code."""

    at: float
    """The time, as the code was told it."""
    happenings: tuple[Happening, ...]
    patches: tuple[str, ...] = ()
    """The changes whose new way the code has taken in it."""
    completed: int = 0
    """The number of the event with which it was completed."""


@dataclass
class _Reading:
    """What is remembered from event to event."""

    timers: dict[int, TimerFired | DelayOver] = field(default_factory=dict[int, "TimerFired | DelayOver"])
    activities: dict[int, _Scheduled] = field(default_factory=dict[int, "_Scheduled"])
    children: dict[int, tuple[int, str, str]] = field(default_factory=dict[int, tuple[int, str, str]])


@dataclass
class _Scheduled:
    position: int
    name: str
    preview: str
    is_compensation: bool
    is_await: bool
    started_at: float = 0.0
    attempts: int = 1
    worker: str = ""


def read_batches(events: Iterable[HistoryEvent]) -> Iterator[Batch]:
    """What these events of one execution, from its first on, have told the code."""
    yield from BatchReader().read(events)


class BatchReader:
    """Reads a history in pieces, as it grows. A piece ends where a workflow task was completed, with all that the task
    has asked for, or later: the server writes that down in one go."""

    def __init__(self) -> None:
        self._reading = _Reading()
        self._gathered: list[tuple[int, Happening]] = []
        self._started: dict[int, float] = {}

    def read(self, events: Iterable[HistoryEvent]) -> Iterator[Batch]:
        """What the next events have told the code."""
        told: Batch | None = None
        for event in events:
            kind = event.event_type
            if kind == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED:
                self._started[event.event_id] = event.event_time.ToNanoseconds() / 1e9
            elif kind == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                if told is not None:
                    yield told
                told = self._completed(event)
            elif kind == EventType.EVENT_TYPE_MARKER_RECORDED:
                if told is not None and (name := _patch_in(event)):
                    told = replace(told, patches=(*told.patches, name))
            elif kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
                # Written down by the workflow task that has heard of it.
                asked = event.workflow_execution_update_accepted_event_attributes.accepted_request
                update = Updated(asked.meta.update_id, asked.input.name, tuple(asked.input.args.payloads))
                if told is not None:
                    told = replace(told, happenings=in_order([*told.happenings, update]))
            elif (happening := _read(event, self._reading)) is not None:
                self._gathered.append((event.event_id, happening))
        if told is not None:
            yield told

    def _completed(self, event: HistoryEvent) -> Batch:
        began = event.workflow_task_completed_event_attributes.started_event_id
        now = [happening for number, happening in self._gathered if number < began]
        self._gathered = [(number, happening) for number, happening in self._gathered if number >= began]
        at = self._started.pop(began)
        self._started.clear()
        return Batch(at, in_order(now), (), event.event_id)


def unseen(events: Sequence[HistoryEvent]) -> list[Happening]:
    """What has happened, and no completed workflow task has told the code yet."""
    reading = _Reading()
    last = 0
    found: list[tuple[int, Happening]] = []
    for event in events:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            last = event.workflow_task_completed_event_attributes.started_event_id
        elif (happening := _read(event, reading)) is not None:
            found.append((event.event_id, happening))
    return [happening for number, happening in found if number > last]


def _read(event: HistoryEvent, reading: _Reading) -> Happening | None:
    """What an event tells the code, if it tells it anything."""
    kind = event.event_type
    at = event.event_time.ToNanoseconds() / 1e9
    if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
        signal = event.workflow_execution_signaled_event_attributes
        return Signalled(signal.signal_name, tuple(signal.input.payloads), at)
    if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED:
        return CancelAsked()
    if kind == EventType.EVENT_TYPE_TIMER_STARTED:
        summary = plain(event.user_metadata.summary)
        is_delay = summary == identifiers.DELAY
        reading.timers[event.event_id] = DelayOver() if is_delay else rung(summary)
    elif kind == EventType.EVENT_TYPE_TIMER_FIRED:
        return reading.timers[event.timer_fired_event_attributes.started_event_id]
    return _read_activity(event, reading, at) or _read_child(event, reading)


def _read_activity(event: HistoryEvent, reading: _Reading, at: float) -> StepEnded | None:
    kind = event.event_type
    if kind == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
        new = event.activity_task_scheduled_event_attributes
        name, given = new.activity_type.name, new.input.payloads
        reading.activities[event.event_id] = _Scheduled(
            identifiers.position_of(new.activity_id),
            name,
            str(plain(given[0])) if given else "",
            bool(given) and note_of(given[0], "kind") == "compensation",
            name == identifiers.AWAIT_RUN,
        )
    elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
        begun = event.activity_task_started_event_attributes
        known = reading.activities[begun.scheduled_event_id]
        known.started_at, known.attempts, known.worker = at, begun.attempt, begun.identity
    elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
        done = event.activity_task_completed_event_attributes
        payloads = done.result.payloads
        usage = note_of(payloads[0], "usage") if payloads else ""
        return _ended(reading, done.scheduled_event_id, Ended(How.COMPLETED, first(payloads)), usage)
    elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED:
        failed = event.activity_task_failed_event_attributes
        return _ended(reading, failed.scheduled_event_id, ended_with(failed.failure))
    elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT:
        late = event.activity_task_timed_out_event_attributes
        return _ended(reading, late.scheduled_event_id, ended_with(late.failure))
    elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED:
        gone = event.activity_task_canceled_event_attributes
        return _ended(reading, gone.scheduled_event_id, Ended(How.CANCELLED, b"null"))
    return None


def _ended(reading: _Reading, scheduled: int, ended: Ended, usage: str = "") -> StepEnded:
    known = reading.activities.pop(scheduled)
    return StepEnded(
        known.position, ended, known.name, known.started_at, known.attempts, known.worker, known.preview, usage,
        known.is_compensation, known.is_await,
    )  # fmt: skip


def _read_child(event: HistoryEvent, reading: _Reading) -> ChildStarted | ChildEnded | None:
    kind = event.event_type
    if kind == EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
        new = event.start_child_workflow_execution_initiated_event_attributes
        head: dict[str, Any] = plain(new.memo.fields[HEAD])
        reading.children[event.event_id] = head.get("position", 0), new.workflow_id, new.workflow_type.name
    elif kind == EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED:
        position, run_id, _ = reading.children[
            event.child_workflow_execution_started_event_attributes.initiated_event_id
        ]
        return ChildStarted(position, run_id)
    elif kind == EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_FAILED:
        refused = event.start_child_workflow_execution_failed_event_attributes
        position, run_id, _ = reading.children.pop(refused.initiated_event_id)
        return ChildStarted(position, run_id, is_new=False)
    for field_name, how in _CHILD_ENDS.items():
        if event.HasField(field_name):  # pyright: ignore[reportArgumentType]
            return _child_ended(reading, getattr(event, field_name), how)
    return None


_CHILD_ENDS = {
    "child_workflow_execution_completed_event_attributes": How.COMPLETED,
    "child_workflow_execution_failed_event_attributes": How.FAILED,
    "child_workflow_execution_canceled_event_attributes": How.CANCELLED,
    "child_workflow_execution_terminated_event_attributes": How.TERMINATED,
    "child_workflow_execution_timed_out_event_attributes": How.TIMED_OUT,
}


def _child_ended(reading: _Reading, told: Any, how: How) -> ChildEnded:
    position, run_id, name = reading.children.pop(told.initiated_event_id)
    if how is How.COMPLETED:
        ended = Ended(how, first(told.result.payloads))
    elif how is How.FAILED:
        ended = ended_with(told.failure)
    else:
        ended = Ended(how, b"null")
    return ChildEnded(position, run_id, ended, name)


def _patch_in(event: HistoryEvent) -> str:
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


def ended_with(failure: Failure) -> Ended:
    """What a failure says of how an activity, a child or a run has ended."""
    while failure.HasField("activity_failure_info") or failure.HasField("child_workflow_execution_failure_info"):
        failure = failure.cause
    if failure.HasField("application_failure_info"):
        told = failure.application_failure_info
        if told.type == identifiers.HANDED_OVER:
            return Ended(How.HANDED_OVER, b"null")
        if told.details.payloads and (ending := note_of(told.details.payloads[0], identifiers.ENDING)):
            how = How.DEAD if ending == RunState.DEAD else How.FAILED
            return Ended(how, data_of(told.details.payloads[0]))
    for name, how in _FAILURES.items():
        if failure.HasField(name):  # pyright: ignore[reportArgumentType]
            return Ended(how, b"null")
    words = f"{failure.application_failure_info.type}: {failure.message}".removeprefix(": ")
    return Ended(How.FAILED, encode_error(StepFailed(words, "")))


_FAILURES = {
    "timeout_failure_info": How.TIMED_OUT,
    "canceled_failure_info": How.CANCELLED,
    "terminated_failure_info": How.TERMINATED,
}

STATES = {
    How.COMPLETED: RunState.COMPLETED,
    How.CANCELLED: RunState.CANCELLED,
    How.DEAD: RunState.DEAD,
}
"""How a run stands that has ended so; any other has failed."""
