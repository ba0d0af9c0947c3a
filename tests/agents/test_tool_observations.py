"""Recorded failures, in words for a model."""

from __future__ import annotations

import pytest

from holdfast.agents.conversation import get_failure_outcome
from holdfast.codec import encode_error
from holdfast.core.states import RunState
from holdfast.errors import (
    InvalidToolArguments,
    RunConflict,
    StepFailed,
    StepOutcomeUnknown,
    StepTimedOut,
    UnknownTool,
    UnrecordableValue,
    ValueTooLarge,
)
from holdfast.reports.observations import describe_child_failure, describe_tool_failure
from holdfast.stores.run_errors import encode_child_failure


class Sad(Exception):
    """Has no message."""


@pytest.mark.parametrize(
    ("error", "outcome", "words"),
    [
        (InvalidToolArguments("query is missing"), "retried", "query is missing"),
        (UnknownTool("There is no tool 'x'."), "retried", "There is no tool 'x'."),
        (ValueError("no such page"), "failed", "The tool 'search' failed: ValueError: no such page"),
        (Sad(), "failed", "The tool 'search' failed: Sad"),
        (StepFailed("Odd: it broke", "search"), "failed", "The tool 'search' failed: Odd: it broke"),
        (KeyError("a"), "failed", "The tool 'search' failed: KeyError: 'a'"),
        (TimeoutError("slow server"), "failed", "The tool 'search' failed: TimeoutError: slow server"),
        (
            StepTimedOut("another wording", "search"),
            "failed",
            "The tool 'search' took too long, and was given up. It may have done a part of its work.",
        ),
        (
            StepOutcomeUnknown("run 'x' was in flight", "search"),
            "failed",
            "The process stopped while the tool 'search' ran; it may or may not have happened. "
            "Check first, before you call it again.",
        ),
        (
            UnrecordableValue("The output is an open file."),
            "failed",
            "The tool 'search' ran, but its result could not be recorded: The output is an open file.\n"
            "Do not call it again in the same way.",
        ),
        (
            ValueTooLarge("It has 99 MiB."),
            "failed",
            "The tool 'search' ran, but its result could not be recorded: It has 99 MiB.\n"
            "Do not call it again in the same way.",
        ),
    ],
)
def test_a_failure_of_a_tool_is_described(error: Exception, outcome: str, words: str):
    payload = encode_error(error)
    assert get_failure_outcome(payload) == outcome
    assert describe_tool_failure(payload, "search") == words


def test_a_failure_is_described_briefly_without_its_traceback():
    try:
        raise ValueError("y" * 100_000)
    except ValueError as error:
        words = describe_tool_failure(encode_error(error), "search")
    assert "Traceback" not in words
    assert len(words) < 2100
    assert words.endswith("y…")


@pytest.mark.parametrize(
    ("state", "error", "words"),
    [
        (RunState.FAILED, ValueError("no"), "The sub-agent 'writer' failed: ValueError: no"),
        (RunState.FAILED, None, "The sub-agent 'writer' failed."),
        (RunState.CANCELLED, None, "The sub-agent 'writer' was cancelled."),
        (
            RunState.DEAD,
            StepFailed("its worker died 3 times"),
            "The sub-agent 'writer' is dead: its process died too often: its worker died 3 times",
        ),
    ],
)
def test_a_failure_of_a_sub_agent_is_described(state: RunState, error: Exception | None, words: str):
    payload = encode_child_failure("run-1", state, None if error is None else encode_error(error))
    assert describe_child_failure(payload, "writer") == words


def test_a_cancelled_run_without_an_error_has_a_short_description():
    payload = encode_child_failure("run-1", RunState.CANCELLED, b"null")
    assert describe_child_failure(payload, "writer") == "The sub-agent 'writer' was cancelled."


@pytest.mark.parametrize("argument", ["x", (1, 2)], ids=["plain", "tagged"])
def test_a_sub_agent_that_could_not_be_started_is_described(argument: object):
    error = RunConflict("the id is taken", "run-1")
    error.args = ("the id is taken", argument)
    words = describe_child_failure(encode_error(error), "writer")
    assert words.startswith("The sub-agent 'writer' failed: RunConflict: ")
    assert "the id is taken" in words
