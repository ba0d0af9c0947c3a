"""The details of a run that are not in its row: its records, its steps in flight, its live events, and its usage."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, cast

from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client, WorkflowQueryFailedError, WorkflowQueryRejectedError
from temporalio.service import RPCError

from holdfast.admission.usage import Usage
from holdfast.core.records import Attempt, Record, RecordKind, Signal
from holdfast.errors import StoreCorrupt, UsageError
from holdfast.stores import live_events
from holdfast.stores.contract import History, RunUsage
from holdfast.stores.operations import LiveEvent
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.budgets import read_current_budget
from holdfast.stores.temporal.history import decode_payloads
from holdfast.stores.temporal.history_cache import HistoryCache
from holdfast.stores.temporal.journals import infer_records, make_exact_records
from holdfast.stores.temporal.outcomes import Outcomes, read_signals
from holdfast.stores.temporal.payloads import load_json
from holdfast.stores.temporal.pollers import is_polled
from holdfast.stores.temporal.program_updates import STEPS_KEY, StepInFlight
from holdfast.stores.temporal.rows import RETRIES_KEY, Ending, ExecutionDescription, describe_execution, read_ending
from holdfast.stores.temporal.run_events import EndStatus, SignalReceived, StepEnded
from holdfast.stores.temporal.run_memo import USAGE_KEY, budget_from_memo
from holdfast.stores.temporal.visibility import list_newest_executions

_QUERY_TIMEOUT = timedelta(seconds=5)
_MICROSECONDS_PER_SECOND = 1_000_000


async def read_history(histories: HistoryCache, execution: ExecutionDescription) -> History:
    """A run's journal: exact if possible, otherwise as far as its history shows."""
    outcomes = await histories.get_outcomes(execution)
    try:
        records, signals = await read_exact_records(histories, execution)
    except (UsageError, StoreCorrupt):
        records, signals = infer_records(outcomes, execution.id)
    attempts = await read_attempts(histories.client, execution, outcomes)
    return History(set_first_epoch(records), attempts, signals)


def set_first_epoch(records: Sequence[Record]) -> list[Record]:
    """These records with an epoch. Temporal has none, so it is always the first."""
    return [record if record.epoch else record._replace(epoch=1) for record in records]


# Records


async def read_exact_records(
    histories: HistoryCache, execution: ExecutionDescription, ending: Ending | None = None
) -> tuple[list[Record], list[Signal]]:
    """A run's records as its code saw them, and the signals that none of them consumed.

    Raises ``UsageError`` when this needs a worker, and none answers.
    """
    outcomes = await histories.get_outcomes(execution)
    if not execution.is_open and ending is None:
        ending = await read_ending(histories.client, execution)
    order = None if ending is None else ending.record_order
    if order is None and outcomes.program is None and not is_order_certain(outcomes):
        order = (await query_journal(histories.client, execution)).get("order")
    if order is None:
        records, signals = infer_records(outcomes, execution.id)
    else:
        records, signals = make_exact_records(outcomes, order, execution.id)
    return records, [*signals, *read_signals(outcomes.unseen_events, len(signals))]


def is_order_certain(outcomes: Outcomes) -> bool:
    """Whether the history alone determines the records: it has no signals, cancelled steps, or patches."""
    if outcomes.batches and (outcomes.carried_signals or outcomes.approvals):
        return False
    for batch in outcomes.batches:
        if batch.patches:
            return False
        for event in batch.events:
            if isinstance(event, SignalReceived) and event.name not in (
                identifiers.PAUSE_SIGNAL,
                identifiers.RESUME_SIGNAL,
            ):
                return False
            if isinstance(event, StepEnded) and event.result.status in (EndStatus.CANCELLED, EndStatus.TIMED_OUT):
                return False
    return all(child.is_awaited for child in outcomes.children.values())


