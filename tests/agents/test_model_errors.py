"""Which failures of a model call are repeated, which are not, and their error messages."""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import Any

import anyio
import httpx2
import pytest
from pydantic import TypeAdapter, ValidationError
from pydantic_ai import exceptions as library
from pydantic_ai.exceptions import ModelHTTPError

from holdfast.admission.retry_policy import RetryPolicy
from holdfast.agents.models import errors
from holdfast.agents.models.errors import (
    ModelFailure,
    TransientModelError,
    classify_error,
    compute_next_delay_s,
    make_model_error,
    read_retry_after,
)
from holdfast.errors import ModelRequestRejected, ModelUnavailable, UsageError
from holdfast.reports.recorded_reply import FailedModel


def http(status: int, category: Any = None, **fields: Any) -> ModelHTTPError:
    return ModelHTTPError.for_category(category, status_code=status, model_name="m", **fields)


def validation_error() -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(int).validate_python("x")
    return caught.value


PASSING = [
    http(408),
    http(409),
    http(425),
    http(429),
    http(429, library.ModelRateLimitError),
    http(500, library.ModelServerError),
    http(502),
    http(503, library.ModelUnavailableError),
    http(529, library.ModelOverloadedError),
    http(200),
    library.ModelConnectionError("m", "Connection error.", phase="connect"),
    library.ModelTimeoutError("m", "Request timed out.", phase="read"),
    library.ModelRequestTimeout("m", 30),
    library.ModelAPIError("m", "something"),
    library.ModelOverloadedError("m", "overloaded", in_stream=True),
    library.UnexpectedModelBehavior("Invalid response", "<html>Bad gateway</html>"),
    library.ConcurrencyLimitExceeded("queue is full"),
    TimeoutError("no answer within 3 s"),
    TimeoutError(),
    ConnectionResetError("reset"),
    asyncio.IncompleteReadError(b"", 3),
    ssl.SSLError("handshake"),
    httpx2.ReadError("cut"),
    httpx2.RemoteProtocolError("peer closed connection"),
    httpx2.ConnectTimeout("slow"),
    anyio.BrokenResourceError(),
    anyio.ClosedResourceError(),
    json.JSONDecodeError("Expecting value", "<html>", 0),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    validation_error(),
    library.FallbackExceptionGroup("all failed", [http(401), http(503)]),
]

REFUSED = [
    http(400, library.ModelRequestRejectedError),
    http(401, library.ModelAuthenticationError),
    http(402, library.ModelQuotaExceededError),
    http(403, library.ModelAuthenticationError),
    http(404, library.ModelNotFoundError),
    http(413),
    http(422),
    http(301),
    http(429, library.ModelQuotaExceededError),
    http(400, library.ModelContextWindowExceededError),
    http(500, library.ModelContextWindowExceededError),
    library.ModelRequestRejectedError("m", "no"),
    library.ContentFilterError("filtered"),
    library.IncompleteToolCall("cut"),
    library.UserError("Native structured output is not supported by this model."),
    library.FallbackExceptionGroup("all failed", [http(401), http(404)]),
    httpx2.InvalidURL("no scheme"),
    httpx2.UnsupportedProtocol("ftp"),
    UsageError("no key"),
    ModelRequestRejected("no price"),
    TypeError("a mistake in a custom model"),
    KeyError("choices"),
]


def named(error: Exception) -> str:
    return f"{type(error).__name__}-{getattr(error, 'status_code', '')}"


@pytest.mark.parametrize("error", PASSING, ids=named)
def test_transport_errors_are_transient(error: Exception):
    assert classify_error(error).is_transient


@pytest.mark.parametrize("error", REFUSED, ids=named)
def test_what_would_happen_again_is_a_refusal(error: Exception):
    assert not classify_error(error).is_transient


def test_every_error_of_the_library_is_classified():
    """A new class of error is to be looked at, not to be sorted by chance."""
    tree = {
        one.__name__
        for one in vars(library).values()
        if isinstance(one, type) and issubclass(one, library.AgentRunError) and not one.__name__.startswith("_")
    }
    known = {type(error).__name__ for error in [*PASSING, *REFUSED]}
    not_of_requests = {
        "AgentRunError",
        "OutputTokenLimitExceeded",
        "RunCancelled",
        "RunTimedOut",
        "SuspendedResponseExpired",
        "UndrainedPendingMessagesError",
        "UsageLimitExceeded",
    }
    assert tree - known <= not_of_requests


def test_the_providers_message_is_kept():
    body = {"error": {"message": "You are too fast.", "type": "rate"}}
    assert classify_error(http(429, body=body)) == ModelFailure(True, "You are too fast.", 429)
    assert classify_error(http(400, body={"message": "No tools here."})).description == "status 400: No tools here."
    assert classify_error(http(400, body={"error": "plain"})).message == "plain"
    assert "<html>down</html>" in classify_error(http(502, body="<html>down</html>")).message


def test_an_invalid_answer_is_called_that():
    told = classify_error(library.UnexpectedModelBehavior("Invalid response", "<html>Sign in</html>"))
    assert told.message == "an answer that is none: Invalid response, body: <html>Sign in</html>"


def test_a_long_story_is_cut():
    told = classify_error(library.UnexpectedModelBehavior("x" * 5000))
    assert len(told.message) <= errors.MAX_MESSAGE_CHARS + 1


