"""Which fields of what goes into a store, and comes back, are sealed: one walk for both ways.

Each function makes the same thing with those of its fields changed that belong to users' code. Which way is decided by
the ``Way`` that it is handed: sealing on the way in, opening on the way out. So what is sealed is opened, and the other
way round, by construction.

A new field of any of these that could hold what users' code says must be added here; a test lists all fields and fails
for one that it does not know.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, cast

from holdfast.codec import refuse_sealed, refuse_sealed_text
from holdfast.core.records import Attempt, Record, Signal
from holdfast.stores import operations as ops
from holdfast.stores.approvals import AnswerApproval, Approval, AskApproval, Question
from holdfast.stores.archives import Archived
from holdfast.stores.contract import History
from holdfast.stores.documents import Document
from holdfast.stores.journal_pages import Outline
from holdfast.stores.live_events import BEGUN, Feed
from holdfast.stores.memories import Memory, PutMemory
from holdfast.stores.operations import Answer, NewRun, Notice, Op, Run, Settlement, Started
from holdfast.stores.schedules import NewSchedule, Schedule


class Way(NamedTuple):
    """What is done to a value: it is sealed, or opened."""

    data: Callable[[bytes], bytes]
    text: Callable[[str], str]

    def or_none(self, value: bytes | None) -> bytes | None:
        """The same for a value that may be missing."""
        return None if value is None else self.data(value)


# What a run is made of


def of_new_run(new: NewRun, way: Way) -> NewRun:
    """What a run is started with."""
    return replace(new, inputs=way.data(new.inputs))


def of_run(run: Run, way: Way) -> Run:
    """A run's row."""
    return replace(
        run,
        inputs=way.data(run.inputs),
        output=way.or_none(run.output),
        error=way.or_none(run.error),
        waits_for=way.text(run.waits_for),
    )


def of_record(record: Record, way: Way) -> Record:
    """A record."""
    return record._replace(payload=way.or_none(record.payload), preview=way.text(record.preview))


def of_attempt(attempt: Attempt, way: Way) -> Attempt:
    """What is known of a step in flight."""
    return attempt._replace(
        progress=way.or_none(attempt.progress), error=way.text(attempt.error), outcome=way.or_none(attempt.outcome)
    )


def of_settlement(settled: Settlement, way: Way) -> Settlement:
    """What a person says of a step."""
    return settled._replace(record=None if settled.record is None else of_record(settled.record, way))


def of_signal(signal: Signal, way: Way) -> Signal:
    """What is in a mailbox."""
    return signal._replace(payload=way.data(signal.payload))


def of_history(history: History, way: Way) -> History:
    """All that a worker needs."""
    return replace(
        history,
        records=[of_record(record, way) for record in history.records],
        attempts={position: of_attempt(attempt, way) for position, attempt in history.attempts.items()},
        signals=[of_signal(signal, way) for signal in history.signals],
    )


def of_notice(notice: Notice, way: Way) -> Notice:
    """A notice. Stores look into those that a step has begun, for its name: so only the arguments are sealed there."""
    if notice.kind != BEGUN:
        return notice._replace(data=way.data(notice.data))
    told = _object(notice.data)
    arguments = told.get("arguments")
    if not isinstance(arguments, str) or (changed := way.text(arguments)) == arguments:
        return notice
    return notice._replace(data=json.dumps({**told, "arguments": changed}, separators=(",", ":")).encode())


def _object(data: bytes) -> dict[str, Any]:
    try:
        told: Any = json.loads(data)
    except ValueError:
        return {}
    return cast("dict[str, Any]", told) if isinstance(told, dict) else {}


def of_feed(feed: Feed, way: Way) -> Feed:
    """What is new of a run."""
    return replace(
        feed,
        run=of_run(feed.run, way),
        records=[of_record(record, way) for record in feed.records],
        notices=[(number, of_notice(notice, way)) for number, notice in feed.notices],
    )


def of_outline(outline: Outline, way: Way) -> Outline:
    """A run with a page of its journal."""
    return replace(
        outline,
        run=of_run(outline.run, way),
        records=[of_record(record, way) for record in outline.records],
        attempts={position: of_attempt(attempt, way) for position, attempt in outline.attempts.items()},
        signals=[of_signal(signal, way) for signal in outline.signals],
    )


