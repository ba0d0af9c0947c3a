"""What can be read of a run beside its row: its records, what is in flight, what it has used, what it asks people."""

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
from holdfast.stores.approvals import Approval, ApprovalRequest, ApprovalState
from holdfast.stores.contract import History, RunUsage
from holdfast.stores.operations import LiveEvent
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.budgets import read_current_budget
from holdfast.stores.temporal.carried_records import unpack_signal_ids
from holdfast.stores.temporal.history import decode_payloads
from holdfast.stores.temporal.history_cache import HistoryCache
from holdfast.stores.temporal.journals import infer_records, make_exact_records
from holdfast.stores.temporal.outcomes import ApprovalEntry, Outcomes, signal_from_event
from holdfast.stores.temporal.payloads import load_json
from holdfast.stores.temporal.pollers import is_polled
from holdfast.stores.temporal.rows import RETRIES_KEY, Ending, ExecutionDescription, describe_execution, read_ending
from holdfast.stores.temporal.run_events import (
    EndStatus,
    RunEvent,
    SignalReceived,
    StepEnded,
    find_unseen_events,
    read_batches,
)
from holdfast.stores.temporal.run_memo import USAGE_KEY, budget_from_memo
from holdfast.stores.temporal.visibility import list_newest_executions

_QUERY_TIMEOUT = timedelta(seconds=5)
_MICROSECONDS_PER_SECOND = 1_000_000


async def read_history(client: Client, histories: HistoryCache, execution: ExecutionDescription) -> History:
    """All that is recorded of a run: exactly, if that can be told; else as far as it can."""
    outcomes = await histories.get_outcomes(execution)
    try:
        records, signals = await read_exact_records(client, histories, execution)
    except (UsageError, StoreCorrupt):
        records, signals = infer_records(outcomes, execution.id)
    return History(set_first_epoch(records), await read_attempts(client, execution), signals)


def set_first_epoch(records: Sequence[Record]) -> list[Record]:
    """These records as readers know them: Temporal has no epochs, and so there is only the first."""
    return [record if record.epoch else record._replace(epoch=1) for record in records]


# Records


async def read_exact_records(
    client: Client, histories: HistoryCache, execution: ExecutionDescription, ending: Ending | None = None
) -> tuple[list[Record], list[Signal]]:
    """A run's records, as its code has seen them, and the signals that none of them has consumed.

    Raises ``UsageError`` when that needs a worker, and none answers.
    """
    outcomes = await histories.get_outcomes(execution)
    if not execution.is_open and ending is None:
        ending = await read_ending(client, execution)
    order = None if ending is None else ending.record_order
    if order is None and not is_order_certain(outcomes):
        order = (await query_journal(client, execution)).get("order")
    if order is None:
        records, signals = infer_records(outcomes, execution.id)
    else:
        records, signals = make_exact_records(outcomes, order, execution.id)
    return records, [*signals, *_find_unseen_signals(await histories.get_events(execution), len(signals))]


def is_order_certain(outcomes: Outcomes) -> bool:
    """Whether the history alone tells the records: nothing was sent, called off or decided by a patch."""
    if outcomes.batches and (outcomes.carried_signals or outcomes.approvals):
        return False
    for batch in outcomes.batches:
        if batch.patches:
            return False
        for happening in batch.events:
            if isinstance(happening, SignalReceived) and happening.name not in (
                identifiers.PAUSE_SIGNAL,
                identifiers.RESUME_SIGNAL,
            ):
                return False
            if isinstance(happening, StepEnded) and happening.result.status in (
                EndStatus.CANCELLED,
                EndStatus.TIMED_OUT,
            ):
                return False
    return all(child.is_awaited for child in outcomes.children.values())


async def query_journal(client: Client, execution: ExecutionDescription) -> dict[str, Any]:
    """What a worker with the run's code says of its records. Raises ``UsageError`` when none answers."""
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
        "answers "
        f"({reason}): start one (`holdfast worker module:{execution.info.type.name}`), and try again"
    )


def _find_unseen_signals(events: Sequence[Any], signal_count: int) -> list[Signal]:
    """Signals that have come, and that no workflow task has told the code yet."""
    seen: set[str] = set()
    found: list[Signal] = []
    for happening in find_unseen_events(events):
        if isinstance(happening, SignalReceived):
            signal = signal_from_event(happening, seen, signal_count + len(found) + 1)
            if signal is not None:
                found.append(signal)
    return found


