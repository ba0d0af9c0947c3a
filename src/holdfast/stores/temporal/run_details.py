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
from holdfast.core.records import Attempt, Kind, Record, Signal
from holdfast.errors import StoreCorrupt, UsageError
from holdfast.stores import live_events
from holdfast.stores.approvals import Approval, ApprovalState, Question
from holdfast.stores.contract import History, RunUsage
from holdfast.stores.operations import Notice
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.budgets import current_budget
from holdfast.stores.temporal.carried_records import seen_in
from holdfast.stores.temporal.history import plain_payloads
from holdfast.stores.temporal.history_cache import Histories
from holdfast.stores.temporal.journals import exact_records, told_records
from holdfast.stores.temporal.outcomes import Asked, Outcomes, signal_in
from holdfast.stores.temporal.payloads import plain
from holdfast.stores.temporal.pollers import is_polled
from holdfast.stores.temporal.rows import REOPENED, Described, Ending, describe, ending_of
from holdfast.stores.temporal.run_events import Happening, How, Signalled, StepEnded, read_batches, unseen
from holdfast.stores.temporal.run_memo import USED, budget_in
from holdfast.stores.temporal.visibility import told_of

_PATIENCE = timedelta(seconds=5)
_MICRO = 1_000_000


async def history_of(client: Client, histories: Histories, told: Described) -> History:
    """All that is recorded of a run: exactly, if that can be told; else as far as it can."""
    outcomes = await histories.outcomes(told)
    try:
        records, signals = await exact_history(client, histories, told)
    except (UsageError, StoreCorrupt):
        records, signals = told_records(outcomes, told.id)
    return History(held(records), await attempts_of(client, told), signals)


def held(records: Sequence[Record]) -> list[Record]:
    """These records as readers know them: Temporal has no epochs, and so there is only the first."""
    return [record if record.epoch else record._replace(epoch=1) for record in records]


# Records


async def exact_history(
    client: Client, histories: Histories, told: Described, ending: Ending | None = None
) -> tuple[list[Record], list[Signal]]:
    """A run's records, as its code has seen them, and the signals that none of them has consumed.

    Raises ``UsageError`` when that needs a worker, and none answers.
    """
    outcomes = await histories.outcomes(told)
    if not told.is_open and ending is None:
        ending = await ending_of(client, told)
    order = None if ending is None else ending.order
    if order is None and not is_certain(outcomes):
        order = (await ask_journal(client, told)).get("order")
    if order is None:
        records, signals = told_records(outcomes, told.id)
    else:
        records, signals = exact_records(outcomes, order, told.id)
    return records, [*signals, *_unheard(await histories.events(told), len(signals))]


def is_certain(outcomes: Outcomes) -> bool:
    """Whether the history alone tells the records: nothing was sent, called off or decided by a patch."""
    if outcomes.batches and (outcomes.brought or outcomes.questions):
        return False
    for batch in outcomes.batches:
        if batch.patches:
            return False
        for happening in batch.happenings:
            if isinstance(happening, Signalled) and happening.name not in (identifiers.PAUSE, identifiers.RESUME):
                return False
            if isinstance(happening, StepEnded) and happening.ended.how in (How.CANCELLED, How.TIMED_OUT):
                return False
    return all(child.awaited for child in outcomes.children.values())


