"""The conversation of a program's run: what it sent to models, their answers, and the results of tools.

A program makes model calls through a framework or a client. The ``CALL`` record of each has the messages that it added
to an earlier request (see ``integrations.request_log``); that of a tool call may have the id that the model gave to it.
Calls of several agents that run at the same time are listed in the order in which they were made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from holdfast.core.program_calls import CallIdentity
from holdfast.core.records import Record, RecordKind
from holdfast.reports.conversations import (
    ConversationMessage,
    format_prompt,
    format_value,
    make_failure_note,
    make_reply_message,
    make_tool_message,
)
from holdfast.reports.model_replies import is_agent_model_call
from holdfast.reports.recorded_reply import ToolCallReport, reply_from_record
from holdfast.reports.tool_calls import ToolCallStatus

_USER_ROLES = ("user", "human")
_MODEL_ROLES = ("assistant", "model", "ai")
_TOOL_ROLES = ("tool", "function")


def build_program_conversation(records: Sequence[Record]) -> list[ConversationMessage]:
    """The conversation of a program's run; empty if it has called no model."""
    outcomes = {record.position: record for record in records if record.kind is RecordKind.STEP}
    calls = sorted((one for one in records if one.kind is RecordKind.CALL), key=lambda call: call.position)
    details = {call.position: _read_details(call) for call in calls}
    if not any(is_agent_model_call(outcome) for outcome in outcomes.values()) and not any(
        "added" in one for one in details.values()
    ):
        return []
    recorded_tool_calls = {one["tool_call"] for one in details.values() if "tool_call" in one}
    messages: list[ConversationMessage] = []
    for call in calls:
        number, found, outcome = call.position + 1, details[call.position], outcomes.get(call.position)
        if "added" in found:
            messages += _read_request(found, recorded_tool_calls)
            if outcome is not None:
                reply = reply_from_record(outcome)
                messages.append(make_failure_note(outcome) if reply is None else make_reply_message(number, reply))
        elif "tool_call" in found:
            status = None if outcome is None else ToolCallStatus(outcome)
            messages.append(make_tool_message(ToolCallReport(found["tool_call"], call.name, {}), status, call.position))
    return messages


def _read_details(call: Record) -> Mapping[str, Any]:
    with suppress(ValueError):
        details = json.loads(CallIdentity.decode(call.payload or b"").details or "{}")
        if isinstance(details, dict):
            return cast("dict[str, Any]", details)
    return {}


def _read_request(details: Mapping[str, Any], recorded_tool_calls: set[str]) -> Iterator[ConversationMessage]:
    """The messages that a request has added, without the model's own and the results of recorded tools."""
    is_first = "base" not in details
    for message in cast("list[dict[str, Any]]", details["added"]):
        role, text = str(message.get("role", "user")), _get_text(message)
        if role in _MODEL_ROLES:
            if is_first:  # else it is the recorded answer to the request before
                yield ConversationMessage("model", text, is_history=True)
        elif role in _TOOL_ROLES:
            if str(message.get("tool_call_id", message.get("id", ""))) not in recorded_tool_calls:
                yield ConversationMessage("tool", text, name=str(message.get("name") or "tool"), content=text)
        else:
            yield ConversationMessage("user" if role in _USER_ROLES else "system", text)


def _get_text(message: Mapping[str, Any]) -> str:
    content: Any = message.get("content")
    if content is None:
        content = {name: value for name, value in message.items() if name != "role"}
    if isinstance(content, list):
        return "\n".join(map(_format_part, cast("list[Any]", content))) or format_value(content)
    return content if isinstance(content, str) else format_prompt(content) or format_value(content)


def _format_part(part: Any) -> str:
    """A part of a message. Those of providers have a ``type``; others have the form of ``agents.models.messages``."""
    if not (isinstance(part, Mapping) and "type" in part):
        return format_prompt([part])
    fields = cast("Mapping[str, Any]", part)
    text = fields.get("text")
    return text if isinstance(text, str) else f"<{str(fields['type']).replace('_', ' ')}>"