# In flight


async def read_attempts(client: Client, execution: ExecutionDescription) -> dict[int, Attempt]:
    """What is known of the steps in flight, by position."""
    found = [
        await _read_attempt(client, one)
        for one in execution.pending_activities
        if one.activity_type.name != identifiers.AWAIT_RUN_ACTIVITY
    ]
    return {attempt.position: attempt for attempt in found}


async def _read_attempt(client: Client, pending: PendingActivityInfo) -> Attempt:
    kept: Any = None
    if pending.HasField("heartbeat_details") and pending.heartbeat_details.payloads:
        [payload] = await decode_payloads(client, [pending.heartbeat_details.payloads[0]])
        kept = load_json(payload)
    known = cast("dict[str, Any]", kept) if isinstance(kept, dict) else {}
    progress = known.get("progress")
    waits = pending.attempt > 1 and pending.HasField("next_attempt_schedule_time")
    number = int(known["failure_count"]) + (not waits) if "failure_count" in known else pending.attempt
    at = pending.last_started_time if pending.HasField("last_started_time") else pending.scheduled_time
    return Attempt(
        identifiers.parse_activity_position(pending.activity_id),
        number,
        progress=None if progress is None else str(progress).encode(),
        error=str(known.get("error") or pending.last_failure.message),
        at=at.ToNanoseconds() / 1e9,
        name=pending.activity_type.name,
        retry_at=pending.next_attempt_schedule_time.ToNanoseconds() / 1e9 if waits else None,
        failing_since=known.get("failing_since"),
    )


async def read_live_events(
    client: Client, execution: ExecutionDescription, outcomes: Outcomes, records: Sequence[Record]
) -> list[tuple[int, LiveEvent]]:
    """What there is to tell of a run beside its records, each with a number that rises with its time."""
    retries: list[tuple[float, int]] = execution.memo.get(RETRIES_KEY) or []
    found = [LiveEvent(-1, "", 0, live_events.REOPENED, _encode_json(kept), at) for at, kept in retries]
    for id, asked in outcomes.approvals.items():
        found.append(
            LiveEvent(
                asked.position,
                "",
                0,
                live_events.APPROVAL_REQUESTED,
                _encode_json(id),
                float(asked.memo_entry["requested_at"]),
            )
        )
        if reminders := asked.memo_entry.get("reminder_count"):
            data = {"id": id, "assignee": asked.memo_entry["assignee"], "reminder_count": reminders}
            at = float(asked.memo_entry.get("reminded_at") or asked.memo_entry["requested_at"])
            found.append(
                LiveEvent(asked.position, "", reminders, live_events.APPROVAL_REMINDED, _encode_json(data), at)
            )
    recorded = {record.position for record in records if record.kind.has_position}
    for position, attempt in (await read_attempts(client, execution)).items():
        if position not in recorded and attempt.at:
            shown = outcomes.step_previews.get(position, "")
            data = {"name": attempt.name, "kind": RecordKind.STEP.label, "arguments": shown, "attempt": attempt.attempt}
            found.append(
                LiveEvent(position, f"1.{attempt.attempt}.0", -1, live_events.STARTED, _encode_json(data), attempt.at)
            )
    found.sort(key=lambda notice: notice.at)
    return [(int(notice.at * _MICROSECONDS_PER_SECOND), notice) for notice in found]


def _encode_json(value: Any) -> bytes:
    return json.dumps(value).encode()


# Usage


async def read_usage(client: Client, histories: HistoryCache, execution: ExecutionDescription) -> RunUsage:
    """What a run has used, with the runs that it has started."""
    outcomes = await histories.get_outcomes(execution)
    used = await read_own_usage(histories, execution)
    started = {child.run_id for child in outcomes.children.values()}
    started |= {
        record.preview for record in outcomes.carried_records if record.kind in (RecordKind.CHILD, RecordKind.START)
    }
    below = await asyncio.gather(*(describe_execution(client, run_id) for run_id in sorted(started)))
    for child in below:
        if child is not None and child.run_memo.get("parent") == execution.id:
            used += (await read_usage(client, histories, child)).used
    return RunUsage(used, await read_current_budget(client, execution.id, budget_from_memo(execution.run_memo)))


