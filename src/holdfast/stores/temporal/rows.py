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
from holdfast.core.records import Rewind
from holdfast.core.states import RunState
from holdfast.errors import RunTimedOut, StepFailed
from holdfast.stores.journal_pages import make_placeholder
from holdfast.stores.operations import CancelState, Run
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.carried_records import is_carried
from holdfast.stores.temporal.history import (
    decode_payloads,
    fetch_first_event,
    fetch_last_event,
    fetch_newest_events,
    is_external,
)
from holdfast.stores.temporal.payloads import from_payload, load_json
from holdfast.stores.temporal.run_events import EndStatus, result_from_failure
from holdfast.stores.temporal.run_memo import APPROVALS_KEY, RUN_MEMO_KEY, run_from_memo
from holdfast.stores.utf8 import is_encodable

RETRIES_KEY = "reopened"
"""The entry of the memo that tells of retries: when each was made, and the ``seq`` of the last record that it kept."""

MILLISECOND_NS = 1_000_000
_OPEN_STATUSES = (
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING,
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_PAUSED,  # by Temporal's own tools
)
_INCOMPATIBLE_CAUSES = (
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_WORKFLOW_WORKER_UNHANDLED_FAILURE,
)
"""Others pass by themselves."""


@dataclass(frozen=True, slots=True)
class ExecutionDescription:
    """What the server tells of an execution at one moment, without its history."""

    info: WorkflowExecutionInfo
    memo: dict[str, Any]
    pending_activities: Sequence[PendingActivityInfo] = ()
    pending_children: Sequence[str] = ()
    """The ids of child workflows that have not ended."""
    has_pending_task: bool = False
    """Somebody has to take the run a step further."""
    is_task_started: bool = False
    """Somebody is about to."""
    is_cancel_requested: bool = False

    @property
    def id(self) -> str:
        """The run's id."""
        return self.info.execution.workflow_id

    @property
    def execution_id(self) -> str:
        """What Temporal calls a run id: which of the run's executions it is."""
        return self.info.execution.run_id

    @property
    def run_memo(self) -> dict[str, Any]:
        """What the memo says of the run."""
        told = self.memo.get(RUN_MEMO_KEY)
        return told if isinstance(told, dict) else {}  # pyright: ignore[reportUnknownVariableType]

    @property
    def open_approvals(self) -> list[dict[str, Any]]:
        """What it asks people."""
        return self.memo.get(APPROVALS_KEY) or []

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.info.status in _OPEN_STATUSES

    @property
    def is_run(self) -> bool:
        """Whether it is a run, and nothing that Holdfast keeps for itself."""
        return not self.info.type.name.startswith(identifiers.RESERVED_PREFIX)

    @property
    def key(self) -> int:
        """The number by which it is listed: by the time of its start, then by chance."""
        return get_key(self.info)


def get_key(info: WorkflowExecutionInfo) -> int:
    """The number by which an execution is listed."""
    return make_key(info.execution.run_id, info.start_time.ToNanoseconds())


def make_key(name: str, nanoseconds: int) -> int:
    """The number of something that was started at this time: by the millisecond, since lists know it less exactly."""
    chance = hashlib.blake2b(name.encode(), digest_size=4).digest()
    return nanoseconds // MILLISECOND_NS << 32 | int.from_bytes(chance)


def get_time_range(key: int) -> tuple[int, int]:
    """When the execution with this key was started, in nanoseconds: not before the first, and before the second."""
    return (key >> 32) * MILLISECOND_NS, ((key >> 32) + 1) * MILLISECOND_NS


