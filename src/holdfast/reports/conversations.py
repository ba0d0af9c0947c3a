"""The conversation of an agent's run, from its records, without the agent's code.

Every answer of a model is one record, and the records of its tool calls follow it: see ``reports.tool_calls``. The
results that the model gets are made from these (see ``agents.conversation``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any, cast

from holdfast.codec import decode_plain
from holdfast.core.records import Record, RecordKind
from holdfast.errors import CodecError
from holdfast.reports.formatting import format_command, value_to_json
from holdfast.reports.model_replies import (
    decode_budget_exceeded,
    decode_context_full,
    describe_compaction,
    extract_answer,
    format_refusal_reason,
    is_agent_model_call,
    is_final_reply,
)
from holdfast.reports.observations import describe_child_failure, describe_denial, describe_tool_failure
from holdfast.reports.recorded_reply import (
    ANSWER_TOOL,
    INSTRUCTIONS_STEP,
    ModelCallReport,
    RecordedCompaction,
    ToolCallReport,
    reply_from_record,
)
from holdfast.reports.recorded_values import decode_for_display, get_record_error
from holdfast.reports.tool_calls import ToolCallStatus, match_tool_calls
from holdfast.services.json_form import to_json


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """The decision whether a tool call may be made."""

    approved: bool
    answered_by: str | None
    """``None``: there was no answer in time."""
    reason: str = ""
    changed_arguments: dict[str, Any] | None = None
    """The arguments with which a person replaced the model's."""

    @classmethod
    def from_call(cls, call: ToolCallStatus) -> ApprovalDecision | None:
        """From the status of the call; ``None`` if nothing was decided."""
        if call.decision is None:
            return None
        answer = call.decision.answer
        by, reason = (None, "") if answer is None else (answer.answered_by, answer.reason)
        return cls(call.decision.approved, by, reason, call.edited_arguments)

    @property
    def summary(self) -> str:
        """Who approved or denied the call."""
        decision = "approved" if self.approved else "denied"
        if self.answered_by is None:
            return f"{decision}: nobody answered in time"
        by = f"{decision} by {self.answered_by or 'a person'}"
        return by if self.changed_arguments is None else f"{by}, who changed the arguments"


@dataclass(frozen=True, slots=True)
class ConversationMessage:
    """One message of a conversation."""

    role: str
    """``system``, ``user``, ``model``, ``tool`` (the result of a call), ``correction`` (why an answer is invalid),
    ``summary`` (sent in place of earlier messages), or ``note`` (for people only)."""
    text: str
    number: int | None = None
    """The number of the record in the journal."""
    name: str = ""
    """The name of the tool or the model."""
    ok: bool = True
    is_history: bool = False
    """It is from before this run, which got it as its message history."""
    reply: ModelCallReport | None = None
    tool_calls: Sequence[tuple[str, Any]] = ()
    """The names and the arguments of the tools that a model calls."""
    child_run_id: str = ""
    """The run that executed the call."""
    content: Any = field(default=None, compare=False)
    """What a tool returned, as data."""
    decision: ApprovalDecision | None = None
    """The decision whether the call may be made."""


def build_conversation(inputs: bytes, records: Sequence[Record]) -> list[ConversationMessage]:
    """The conversation of a run, from its inputs and its journal."""
    ordered = sorted((record for record in records if record.kind.has_position), key=lambda record: record.position)
    arguments = _decode_inputs(inputs)
    messages = [*_read_history(arguments.get("message_history"))]
    for record in takewhile(lambda record: not is_agent_model_call(record), ordered):
        if record.kind is RecordKind.STEP and record.name == INSTRUCTIONS_STEP and record.ok:
            instructions = format_value(value_to_json(decode_for_display(record.payload)))
            messages.append(ConversationMessage("system", instructions, record.position + 1))
    messages.append(ConversationMessage("user", format_prompt(arguments.get("prompt"))))
    for index, record in enumerate(ordered):
        reply = reply_from_record(record)
        if reply is not None and reply.compaction is not None:
            messages.append(_make_summary_message(record, reply, reply.compaction))
            continue
        if not is_agent_model_call(record):
            continue  # the results of calls, and the wait for a higher budget
        if reply is None:
            messages.append(make_failure_note(record))
            continue
        messages.append(make_reply_message(record.position + 1, reply))
        if reply.feedback is not None:
            messages.append(ConversationMessage("correction", reply.feedback))
        elif not is_final_reply(reply):
            rest = islice(ordered, index + 1, None)
            until_next_call = list(takewhile(lambda record: not is_agent_model_call(record), rest))
            first = record.position + 1
            statuses = match_tool_calls(len(reply.tool_calls), first, until_next_call)
            for position, (call, status) in enumerate(zip(reply.tool_calls, statuses, strict=True), first):
                messages.append(make_tool_message(call, status, position))
    return messages


