"""A run's row, made from what Temporal tells of its execution.

Temporal has no row like ours. What a run *is* stands in the memo (``run_memo``); its inputs are in the first event, its
output or its error in the last one; whether it is at work follows from what is pending. So a row costs two or three
questions to the server, and large payloads only if they are asked for.

A run may have several executions under its id (see ``carried_records``): the row is that of the newest one.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from temporalio.api.common.v1 import Memo, Payload, WorkflowExecution
from temporalio.api.enums.v1 import (
    EventType,
    PendingWorkflowTaskState,
    WorkflowExecutionStatus,
    WorkflowTaskFailedCause,
)
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo, WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from holdfast.codec import encode_error
from holdfast.core.records import Rewind, read_once
from holdfast.core.states import RunState
from holdfast.errors import RunTimedOut, StepFailed
from holdfast.stores.journal_pages import placeholder
from holdfast.stores.operations import Cancel, Run
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.carried_records import is_carried
from holdfast.stores.temporal.history import first_event, is_apart, last_event, newest_events, plain_payloads
from holdfast.stores.temporal.payloads import data_of, plain
from holdfast.stores.temporal.run_events import How, ended_with
from holdfast.stores.temporal.run_memo import HEAD, QUESTIONS, run_of
from holdfast.stores.utf8 import is_proper

REOPENED = "reopened"
"""The entry of the memo that tells of retries: when each was made, and the ``seq`` of the last record that it kept."""

MILLI = 1_000_000
_OPEN = (
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING,
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_PAUSED,  # by Temporal's own tools
)
_NO_FIT = (
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_WORKFLOW_WORKER_UNHANDLED_FAILURE,
)
"""Others pass by themselves."""


@dataclass(frozen=True, slots=True)
class Described:
    """What the server tells of an execution at one moment, without its history."""

    info: WorkflowExecutionInfo
    memo: dict[str, Any]
    activities: Sequence[PendingActivityInfo] = ()
    children: Sequence[str] = ()
    """The ids of child workflows that have not ended."""
    has_task: bool = False
    """Somebody has to take the run a step further."""
    at_task: bool = False
    """Somebody is about to."""
    cancel_asked: bool = False

    @property
    def id(self) -> str:
        """The run's id."""
        return self.info.execution.workflow_id

    @property
    def execution(self) -> str:
        """What Temporal calls a run id: which of the run's executions it is."""
        return self.info.execution.run_id

    @property
    def head(self) -> dict[str, Any]:
        """What the memo says of the run."""
        told = self.memo.get(HEAD)
        return told if isinstance(told, dict) else {}  # pyright: ignore[reportUnknownVariableType]

    @property
    def questions(self) -> list[dict[str, Any]]:
        """What it asks people."""
        return self.memo.get(QUESTIONS) or []

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.info.status in _OPEN

    @property
    def is_run(self) -> bool:
        """Whether it is a run, and nothing that Holdfast keeps for itself."""
        return not self.info.type.name.startswith(identifiers.PREFIX)

    @property
    def key(self) -> int:
        """The number by which it is listed: by the time of its start, then by chance."""
        return key_of(self.info)


def key_of(info: WorkflowExecutionInfo) -> int:
    """The number by which an execution is listed."""
    return key_at(info.execution.run_id, info.start_time.ToNanoseconds())


def key_at(name: str, nanoseconds: int) -> int:
    """The number of something that was started at this time: by the millisecond, since lists know it less exactly."""
    chance = hashlib.blake2b(name.encode(), digest_size=4).digest()
    return nanoseconds // MILLI << 32 | int.from_bytes(chance)


def span_of(key: int) -> tuple[int, int]:
    """When the execution with this key was started, in nanoseconds: not before the first, and before the second."""
    return (key >> 32) * MILLI, ((key >> 32) + 1) * MILLI


