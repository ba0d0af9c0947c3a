"""What a model is told of a call that failed.

A tool that raises, a sub-agent that fails, arguments that do not fit: none of these ends an agent's run. They are
recorded like any failure of a step, and the model is told of them as the result of its call. The words are made from
the record alone, whenever the conversation is, so that nobody needs the tool's code to tell it.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

from holdfast.codec import describe_error
from holdfast.codec.formatting import cut
from holdfast.core.states import RunState
from holdfast.services.approvals import Answer

LONGEST = 2000
"""The most characters of an exception's message that a model is shown."""

TO_BE_CORRECTED = frozenset(
    {
        "holdfast.errors.ModelRetry",
        "holdfast.errors.ArgumentsRefused",
        "holdfast.errors.UnknownTool",
        "holdfast.errors.PathRefused",
        "pydantic_ai.exceptions.ModelRetry",
    }
)
"""Their messages are written for the model, which is to call again, otherwise."""

_TIME_OUT = re.compile(r"time-out of (\S+) s")


def observation_of_failure(payload: bytes, tool: str) -> str:
    """A recorded failure of a tool's step in words for the model."""
    error = describe_error(payload)
    message = cut(error.message, LONGEST)
    if error.type in TO_BE_CORRECTED:
        return message
    match error.type:
        case "holdfast.errors.StepTimedOut":
            limit = _TIME_OUT.search(error.message)
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
            return f"The tool {tool!r} failed: {_told(error.type, message)}"


def observation_of_denial(tool: str, answer: Answer | None, within: float) -> str:
    """A call that was not made, in words for the model: a person said no, or nobody answered in so many seconds."""
    if answer is None:
        return (
            f"The tool {tool!r} was not called: it needs the approval of a person, and nobody answered within "
            f"{_duration(within)}. Go on without it, or say that it could not be done."
        )
    why = f" The reason: {cut(answer.reason, LONGEST)}" if answer.reason else ""
    return (
        f"The tool {tool!r} was not called: {answer.by or 'a person'} denied the call.{why}\n"
        f"Do not call it again in the same way."
    )


def failure_of_child(payload: bytes, agent: str) -> str:
    """A recorded failure of a sub-agent's run in words for the model."""
    failure = cast("dict[str, Any]", json.loads(payload)) if payload[:1] == b"{" else {}
    if "child" not in failure:
        # It was not even started.
        error = describe_error(payload)
        return f"The sub-agent {agent!r} failed: {_told(error.type, cut(error.message, LONGEST))}"
    state, reason = str(failure["state"]), _reason(failure["error"])
    match state:
        case RunState.CANCELLED:
            return f"The sub-agent {agent!r} was cancelled{reason}"
        case RunState.DEAD:
            return f"The sub-agent {agent!r} is dead: its process died too often{reason}"
        case _:
            return f"The sub-agent {agent!r} failed{reason}"


def _reason(error: str | None) -> str:
    if error is None or error == "null":
        return "."
    info = describe_error(error.encode())
    return f": {_told(info.type, cut(info.message, LONGEST))}"


def _duration(seconds: float) -> str:
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds and not seconds % size:
            return f"{seconds / size:g} {unit}{'' if seconds == size else 's'}"
    return f"{seconds:g} seconds"


def _told(kind: str, message: str) -> str:
    """``ValueError: no``. An exception that could not be rebuilt says itself which it was."""
    name = kind.rpartition(".")[2]
    if kind == "holdfast.errors.StepFailed":
        return message
    return f"{name}: {message}" if message else name
