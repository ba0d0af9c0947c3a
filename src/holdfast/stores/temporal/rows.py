"""Makes a run's row from Temporal's description of its execution.

Temporal has no such row. The memo says how the run was started (``run_memo``); its inputs are in the first event, its
output or its error in the last one; pending activities show whether it is running. So a row costs two or three requests
to the server. Large payloads are loaded only on request.

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
from holdfast.stores.temporal.errors import suppress_not_found
from holdfast.stores.temporal.history import (
    decode_payloads,
    fetch_first_event,
    fetch_last_event,
    fetch_newest_events,
    is_external,
)
from holdfast.stores.temporal.payloads import from_payload, load_json
from holdfast.stores.temporal.run_events import EndStatus, get_event_time, result_from_failure
from holdfast.stores.temporal.run_memo import APPROVALS_KEY, RUN_MEMO_KEY, run_from_memo
from holdfast.stores.utf8 import is_encodable

RETRIES_KEY = "reopened"
"""The entry of the memo with the run's retries: the time of each, and the ``seq`` of the last record that it kept."""

MILLISECOND_NS = 1_000_000
_OPEN_STATUSES = (
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING,
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_PAUSED,  # by Temporal's own tools
)
_INCOMPATIBLE_CAUSES = (
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_WORKFLOW_WORKER_UNHANDLED_FAILURE,
)
"""The failures of a workflow task that another attempt with the same code cannot fix."""


@dataclass(frozen=True, slots=True)
class ExecutionDescription:
    """The server's description of an execution at one moment, without its history."""

    info: WorkflowExecutionInfo
    memo: dict[str, Any]
    pending_activities: Sequence[PendingActivityInfo] = ()
    pending_children: Sequence[str] = ()
    """The ids of child workflows that have not ended."""
    has_pending_task: bool = False
    """A workflow task waits for a worker, or a worker executes one."""
    is_task_started: bool = False
    """A worker executes it."""
    is_cancel_requested: bool = False

    @property
    def id(self) -> str:
        """The run's id."""
        return self.info.execution.workflow_id

    @property
    def execution_id(self) -> str:
        """Temporal's run id, which says which of the run's executions it is."""
        return self.info.execution.run_id

    @property
    def workflow(self) -> str:
        """The name of the workflow."""
        return self.info.type.name

    @property
    def started_at(self) -> float:
        """When it started, in seconds since 1970."""
        return self.info.start_time.ToNanoseconds() / 1e9

    @property
    def ended_at(self) -> float:
        """When it ended, in seconds since 1970."""
        return self.info.close_time.ToNanoseconds() / 1e9

    @property
    def run_memo(self) -> dict[str, Any]:
        """The memo's entry about the run."""
        entry = self.memo.get(RUN_MEMO_KEY)
        return entry if isinstance(entry, dict) else {}  # pyright: ignore[reportUnknownVariableType]

    @property
    def open_approvals(self) -> list[dict[str, Any]]:
        """The memo's entries of its open approvals."""
        return self.memo.get(APPROVALS_KEY) or []

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.info.status in _OPEN_STATUSES

    @property
    def is_run(self) -> bool:
        """Whether it is a run, and not a workflow of Holdfast itself."""
        return not self.workflow.startswith(identifiers.RESERVED_PREFIX)

    @property
    def key(self) -> int:
        """The key of its row, which orders lists: by start time, then by a hash."""
        return get_key(self.info)


def get_key(info: WorkflowExecutionInfo) -> int:
    """The key of an execution's row."""
    return make_key(info.execution.run_id, info.start_time.ToNanoseconds())


def make_key(name: str, nanoseconds: int) -> int:
    """The key for a start at this time: by the millisecond, because lists have less exact times."""
    digest = hashlib.blake2b(name.encode(), digest_size=4).digest()
    return nanoseconds // MILLISECOND_NS << 32 | int.from_bytes(digest)


def get_time_range(key: int) -> tuple[int, int]:
    """The range of start times with this key, in nanoseconds, without its end."""
    return (key >> 32) * MILLISECOND_NS, ((key >> 32) + 1) * MILLISECOND_NS