async def describe(client: Client, id: str, execution: str = "") -> Described | None:
    """What is told of an execution now, the newest one if it is not said which; ``None``: there is none."""
    if not is_proper(id):
        return None
    try:
        told = await client.workflow_service.describe_workflow_execution(
            DescribeWorkflowExecutionRequest(
                namespace=client.namespace, execution=WorkflowExecution(workflow_id=id, run_id=execution)
            ),
            retry=True,
        )
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND and not error.message.startswith("Namespace"):
            return None
        if error.status is RPCStatusCode.INVALID_ARGUMENT and "WorkflowId" in error.message:
            return None  # it is too long, or empty: so there is none
        raise
    task = told.pending_workflow_task if told.HasField("pending_workflow_task") else None
    started = PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_STARTED
    return Described(
        told.workflow_execution_info,
        await read_memo(client, told.workflow_execution_info.memo),
        told.pending_activities,
        [child.workflow_id for child in told.pending_children],
        has_task=task is not None,
        at_task=task is not None and task.state == started,
        cancel_asked=told.workflow_extended_info.cancel_requested,
    )


async def read_memo(client: Client, memo: Memo) -> dict[str, Any]:
    """What is in a memo as JSON; what others may have put there in other forms is passed over."""
    payloads = await plain_payloads(client, list(memo.fields.values()))
    return {
        name: plain(payload)
        for name, payload in zip(memo.fields, payloads, strict=True)
        if payload.metadata.get("encoding") == b"json/plain"
    }


# Rows


async def row_of(client: Client, told: Described, *, whole: bool = True) -> Run:
    """The row of a run. Unless it is to be ``whole``, inputs and outputs that are kept apart are told by their size."""
    run = _begun(told, await _beginning(client, told, whole))
    return await _unfinished(client, told, run) if told.is_open else await _ended(client, told, run, whole)


async def _beginning(client: Client, told: Described, whole: bool) -> HistoryEvent | None:
    """The event with the run's inputs.

    Every execution of a chain that continued as new has the inputs, but the later ones begin with all records of those
    before them as well. So the first one is read, for as long as Temporal keeps it.
    """
    if (first := told.info.first_run_id) and first != told.execution:
        try:
            return await first_event(client, told.id, first, whole=whole)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
    return await first_event(client, told.id, told.execution, whole=whole)


def _begun(told: Described, first: HistoryEvent | None) -> Run:
    """What is known of a run from its beginning."""
    info = told.info
    given: Sequence[Payload] = () if first is None else first.workflow_execution_started_event_attributes.input.payloads
    run = run_of(
        told.head,
        id=told.id,
        execution=told.execution,
        workflow=info.type.name,
        inputs=_inputs(given),
        started_at=info.start_time.ToNanoseconds() / 1e9,
    )
    return replace(run, key=told.key, queue_key=info.priority.fairness_key, epoch=0)


def _inputs(given: Sequence[Payload]) -> bytes:
    """A run's inputs, as far as they can be told without its code."""
    own = [payload for payload in given if not is_carried(payload)]
    if own and is_apart(own[0]):
        return placeholder(_size(own[0]))
    if len(own) == 1:
        return data_of(own[0])
    return json.dumps([plain(payload) for payload in own]).encode()  # started by other means than Holdfast's


def _size(payload: Payload) -> int | None:
    sizes = [apart.size_bytes for apart in payload.external_payloads]
    return sizes[0] if sizes else None


async def _unfinished(client: Client, told: Described, run: Run) -> Run:
    newest = await newest_events(client, told.id, told.execution)
    state, wake_at = _state(told, newest)
    if told.has_task and (refused := _refused_task(newest)):
        state, wake_at, waits = RunState.WAITING, None, f"code that can go on with it (the last one cannot: {refused})"
    else:
        waits = _waits_for(told) if state is RunState.WAITING else ""
    return replace(
        run,
        state=state,
        epoch=0 if state is RunState.PENDING else 1,
        cancel=Cancel.ASKED if told.cancel_asked else Cancel.NO,
        paused_at=_paused_at(newest),
        wake_at=wake_at,
        waits_for=waits,
    )


def _state(told: Described, newest: Sequence[HistoryEvent]) -> tuple[RunState, float | None]:
    """How an unfinished run stands, and when it is due if it is pending."""
    has_begun = (
        told.activities
        or told.children
        or any(event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED for event in newest)
    )
    if not has_begun and newest and newest[-1].event_id == 1 and not told.at_task:
        return RunState.PENDING, told.info.execution_time.ToNanoseconds() / 1e9
    at_work = [one for one in told.activities if one.activity_type.name != identifiers.AWAIT_RUN]
    return (RunState.RUNNING if told.has_task or at_work else RunState.WAITING), None


