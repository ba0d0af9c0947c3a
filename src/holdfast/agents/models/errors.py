"""The two retry layers: which failures are repeated, and which become feedback for the model.

**Transient failures** are failures of the infrastructure: no connection, a timeout, 408, 409, 429, 5xx, an invalid
answer (HTML with status 200, truncated or malformed JSON, a stream that ends before the answer does). The same call is
made again, by default for a day (``DEFAULT_RETRY_POLICY``), never sooner than the backoff, nor than the provider asks.
A long wait does not keep the run in memory. With fallbacks, ``chain`` decides which model is called when.

**Rejections** are never repeated: 400, 401, 403, 404, 405, 413, 422, 501, an exhausted quota, a conversation that is
too long, a content filter, an unknown model, a missing key. The next model of the chain is called at once; without one,
the step fails with the provider's message.

**Semantic errors** are not failures of the call: an answer or arguments that do not fit, a tool that does not exist or
that raises, a sub-agent that fails. They are recorded, and are feedback for the model; see ``conversation``. The
agent's ``Output.retries`` and ``max_turns`` bound them.

The engine makes a tool's own retries (``@tool(retries=3)``) before the model sees an error.

A provider's message may quote the key that was sent: ``redact_secrets`` removes everything that looks like one before
the message is recorded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from holdfast.admission.retry_policy import RetryPolicy
from holdfast.codec.redaction import redact_secrets
from holdfast.errors import ModelError, ModelRequestRejected, ModelUnavailable, UsageError
from holdfast.reports.recorded_reply import FailedModel

DEFAULT_RETRY_POLICY = RetryPolicy()
"""How model calls are repeated after a transient failure, unless an agent has its own policy."""

MAX_MESSAGE_CHARS = 1000
"""Characters of a provider's message that are recorded."""

_TRANSIENT_STATUSES = frozenset({408, 409, 425, 429})
_MISSING_ENDPOINT_STATUSES = frozenset({404, 405, 501})
"""The answers of an endpoint that does not have the requested API."""

_TRANSPORT_PACKAGES = frozenset(
    {"httpx", "httpx2", "httpcore", "httpcore2", "h2", "h11", "aiohttp", "anyio", "ssl", "grpc"}
)
"""Packages whose errors are transport errors."""

_SDK_PACKAGES = frozenset(
    {"openai", "anthropic", "groq", "mistralai", "cohere", "google", "botocore", "huggingface_hub"}
)
"""Packages whose errors are classified by their status."""

_SETUP_ERRORS = frozenset({"InvalidURL", "UnsupportedProtocol"})
"""Transport errors that are mistakes in the configuration."""


class ModelFailure(NamedTuple):
    """The failure of a model call."""

    is_transient: bool
    """The same call may succeed later."""
    message: str
    """The message of the provider, or of the library."""
    status_code: int | None = None
    retry_after_s: float | None = None
    """How long the provider asks to wait."""
    hint: str = ""
    """Advice for a person."""
    is_too_long: bool = False
    """The provider says that the conversation is too long for the model."""
    refusal: str = ""
    """The message of a model that refuses to answer."""

    @property
    def description(self) -> str:
        """The message with the status."""
        return self.message if self.status_code is None else f"status {self.status_code}: {self.message}"


class TransientModelError(Exception):
    """Lets the engine repeat the call. It is never recorded as an outcome."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


def read_retry_after(error: BaseException) -> float | None:
    """The wait before the next attempt, for the engine's retry policy."""
    return error.retry_after_s if isinstance(error, TransientModelError) else None


def compute_next_delay_s(
    policy: RetryPolicy,
    failure: ModelFailure,
    error: Exception,
    attempts: int,
    random_value: float,
    failing_for_s: float,
) -> float | None:
    """Seconds until the same model is called again, after this many attempts and this long; ``None``: never."""
    if not failure.is_transient or not policy.should_retry(attempts, error):
        return None
    waits = [failure.retry_after_s, None if policy.read_retry_after is None else policy.read_retry_after(error)]
    min_wait = max((wait for wait in waits if wait is not None), default=None)
    wait = policy.compute_delay_s(attempts, random_value, min_wait)
    return None if policy.is_past_limit(failing_for_s + wait) else wait


def classify_error(error: Exception) -> ModelFailure:
    """Classify an exception of a model call."""
    from pydantic_ai import exceptions as library

    if isinstance(error, ModelRequestRejected | UsageError):  # no price for a budget, no such model, no key
        refusal = error.refusal if isinstance(error, ModelRequestRejected) else ""
        return ModelFailure(False, redact_secrets(str(error)), refusal=redact_secrets(refusal))
    if isinstance(error, library.ModelAPIError):
        return _classify_provider_error(error)
    if isinstance(error, library.ContentFilterError):
        return ModelFailure(
            False, _clean_message(str(error)), hint="The provider's content filter refuses it: change what is asked."
        )
    if isinstance(error, library.ConcurrencyLimitExceeded):
        return ModelFailure(True, _clean_message(str(error)))
    if isinstance(error, library.IncompleteToolCall | library.UserError | library.UsageLimitExceeded):
        return ModelFailure(False, _clean_message(str(error)))
    if isinstance(error, library.UnexpectedModelBehavior):
        return ModelFailure(True, _clean_message(f"an answer that is none: {error}"))
    if isinstance(error, ExceptionGroup):  # of a `FallbackModel`
        return _classify_group(cast("ExceptionGroup[Exception]", error))
    if isinstance(error, TimeoutError):
        return ModelFailure(True, _clean_message(str(error)) or "timed out")
    return _classify_unknown_error(error)


