"""The feedback that a model gets for a tool call that failed.

A tool that raises, a sub-agent that fails, or invalid arguments do not end an agent's run. They are recorded like any
failure of a step, and the model gets them as the result of its call. The text is made from the record alone, each time
the conversation is built, so no reader needs the tool's code.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

from holdfast.codec import read_error_info
from holdfast.codec.formatting import truncate
from holdfast.core.states import RunState
from holdfast.services.approvals import Answer

MAX_MESSAGE_LENGTH = 2000
"""Maximum number of characters of an exception's message that a model gets."""

CORRECTABLE_ERRORS = frozenset(
    {
        "holdfast.errors.ModelRetry",
        "holdfast.errors.InvalidToolArguments",
        "holdfast.errors.UnknownTool",
        "holdfast.errors.PathRefused",
        "pydantic_ai.exceptions.ModelRetry",
    }
)
"""Errors with messages for the model, which should call again in another way."""

_REPLACING_ERRORS = ("holdfast.errors.StepFailed", "holdfast.integrations.tool_call.ToolFailed")

_TIMEOUT_PATTERN = re.compile(r"time-out of (\S+) s")


def describe_tool_failure(payload: bytes, tool: str) -> str:
    """A recorded failure of a tool's step, as text for the model."""
    error = read_error_info(payload)
    message = truncate(error.message, MAX_MESSAGE_LENGTH)
    if error.type in CORRECTABLE_ERRORS:
        return message
    match error.type:
        case "holdfast.errors.StepTimedOut":
            limit = _TIMEOUT_PATTERN.search(error.message)
            longer = f"longer than its time-out of {limit[1]} seconds" if limit else "too long"
            return f"The tool {tool!r} took {longer}, and was given up. It may have done a part of its work."
        case "holdfast.errors.StepOutcomeUnknown":
            return (
                f"The process stopped while the tool {tool!r} ran; it may or may not have happened. Check first, "
                f"before you call it again."
            )
        case "holdfast.errors.UnrecordableValue" | "holdfast.errors.ValueTooLarge":
            return (
                f"The tool {tool!r} ran, but its result could not be recorded: {message}\n"
                f"Do not call it again in the same way."
            )
        case _:
            return f"The tool {tool!r} failed: {_format_error(error.type, message)}"


def describe_denial(tool: str, answer: Answer | None, timeout_s: float) -> str:
    """A call that was not made, as text for the model: a person denied it, or did not answer in time."""
    if answer is None:
        return (
            f"The tool {tool!r} was not called: it needs the approval of a person, and nobody answered within "
            f"{_format_duration(timeout_s)}. Go on without it, or say that it could not be done."
        )
    why = f" The reason: {truncate(answer.reason, MAX_MESSAGE_LENGTH)}" if answer.reason else ""
    return (
        f"The tool {tool!r} was not called: {answer.answered_by or 'a person'} denied the call.{why}\n"
        f"Do not call it again in the same way."
    )


def describe_child_failure(payload: bytes, agent: str) -> str:
    """A recorded failure of a sub-agent's run, as text for the model."""
    failure = cast("dict[str, Any]", json.loads(payload)) if payload[:1] == b"{" else {}
    if "child" not in failure:  # it was not started
        error = read_error_info(payload)
        return (
            f"The sub-agent {agent!r} failed: {_format_error(error.type, truncate(error.message, MAX_MESSAGE_LENGTH))}"
        )
    state, reason = str(failure["state"]), _format_reason(failure["error"])
    match state:
        case RunState.CANCELLED:
            return f"The sub-agent {agent!r} was cancelled{reason}"
        case RunState.DEAD:
            return f"The sub-agent {agent!r} is dead: its process died too often{reason}"
        case _:
            return f"The sub-agent {agent!r} failed{reason}"


def _format_reason(error: str | None) -> str:
    if error is None or error == "null":
        return "."
    info = read_error_info(error.encode())
    return f": {_format_error(info.type, truncate(info.message, MAX_MESSAGE_LENGTH))}"


def _format_duration(seconds: float) -> str:
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds and not seconds % size:
            return f"{seconds / size:g} {unit}{'' if seconds == size else 's'}"
    return f"{seconds:g} seconds"


def _format_error(kind: str, message: str) -> str:
    """``ValueError: no``. The message of an error that stands for another one contains the name of that one."""
    name = kind.rpartition(".")[2]
    if kind in _REPLACING_ERRORS:
        return message
    return f"{name}: {message}" if message else name
