"""Which fields of the values that go into a store, and come back, are encrypted: one walk for both directions.

Each method of ``ValueTransform`` copies a value and changes the fields that belong to users' code. The same methods
encrypt on the way in and decrypt on the way out, so everything that is encrypted is decrypted again.

A new field that could hold data of users' code must be added here. A test lists all fields, and fails for one that it
does not know.
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
from holdfast.stores.operations import LiveEvent, NewRun, Op, OpResult, Run, StartResult
from holdfast.stores.schedules import Schedule, ScheduleDefinition


class ValueTransform(NamedTuple):
    """What happens to each value: it is encrypted, or decrypted."""

    transform_bytes: Callable[[bytes], bytes]
    transform_text: Callable[[str], str]

    def transform_optional(self, value: bytes | None) -> bytes | None:
        return None if value is None else self.transform_bytes(value)

    # Runs

    def transform_new_run(self, new: NewRun) -> NewRun:
        return replace(new, inputs=self.transform_bytes(new.inputs))

    def transform_run(self, run: Run) -> Run:
        return replace(
            run,
            inputs=self.transform_bytes(run.inputs),
            output=self.transform_optional(run.output),
            error=self.transform_optional(run.error),
            waits_for=self.transform_text(run.waits_for),
        )

    def transform_record(self, record: Record) -> Record:
        return record._replace(
            payload=self.transform_optional(record.payload), preview=self.transform_text(record.preview)
        )

    def transform_attempt(self, attempt: Attempt) -> Attempt:
        return attempt._replace(
            progress=self.transform_optional(attempt.progress),
            error=self.transform_text(attempt.error),
            outcome=self.transform_optional(attempt.outcome),
        )

    def transform_settlement(self, settlement: ops.Settlement) -> ops.Settlement:
        record, attempt = settlement.record, settlement.attempt
        return settlement._replace(
            record=None if record is None else self.transform_record(record),
            attempt=None if attempt is None else self.transform_attempt(attempt),
        )

    def transform_signal(self, signal: Signal) -> Signal:
        return signal._replace(payload=self.transform_bytes(signal.payload))

    def transform_history(self, history: History) -> History:
        return replace(
            history,
            records=[*map(self.transform_record, history.records)],
            attempts={position: self.transform_attempt(attempt) for position, attempt in history.attempts.items()},
            signals=[*map(self.transform_signal, history.signals)],
        )

    def transform_live_event(self, event: LiveEvent) -> LiveEvent:
        """A live event. Stores read the name of a started step, so only the arguments are encrypted there."""
        if event.kind != STARTED:
            return event._replace(data=self.transform_bytes(event.data))
        data = _parse_object(event.data)
        arguments = data.get("arguments")
        if not isinstance(arguments, str) or (changed := self.transform_text(arguments)) == arguments:
            return event
        return event._replace(data=json.dumps({**data, "arguments": changed}, separators=(",", ":")).encode())

    def transform_updates(self, updates: RunUpdates) -> RunUpdates:
        return replace(
            updates,
            run=self.transform_run(updates.run),
            records=[*map(self.transform_record, updates.records)],
            live_events=[(number, self.transform_live_event(event)) for number, event in updates.live_events],
        )

    def transform_journal_page(self, page: JournalPage) -> JournalPage:
        return replace(
            page,
            run=self.transform_run(page.run),
            records=[*map(self.transform_record, page.records)],
            attempts={position: self.transform_attempt(attempt) for position, attempt in page.attempts.items()},
            signals=[*map(self.transform_signal, page.signals)],
        )

    def transform_archived(self, archived: ArchivedRun) -> ArchivedRun:
        return replace(
            archived,
            run=self.transform_run(archived.run),
            records=tuple(map(self.transform_record, archived.records)),
            attempts=tuple(map(self.transform_attempt, archived.attempts)),
            signals=tuple(map(self.transform_signal, archived.signals)),
            approvals=tuple(map(self.transform_approval, archived.approvals)),
            live_events=tuple(map(self.transform_live_event, archived.live_events)),
        )

    # Approvals, memories, documents, and schedules

    def transform_approval_request(self, request: ApprovalRequest) -> ApprovalRequest:
        """A request. The assignee stays readable, because approvals are listed by it, and so does the tool's name."""
        return request._replace(
            question=self.transform_text(request.question),
            choices=tuple(map(self.transform_text, request.choices)),
            form_schema=self.transform_bytes(request.form_schema),
            arguments=self.transform_bytes(request.arguments),
            reason=self.transform_text(request.reason),
        )

    def transform_approval(self, approval: Approval) -> Approval:
        return replace(
            approval,
            request=self.transform_approval_request(approval.request),
            answer=self.transform_optional(approval.answer),
        )

    def transform_memory(self, memory: Memory) -> Memory:
        return replace(memory, value=self.transform_bytes(memory.value))

    def transform_put_memory(self, op: PutMemory) -> PutMemory:
        """A memory to store, without the text by which it would be found: stores keep that text to search in it."""
        return replace(op, value=self.transform_bytes(op.value), text="")

    def transform_document(self, document: Document) -> Document:
        return replace(document, data=self.transform_bytes(document.data))

    def transform_new_schedule(self, new: ScheduleDefinition) -> ScheduleDefinition:
        return replace(new, inputs=self.transform_bytes(new.inputs))

    def transform_schedule(self, schedule: Schedule) -> Schedule:
        return replace(schedule, definition=self.transform_new_schedule(schedule.definition))

    # Operations, and their answers

    def transform_op(self, op: Op) -> Op:
        match op:
            case ops.AppendRecord():  # by far the most frequent
                memory = self.transform_put_memory(op.memory) if isinstance(op.memory, PutMemory) else op.memory
                return op._replace(record=self.transform_record(op.record), memory=memory)
            case ops.StartRun():
                event = None if op.claim_event is None else self.transform_live_event(op.claim_event)
                return op._replace(run=self.transform_new_run(op.run), claim_event=event)
            case ops.SaveAttempt():
                return op._replace(attempt=self.transform_attempt(op.attempt))
            case ops.FinishRun():
                return op._replace(output=self.transform_optional(op.output), error=self.transform_optional(op.error))
            case ops.ParkRun():
                return op._replace(waits_for=self.transform_text(op.waits_for))
            case ops.ReleaseRun():
                return op._replace(error=self.transform_optional(op.error))
            case ops.SendSignal() | AnswerApproval():
                return op._replace(payload=self.transform_bytes(op.payload))
            case ops.ForkRun():
                record = None if op.record is None else self.transform_record(op.record)
                return op._replace(run=self.transform_new_run(op.run), record=record)
            case ops.ReopenRun():
                return op if op.settlement is None else op._replace(settlement=self.transform_settlement(op.settlement))
            case ops.AppendLiveEvents():
                return op._replace(events=tuple(map(self.transform_live_event, op.events)))
            case RequestApproval():
                return op._replace(request=self.transform_approval_request(op.request))
            case PutMemory():
                return self.transform_put_memory(op)
            case _:  # nothing in it belongs to users' code
                return op

    def transform_answer(self, answer: OpResult) -> OpResult:
        return answer._replace(run=self.transform_run(answer.run)) if isinstance(answer, StartResult) else answer


def _parse_object(data: bytes) -> dict[str, Any]:
    try:
        parsed: Any = json.loads(data)
    except ValueError:
        return {}
    return cast("dict[str, Any]", parsed) if isinstance(parsed, dict) else {}


def check_archive_decrypted(archived: ArchivedRun) -> None:
    """Raises ``UndecryptableValue`` if a value of the run is still encrypted."""
    label = f"something in run {archived.run.id!r}"

    def check_data(data: bytes) -> bytes:
        check_decrypted(data, label)
        return data

    def check_text(text: str) -> str:
        check_decrypted_text(text, label)
        return text

    ValueTransform(check_data, check_text).transform_archived(archived)