def test_the_failure_names_all_models_of_a_fallback_group():
    group = library.FallbackExceptionGroup("all", [http(401, body={"message": "no key"}), http(503, body="down")])
    told = classify_error(group)
    assert "status 401: no key; status 503" in told.message
    assert told.status_code == 503


# Waiting


def wait_after(
    fault: ModelFailure, attempts: int, draw: float = 0.0, failing_for: float = 0.0, **policy: Any
) -> float | None:
    return compute_next_delay_s(RetryPolicy(**policy), fault, RuntimeError(fault.message), attempts, draw, failing_for)


def test_the_provider_says_how_long_to_wait():
    told = classify_error(http(429, library.ModelRateLimitError, headers={"retry-after": "17"}))
    assert told.retry_after_s == 17.0
    assert wait_after(told, 1) == 17.0
    assert wait_after(told, 1, 0.9) == 17.45
    assert wait_after(told, 6) == 32.0
    assert classify_error(http(503, headers={"retry-after-ms": "250"})).retry_after_s == 0.25
    assert classify_error(library.ModelOverloadedError("m", "busy", retry_after=3.0)).retry_after_s == 3.0


def test_waits_grow_up_to_a_bound_and_are_not_alike():
    passing = ModelFailure(True, "down", 503)
    assert [wait_after(passing, attempt) for attempt in range(1, 7)] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    assert wait_after(passing, 1, 0.5) == 0.75
    assert wait_after(passing, 50) == 300.0


def test_a_policy_bounds_attempts_and_time():
    passing = ModelFailure(True, "down", 503)
    assert wait_after(passing, 3, retries=2) is None
    assert wait_after(passing, 9, failing_for=86_399.0) is None
    assert wait_after(passing, 1, give_up_on=(RuntimeError,)) is None


def test_a_policy_may_read_the_wait_from_the_error_itself():
    assert wait_after(ModelFailure(True, "down", 503), 1, read_retry_after=lambda _: 40.0) == 40.0
    assert wait_after(ModelFailure(True, "down", 503, retry_after_s=50.0), 1, read_retry_after=lambda _: 40.0) == 50.0


def test_a_refusal_is_never_repeated():
    assert wait_after(ModelFailure(False, "no", 401, retry_after_s=1.0), 1) is None


def test_the_engine_gets_the_wait():
    assert read_retry_after(TransientModelError("down", 3.5)) == 3.5
    assert read_retry_after(ValueError()) is None


# What the step fails with


def test_a_rejection_has_advice():
    told = classify_error(http(401, library.ModelAuthenticationError, body={"error": {"message": "Incorrect API key"}}))
    error = make_model_error("openai:gpt-4o", told, 1, [], "trip-1")
    assert type(error) is ModelRequestRejected
    assert (error.model, error.status) == ("openai:gpt-4o", 401)
    assert str(error) == (
        "The call of openai:gpt-4o was refused: status 401: Incorrect API key. Check the key, and that it may use this "
        "model. `holdfast retry trip-1` makes the call again."
    )


def test_the_error_of_an_exhausted_model_has_the_attempts():
    error = make_model_error("openai:gpt-4o", ModelFailure(True, "down", 503), 6, [], "trip-1")
    assert type(error) is ModelUnavailable
    assert str(error).startswith(
        "openai:gpt-4o gave no answer in 6 attempts: status 503: down. `holdfast retry trip-1`"
    )


def test_the_error_names_a_wait_that_is_too_long():
    error = make_model_error("a:b", ModelFailure(True, "busy.", 429, retry_after_s=7200), 1, [], "")
    assert str(error) == "a:b gave no answer in 1 attempt: status 429: busy. The provider asks to wait 7,200 s."


def test_the_error_names_the_other_models():
    error = make_model_error("c:d", ModelFailure(False, "no"), 1, [FailedModel("a:b", "status 503: down.", 6)], "")
    assert "The other models did not answer either: a:b: status 503: down." in str(error)


@pytest.mark.parametrize("status", [404, 405, 501])
def test_an_endpoint_without_the_responses_api_gets_a_hint(monkeypatch: pytest.MonkeyPatch, status: int):
    refused = classify_error(ModelHTTPError(status, "qwen3", {"message": "Not Found"}))
    assert not refused.is_transient, "the hint comes at once, and not after a day of retries"
    assert "Responses API" not in str(make_model_error("openai:qwen3", refused, 1, [], "r"))
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:8000/v1")
    assert "write 'openai-chat:qwen3'" in str(make_model_error("openai:qwen3", refused, 1, [], "r"))
    assert "Responses API" not in str(make_model_error("openai-chat:qwen3", refused, 1, [], "r"))


def test_a_name_that_is_not_found_comes_with_the_nearest():
    told = classify_error(
        http(404, library.ModelNotFoundError, suggested_model_id="openai:gpt-4o", body={"message": "no"})
    )
    assert told.hint == "Did you mean 'openai:gpt-4o'?"


# Secrets


def test_a_key_of_any_shape_is_known_by_its_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ACME_API_KEY", "correct horse battery")
    assert classify_error(http(401, body={"message": "correct horse battery is no key"})).message == "[key] is no key"
    assert (
        str(make_model_error("m", classify_error(UsageError("correct horse battery")), 1, [], "")).count(
            "correct horse"
        )
        == 0
    )
