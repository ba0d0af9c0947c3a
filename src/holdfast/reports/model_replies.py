"""What is recorded of model calls, read without the model library: answers, and calls that a budget did not allow."""

from __future__ import annotations

from typing import Any, cast

from holdfast.codec import decode_error
from holdfast.core.records import Kind, Record
from holdfast.errors import BudgetExceeded, CodecError, ContextFull
from holdfast.reports.formatting import counted, one_line
from holdfast.reports.recorded_reply import ANSWER, MODEL_CALL, WRAPPED, Compacted, FailedModel, PlainReply


def is_turn(record: Record) -> bool:
    """Whether it is a model call of an agent; that of an ``@llm_step`` has the step's name."""
    return record.kind is Kind.STEP and record.name == MODEL_CALL


def is_final(reply: PlainReply) -> bool:
    """Whether this answer is the agent's."""
    if reply.complaint is not None or reply.compaction is not None:
        return False
    return not reply.calls or any(call.name == ANSWER for call in reply.calls)


def answer_in(reply: PlainReply) -> Any:
    """The value of a final answer: a text, or what the tool was called with that stands for the answer."""
    given = next((call for call in reply.calls if call.name == ANSWER), None)
    if given is None:
        return reply.text
    arguments = cast("dict[str, Any]", given.arguments)
    return arguments[WRAPPED] if list(arguments) == [WRAPPED] else arguments


def failed_in_words(model: FailedModel) -> str:
    """Who gave no answer, and why."""
    tried = f" in {counted(model.attempts, 'attempt')}" if model.attempts > 1 else ""
    return one_line(f"{model.model} gave no answer{tried}: {model.error}")


def compacted_in_words(done: Compacted) -> str:
    """What a compaction has done to the conversation."""
    cut = "" if done.excerpt is None else f"results of tools were cut to {done.excerpt:,} characters"
    if not done.summarised:
        return cut or "nothing was left to compact"
    told = f"{counted(done.summarised, 'message')} summarised, the newest {done.kept:,} kept"
    return f"{told}; {cut}" if cut else told


# Calls that were not made


def refusal_of(record: Record) -> BudgetExceeded | None:
    """Why a model call was not made, if a budget did not allow it."""
    error = _error_of(record)
    return error if isinstance(error, BudgetExceeded) else None


def fullness_of(record: Record) -> ContextFull | None:
    """Why a model call was not made, or not answered, if the conversation had to be compacted first."""
    error = _error_of(record) if is_turn(record) else None
    return error if isinstance(error, ContextFull) else None


def _error_of(record: Record) -> Exception | None:
    if record.ok or record.kind is not Kind.STEP or record.payload is None:
        return None
    try:
        return decode_error(record.payload, ())
    except CodecError:
        return None


def reason_of(refusal: BudgetExceeded) -> str:
    """Which budget it was, without what to do about it: that is another thing once somebody has done it."""
    return reason_in(str(refusal))


def reason_in(message: str) -> str:
    """The same, from its message."""
    told = message.partition(" The run waits: ")[0].rstrip(".")
    return told.partition("was not made: ")[2] or told