def _decode_inputs(inputs: bytes) -> Mapping[str, Any]:
    try:
        given = decode_plain(inputs)
    except CodecError:
        return {}
    return cast("Mapping[str, Any]", given) if isinstance(given, dict) else {}


def make_reply_message(number: int | None, reply: ModelCallReport) -> ConversationMessage:
    """The answer of a model."""
    calls = [(call.name, call.arguments) for call in reply.tool_calls if call.name != ANSWER_TOOL]
    text = reply.text
    if reply.feedback is not None or any(call.name == ANSWER_TOOL for call in reply.tool_calls):
        calls = [] if is_final_reply(reply) else [(call.name, call.arguments) for call in reply.tool_calls]
    if is_final_reply(reply):
        answer = extract_answer(reply)
        text = "\n".join(part for part in (reply.text if answer != reply.text else "", format_value(answer)) if part)
    return ConversationMessage("model", text, number, reply.model, reply=reply, tool_calls=calls)


def _make_summary_message(
    record: Record, reply: ModelCallReport, compaction: RecordedCompaction
) -> ConversationMessage:
    if reply.feedback is not None:
        return ConversationMessage("note", f"no summary: {reply.feedback}", record.position + 1, ok=False)
    if not compaction.summarized_count:
        return ConversationMessage("note", describe_compaction(compaction), record.position + 1)
    return ConversationMessage("summary", reply.text, record.position + 1, reply.model, reply=reply)


def make_failure_note(record: Record) -> ConversationMessage:
    """Why a model call has no answer."""
    if (full := decode_context_full(record)) is not None:
        return ConversationMessage("note", str(full), record.position + 1)
    if (refusal := decode_budget_exceeded(record)) is not None:
        return ConversationMessage(
            "note", f"the model was not asked: {format_refusal_reason(refusal)}", record.position + 1, ok=False
        )
    error = get_record_error(record)
    why = "its answer cannot be read by this version" if error is None else error.summary
    return ConversationMessage("note", f"no model has answered: {why}", record.position + 1, ok=False)


def make_tool_message(call: ToolCallReport, called: ToolCallStatus | None, position: int) -> ConversationMessage:
    """The result of a call."""
    if called is None:
        return ConversationMessage("note", f"{call.name}: no outcome yet", position + 1)
    record, decision, number = called.record, called.decision, called.record.position + 1
    if not called.has_ended:
        return ConversationMessage("note", f"{call.name}: {_describe_pending_call(called)}", number)
    payload = record.payload or b"null"
    content: Any
    try:
        if decision is not None and not decision.approved:
            content = describe_denial(call.name, decision.answer, decision.timeout_s)
        elif record.ok:
            content = value_to_json(decode_for_display(payload))
        else:
            content = (describe_child_failure if record.kind is RecordKind.CHILD else describe_tool_failure)(
                payload, call.name
            )
    except (CodecError, ValueError) as error:
        content = str(error)
    return ConversationMessage(
        "tool",
        format_value(content),
        number,
        call.name,
        ok=record.ok,
        child_run_id=record.preview if record.kind is RecordKind.CHILD else "",
        content=content,
        decision=ApprovalDecision.from_call(called),
    )


def _describe_pending_call(call: ToolCallStatus) -> str:
    """What a call without a result waits for."""
    if (decided := ApprovalDecision.from_call(call)) is not None:
        return f"{decided.summary}; no outcome yet"
    if call.approval_required is None:
        return "no outcome yet"
    why = f" ({call.approval_required.reason})" if call.approval_required.reason else ""
    return f"waits for a person's approval{why}: `{format_command('approvals')}`"


