"""Which fields of what goes into a store, and comes back, are sealed: one walk for both ways.

Each function makes the same thing with those of its fields changed that belong to users' code. Which way is decided by
the ``ValueTransform`` that it is handed: sealing on the way in, opening on the way out. So what is sealed is opened,
and the other way round, by construction.

A new field of any of these that could hold what users' code says must be added here; a test lists all fields and fails
for one that it does not know.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, cast

from holdfast.codec import check_decrypted, check_decrypted_text
from holdfast.core.records import Attempt, Record, Signal
from holdfast.stores import operations as ops
from holdfast.stores.approvals import AnswerApproval, Approval, ApprovalRequest, RequestApproval
from holdfast.stores.archives import ArchivedRun
from holdfast.stores.contract import History
from holdfast.stores.documents import Document
from holdfast.stores.journal_pages import JournalPage
from holdfast.stores.live_events import STARTED, RunUpdates
from holdfast.stores.memories import Memory, PutMemory
from holdfast.stores.operations import LiveEvent, NewRun, Op, OpResult, Run, Settlement, StartResult
from holdfast.stores.schedules import Schedule, ScheduleDefinition


class ValueTransform(NamedTuple):
    """What is done to a value: it is sealed, or opened."""

    transform_bytes: Callable[[bytes], bytes]
    transform_text: Callable[[str], str]

    def transform_optional(self, value: bytes | None) -> bytes | None:
        """The same for a value that may be missing."""
        return None if value is None else self.transform_bytes(value)


# What a run is made of


def transform_new_run(new: NewRun, transform: ValueTransform) -> NewRun:
    """What a run is started with."""
    return replace(new, inputs=transform.transform_bytes(new.inputs))


def transform_run(run: Run, transform: ValueTransform) -> Run:
    """A run's row."""
    return replace(
        run,
        inputs=transform.transform_bytes(run.inputs),
        output=transform.transform_optional(run.output),
        error=transform.transform_optional(run.error),
        waits_for=transform.transform_text(run.waits_for),
    )


def transform_record(record: Record, transform: ValueTransform) -> Record:
    """A record."""
    return record._replace(
        payload=transform.transform_optional(record.payload), preview=transform.transform_text(record.preview)
    )


def transform_attempt(attempt: Attempt, transform: ValueTransform) -> Attempt:
    """What is known of a step in flight."""
    return attempt._replace(
        progress=transform.transform_optional(attempt.progress),
        error=transform.transform_text(attempt.error),
        outcome=transform.transform_optional(attempt.outcome),
    )


def transform_settlement(settlement: Settlement, transform: ValueTransform) -> Settlement:
    """What a person says of a step."""
    return settlement._replace(
        record=None if settlement.record is None else transform_record(settlement.record, transform)
    )


def transform_signal(signal: Signal, transform: ValueTransform) -> Signal:
    """What is in a mailbox."""
    return signal._replace(payload=transform.transform_bytes(signal.payload))


def transform_history(history: History, transform: ValueTransform) -> History:
    """All that a worker needs."""
    return replace(
        history,
        records=[transform_record(record, transform) for record in history.records],
        attempts={position: transform_attempt(attempt, transform) for position, attempt in history.attempts.items()},
        signals=[transform_signal(signal, transform) for signal in history.signals],
    )


def transform_live_event(event: LiveEvent, transform: ValueTransform) -> LiveEvent:
    """A notice. Stores look into those that a step has begun, for its name: so only the arguments are sealed there."""
    if event.kind != STARTED:
        return event._replace(data=transform.transform_bytes(event.data))
    told = _parse_object(event.data)
    arguments = told.get("arguments")
    if not isinstance(arguments, str) or (changed := transform.transform_text(arguments)) == arguments:
        return event
    return event._replace(data=json.dumps({**told, "arguments": changed}, separators=(",", ":")).encode())


def _parse_object(data: bytes) -> dict[str, Any]:
    try:
        told: Any = json.loads(data)
    except ValueError:
        return {}
    return cast("dict[str, Any]", told) if isinstance(told, dict) else {}


def transform_feed(feed: RunUpdates, transform: ValueTransform) -> RunUpdates:
    """What is new of a run."""
    return replace(
        feed,
        run=transform_run(feed.run, transform),
        records=[transform_record(record, transform) for record in feed.records],
        live_events=[(number, transform_live_event(notice, transform)) for number, notice in feed.live_events],
    )


def transform_journal_page(page: JournalPage, transform: ValueTransform) -> JournalPage:
    """A run with a page of its journal."""
    return replace(
        page,
        run=transform_run(page.run, transform),
        records=[transform_record(record, transform) for record in page.records],
        attempts={position: transform_attempt(attempt, transform) for position, attempt in page.attempts.items()},
        signals=[transform_signal(signal, transform) for signal in page.signals],
    )


