"""Records in the form of a run report."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from holdfast.codec import mask_encrypted_text
from holdfast.core.records import SESSION_STEP, Record, RecordKind
from holdfast.reports.formatting import format_bytes, value_to_json
from holdfast.reports.model_replies import (
    decode_budget_exceeded,
    decode_context_full,
    extract_answer,
    format_refusal_reason,
    is_agent_model_call,
    is_final_reply,
)
from holdfast.reports.recorded_reply import ModelCallReport, reply_from_record
from holdfast.reports.recorded_values import decode_for_display, get_record_error
from holdfast.reports.tool_calls import get_required_approval, is_cleared
from holdfast.reports.types import JournalEntry
from holdfast.services.approvals import APPROVAL_REMINDER_STEP, APPROVAL_START_STEP
from holdfast.services.json_form import UnreadableValue
from holdfast.services.settlement import is_outcome_unknown
from holdfast.services.timestamps import to_datetime
from holdfast.stores.operations import Run

_APPROVAL_STEPS = (APPROVAL_START_STEP, APPROVAL_REMINDER_STEP)
"""The steps that ``authoring.approval_requests`` adds to an approval. Users' steps have no space in their names."""

TIMED_KINDS = (RecordKind.STEP, RecordKind.COMPENSATION)
"""Kinds of records that take a worker's time."""

MAX_BRIEF_BYTES = 4 * 1024
"""Maximum size of a value in a list of records, in bytes of JSON. Larger ones are truncated."""
_EXCERPT_CHARS = 1024
"""Number of characters that are left of a truncated value."""


def entry_from_record(
    record: Record, run: Run, omitted_bytes: int | None = None, *, brief: bool = False, replay_count: int
) -> JournalEntry:
    """The entry for a record; ``omitted_bytes`` is the size of a value that was not read."""
    error, reply = get_record_error(record), reply_from_record(record)
    has_run = record.kind in (RecordKind.CHILD, RecordKind.START)
    outcome, reason = _classify_outcome(record)
    entry = JournalEntry(
        seq=record.seq,
        number=None if record.kind in (RecordKind.PATCH, RecordKind.CALL) else record.position + 1,
        kind=record.kind.label,
        name=record.name,
        related_run_id=record.preview or None if has_run else None,
        ok=record.ok,
        attempt_count=record.attempts,
        worker_id=record.worker,
        epoch=record.epoch,
        replay_count=replay_count,
        started_at=to_datetime(record.started_at),
        recorded_at=to_datetime(record.at),
        duration_s=round(record.at - record.started_at, 6) if record.kind in TIMED_KINDS else None,
        arguments="" if has_run else mask_encrypted_text(record.preview),
        output=_decode_output(record, reply) if record.ok else None,
        model_call=reply,
        error=error,
        size=len(record.payload or b"") if omitted_bytes is None else omitted_bytes,
        is_truncated=False,
        has_unknown_outcome=outcome == "unknown",
        outcome=outcome,
        reason=reason,
        is_internal=is_internal(record, run),
    )
    if omitted_bytes is not None:
        return replace(entry, output=f"({format_bytes(omitted_bytes)})", is_truncated=True)
    return _truncate_entry(entry) if brief and entry.size > MAX_BRIEF_BYTES else entry


def is_internal(record: Record, run: Run) -> bool:
    """Whether a record belongs to an approval, a session, or a program's log, and not to a call in the code."""
    if record.kind is RecordKind.CALL:
        return True
    if record.kind is RecordKind.STEP:
        starts_session = bool(run.session) and record.name == SESSION_STEP and record.position == 0
        return starts_session or record.name in _APPROVAL_STEPS
    # An agent waits for the previous run of its session.
    return record.kind is RecordKind.CHILD and bool(run.previous_run) and record.preview == run.previous_run


def _classify_outcome(record: Record) -> tuple[str, str | None]:
    """The outcome, and the reason if it is not the error."""
    if record.ok:
        return "ok", None
    if (refusal := decode_budget_exceeded(record)) is not None:
        return "refused", format_refusal_reason(refusal)
    if (required := get_required_approval(record)) is not None:
        return "needs_approval", required.reason or None
    if is_cleared(record):
        return "cleared", None
    if (full := decode_context_full(record)) is not None:
        return "context_full", str(full)
    return "unknown" if is_outcome_unknown(record) else "failed", None


def _decode_output(record: Record, reply: ModelCallReport | None) -> Any:
    """What workflow code got: the answer of an ``@llm_step``, or nothing for a reply that an agent's loop got."""
    if reply is None:
        return decode_for_display(record.payload)
    return None if is_agent_model_call(record) or not is_final_reply(reply) else extract_answer(reply)


# Truncation


def _truncate_entry(entry: JournalEntry) -> JournalEntry:
    output, is_cut = _truncate_value(entry.output)
    model_call = entry.model_call
    if model_call is not None:
        text, thinking = (_truncate_text(text) for text in (model_call.text, model_call.thinking))
        calls = [_truncate_value(call.arguments) for call in model_call.tool_calls]
        is_cut = is_cut or (text, thinking) != (model_call.text, model_call.thinking) or any(cut for _, cut in calls)
        tool_calls = tuple(
            replace(call, arguments=arguments)
            for call, (arguments, _) in zip(model_call.tool_calls, calls, strict=True)
        )
        model_call = replace(model_call, text=text, thinking=thinking, tool_calls=tool_calls)
    return replace(entry, output=output, model_call=model_call, is_truncated=is_cut)


def _truncate_text(text: str) -> str:
    return text[:_EXCERPT_CHARS] if len(text) > MAX_BRIEF_BYTES else text


def _truncate_value(value: Any) -> tuple[Any, bool]:
    """A value, or the beginning of its JSON; and whether it was cut."""
    if value is None or isinstance(value, UnreadableValue):
        return value, False
    text = value if isinstance(value, str) else json.dumps(value_to_json(value), ensure_ascii=False)
    return (f"{text[:_EXCERPT_CHARS]}…", True) if len(text.encode()) > MAX_BRIEF_BYTES else (value, False)
