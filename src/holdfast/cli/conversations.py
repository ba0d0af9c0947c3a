"""``holdfast show --conversation``: what was said in an agent's run, from what is recorded, without the agent's code.

Every answer of a model is one record, and every call that it asks for is one more, at the positions behind it and in
the order of the calls. What the model is told of a call is made from that record (see ``agents.conversation``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from holdfast.agents.conversation import INSTRUCTIONS
from holdfast.agents.models.reply import PlainCall, PlainReply
from holdfast.agents.observations import failure_of_child, observation_of_failure
from holdfast.agents.output import ANSWER
from holdfast.cli.recorded import failure_of, value_of
from holdfast.cli.replies import (
    answer_in,
    arguments_of,
    is_final,
    is_turn,
    reason_of,
    refusal_of,
    reply_as_json,
    reply_of,
)
from holdfast.codec import to_plain
from holdfast.core.records import Kind, Record
from holdfast.errors import CodecError


@dataclass(frozen=True, slots=True)
class Said:
    """One piece of a conversation."""

    role: str
    """``system``, ``user``, ``model``, ``tool`` (what came of a call), ``correction`` (what is wrong with an answer)
    or ``note`` (what only people are told)."""
    text: str
    number: int | None = None
    """Of the record, as the journal numbers it."""
    name: str = ""
    """Of the tool, or of the model."""
    ok: bool = True
    before: bool = False
    """It was said before this run, and handed to it."""
    reply: PlainReply | None = None
    calls: Sequence[tuple[str, Any]] = ()
    """What a model asks for: tools and their arguments."""
    run: str = ""
    """The id of the run that carried out a call."""
    content: Any = field(default=None, compare=False)
    """What a tool returned, as data."""


def conversation(inputs: bytes, records: Sequence[Record]) -> list[Said]:
    """What was said in a run, from its inputs and its journal."""
    by_position = {record.position: record for record in records if record.kind.has_position}
    given = _read(inputs)
    said = [*_history(given.get("message_history"))]
    position = 0
    while (record := by_position.get(position)) is not None and not is_turn(record):
        position += 1
        if record.kind is Kind.STEP and record.name == INSTRUCTIONS and record.ok:
            said.append(Said("system", _text(value_of(record.payload)), record.position + 1))
    said.append(Said("user", _prompt(given.get("prompt"))))
    while (record := by_position.get(position)) is not None:
        position += 1
        if not is_turn(record):
            continue  # the wait for a higher budget
        reply = reply_of(record)
        if reply is None:
            said.append(_no_answer(record))
            continue
        said.append(_answer(record, reply))
        if reply.complaint is not None:
            said.append(Said("correction", reply.complaint))
        elif not is_final(reply):
            for call in reply.calls:
                said.append(_outcome(call, position, by_position.get(position)))
                position += 1
    return said


def _read(inputs: bytes) -> Mapping[str, Any]:
    try:
        given = to_plain(inputs)
    except CodecError:
        return {}
    return cast("Mapping[str, Any]", given) if isinstance(given, dict) else {}


def _answer(record: Record, reply: PlainReply) -> Said:
    calls = [(call.name, arguments_of(call)) for call in reply.calls if call.name != ANSWER]
    text = reply.text
    if reply.complaint is not None or any(call.name == ANSWER for call in reply.calls):
        calls = [] if is_final(reply) else [(call.name, arguments_of(call)) for call in reply.calls]
    if is_final(reply):
        answer = answer_in(reply)
        text = "\n".join(part for part in (reply.text if answer != reply.text else "", _text(answer)) if part)
    return Said("model", text, record.position + 1, reply.model, reply=reply, calls=calls)


def _no_answer(record: Record) -> Said:
    if (refusal := refusal_of(record)) is not None:
        return Said("note", f"the model was not asked: {reason_of(refusal)}", record.position + 1, ok=False)
    error = failure_of(record)
    why = "its answer cannot be read by this version" if error is None else error.in_short
    return Said("note", f"no model has answered: {why}", record.position + 1, ok=False)


def _outcome(call: PlainCall, position: int, record: Record | None) -> Said:
    """What came of a call."""
    if record is None:
        return Said("note", f"{call.name}: no outcome yet", position + 1)
    run = record.preview if record.kind is Kind.CHILD else ""
    payload = record.payload or b"null"
    if record.ok:
        content = value_of(payload)
        return Said("tool", _text(content), position + 1, call.name, run=run, content=content)
    try:
        told = failure_of_child if record.kind is Kind.CHILD else observation_of_failure
        text = told(payload, call.name)
    except (CodecError, ValueError) as error:
        text = str(error)
    return Said("tool", text, position + 1, call.name, ok=False, run=run, content=text)


def _text(value: Any) -> str:
    """Data as text: short JSON on one line, else one item to a line."""
    if isinstance(value, str):
        return value
    short = json.dumps(value, ensure_ascii=False)
    return short if len(short) <= 100 else json.dumps(value, ensure_ascii=False, indent=2)


# What came before the run


def _history(messages: Any) -> Iterator[Said]:
    """The messages that were handed to the run, in the form of ``agents.models.messages``."""
    for message in cast("list[Mapping[str, Any]]", messages if isinstance(messages, list) else []):
        parts: list[Mapping[str, Any]] = message.get("parts") or []
        if message.get("role") == "model":
            texts = [str(part["text"]) for part in parts if "text" in part]
            calls = [_call(part) for part in parts if "call" in part]
            name = str(message.get("model_name") or "model")
            yield Said("model", "\n\n".join(texts), name=name, calls=calls, before=True)
            continue
        for part in parts:
            if "prompt" in part:
                yield Said("user", _prompt(part["prompt"]), before=True)
            elif "system" in part:
                yield Said("system", str(part["system"]), before=True)
            elif "result" in part:
                content: Any = part.get("content")
                ok = part.get("outcome", "success") == "success"
                yield Said("tool", _text(content), name=str(part["result"]), ok=ok, before=True, content=content)


def _call(part: Mapping[str, Any]) -> tuple[str, Any]:
    call = PlainCall(str(part["call"]), part.get("args"), "")
    return call.name, arguments_of(call)


def _prompt(prompt: Any) -> str:
    """The texts of a prompt; of what is no text, what it is."""
    if not isinstance(prompt, list):
        return _text(prompt)
    parts: list[str] = []
    for one in cast("list[Any]", prompt):
        if isinstance(one, Mapping) and one:
            what = cast("Mapping[str, Any]", one)
            kind, value = next(iter(what.items()))
            if kind == "text":
                parts.append(str(value))
            elif kind.endswith("_url"):
                parts.append(f"<{kind.removesuffix('_url')} {value}>")
            elif kind != "cache_point":
                parts.append(f"<{what.get('media_type') or kind.replace('_', ' ')}>")
        else:
            parts.append(_text(one))
    return "\n".join(parts)


# For programs


def said_as_json(one: Said) -> dict[str, Any]:
    """A piece of a conversation, under stable names."""
    told: dict[str, Any] = {"role": one.role, "number": one.number, "before_this_run": one.before}
    if one.reply is not None:
        return {**told, "final": is_final(one.reply), **reply_as_json(one.reply)}
    if one.role == "model":
        calls = [{"name": name, "arguments": arguments} for name, arguments in one.calls]
        return {**told, "model": one.name, "text": one.text, "calls": calls}
    if one.role == "tool":
        return {**told, "name": one.name, "ok": one.ok, "run": one.run or None, "content": one.content}
    return {**told, "text": one.text}