# What belongs to it, and what does not


def transform_approval_request(request: ApprovalRequest, transform: ValueTransform) -> ApprovalRequest:
    """A question to people. Who is asked stays, since questions are listed by that, and the tool's name."""
    return request._replace(
        question=transform.transform_text(request.question),
        choices=tuple(map(transform.transform_text, request.choices)),
        form_schema=transform.transform_bytes(request.form_schema),
        arguments=transform.transform_bytes(request.arguments),
        reason=transform.transform_text(request.reason),
    )


def transform_approval(approval: Approval, transform: ValueTransform) -> Approval:
    """A question, and what has become of it."""
    return replace(
        approval,
        request=transform_approval_request(approval.request, transform),
        answer=transform.transform_optional(approval.answer),
    )


def transform_memory(memory: Memory, transform: ValueTransform) -> Memory:
    """What outlives runs. Its words are not there: see ``transform_op``."""
    return replace(memory, value=transform.transform_bytes(memory.value))


def transform_document(document: Document, transform: ValueTransform) -> Document:
    """What a server keeps."""
    return replace(document, data=transform.transform_bytes(document.data))


def transform_new_schedule(new: ScheduleDefinition, transform: ValueTransform) -> ScheduleDefinition:
    """What a schedule starts."""
    return replace(new, inputs=transform.transform_bytes(new.inputs))


def transform_schedule(schedule: Schedule, transform: ValueTransform) -> Schedule:
    """A schedule's row."""
    return replace(schedule, definition=transform_new_schedule(schedule.definition, transform))


def transform_archived(archived: ArchivedRun, transform: ValueTransform) -> ArchivedRun:
    """A run outside its store."""
    return replace(
        archived,
        run=transform_run(archived.run, transform),
        records=tuple(transform_record(record, transform) for record in archived.records),
        attempts=tuple(transform_attempt(attempt, transform) for attempt in archived.attempts),
        signals=tuple(transform_signal(signal, transform) for signal in archived.signals),
        approvals=tuple(transform_approval(approval, transform) for approval in archived.approvals),
        live_events=tuple(transform_live_event(notice, transform) for notice in archived.live_events),
    )


def check_archive_decrypted(archived: ArchivedRun) -> None:
    """Raises ``UndecryptableValue`` if something in it is still sealed."""
    what = f"something in run {archived.run.id!r}"

    def check_data(data: bytes) -> bytes:
        check_decrypted(data, what)
        return data

    def check_text(text: str) -> str:
        check_decrypted_text(text, what)
        return text

    transform_archived(archived, ValueTransform(check_data, check_text))


# Operations, and their answers


def transform_op(op: Op, transform: ValueTransform) -> Op:
    """An operation."""
    match op:
        case ops.AppendRecord():  # by far the most frequent
            memory = transform_put_memory(op.memory, transform) if isinstance(op.memory, PutMemory) else op.memory
            return op._replace(record=transform_record(op.record, transform), memory=memory)
        case ops.StartRun():
            return op._replace(run=transform_new_run(op.run, transform))
        case ops.SaveAttempt():
            return op._replace(attempt=transform_attempt(op.attempt, transform))
        case ops.FinishRun():
            return op._replace(
                output=transform.transform_optional(op.output), error=transform.transform_optional(op.error)
            )
        case ops.ParkRun():
            return op._replace(waits_for=transform.transform_text(op.waits_for))
        case ops.ReleaseRun():
            return op._replace(error=transform.transform_optional(op.error))
        case ops.SendSignal():
            return op._replace(payload=transform.transform_bytes(op.payload))
        case ops.ForkRun():
            record = None if op.record is None else transform_record(op.record, transform)
            return op._replace(run=transform_new_run(op.run, transform), record=record)
        case ops.ReopenRun():
            return op._replace(
                settlement=None if op.settlement is None else transform_settlement(op.settlement, transform)
            )
        case ops.AppendLiveEvents():
            return op._replace(events=tuple(transform_live_event(notice, transform) for notice in op.events))
        case RequestApproval():
            return op._replace(request=transform_approval_request(op.request, transform))
        case AnswerApproval():
            return op._replace(payload=transform.transform_bytes(op.payload))
        case PutMemory():
            return transform_put_memory(op, transform)
        case _:  # nothing in it belongs to users' code
            return op


def transform_put_memory(op: PutMemory, transform: ValueTransform) -> PutMemory:
    """Something to remember. The words that it would be found by are left out: stores keep those to search in them."""
    return replace(op, value=transform.transform_bytes(op.value), text="")


def transform_answer(answer: OpResult, transform: ValueTransform) -> OpResult:
    """What an operation is answered with."""
    return answer._replace(run=transform_run(answer.run, transform)) if isinstance(answer, StartResult) else answer