async def query_journal(client: Client, execution: ExecutionDescription) -> dict[str, Any]:
    """The order of a run's records, from a worker with its code. Raises ``UsageError`` when none answers."""
    if not await is_polled(client, execution.info.task_queue):
        raise _no_worker_error(execution, "nobody polls its task queue")
    handle = client.get_workflow_handle(execution.id, run_id=execution.execution_id)
    try:
        answer: Any = await handle.query(identifiers.JOURNAL_QUERY, rpc_timeout=_QUERY_TIMEOUT)
    except (WorkflowQueryFailedError, WorkflowQueryRejectedError, RPCError) as error:
        raise _no_worker_error(execution, str(error)) from error
    return answer if isinstance(answer, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _no_worker_error(execution: ExecutionDescription, reason: str) -> UsageError:
    return UsageError(
        f"what run {execution.id!r} has seen, and in which order, only its code can tell, and no worker that has it "
        f"answers ({reason}): start one (`holdfast worker MODULE`), and try again"
    )


# In flight


async def read_attempts(client: Client, execution: ExecutionDescription, outcomes: Outcomes) -> dict[int, Attempt]:
    """The attempts of steps in flight, by position."""
    if outcomes.program is not None:
        shown = await _read_program_steps(client, execution)
        recorded = {record.position for record in outcomes.program.records if record.kind.has_position}
        attempts = {
            step.position: Attempt(step.position, step.attempt, at=step.started_at, name=step.name)
            for step in shown
            if step.position not in recorded
        }
        return attempts | outcomes.program.attempts
    attempts = [
        await _read_attempt(client, activity)
        for activity in execution.pending_activities
        if activity.activity_type.name != identifiers.AWAIT_RUN_ACTIVITY
    ]
    return {attempt.position: attempt for attempt in attempts}


async def _read_program_steps(client: Client, execution: ExecutionDescription) -> list[StepInFlight]:
    """The steps of a program in flight, as the last heartbeat of its activity has them."""
    for activity in execution.pending_activities:
        if activity.activity_type.name == identifiers.PROGRAM_ACTIVITY:
            details = await _read_heartbeat(client, activity)
            return [StepInFlight(*step) for step in details.get(STEPS_KEY, ())]
    return []


async def _read_heartbeat(client: Client, pending: PendingActivityInfo) -> dict[str, Any]:
    if not (pending.HasField("heartbeat_details") and pending.heartbeat_details.payloads):
        return {}
    [payload] = await decode_payloads(client, [pending.heartbeat_details.payloads[0]])
    loaded = load_json(payload)
    return cast("dict[str, Any]", loaded) if isinstance(loaded, dict) else {}


async def _read_attempt(client: Client, pending: PendingActivityInfo) -> Attempt:
    details = await _read_heartbeat(client, pending)
    progress = details.get("progress")
    is_waiting = pending.attempt > 1 and pending.HasField("next_attempt_schedule_time")
    number = int(details["failure_count"]) + (not is_waiting) if "failure_count" in details else pending.attempt
    at = pending.last_started_time if pending.HasField("last_started_time") else pending.scheduled_time
    return Attempt(
        identifiers.parse_activity_position(pending.activity_id),
        number,
        progress=None if progress is None else str(progress).encode(),
        error=str(details.get("error") or pending.last_failure.message),
        at=at.ToNanoseconds() / 1e9,
        name=pending.activity_type.name,
        retry_at=pending.next_attempt_schedule_time.ToNanoseconds() / 1e9 if is_waiting else None,
        failing_since=details.get("failing_since"),
    )


async def read_live_events(
    client: Client, execution: ExecutionDescription, outcomes: Outcomes, records: Sequence[Record]
) -> list[tuple[int, LiveEvent]]:
    """The live events of a run, each with a number that increases with its time."""
    retries: list[tuple[float, int]] = execution.memo.get(RETRIES_KEY) or []
    events = [_make_event(-1, live_events.REOPENED, last_seq, at) for at, last_seq in retries]
    for id, approval in outcomes.approvals.items():
        entry, position = approval.memo_entry, approval.position
        requested_at = float(entry["requested_at"])
        events.append(_make_event(position, live_events.APPROVAL_REQUESTED, id, requested_at))
        if count := entry.get("reminder_count"):
            data = {"id": id, "assignee": entry["assignee"], "reminder_count": count}
            at = float(entry.get("reminded_at") or requested_at)
            events.append(_make_event(position, live_events.APPROVAL_REMINDED, data, at, number=count))
    recorded = {record.position for record in records if record.kind.has_position}
    previews = outcomes.step_previews
    if outcomes.program is not None:
        previews = {step.position: step.preview for step in await _read_program_steps(client, execution)}
    for position, attempt in (await read_attempts(client, execution, outcomes)).items():
        if position not in recorded and attempt.at:
            preview, number = previews.get(position, ""), attempt.attempt
            data = {"name": attempt.name, "kind": RecordKind.STEP.label, "arguments": preview, "attempt": number}
            events.append(
                _make_event(position, live_events.STARTED, data, attempt.at, stream=f"1.{number}.0", number=-1)
            )
    events.sort(key=lambda event: event.at)
    return [(int(event.at * _MICROSECONDS_PER_SECOND), event) for event in events]


def _make_event(position: int, kind: str, data: Any, at: float, *, stream: str = "", number: int = 0) -> LiveEvent:
    return LiveEvent(position, stream, number, kind, json.dumps(data).encode(), at)


# Usage


async def read_usage(histories: HistoryCache, execution: ExecutionDescription) -> RunUsage:
    """The usage of a run and of the runs that it started."""
    outcomes = await histories.get_outcomes(execution)
    used = await read_own_usage(histories, execution)
    started = {child.run_id for child in outcomes.children.values()}
    started |= {
        record.preview for record in outcomes.carried_records if record.kind in (RecordKind.CHILD, RecordKind.START)
    }
    children = await asyncio.gather(*(describe_execution(histories.client, run_id) for run_id in sorted(started)))
    for child in children:
        if child is not None and child.run_memo.get("parent") == execution.id:
            used += (await read_usage(histories, child)).used
    budget = await read_current_budget(histories.client, execution.id, budget_from_memo(execution.run_memo))
    return RunUsage(used, budget)


async def read_memo_usages(client: Client, run_ids: Collection[str]) -> dict[str, Usage]:
    """The same for many runs, from their memos in the visibility store, without reading histories."""
    own = {
        execution.id: _usage_from_memo(execution)
        async for execution in list_newest_executions(client, "WorkflowId", run_ids)
    }
    children_by_parent: dict[str, set[str]] = {}
    roots, new = set(own), set(own)
    while new:
        children = [child async for child in list_newest_executions(client, "ParentWorkflowId", new)]
        new = {child.id for child in children} - own.keys()
        for child in children:
            own.setdefault(child.id, _usage_from_memo(child))
            children_by_parent.setdefault(str(child.run_memo.get("parent")), set()).add(child.id)

    def sum_usage(run_id: str) -> Usage:
        return sum((sum_usage(child) for child in children_by_parent.get(run_id, ())), start=own[run_id])

    return {run_id: sum_usage(run_id) for run_id in roots}


def _usage_from_memo(execution: ExecutionDescription) -> Usage:
    usage: dict[str, Any] = execution.memo.get(USAGE_KEY) or execution.run_memo.get("used") or {}
    return Usage(**usage)


async def read_own_usage(histories: HistoryCache, execution: ExecutionDescription) -> Usage:
    """The usage of a run's own steps, including those of earlier executions."""
    return (await histories.get_outcomes(execution)).usage + Usage(**execution.run_memo.get("used", {}))