async def describe_execution(client: Client, id: str) -> ExecutionDescription | None:
    """The newest execution under this id; ``None`` if there is none."""
    if not is_encodable(id):
        return None
    try:
        answer = await client.workflow_service.describe_workflow_execution(
            DescribeWorkflowExecutionRequest(namespace=client.namespace, execution=WorkflowExecution(workflow_id=id)),
            retry=True,
        )
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND and not error.message.startswith("Namespace"):
            return None
        if error.status is RPCStatusCode.INVALID_ARGUMENT and "WorkflowId" in error.message:
            return None  # an id that is too long, or empty, has no execution
        raise
    task = answer.pending_workflow_task if answer.HasField("pending_workflow_task") else None
    started = PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_STARTED
    return ExecutionDescription(
        answer.workflow_execution_info,
        await read_memo(client, answer.workflow_execution_info.memo),
        answer.pending_activities,
        [child.workflow_id for child in answer.pending_children],
        has_pending_task=task is not None,
        is_task_started=task is not None and task.state == started,
        is_cancel_requested=answer.workflow_extended_info.cancel_requested,
    )


async def find_run(client: Client, run_id: str) -> ExecutionDescription | None:
    """The newest execution of a run; ``None`` if there is no such run, or it is a workflow of Holdfast itself."""
    execution = await describe_execution(client, run_id)
    return execution if execution is not None and execution.is_run else None


async def read_memo(client: Client, memo: Memo) -> dict[str, Any]:
    """The JSON entries of a memo. Other programs may have added entries in other encodings, which are ignored."""
    payloads = await decode_payloads(client, list(memo.fields.values()))
    return {
        name: load_json(payload)
        for name, payload in zip(memo.fields, payloads, strict=True)
        if payload.metadata.get("encoding") == b"json/plain"
    }


# Rows


async def read_row(client: Client, execution: ExecutionDescription, *, include_external: bool = True) -> Run:
    """The row of a run. Without ``include_external``, placeholders stand for inputs and outputs in external storage."""
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

    Every execution of a chain that continued as new has the inputs, but the later ones also begin with all records of
    the executions before them. So this reads the first one, as long as Temporal keeps it.
    """
    if (first := execution.info.first_run_id) and first != execution.execution_id:
        with suppress_not_found():
            return await fetch_first_event(client, execution.id, first, include_external=include_external)
    return await fetch_first_event(client, execution.id, execution.execution_id, include_external=include_external)


def _row_from_start(execution: ExecutionDescription, first: HistoryEvent | None) -> Run:
    """The part of a row that is known from the start of the run."""
    args: Sequence[Payload] = () if first is None else first.workflow_execution_started_event_attributes.input.payloads
    run = run_from_memo(
        execution.run_memo,
        id=execution.id,
        execution_id=execution.execution_id,
        workflow=execution.workflow,
        inputs=_read_inputs(args),
        started_at=execution.started_at,
    )
    return replace(run, key=execution.key, queue_key=execution.info.priority.fairness_key, epoch=0)


def _read_inputs(payloads: Sequence[Payload]) -> bytes:
    """A run's inputs, as far as they are known without its code."""
    own = [payload for payload in payloads if not is_carried(payload)]
    if len(own) == 1 or (own and is_external(own[0])):
        return _read_or_placeholder(own[0])
    return json.dumps([load_json(payload) for payload in own]).encode()  # not started by Holdfast


def _read_or_placeholder(payload: Payload) -> bytes:
    if not is_external(payload):
        return from_payload(payload)
    sizes = [reference.size_bytes for reference in payload.external_payloads]
    return make_placeholder(sizes[0] if sizes else None)


async def _fill_open_row(client: Client, execution: ExecutionDescription, run: Run) -> Run:
    newest = await fetch_newest_events(client, execution.id, execution.execution_id)
    state, wake_at = _infer_state(execution, newest)
    if execution.has_pending_task and (failure := _find_task_failure(newest)):
        state, wake_at = RunState.WAITING, None
        waits_for = f"code that can go on with it (the last one cannot: {failure})"
    else:
        waits_for = _describe_wait(execution) if state is RunState.WAITING else ""
    return replace(
        run,
        state=state,
        epoch=0 if state is RunState.PENDING else 1,
        cancel_state=CancelState.REQUESTED if execution.is_cancel_requested else CancelState.NONE,
        paused_at=_find_paused_at(newest),
        wake_at=wake_at,
        waits_for=waits_for,
    )


