"""What was said in an agent's run, from what is recorded, without the agent's code.

Every answer of a model is one record, and the records of the calls that it asks for stand behind it: see
``reports.tool_calls``. What the model is told of a call is made from these (see ``agents.conversation``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any, cast

from holdfast.codec import to_plain
from holdfast.core.records import Attempt, Kind, Record
from holdfast.errors import CodecError
from holdfast.reports.formatting import command, counted, jsonable
from holdfast.reports.model_replies import (
    answer_in,
    compacted_in_words,
    fullness_of,
    is_final,
    is_turn,
    reason_of,
    refusal_of,
)
from holdfast.reports.observations import failure_of_child, observation_of_denial, observation_of_failure
from holdfast.reports.recorded_reply import ANSWER, INSTRUCTIONS, MODEL_CALL, Compacted, PlainCall, PlainReply, reply_of
from holdfast.reports.recorded_values import failure_of, value_of
from holdfast.reports.serialization import as_json
from holdfast.reports.tool_calls import Called, matched
from holdfast.reports.types import ModelCall
from holdfast.services.lookup import find_run
from holdfast.services.timestamps import moment
from holdfast.stores.contract import History, Store
from holdfast.stores.operations import Run
from holdfast.stores.served_versions import served_name


@dataclass(frozen=True, slots=True)
class Decided:
    """What has come of the question whether a call may be made."""

    approved: bool
    by: str | None
    """``None``: nobody answered in time."""
    reason: str = ""
    changed_arguments: dict[str, Any] | None = None
    """The arguments that a person has put in the place of the model's."""

    @classmethod
    def of(cls, called: Called) -> Decided | None:
        """From its record."""
        if called.decision is None:
            return None
        answer = called.decision.answer
        by, reason = (None, "") if answer is None else (answer.by, answer.reason)
        return cls(called.decision.approved, by, reason, called.changed)

    @property
    def in_words(self) -> str:
        """Who has approved of a call, or denied it."""
        said = "approved" if self.approved else "denied"
        if self.by is None:
            return f"{said}: nobody answered in time"
        by = f"{said} by {self.by or 'a person'}"
        return by if self.changed_arguments is None else f"{by}, who changed the arguments"


@dataclass(frozen=True, slots=True)
class Said:
    """One piece of a conversation."""

    role: str
    """``system``, ``user``, ``model``, ``tool`` (what came of a call), ``correction`` (what is wrong with an answer),
    ``summary`` (which is sent in place of what was said before) or ``note`` (what only people are told)."""
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
    decision: Decided | None = None
    """What has come of the question whether the call may be made."""


async def read_conversation(store: Store, run_id: str) -> list[Said]:
    """What was said in a run so far; nothing in one that is no agent's. Raises ``RunNotFound``."""
    run = await find_run(store, run_id)
    [history] = await store.histories([run.key])
    spec = (await store.specs()).get(served_name(run.workflow, run.version))
    if not (spec is not None and spec.is_agent) and not any(is_turn(record) for record in history.records):
        return []
    return [*conversation(run.inputs, history.records), *_in_flight(run, history)]


def _in_flight(run: Run, history: History) -> list[Said]:
    """The model call that has no outcome yet, if one was begun."""
    begun = [] if run.state.is_terminal else [one for one in history.attempts.values() if one.name == MODEL_CALL]
    return [
        Said("note", f"the model {_is_asked(one)}: {counted(one.attempt, 'attempt')} so far", one.position + 1)
        for one in begun
    ]


def _is_asked(begun: Attempt) -> str:
    if begun.retry_at is None:
        return "is being asked"
    return f"is asked again at {moment(begun.retry_at):%Y-%m-%d %H:%M:%S} UTC"


def conversation(inputs: bytes, records: Sequence[Record]) -> list[Said]:
    """What was said in a run, from its inputs and its journal."""
    ordered = sorted((one for one in records if one.kind.has_position), key=lambda one: one.position)
    given = _read(inputs)
    said = [*_history(given.get("message_history"))]
    for record in takewhile(lambda one: not is_turn(one), ordered):
        if record.kind is Kind.STEP and record.name == INSTRUCTIONS and record.ok:
            said.append(Said("system", _text(jsonable(value_of(record.payload))), record.position + 1))
    said.append(Said("user", _prompt(given.get("prompt"))))
    for index, record in enumerate(ordered):
        reply = reply_of(record)
        if reply is not None and reply.compaction is not None:
            said.append(_summary(record, reply, reply.compaction))
            continue
        if not is_turn(record):
            continue  # what came of calls, and the wait for a higher budget
        if reply is None:
            said.append(_no_answer(record))
            continue
        said.append(_answer(record.position + 1, reply))
        if reply.complaint is not None:
            said.append(Said("correction", reply.complaint))
        elif not is_final(reply):
            behind = list(takewhile(lambda one: not is_turn(one), islice(ordered, index + 1, None)))
            position = record.position + 1
            found = matched(len(reply.calls), position, behind)
            for place, call in enumerate(reply.calls):
                said.append(_outcome(call, found[place], position + place))
    return said