async def read_memo_usages(client: Client, run_ids: Collection[str]) -> dict[str, Usage]:
    """The same for many runs, by their memos as the visibility store has them: no history is read."""
    own = {told.id: _usage_from_memo(told) async for told in list_newest_executions(client, "WorkflowId", run_ids)}
    started: dict[str, set[str]] = {}
    asked, new = set(own), set(own)
    while new:
        below = [told async for told in list_newest_executions(client, "ParentWorkflowId", new)]
        new = {child.id for child in below} - own.keys()
        for child in below:
            own.setdefault(child.id, _usage_from_memo(child))
            started.setdefault(str(child.run_memo.get("parent")), set()).add(child.id)

    def used(run_id: str) -> Usage:
        return sum((used(child) for child in started.get(run_id, ())), start=own[run_id])

    return {run_id: used(run_id) for run_id in asked}


def _usage_from_memo(execution: ExecutionDescription) -> Usage:
    shown: dict[str, Any] = execution.memo.get(USAGE_KEY) or execution.run_memo.get("used") or {}
    return Usage(**shown)


async def read_own_usage(histories: HistoryCache, execution: ExecutionDescription) -> Usage:
    """What the steps of a run have used, also in executions before this one."""
    return (await histories.get_outcomes(execution)).usage + Usage(**execution.run_memo.get("used", {}))


# Questions


def approval_from_entry(execution: ExecutionDescription, id: str, entry: ApprovalEntry, *, is_open: bool) -> Approval:
    """A question, as the store's own."""
    shown = entry.memo_entry
    state = ApprovalState.OPEN if is_open else ApprovalState.WITHDRAWN
    if entry.answer is not None:
        state = ApprovalState.ANSWERED
    answer: dict[str, Any] = {} if entry.answer is None else json.loads(entry.answer)
    question = ApprovalRequest(
        question=shown["question"],
        assignee=shown.get("assignee") or "",
        choices=tuple(shown.get("choices") or ()),
        form_schema=str(shown.get("form_schema") or "").encode(),
        tool=shown.get("tool") or "",
        arguments=str(shown.get("arguments") or "").encode(),
        reason=shown.get("reason") or "",
    )
    return Approval(
        id=id,
        run_id=execution.id,
        workflow=execution.info.type.name,
        position=entry.position,
        request=question,
        state=state,
        requested_at=float(shown["requested_at"]),
        expires_at=shown.get("expires_at"),
        assignee=question.assignee,
        reminder_count=int(shown.get("reminder_count") or 0),
        reminded_at=shown.get("reminded_at"),
        answer=entry.answer,
        answered_by=str(answer.get("answered_by") or ""),
        answered_at=entry.answered_at,
    )


def list_open_approvals(execution: ExecutionDescription) -> list[Approval]:
    """What a run asks people now, by its memo."""
    if not execution.is_open:
        return []
    return [
        approval_from_entry(execution, str(one["id"]), ApprovalEntry(one), is_open=True)
        for one in execution.open_approvals
    ]


async def read_approvals(histories: HistoryCache, execution: ExecutionDescription) -> list[Approval]:
    """What a run has asked people, and what has become of it, by its history."""
    outcomes = await histories.get_outcomes(execution)
    return [
        approval_from_entry(execution, id, asked, is_open=asked.is_open and execution.is_open)
        for id, asked in outcomes.approvals.items()
    ]


async def read_signal_ids(histories: HistoryCache, execution: ExecutionDescription) -> set[str]:
    """The ids under which signals were sent to a run, so that none of them is taken twice."""
    events = await histories.get_events(execution)
    happenings: list[RunEvent] = [one for batch in read_batches(events) for one in batch.events]
    sent = {
        str(load_json(one.payloads[1]))
        for one in (*happenings, *find_unseen_events(events))
        if isinstance(one, SignalReceived) and len(one.payloads) > 1 and one.name != identifiers.ANSWER_SIGNAL
    }
    return sent | unpack_signal_ids(events[0].workflow_execution_started_event_attributes.input.payloads)