# What belongs to it, and what does not


def of_question(question: Question, way: Way) -> Question:
    """A question to people. Who is asked stays, since questions are listed by that, and the tool's name."""
    return question._replace(
        text=way.text(question.text),
        choices=tuple(map(way.text, question.choices)),
        form=way.data(question.form),
        arguments=way.data(question.arguments),
        reason=way.text(question.reason),
    )


def of_approval(approval: Approval, way: Way) -> Approval:
    """A question, and what has become of it."""
    return replace(approval, question=of_question(approval.question, way), answer=way.or_none(approval.answer))


def of_memory(memory: Memory, way: Way) -> Memory:
    """What outlives runs. Its words are not there: see ``of_op``."""
    return replace(memory, value=way.data(memory.value))


def of_document(document: Document, way: Way) -> Document:
    """What a server keeps."""
    return replace(document, data=way.data(document.data))


def of_new_schedule(new: NewSchedule, way: Way) -> NewSchedule:
    """What a schedule starts."""
    return replace(new, inputs=way.data(new.inputs))


def of_schedule(schedule: Schedule, way: Way) -> Schedule:
    """A schedule's row."""
    return replace(schedule, what=of_new_schedule(schedule.what, way))


def of_archived(archived: Archived, way: Way) -> Archived:
    """A run outside its store."""
    return replace(
        archived,
        run=of_run(archived.run, way),
        records=tuple(of_record(record, way) for record in archived.records),
        attempts=tuple(of_attempt(attempt, way) for attempt in archived.attempts),
        signals=tuple(of_signal(signal, way) for signal in archived.signals),
        approvals=tuple(of_approval(approval, way) for approval in archived.approvals),
        notices=tuple(of_notice(notice, way) for notice in archived.notices),
    )


def check_that_it_is_open(archived: Archived) -> None:
    """Raises ``UndecryptableValue`` if something in it is still sealed."""
    what = f"something in run {archived.run.id!r}"

    def check_data(data: bytes) -> bytes:
        refuse_sealed(data, what)
        return data

    def check_text(text: str) -> str:
        refuse_sealed_text(text, what)
        return text

    of_archived(archived, Way(check_data, check_text))


# Operations, and their answers


def of_op(op: Op, way: Way) -> Op:
    """An operation."""
    match op:
        case ops.AppendRecord():  # by far the most frequent
            memory = of_put(op.memory, way) if isinstance(op.memory, PutMemory) else op.memory
            return op._replace(record=of_record(op.record, way), memory=memory)
        case ops.StartRun():
            return op._replace(run=of_new_run(op.run, way))
        case ops.NoteAttempt():
            return op._replace(attempt=of_attempt(op.attempt, way))
        case ops.FinishRun():
            return op._replace(output=way.or_none(op.output), error=way.or_none(op.error))
        case ops.ParkRun():
            return op._replace(waits_for=way.text(op.waits_for))
        case ops.ReleaseRun():
            return op._replace(error=way.or_none(op.error))
        case ops.SendSignal():
            return op._replace(payload=way.data(op.payload))
        case ops.ForkRun():
            record = None if op.record is None else of_record(op.record, way)
            return op._replace(run=of_new_run(op.run, way), record=record)
        case ops.ReopenRun():
            return op._replace(settles=None if op.settles is None else of_settlement(op.settles, way))
        case ops.TellNotices():
            return op._replace(notices=tuple(of_notice(notice, way) for notice in op.notices))
        case AskApproval():
            return op._replace(question=of_question(op.question, way))
        case AnswerApproval():
            return op._replace(payload=way.data(op.payload))
        case PutMemory():
            return of_put(op, way)
        case _:  # nothing in it belongs to users' code
            return op


def of_put(op: PutMemory, way: Way) -> PutMemory:
    """Something to remember. The words that it would be found by are left out: stores keep those to search in them."""
    return replace(op, value=way.data(op.value), text="")


def of_answer(answer: Answer, way: Way) -> Answer:
    """What an operation is answered with."""
    return answer._replace(run=of_run(answer.run, way)) if isinstance(answer, Started) else answer