def make_model_error(
    model: str, failure: ModelFailure, attempts: int, other_failures: Sequence[FailedModel], run_id: str
) -> ModelError:
    """The error of a step when no model has answered; ``failure`` is that of the last model."""
    if failure.is_transient:
        happened = f"{model} gave no answer in {attempts} attempt{'' if attempts == 1 else 's'}"
    else:
        happened = f"The call of {model} was refused"
    words = f"{happened}: {_end_sentence(failure.description)}"
    if other_failures:
        others = "; ".join(f"{other.model}: {other.error.rstrip('.')}" for other in other_failures)
        words += f" The other models did not answer either: {others}."
    advice = failure.hint
    if failure.is_transient and failure.retry_after_s:
        advice = f"The provider asks to wait {failure.retry_after_s:,.0f} s."
    provider, _, name = model.partition(":")
    if provider == "openai" and failure.status_code in _MISSING_ENDPOINT_STATUSES and "OPENAI_BASE_URL" in os.environ:
        advice += (
            f" 'openai:' uses the Responses API. For an endpoint that has only chat completions, write "
            f"'openai-chat:{name}'."
        )
    if run_id:
        advice += f" `holdfast retry {run_id}` makes the call again."
    error = ModelUnavailable if failure.is_transient else ModelRequestRejected
    return error(f"{words} {advice.strip()}".strip(), model, failure.status_code, failure.refusal)


def _classify_provider_error(error: Any) -> ModelFailure:
    """An error of the library that comes from a provider, or from the connection to it."""
    from pydantic_ai import exceptions as library

    status: int | None = getattr(error, "status_code", None)
    words = _extract_message(error)
    for kind, advice in (
        (library.ModelQuotaExceededError, "Raise the quota or the credit of the account."),
        (library.ModelAuthenticationError, "Check the key, and that it may use this model."),
        (
            library.ModelContextWindowExceededError,
            "The conversation is too long for this model: use one with a longer context.",
        ),
        (library.ModelNotFoundError, _format_not_found_hint(error)),
    ):
        if isinstance(error, kind):
            too_long = kind is library.ModelContextWindowExceededError
            return ModelFailure(False, words, status, hint=advice, is_too_long=too_long)
    if status is not None:
        is_transient = _is_transient_status(status) or status < 300
        return ModelFailure(is_transient, words, status, error.retry_after if is_transient else None)
    return ModelFailure(not isinstance(error, library.ModelRequestRejectedError), words, None, error.retry_after)


def _is_transient_status(status: int) -> bool:
    return status in _TRANSIENT_STATUSES or (status >= 500 and status not in _MISSING_ENDPOINT_STATUSES)


def _format_not_found_hint(error: Any) -> str:
    suggested = getattr(error, "suggested_model_id", None)
    return f"Did you mean {suggested!r}?" if suggested else "Check the model's name, and the address of the endpoint."


def _classify_group(group: ExceptionGroup[Exception]) -> ModelFailure:
    """The failure of all models of the library's fallback model: transient if one of them is."""
    failures = [classify_error(error) for error in group.exceptions]
    chosen = next((failure for failure in failures if failure.is_transient), failures[-1])
    return chosen._replace(message=_clean_message("; ".join(failure.description for failure in failures)))


def _classify_unknown_error(error: Exception) -> ModelFailure:
    """An error that no lower layer has translated."""
    from pydantic import ValidationError

    words = _clean_message(f"{type(error).__name__}: {error}".rstrip(": "))
    package = type(error).__module__.partition(".")[0]
    if package in _SDK_PACKAGES:
        status = getattr(error, "status_code", None) or getattr(error, "code", None)
        if isinstance(status, int):
            return ModelFailure(_is_transient_status(status), words, status)
        return ModelFailure(True, words)
    if package in _TRANSPORT_PACKAGES:
        return ModelFailure(type(error).__name__ not in _SETUP_ERRORS, words)
    if isinstance(error, json.JSONDecodeError | ValidationError | UnicodeDecodeError):
        return ModelFailure(True, f"an answer that is none: {words}"[:MAX_MESSAGE_CHARS])
    if isinstance(error, OSError | EOFError):
        return ModelFailure(True, words)
    return ModelFailure(False, words)


def _extract_message(error: Any) -> str:
    """The provider's message, from the body of its answer; else the library's."""
    body = getattr(error, "body", None)
    if isinstance(body, Mapping):
        inner: Any = cast("Mapping[str, Any]", body).get("error", cast(Any, body))
        message: Any = cast("Mapping[str, Any]", inner).get("message") if isinstance(inner, Mapping) else inner
        if isinstance(message, str) and message:
            return _clean_message(message)
    return _clean_message(str(error))


def _clean_message(message: str) -> str:
    message = " ".join(redact_secrets(message).split())
    return message if len(message) <= MAX_MESSAGE_CHARS else f"{message[:MAX_MESSAGE_CHARS]}…"


def _end_sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."