async def ask_journal(client: Client, told: Described) -> dict[str, Any]:
    """What a worker with the run's code says of its records. Raises ``UsageError`` when none answers."""
    if not await is_polled(client, told.info.task_queue):
        raise _untold(told, "nobody polls its task queue")
    handle = client.get_workflow_handle(told.id, run_id=told.execution)
    try:
        answer: Any = await handle.query(identifiers.JOURNAL, rpc_timeout=_PATIENCE)
    except (WorkflowQueryFailedError, WorkflowQueryRejectedError, RPCError) as error:
        raise _untold(told, str(error)) from error
    return answer if isinstance(answer, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _untold(told: Described, why: str) -> UsageError:
    return UsageError(
        f"what run {told.id!r} has seen, and in which order, only its code can tell, and no worker that has it answers "
        f"({why}): start one (`holdfast worker module:{told.info.type.name}`), and try again"
    )


def _unheard(events: Sequence[Any], before: int) -> list[Signal]:
    """Signals that have come, and that no workflow task has told the code yet."""
    seen: set[str] = set()
    found: list[Signal] = []
    for happening in unseen(events):
        if isinstance(happening, Signalled):
            signal = signal_in(happening, seen, before + len(found) + 1)
            if signal is not None:
                found.append(signal)
    return found


# In flight


async def attempts_of(client: Client, told: Described) -> dict[int, Attempt]:
    """What is known of the steps in flight, by position."""
    found = [await _attempt(client, one) for one in told.activities if one.activity_type.name != identifiers.AWAIT_RUN]
    return {attempt.position: attempt for attempt in found}


async def _attempt(client: Client, pending: PendingActivityInfo) -> Attempt:
    kept: Any = None
    if pending.HasField("heartbeat_details") and pending.heartbeat_details.payloads:
        [payload] = await plain_payloads(client, [pending.heartbeat_details.payloads[0]])
        kept = plain(payload)
    known = cast("dict[str, Any]", kept) if isinstance(kept, dict) else {}
    progress = known.get("progress")
    waits = pending.attempt > 1 and pending.HasField("next_attempt_schedule_time")
    number = int(known["failures"]) + (not waits) if "failures" in known else pending.attempt
    at = pending.last_started_time if pending.HasField("last_started_time") else pending.scheduled_time
    return Attempt(
        identifiers.position_of(pending.activity_id),
        number,
        progress=None if progress is None else str(progress).encode(),
        error=str(known.get("error") or pending.last_failure.message),
        at=at.ToNanoseconds() / 1e9,
        name=pending.activity_type.name,
        retry_at=pending.next_attempt_schedule_time.ToNanoseconds() / 1e9 if waits else None,
        failing_since=known.get("failing_since"),
    )


async def notices_of(
    client: Client, told: Described, outcomes: Outcomes, records: Sequence[Record]
) -> list[tuple[int, Notice]]:
    """What there is to tell of a run beside its records, each with a number that rises with its time."""
    retries: list[tuple[float, int]] = told.memo.get(REOPENED) or []
    found = [Notice(-1, "", 0, live_events.REOPENED, _json(kept), at) for at, kept in retries]
    for id, asked in outcomes.questions.items():
        found.append(Notice(asked.position, "", 0, live_events.ASKED, _json(id), float(asked.shown["asked_at"])))
        if reminders := asked.shown.get("reminders"):
            data = {"id": id, "asked_of": asked.shown["asked_of"], "reminders": reminders}
            at = float(asked.shown.get("reminded_at") or asked.shown["asked_at"])
            found.append(Notice(asked.position, "", reminders, live_events.REMINDED, _json(data), at))
    recorded = {record.position for record in records if record.kind.has_position}
    for position, attempt in (await attempts_of(client, told)).items():
        if position not in recorded and attempt.at:
            shown = outcomes.previews.get(position, "")
            data = {"name": attempt.name, "what": Kind.STEP.label, "arguments": shown, "attempt": attempt.attempt}
            found.append(Notice(position, f"1.{attempt.attempt}.0", -1, live_events.BEGUN, _json(data), attempt.at))
    found.sort(key=lambda notice: notice.at)
    return [(int(notice.at * _MICRO), notice) for notice in found]


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


# Usage


async def usage_of(client: Client, histories: Histories, told: Described) -> RunUsage:
    """What a run has used, with the runs that it has started."""
    outcomes = await histories.outcomes(told)
    used = await own_usage(histories, told)
    started = {child.run_id for child in outcomes.children.values()}
    started |= {record.preview for record in outcomes.carried if record.kind in (Kind.CHILD, Kind.START)}
    below = await asyncio.gather(*(describe(client, run_id) for run_id in sorted(started)))
    for child in below:
        if child is not None and child.head.get("parent") == told.id:
            used += (await usage_of(client, histories, child)).used
    return RunUsage(used, await current_budget(client, told.id, budget_in(told.head)))


async def shown_usages(client: Client, run_ids: Collection[str]) -> dict[str, Usage]:
    """The same for many runs, by their memos as the visibility store has them: no history is read."""
    own = {told.id: _shown_usage(told) async for told in told_of(client, "WorkflowId", run_ids)}
    started: dict[str, set[str]] = {}
    asked, new = set(own), set(own)
    while new:
        below = [told async for told in told_of(client, "ParentWorkflowId", new)]
        new = {child.id for child in below} - own.keys()
        for child in below:
            own.setdefault(child.id, _shown_usage(child))
            started.setdefault(str(child.head.get("parent")), set()).add(child.id)

    def used(run_id: str) -> Usage:
        return sum((used(child) for child in started.get(run_id, ())), start=own[run_id])

    return {run_id: used(run_id) for run_id in asked}


def _shown_usage(told: Described) -> Usage:
    shown: dict[str, Any] = told.memo.get(USED) or told.head.get("used") or {}
    return Usage(**shown)


async def own_usage(histories: Histories, told: Described) -> Usage:
    """What the steps of a run have used, also in executions before this one."""
    return (await histories.outcomes(told)).used + Usage(**told.head.get("used", {}))


# Questions


def approval_of(told: Described, id: str, asked: Asked, *, is_open: bool) -> Approval:
    """A question, as the store's own."""
    shown = asked.shown
    state = ApprovalState.OPEN if is_open else ApprovalState.WITHDRAWN
    if asked.answer is not None:
        state = ApprovalState.ANSWERED
    answer: dict[str, Any] = {} if asked.answer is None else json.loads(asked.answer)
    question = Question(
        text=shown["text"],
        asked_of=shown.get("asked_of") or "",
        choices=tuple(shown.get("choices") or ()),
        form=str(shown.get("form") or "").encode(),
        tool=shown.get("tool") or "",
        arguments=str(shown.get("arguments") or "").encode(),
        reason=shown.get("reason") or "",
    )
    return Approval(
        id=id,
        run_id=told.id,
        workflow=told.info.type.name,
        position=asked.position,
        question=question,
        state=state,
        asked_at=float(shown["asked_at"]),
        expires_at=shown.get("expires_at"),
        asked_of=question.asked_of,
        reminders=int(shown.get("reminders") or 0),
        reminded_at=shown.get("reminded_at"),
        answer=asked.answer,
        answered_by=str(answer.get("by") or ""),
        answered_at=asked.answered_at,
    )


def open_questions(told: Described) -> list[Approval]:
    """What a run asks people now, by its memo."""
    if not told.is_open:
        return []
    return [approval_of(told, str(one["id"]), Asked(one), is_open=True) for one in told.questions]


async def all_questions(histories: Histories, told: Described) -> list[Approval]:
    """What a run has asked people, and what has become of it, by its history."""
    outcomes = await histories.outcomes(told)
    return [
        approval_of(told, id, asked, is_open=asked.is_open and told.is_open) for id, asked in outcomes.questions.items()
    ]


async def sent_ids(histories: Histories, told: Described) -> set[str]:
    """The ids under which signals were sent to a run, so that none of them is taken twice."""
    events = await histories.events(told)
    happenings: list[Happening] = [one for batch in read_batches(events) for one in batch.happenings]
    sent = {
        str(plain(one.values[1]))
        for one in (*happenings, *unseen(events))
        if isinstance(one, Signalled) and len(one.values) > 1 and one.name != identifiers.ANSWER
    }
    return sent | seen_in(events[0].workflow_execution_started_event_attributes.input.payloads)