def format_value(value: Any) -> str:
    """Data as text: short JSON on one line, else one item to a line."""
    if isinstance(value, str):
        return value
    short = json.dumps(value, ensure_ascii=False)
    return short if len(short) <= 100 else json.dumps(value, ensure_ascii=False, indent=2)


# Messages from before the run


def _read_history(messages: Any) -> Iterator[ConversationMessage]:
    """The run's message history, in the form of ``agents.models.messages``."""
    for message in cast("list[Mapping[str, Any]]", messages if isinstance(messages, list) else []):
        parts: list[Mapping[str, Any]] = message.get("parts") or []
        if message.get("role") == "model":
            texts = [str(part["text"]) for part in parts if "text" in part]
            calls = [_parse_call(part) for part in parts if "call" in part]
            name = str(message.get("model_name") or "model")
            yield ConversationMessage("model", "\n\n".join(texts), name=name, tool_calls=calls, is_history=True)
            continue
        for part in parts:
            if "prompt" in part:
                yield ConversationMessage("user", format_prompt(part["prompt"]), is_history=True)
            elif "system" in part:
                yield ConversationMessage("system", str(part["system"]), is_history=True)
            elif "result" in part:
                content: Any = part.get("content")
                ok = part.get("outcome", "success") == "success"
                yield ConversationMessage(
                    "tool", format_value(content), name=str(part["result"]), ok=ok, is_history=True, content=content
                )


def _parse_call(part: Mapping[str, Any]) -> tuple[str, Any]:
    call = ToolCallReport.from_raw(str(part["call"]), part.get("args"), "")
    return call.name, call.arguments


def format_prompt(prompt: Any) -> str:
    """The texts of a prompt, and the kinds of its other parts."""
    if not isinstance(prompt, list):
        return format_value(prompt)
    texts: list[str] = []
    for part in cast("list[Any]", prompt):
        if isinstance(part, Mapping) and part:
            fields = cast("Mapping[str, Any]", part)
            kind, value = next(iter(fields.items()))
            if kind == "text":
                texts.append(str(value))
            elif kind.endswith("_url"):
                texts.append(f"<{kind.removesuffix('_url')} {value}>")
            elif kind != "cache_point":
                texts.append(f"<{fields.get('media_type') or kind.replace('_', ' ')}>")
        else:
            texts.append(format_value(part))
    return "\n".join(texts)


# JSON


def message_to_json(message: ConversationMessage) -> dict[str, Any]:
    """The JSON form of a message, for programs."""
    base: dict[str, Any] = {"role": message.role, "number": message.number, "is_history": message.is_history}
    if message.reply is not None:
        return {**base, "final": is_final_reply(message.reply), **to_json(message.reply)}
    if message.role == "model":
        calls = [{"name": name, "arguments": value_to_json(arguments)} for name, arguments in message.tool_calls]
        return {**base, "model": message.name, "text": message.text, "tool_calls": calls}
    if message.role == "tool":
        approval = None if message.decision is None else to_json(message.decision)
        return {
            **base,
            "name": message.name,
            "ok": message.ok,
            "child_run_id": message.child_run_id or None,
            "content": value_to_json(message.content),
            "approval": approval,
        }
    return {**base, "text": message.text, "ok": message.ok}


def message_from_json(data: Mapping[str, Any], decode_call: Callable[[Any], ModelCallReport]) -> ConversationMessage:
    """A message from its JSON form; ``decode_call`` decodes the answer of a model."""
    role, number, is_history = data["role"], data["number"], data["is_history"]
    if "usage" in data:
        reply = decode_call(data)
        if role == "model":
            return make_reply_message(number, reply)
        return ConversationMessage(role, reply.text, number, reply.model, reply=reply)
    if role == "model":
        calls = [(call["name"], call["arguments"]) for call in data["tool_calls"]]
        return ConversationMessage(role, data["text"], number, data["model"], is_history=is_history, tool_calls=calls)
    if role != "tool":
        return ConversationMessage(role, data["text"], number, ok=data["ok"], is_history=is_history)
    approval = data["approval"]
    return ConversationMessage(
        role,
        format_value(data["content"]),
        number,
        data["name"],
        ok=data["ok"],
        is_history=is_history,
        child_run_id=data["child_run_id"] or "",
        content=data["content"],
        decision=None if approval is None else ApprovalDecision(**approval),
    )
