"""Records of model calls, decoded without the model library: answers, and calls that were not made."""

from __future__ import annotations

from typing import Any, cast

from holdfast.codec import decode_error
from holdfast.core.records import Record, RecordKind
from holdfast.errors import BudgetExceeded, CodecError, ContextFull
from holdfast.reports.formatting import format_count, to_one_line
from holdfast.reports.recorded_reply import (
    AGENT_STEPS,
    ANSWER_ARGUMENT,
    ANSWER_TOOL,
    FailedModel,
    ModelCallReport,
    RecordedCompaction,
)


def is_agent_model_call(record: Record) -> bool:
    """Whether it is a model call of an agent, or a turn of one that makes its model calls itself.

    The model call of an ``@llm_step`` has the step's name.
    """
    return record.kind is RecordKind.STEP and record.name in AGENT_STEPS


def is_final_reply(reply: ModelCallReport) -> bool:
    """Whether this is the agent's final answer."""
    if reply.feedback is not None or reply.compaction is not None:
        return False
    return not reply.tool_calls or any(call.name == ANSWER_TOOL for call in reply.tool_calls)


def extract_answer(reply: ModelCallReport) -> Any:
    """The value of a final answer: its text, or the arguments of the answer tool."""
    answer_call = next((call for call in reply.tool_calls if call.name == ANSWER_TOOL), None)
    if answer_call is None:
        return reply.text
    arguments = cast("dict[str, Any]", answer_call.arguments)
    return arguments[ANSWER_ARGUMENT] if list(arguments) == [ANSWER_ARGUMENT] else arguments


def describe_failed_model(model: FailedModel) -> str:
    """Which model did not answer, and why."""
    attempts = f" in {format_count(model.attempts, 'attempt')}" if model.attempts > 1 else ""
    return to_one_line(f"{model.model} gave no answer{attempts}: {model.error}")


def describe_compaction(compaction: RecordedCompaction) -> str:
    """What a compaction did to the conversation."""
    parts: list[str] = []
    if compaction.summarized_count:
        count = format_count(compaction.summarized_count, "message")
        parts.append(f"{count} summarised, the newest {compaction.kept_count:,} kept")
    if compaction.max_result_length is not None:
        parts.append(f"results of tools were cut to {compaction.max_result_length:,} characters")
    return "; ".join(parts) or "nothing was left to compact"


# Calls that were not made


def decode_budget_exceeded(record: Record) -> BudgetExceeded | None:
    """Why a model call was not made, if a budget did not allow it."""
    error = _decode_step_error(record)
    return error if isinstance(error, BudgetExceeded) else None


def decode_context_full(record: Record) -> ContextFull | None:
    """Why a model call was not made, or not answered, if the conversation had to be compacted first."""
    error = _decode_step_error(record) if is_agent_model_call(record) else None
    return error if isinstance(error, ContextFull) else None


def _decode_step_error(record: Record) -> Exception | None:
    if record.ok or record.kind is not RecordKind.STEP or record.payload is None:
        return None
    try:
        return decode_error(record.payload, ())
    except CodecError:
        return None


def format_refusal_reason(refusal: BudgetExceeded) -> str:
    """Which budget refused the call, without the advice, which may be out of date."""
    return parse_refusal_reason(str(refusal))


def parse_refusal_reason(message: str) -> str:
    """The same, from the message of the exception."""
    fact = message.partition(" The run waits: ")[0].rstrip(".")
    return fact.partition("was not made: ")[2] or fact
