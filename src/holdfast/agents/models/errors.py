"""The two retry layers: what is repeated, and what is told to whom.

**Infrastructure faults** happen to a model call on its way: no connection, a time-out, 408, 409, 429, 5xx, an answer
that is no answer (HTML with status 200, cut or malformed JSON, a stream that ends before the answer does). The same
call is made again, by default for a day (``DEFAULT_RETRY_POLICY``), never sooner than the backoff nor than the provider
asks for. A long wait does not keep the run in memory. With fallbacks, ``chain`` says who is asked when.

**Refusals** are never repeated: 400, 401, 403, 404, 405, 413, 422, 501, an exhausted quota, a conversation that is too
long, a content filter, a name that is no model's, a key that is missing. The next model of the chain is asked at once;
without one, the step fails with the provider's words.

**Semantic faults** are not failures of the call at all: an answer that does not fit, arguments that do not fit, a tool
that is not there or that raises, a sub-agent that fails. They are recorded, and told to the model as an observation;
see ``conversation``. The agent's ``Output.retries`` and ``max_turns`` bound them.

A tool's own retries (``@tool(retries=3)``) are the engine's, and happen before the model hears of it.

What providers say may quote the key that was sent: whatever looks like one is taken out of the words before they are
recorded (``redact_secrets``).
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
"""How model calls are repeated after an infrastructure fault, unless an agent says otherwise."""

MAX_MESSAGE_CHARS = 1000
"""Characters of a provider's words that are kept."""

_TRANSIENT_STATUSES = frozenset({408, 409, 425, 429})
_MISSING_ENDPOINT_STATUSES = frozenset({404, 405, 501})
"""How an endpoint answers that does not have the API that it is asked for."""

_TRANSPORT_PACKAGES = frozenset(
    {"httpx", "httpx2", "httpcore", "httpcore2", "h2", "h11", "aiohttp", "anyio", "ssl", "grpc"}
)
"""Packages whose errors are those of the way."""

_SDK_PACKAGES = frozenset(
    {"openai", "anthropic", "groq", "mistralai", "cohere", "google", "botocore", "huggingface_hub"}
)
"""Packages whose errors are sorted by the status that they carry."""

_SETUP_ERRORS = frozenset({"InvalidURL", "UnsupportedProtocol"})
"""Errors of transports that are mistakes in the set-up."""


class ModelFailure(NamedTuple):
    """What has happened to a model call."""

    is_transient: bool
    """It may pass: the same call may succeed later."""
    message: str
    """The provider's words, or the library's."""
    status_code: int | None = None
    retry_after_s: float | None = None
    """Seconds that the provider asks to wait."""
    hint: str = ""
    """What a person can do about it."""
    is_too_long: bool = False
    """The provider says that the conversation is longer than what the model takes."""
    refusal: str = ""
    """The words in which the model itself refuses to answer."""

    @property
    def description(self) -> str:
        """The words with the status."""
        return self.message if self.status_code is None else f"status {self.status_code}: {self.message}"


class TransientModelError(Exception):
    """Tells the engine to make the call again. It is never recorded as an outcome."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


def read_retry_after(error: BaseException) -> float | None:
    """How long a fault says to wait; for the engine's retry policy."""
    return error.retry_after_s if isinstance(error, TransientModelError) else None


def compute_next_delay_s(
    policy: RetryPolicy,
    failure: ModelFailure,
    error: Exception,
    attempts: int,
    random_value: float,
    failing_for_s: float,
) -> float | None:
    """Seconds after which the same model is asked again, having failed so often and so long; ``None``: it is not."""
    if not failure.is_transient or not policy.should_retry(attempts, error):
        return None
    asked = [failure.retry_after_s, None if policy.read_retry_after is None else policy.read_retry_after(error)]
    wait = policy.compute_delay_s(attempts, random_value, max((one for one in asked if one is not None), default=None))
    return None if policy.is_past_limit(failing_for_s + wait) else wait


def classify_error(error: Exception) -> ModelFailure:
    """What an exception of a model call means."""
    from pydantic_ai import exceptions as library

    if isinstance(error, ModelRequestRejected | UsageError):  # of ours: no price for a budget, no such model, no key
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
    """The error with which a step fails when no model has answered; ``failure`` is that of the one asked last."""
    if failure.is_transient:
        happened = f"{model} gave no answer in {attempts} attempt{'' if attempts == 1 else 's'}"
    else:
        happened = f"The call of {model} was refused"
    words = f"{happened}: {_end_sentence(failure.description)}"
    if other_failures:
        told = "; ".join(f"{one.model}: {one.error.rstrip('.')}" for one in other_failures)
        words += f" The other models did not answer either: {told}."
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
    """An error of the library that came from a provider, or from the way to it."""
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
        passing = _is_transient_status(status) or status < 300
        return ModelFailure(passing, words, status, error.retry_after if passing else None)
    return ModelFailure(not isinstance(error, library.ModelRequestRejectedError), words, None, error.retry_after)


def _is_transient_status(status: int) -> bool:
    return status in _TRANSIENT_STATUSES or (status >= 500 and status not in _MISSING_ENDPOINT_STATUSES)


def _format_not_found_hint(error: Any) -> str:
    suggested = getattr(error, "suggested_model_id", None)
    return f"Did you mean {suggested!r}?" if suggested else "Check the model's name, and the address of the endpoint."


def _classify_group(group: ExceptionGroup[Exception]) -> ModelFailure:
    """All the models of a library's fallback model have failed: worth another try if one of them is."""
    faults = [classify_error(one) for one in group.exceptions]
    chosen = next((fault for fault in faults if fault.is_transient), faults[-1])
    return chosen._replace(
        message=_clean_message("; ".join(fault.description for fault in faults)), status_code=chosen.status_code
    )


def _classify_unknown_error(error: Exception) -> ModelFailure:
    """An error that no layer below has translated."""
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
    """The provider's own words, from the body of its answer; else the library's."""
    body = getattr(error, "body", None)
    if isinstance(body, Mapping):
        inner: Any = cast("Mapping[str, Any]", body).get("error", cast(Any, body))
        said: Any = cast("Mapping[str, Any]", inner).get("message") if isinstance(inner, Mapping) else inner
        if isinstance(said, str) and said:
            return _clean_message(said)
    return _clean_message(str(error))


def _clean_message(message: str) -> str:
    message = " ".join(redact_secrets(message).split())
    return message if len(message) <= MAX_MESSAGE_CHARS else f"{message[:MAX_MESSAGE_CHARS]}…"


def _end_sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."