def _refused_task(newest: Sequence[HistoryEvent]) -> str:
    """Why the code of the worker that had the run last could not go on with it; ``""`` if it could."""
    for event in newest:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            break
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
            failed = event.workflow_task_failed_event_attributes
            return (failed.failure.message or "it has failed") if failed.cause in _NO_FIT else ""
    return ""


def _waits_for(told: Described) -> str:
    """What a run waits for, in words, as far as it can be told from outside."""
    runs = list(told.children)
    words = [f"run {runs[0]!r}" if len(runs) == 1 else f"{len(runs)} runs, such as {runs[0]!r}"] if runs else []
    words += [f"approval {question['id']}" for question in told.questions][:3]
    if not words and told.activities:
        words.append("another run")
    return " or ".join(words) or "a signal or a timer"


def _paused_at(newest: Sequence[HistoryEvent]) -> float | None:
    """Since when a run is paused. It makes no progress then, so the signal is among the newest events."""
    since: float | None = None
    for event in newest:
        name = event.workflow_execution_signaled_event_attributes.signal_name
        if name == identifiers.RESUME or event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED:
            break
        if name == identifiers.PAUSE:
            since = event.event_time.ToNanoseconds() / 1e9
    return since


async def _ended(client: Client, told: Described, run: Run, whole: bool) -> Run:
    ended = await ending_of(client, told, whole=whole)
    is_asked = ended.state is RunState.CANCELLED
    return replace(
        run,
        state=ended.state,
        epoch=1,
        output=ended.output,
        error=ended.error,
        rewind=ended.rewind,
        finished_at=told.info.close_time.ToNanoseconds() / 1e9,
        cancel=Cancel.RECORDED if is_asked else Cancel.NO,
        deliveries=run.max_deliveries if ended.state is RunState.DEAD else 0,
    )


# Ends


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run has ended."""

    state: RunState
    output: bytes | None = None
    error: bytes | None = None
    rewind: Rewind | None = None
    order: Sequence[Sequence[Any]] | None = field(default=None, repr=False)
    """The records of its last execution, in short; ``None`` if that is not told."""


async def ending_of(client: Client, told: Described, *, whole: bool = True) -> Ending:
    """How a run that is not open any more has ended."""
    last = await last_event(client, told.id, told.execution, whole=whole)
    return Ending(RunState.FAILED) if last is None else ending_in(last, told.id)


def ending_in(last: HistoryEvent, run_id: str) -> Ending:
    """What the last event of an execution says."""
    kind = last.event_type
    if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
        result = last.workflow_execution_completed_event_attributes.result.payloads
        output = b"null" if not result else placeholder(_size(result[0])) if is_apart(result[0]) else data_of(result[0])
        return Ending(RunState.COMPLETED, output)
    if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED:
        return Ending(RunState.CANCELLED)
    if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
        return _failed(last)
    if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT:
        error = RunTimedOut(f"run {run_id!r} ran into a time-out that was set for it in Temporal")
        return Ending(RunState.FAILED, error=encode_error(error))
    reason = last.workflow_execution_terminated_event_attributes.reason
    words = f"run {run_id!r} was terminated in Temporal{f' ({reason})' if reason else ''}"
    return Ending(RunState.FAILED, error=encode_error(StepFailed(words, "")))


def _failed(last: HistoryEvent) -> Ending:
    failure = last.workflow_execution_failed_event_attributes.failure
    ended = ended_with(failure)
    state = RunState.DEAD if ended.how is How.DEAD else RunState.FAILED
    error = ended.payload
    if error == b"null":
        error = encode_error(StepFailed(failure.message or f"the run was {ended.how.name.lower()} in Temporal", ""))
    details = failure.application_failure_info.details.payloads
    if is_apart(details[0]) if details else False:
        error = encode_error(StepFailed(failure.message, ""))
    if len(details) < 2 or is_apart(details[1]):
        return Ending(state, error=error)
    told: dict[str, Any] = json.loads(zlib.decompress(details[1].data))
    return Ending(state, error=error, rewind=rewind_of(told.get("rewind")), order=told.get("order"))


def rewind_of(told: dict[str, Any] | None) -> Rewind | None:
    """What a retry takes back, as it is written with the end of a run."""
    if told is None:
        return None
    rewind = Rewind(**told)
    return rewind._replace(failed=tuple(rewind.failed), once=read_once(rewind.once), given_up=tuple(rewind.given_up))