def _read(inputs: bytes) -> Mapping[str, Any]:
    try:
        given = to_plain(inputs)
    except CodecError:
        return {}
    return cast("Mapping[str, Any]", given) if isinstance(given, dict) else {}


def _answer(number: int | None, reply: PlainReply) -> Said:
    calls = [(call.name, call.arguments) for call in reply.calls if call.name != ANSWER]
    text = reply.text
    if reply.complaint is not None or any(call.name == ANSWER for call in reply.calls):
        calls = [] if is_final(reply) else [(call.name, call.arguments) for call in reply.calls]
    if is_final(reply):
        answer = answer_in(reply)
        text = "\n".join(part for part in (reply.text if answer != reply.text else "", _text(answer)) if part)
    return Said("model", text, number, reply.model, reply=reply, calls=calls)


def _summary(record: Record, reply: PlainReply, done: Compacted) -> Said:
    if reply.complaint is not None:
        return Said("note", f"no summary: {reply.complaint}", record.position + 1, ok=False)
    if not done.summarised:
        return Said("note", compacted_in_words(done), record.position + 1)
    return Said("summary", reply.text, record.position + 1, reply.model, reply=reply)


def _no_answer(record: Record) -> Said:
    if (full := fullness_of(record)) is not None:
        return Said("note", str(full), record.position + 1)
    if (refusal := refusal_of(record)) is not None:
        return Said("note", f"the model was not asked: {reason_of(refusal)}", record.position + 1, ok=False)
    error = failure_of(record)
    why = "its answer cannot be read by this version" if error is None else error.in_short
    return Said("note", f"no model has answered: {why}", record.position + 1, ok=False)


def _outcome(call: PlainCall, called: Called | None, position: int) -> Said:
    """What came of a call."""
    if called is None:
        return Said("note", f"{call.name}: no outcome yet", position + 1)
    record, decision, number = called.record, called.decision, called.record.position + 1
    if not called.has_ended:
        return Said("note", f"{call.name}: {_waiting(called)}", number)
    payload = record.payload or b"null"
    content: Any
    try:
        if decision is not None and not decision.approved:
            content = observation_of_denial(call.name, decision.answer, decision.within)
        elif record.ok:
            content = jsonable(value_of(payload))
        else:
            content = (failure_of_child if record.kind is Kind.CHILD else observation_of_failure)(payload, call.name)
    except (CodecError, ValueError) as error:
        content = str(error)
    return Said(
        "tool",
        _text(content),
        number,
        call.name,
        ok=record.ok,
        run=record.preview if record.kind is Kind.CHILD else "",
        content=content,
        decision=Decided.of(called),
    )


def _waiting(called: Called) -> str:
    """What a call waits for that needs an approval, or needed one."""
    if (decided := Decided.of(called)) is not None:
        return f"{decided.in_words}; no outcome yet"
    if called.required is None:
        return "no outcome yet"
    why = f" ({called.required.reason})" if called.required.reason else ""
    return f"waits for a person's approval{why}: `{command('approvals')}`"


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
    return call.name, call.arguments


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
        return {**told, "final": is_final(one.reply), **jsonable(one.reply.as_json())}
    if one.role == "model":
        calls = [{"name": name, "arguments": jsonable(arguments)} for name, arguments in one.calls]
        return {**told, "model": one.name, "text": one.text, "calls": calls}
    if one.role == "tool":
        approval = None if one.decision is None else as_json(one.decision)
        outcome = {"name": one.name, "ok": one.ok, "run": one.run or None, "content": jsonable(one.content)}
        return {**told, **outcome, "approval": approval}
    return {**told, "text": one.text, "ok": one.ok}


def said_from_json(told: Mapping[str, Any], call: Callable[[Any], ModelCall]) -> Said:
    """The same from JSON; ``call`` reads the answer of a model."""
    role, number, before = told["role"], told["number"], told["before_this_run"]
    if "usage" in told:
        reply = call(told).reply
        return _answer(number, reply) if role == "model" else Said(role, reply.text, number, reply.model, reply=reply)
    if role == "model":
        calls = [(one["name"], one["arguments"]) for one in told["calls"]]
        return Said(role, told["text"], number, told["model"], before=before, calls=calls)
    if role != "tool":
        return Said(role, told["text"], number, ok=told["ok"], before=before)
    approval = told["approval"]
    return Said(
        role,
        _text(told["content"]),
        number,
        told["name"],
        ok=told["ok"],
        before=before,
        run=told["run"] or "",
        content=told["content"],
        decision=None if approval is None else Decided(**approval),
    )