def _infer_state(execution: ExecutionDescription, newest: Sequence[HistoryEvent]) -> tuple[RunState, float | None]:
    """The state of an unfinished run, and when it is due if it is pending."""
    has_begun = (
        execution.pending_activities
        or execution.pending_children
        or any(event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED for event in newest)
    )
    if not has_begun and newest and newest[-1].event_id == 1 and not execution.is_task_started:
        return RunState.PENDING, execution.info.execution_time.ToNanoseconds() / 1e9
    has_steps = any(
        activity.activity_type.name != identifiers.AWAIT_RUN_ACTIVITY for activity in execution.pending_activities
    )
    return (RunState.RUNNING if execution.has_pending_task or has_steps else RunState.WAITING), None


def _find_task_failure(newest: Sequence[HistoryEvent]) -> str:
    """Why the code of the run's last worker could not continue it; ``""`` if it could."""
    for event in newest:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            break
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
            failed = event.workflow_task_failed_event_attributes
            return (failed.failure.message or "it has failed") if failed.cause in _INCOMPATIBLE_CAUSES else ""
    return ""


def _describe_wait(execution: ExecutionDescription) -> str:
    """What a run waits for, in words, as far as that shows from outside."""
    runs = list(execution.pending_children)
    words = [f"run {runs[0]!r}" if len(runs) == 1 else f"{len(runs)} runs, such as {runs[0]!r}"] if runs else []
    words += [f"approval {approval['id']}" for approval in execution.open_approvals][:3]
    if not words and execution.pending_activities:
        words.append("another run")
    return " or ".join(words) or "a signal or a timer"


def _find_paused_at(newest: Sequence[HistoryEvent]) -> float | None:
    """When a run was paused. It has made no progress since, so the signal is among the newest events."""
    paused_at: float | None = None
    for event in newest:
        name = event.workflow_execution_signaled_event_attributes.signal_name
        if (
            name == identifiers.RESUME_SIGNAL
            or event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED
        ):
            break
        if name == identifiers.PAUSE_SIGNAL:
            paused_at = get_event_time(event)
    return paused_at


async def _fill_ended_row(client: Client, execution: ExecutionDescription, run: Run, include_external: bool) -> Run:
    ending = await read_ending(client, execution, include_external=include_external)
    return replace(
        run,
        state=ending.state,
        epoch=1,
        output=ending.output,
        error=ending.error,
        rewind=ending.rewind,
        finished_at=execution.ended_at,
        cancel_state=CancelState.RECORDED if ending.state is RunState.CANCELLED else CancelState.NONE,
        delivery_count=run.max_deliveries if ending.state is RunState.DEAD else 0,
    )


# Ends


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a run."""

    state: RunState
    output: bytes | None = None
    error: bytes | None = None
    rewind: Rewind | None = None
    record_order: Sequence[Sequence[Any]] | None = field(default=None, repr=False)
    """The order of the records of its last execution (see ``journals``); ``None`` if it is not stored."""


async def read_ending(client: Client, execution: ExecutionDescription, *, include_external: bool = True) -> Ending:
    """The end of a run that is no longer open."""
    last = await fetch_last_event(client, execution.id, execution.execution_id, include_external=include_external)
    return Ending(RunState.FAILED) if last is None else ending_from_event(last, execution.id)


def ending_from_event(last: HistoryEvent, run_id: str) -> Ending:
    """The end of a run, from the last event of its execution."""
    kind = last.event_type
    if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
        result = last.workflow_execution_completed_event_attributes.result.payloads
        return Ending(RunState.COMPLETED, _read_or_placeholder(result[0]) if result else b"null")
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
    if details and is_external(details[0]):
        error = encode_error(StepFailed(failure.message, ""))
    if len(details) < 2 or is_external(details[1]):
        return Ending(state, error=error)
    journal: dict[str, Any] = json.loads(zlib.decompress(details[1].data))
    return Ending(state, error=error, rewind=rewind_from_json(journal.get("rewind")), record_order=journal.get("order"))


def rewind_to_json(rewind: Rewind | None) -> dict[str, Any] | None:
    """The stored form of what a retry takes back, for the end of a run."""
    return None if rewind is None else rewind._asdict()


def rewind_from_json(data: dict[str, Any] | None) -> Rewind | None:
    """Read the stored form."""
    if data is None:
        return None
    rewind = Rewind(**data)
    return rewind._replace(
        failed_seqs=tuple(rewind.failed_seqs),
        once_seqs=tuple(rewind.once_seqs),
        abandoned_positions=tuple(rewind.abandoned_positions),
    )