async def describe_execution(client: Client, id: str, execution_id: str = "") -> ExecutionDescription | None:
    """What is told of an execution now, the newest one if it is not said which; ``None``: there is none."""
    if not is_encodable(id):
        return None
    try:
        told = await client.workflow_service.describe_workflow_execution(
            DescribeWorkflowExecutionRequest(
                namespace=client.namespace, execution=WorkflowExecution(workflow_id=id, run_id=execution_id)
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
    return ExecutionDescription(
        told.workflow_execution_info,
        await read_memo(client, told.workflow_execution_info.memo),
        told.pending_activities,
        [child.workflow_id for child in told.pending_children],
        has_pending_task=task is not None,
        is_task_started=task is not None and task.state == started,
        is_cancel_requested=told.workflow_extended_info.cancel_requested,
    )


async def read_memo(client: Client, memo: Memo) -> dict[str, Any]:
    """What is in a memo as JSON; what others may have put there in other forms is passed over."""
    payloads = await decode_payloads(client, list(memo.fields.values()))
    return {
        name: load_json(payload)
        for name, payload in zip(memo.fields, payloads, strict=True)
        if payload.metadata.get("encoding") == b"json/plain"
    }


# Rows


async def read_row(client: Client, execution: ExecutionDescription, *, include_external: bool = True) -> Run:
    """The row of a run. Without ``include_external``, inputs and outputs kept apart are given by size."""
    run = _row_from_start(execution, await _fetch_start_event(client, execution, include_external))
    return (
        await _fill_open_row(client, execution, run)
        if execution.is_open
        else await _fill_ended_row(client, execution, run, include_external)
    )


async def _fetch_start_event(
    client: Client, execution: ExecutionDescription, include_external: bool
) -> HistoryEvent | None:
    """The event with the run's inputs.

    Every execution of a chain that continued as new has the inputs, but the later ones begin with all records of those
    before them as well. So the first one is read, for as long as Temporal keeps it.
    """
    if (first := execution.info.first_run_id) and first != execution.execution_id:
        try:
            return await fetch_first_event(client, execution.id, first, include_external=include_external)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
    return await fetch_first_event(client, execution.id, execution.execution_id, include_external=include_external)


def _row_from_start(execution: ExecutionDescription, first: HistoryEvent | None) -> Run:
    """What is known of a run from its beginning."""
    info = execution.info
    given: Sequence[Payload] = () if first is None else first.workflow_execution_started_event_attributes.input.payloads
    run = run_from_memo(
        execution.run_memo,
        id=execution.id,
        execution_id=execution.execution_id,
        workflow=info.type.name,
        inputs=_read_inputs(given),
        started_at=info.start_time.ToNanoseconds() / 1e9,
    )
    return replace(run, key=execution.key, queue_key=info.priority.fairness_key, epoch=0)


def _read_inputs(payloads: Sequence[Payload]) -> bytes:
    """A run's inputs, as far as they can be told without its code."""
    own = [payload for payload in payloads if not is_carried(payload)]
    if own and is_external(own[0]):
        return make_placeholder(_get_external_size(own[0]))
    if len(own) == 1:
        return from_payload(own[0])
    return json.dumps([load_json(payload) for payload in own]).encode()  # started by other means than Holdfast's


def _get_external_size(payload: Payload) -> int | None:
    sizes = [apart.size_bytes for apart in payload.external_payloads]
    return sizes[0] if sizes else None


async def _fill_open_row(client: Client, execution: ExecutionDescription, run: Run) -> Run:
    newest = await fetch_newest_events(client, execution.id, execution.execution_id)
    state, wake_at = _infer_state(execution, newest)
    if execution.has_pending_task and (refused := _find_task_failure(newest)):
        state, wake_at, waits = RunState.WAITING, None, f"code that can go on with it (the last one cannot: {refused})"
    else:
        waits = _describe_wait(execution) if state is RunState.WAITING else ""
    return replace(
        run,
        state=state,
        epoch=0 if state is RunState.PENDING else 1,
        cancel_state=CancelState.REQUESTED if execution.is_cancel_requested else CancelState.NONE,
        paused_at=_find_paused_at(newest),
        wake_at=wake_at,
        waits_for=waits,
    )


def _infer_state(execution: ExecutionDescription, newest: Sequence[HistoryEvent]) -> tuple[RunState, float | None]:
    """How an unfinished run stands, and when it is due if it is pending."""
    has_begun = (
        execution.pending_activities
        or execution.pending_children
        or any(event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED for event in newest)
    )
    if not has_begun and newest and newest[-1].event_id == 1 and not execution.is_task_started:
        return RunState.PENDING, execution.info.execution_time.ToNanoseconds() / 1e9
    at_work = [one for one in execution.pending_activities if one.activity_type.name != identifiers.AWAIT_RUN_ACTIVITY]
    return (RunState.RUNNING if execution.has_pending_task or at_work else RunState.WAITING), None


def _find_task_failure(newest: Sequence[HistoryEvent]) -> str:
    """Why the code of the worker that had the run last could not go on with it; ``""`` if it could."""
    for event in newest:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            break
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
            failed = event.workflow_task_failed_event_attributes
            return (failed.failure.message or "it has failed") if failed.cause in _INCOMPATIBLE_CAUSES else ""
    return ""


def _describe_wait(execution: ExecutionDescription) -> str:
    """What a run waits for, in words, as far as it can be told from outside."""
    runs = list(execution.pending_children)
    words = [f"run {runs[0]!r}" if len(runs) == 1 else f"{len(runs)} runs, such as {runs[0]!r}"] if runs else []
    words += [f"approval {question['id']}" for question in execution.open_approvals][:3]
    if not words and execution.pending_activities:
        words.append("another run")
    return " or ".join(words) or "a signal or a timer"


def _find_paused_at(newest: Sequence[HistoryEvent]) -> float | None:
    """Since when a run is paused. It makes no progress then, so the signal is among the newest events."""
    since: float | None = None
    for event in newest:
        name = event.workflow_execution_signaled_event_attributes.signal_name
        if (
            name == identifiers.RESUME_SIGNAL
            or event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED
        ):
            break
        if name == identifiers.PAUSE_SIGNAL:
            since = event.event_time.ToNanoseconds() / 1e9
    return since


async def _fill_ended_row(client: Client, execution: ExecutionDescription, run: Run, include_external: bool) -> Run:
    ended = await read_ending(client, execution, include_external=include_external)
    is_asked = ended.state is RunState.CANCELLED
    return replace(
        run,
        state=ended.state,
        epoch=1,
        output=ended.output,
        error=ended.error,
        rewind=ended.rewind,
        finished_at=execution.info.close_time.ToNanoseconds() / 1e9,
        cancel_state=CancelState.RECORDED if is_asked else CancelState.NONE,
        delivery_count=run.max_deliveries if ended.state is RunState.DEAD else 0,
    )


# Ends


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run has ended."""

    state: RunState
    output: bytes | None = None
    error: bytes | None = None
    rewind: Rewind | None = None
    record_order: Sequence[Sequence[Any]] | None = field(default=None, repr=False)
    """The records of its last execution, in short; ``None`` if that is not told."""


async def read_ending(client: Client, execution: ExecutionDescription, *, include_external: bool = True) -> Ending:
    """How a run that is not open any more has ended."""
    last = await fetch_last_event(client, execution.id, execution.execution_id, include_external=include_external)
    return Ending(RunState.FAILED) if last is None else ending_from_event(last, execution.id)


def ending_from_event(last: HistoryEvent, run_id: str) -> Ending:
    """What the last event of an execution says."""
    kind = last.event_type
    if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
        result = last.workflow_execution_completed_event_attributes.result.payloads
        output = (
            b"null"
            if not result
            else make_placeholder(_get_external_size(result[0]))
            if is_external(result[0])
            else from_payload(result[0])
        )
        return Ending(RunState.COMPLETED, output)
    if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED:
        return Ending(RunState.CANCELLED)
    if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
        return _ending_from_failure(last)
    if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT:
        error = RunTimedOut(f"run {run_id!r} ran into a time-out that was set for it in Temporal")
        return Ending(RunState.FAILED, error=encode_error(error))
    reason = last.workflow_execution_terminated_event_attributes.reason
    words = f"run {run_id!r} was terminated in Temporal{f' ({reason})' if reason else ''}"
    return Ending(RunState.FAILED, error=encode_error(StepFailed(words, "")))


def _ending_from_failure(last: HistoryEvent) -> Ending:
    failure = last.workflow_execution_failed_event_attributes.failure
    ended = result_from_failure(failure)
    state = RunState.DEAD if ended.status is EndStatus.DEAD else RunState.FAILED
    error = ended.payload
    if error == b"null":
        error = encode_error(StepFailed(failure.message or f"the run was {ended.status.name.lower()} in Temporal", ""))
    details = failure.application_failure_info.details.payloads
    if is_external(details[0]) if details else False:
        error = encode_error(StepFailed(failure.message, ""))
    if len(details) < 2 or is_external(details[1]):
        return Ending(state, error=error)
    told: dict[str, Any] = json.loads(zlib.decompress(details[1].data))
    return Ending(state, error=error, rewind=rewind_from_json(told.get("rewind")), record_order=told.get("order"))


def rewind_to_json(rewind: Rewind | None) -> dict[str, Any] | None:
    """What a retry takes back, as it is written with the end of a run."""
    return None if rewind is None else rewind._asdict()


def rewind_from_json(data: dict[str, Any] | None) -> Rewind | None:
    """The same, read back."""
    if data is None:
        return None
    rewind = Rewind(**data)
    return rewind._replace(
        failed_seqs=tuple(rewind.failed_seqs),
        once_seqs=tuple(rewind.once_seqs),
        abandoned_positions=tuple(rewind.abandoned_positions),
    )
