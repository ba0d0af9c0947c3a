"""Records as a story tells them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from holdfast.codec import shown_text
from holdfast.core.records import SESSION, Kind, Record
from holdfast.reports.formatting import bytes_in_words, jsonable
from holdfast.reports.model_replies import answer_in, fullness_of, is_final, is_turn, reason_of, refusal_of
from holdfast.reports.recorded_reply import PlainReply, reply_of
from holdfast.reports.recorded_values import failure_of, value_of
from holdfast.reports.tool_calls import is_cleared, required_by
from holdfast.reports.types import AskedCall, Entry, ModelCall, Unreadable
from holdfast.services.approvals import BEGINS, REMINDER
from holdfast.services.settlement import is_unknown
from holdfast.services.timestamps import moment
from holdfast.stores.operations import Run

_OF_APPROVALS = (BEGINS, REMINDER)
"""The steps that ``authoring.approval_requests`` adds to an approval. No step of a user has a space in its name."""

TIMED = (Kind.STEP, Kind.COMPENSATION)
"""Kinds of records that took the time of a worker."""

BRIEF = 4 * 1024
"""Values above this size, in bytes of JSON, are told only by their beginning where many are told."""
_BEGINNING = 1024
"""So many characters of them."""


def entry_of(record: Record, run: Run, left_out: int | None = None, *, brief: bool = False, replays: int) -> Entry:
    """A record as it is told; ``left_out`` is the size of a value that was not read."""
    error, reply = failure_of(record), reply_of(record)
    has_run = record.kind in (Kind.CHILD, Kind.START)
    outcome, reason = _outcome(record)
    entry = Entry(
        seq=record.seq,
        number=None if record.kind is Kind.PATCH else record.position + 1,
        kind=record.kind.label,
        name=record.name,
        run=record.preview or None if has_run else None,
        ok=record.ok,
        attempts=record.attempts,
        worker=record.worker,
        epoch=record.epoch,
        replays=replays,
        started_at=moment(record.started_at),
        at=moment(record.at),
        seconds=round(record.at - record.started_at, 6) if record.kind in TIMED else None,
        arguments="" if has_run else shown_text(record.preview),
        output=_output(record, reply) if record.ok else None,
        model_call=None if reply is None else ModelCall.of(reply),
        error=error,
        size=len(record.payload or b"") if left_out is None else left_out,
        cut=False,
        unknown=outcome == "unknown",
        outcome=outcome,
        reason=reason,
        internal=is_internal(record, run),
    )
    if left_out is not None:
        return replace(entry, output=f"({bytes_in_words(left_out)})", cut=True)
    return _cut(entry) if brief and entry.size > BRIEF else entry


def is_internal(record: Record, run: Run) -> bool:
    """Whether a record was made for an approval or a session, and not for a call in the workflow's code."""
    if record.kind is Kind.STEP:
        begins_session = bool(run.session) and record.name == SESSION and record.position == 0
        return begins_session or record.name in _OF_APPROVALS
    # An agent waits for the run before it in its session.
    return record.kind is Kind.CHILD and bool(run.previous) and record.preview == run.previous


def _outcome(record: Record) -> tuple[str, str | None]:
    """What has come of it, and why, where that is not what its error says."""
    if record.ok:
        return "ok", None
    if (refusal := refusal_of(record)) is not None:
        return "refused", reason_of(refusal)
    if (required := required_by(record)) is not None:
        return "needs_approval", required.reason or None
    if is_cleared(record):
        return "cleared", None
    if (full := fullness_of(record)) is not None:
        return "context_full", str(full)
    return "unknown" if is_unknown(record) else "failed", None


def _output(record: Record, reply: PlainReply | None) -> Any:
    """What workflow code was handed: an agent's loop the reply, whoever calls an ``@llm_step`` the answer in it."""
    if reply is None:
        return value_of(record.payload)
    return None if is_turn(record) or not is_final(reply) else answer_in(reply)


# In short


def _cut(entry: Entry) -> Entry:
    output, is_cut = _beginning(entry.output)
    said = entry.model_call
    if said is not None:
        calls = [_beginning(call.arguments) for call in said.calls]
        texts = [(text[:_BEGINNING], len(text) > BRIEF) if len(text) > BRIEF else (text, False)
                 for text in (said.text, said.thinking)]  # fmt: skip
        is_cut = is_cut or any(cut for _, cut in (*calls, *texts))
        given = zip(said.calls, calls, strict=True)
        said = replace(
            said,
            text=texts[0][0],
            thinking=texts[1][0],
            calls=tuple(AskedCall(call.id, call.name, arguments) for call, (arguments, _) in given),
        )
    return replace(entry, output=output, model_call=said, cut=is_cut)


def _beginning(value: Any) -> tuple[Any, bool]:
    """A value, or the beginning of what it is as JSON; and whether it was cut."""
    if value is None or isinstance(value, Unreadable):
        return value, False
    text = value if isinstance(value, str) else json.dumps(jsonable(value), ensure_ascii=False)
    return (f"{text[:_BEGINNING]}…", True) if len(text.encode()) > BRIEF else (value, False)
