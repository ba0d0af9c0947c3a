"""What is recorded of model calls, read without the model library: answers, and calls that a budget did not allow."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, cast

from pydantic_core import from_json

from holdfast.agents.models.calls import STEP as MODEL_CALL
from holdfast.agents.models.reply import FailedModel, PlainCall, PlainReply, plain_reply
from holdfast.agents.output import ANSWER
from holdfast.cli.spending import usage_as_json
from holdfast.cli.wording import counted, one_line
from holdfast.codec import decode_error
from holdfast.core.records import Kind, Record
from holdfast.errors import BudgetExceeded, CodecError

_WRAPPED = "response"
"""The one argument of an answer that is no object: see ``agents.output``."""


def reply_of(record: Record) -> PlainReply | None:
    """The recorded answer of a model, if that is what the record is, and if this version can read it."""
    if not record.ok or record.kind is not Kind.STEP or record.payload is None:
        return None
    try:
        return plain_reply(record.payload)
    except CodecError:
        return None


def is_turn(record: Record) -> bool:
    """Whether it is a model call of an agent; that of an ``@llm_step`` has the step's name."""
    return record.kind is Kind.STEP and record.name == MODEL_CALL


def is_final(reply: PlainReply) -> bool:
    """Whether this answer is the agent's."""
    return reply.complaint is None and (not reply.calls or any(call.name == ANSWER for call in reply.calls))


def answer_in(reply: PlainReply) -> Any:
    """The value of a final answer: a text, or what the tool was called with that stands for the answer."""
    given = next((call for call in reply.calls if call.name == ANSWER), None)
    if given is None:
        return reply.text
    arguments = cast("dict[str, Any]", arguments_of(given))
    return arguments[_WRAPPED] if list(arguments) == [_WRAPPED] else arguments


def arguments_of(call: PlainCall) -> Any:
    """What a tool was called with; text that is no JSON as it is."""
    if not isinstance(call.args, str):
        return call.args or {}
    try:
        return from_json(call.args) if call.args else {}
    except ValueError:
        return call.args


def failed_in_words(model: FailedModel) -> str:
    """Who gave no answer, and why."""
    tried = f" in {counted(model.attempts, 'attempt')}" if model.attempts > 1 else ""
    return one_line(f"{model.model} gave no answer{tried}: {model.error}")


def reply_as_json(reply: PlainReply) -> dict[str, Any]:
    """Who answered, what it said, and what it took, under stable names."""
    return {
        "model": reply.model,
        "text": reply.text,
        "thinking": reply.thinking,
        "calls": [{"id": call.id, "name": call.name, "arguments": arguments_of(call)} for call in reply.calls],
        "complaint": reply.complaint,
        "failed": [asdict(model) for model in reply.failed],
        "usage": usage_as_json(reply.usage),
    }


# Calls that were not made


def refusal_of(record: Record) -> BudgetExceeded | None:
    """Why a model call was not made, if a budget did not allow it."""
    if record.ok or record.kind is not Kind.STEP or record.payload is None:
        return None
    try:
        error = decode_error(record.payload, ())
    except CodecError:
        return None
    return error if isinstance(error, BudgetExceeded) else None


def reason_of(refusal: BudgetExceeded) -> str:
    """Which budget it was, without what to do about it: that is another thing once somebody has done it."""
    told = str(refusal).partition(" The run waits: ")[0].rstrip(".")
    return told.partition("was not made: ")[2] or told
