"""The two retry layers: what is repeated, and what is told to whom.

**Infrastructure faults** happen to a model call on its way: no connection, a time-out, 408, 409, 429, 5xx, an answer
that is no answer (HTML with status 200, cut or malformed JSON, a stream that ends before the answer does). The same
call is made again, by default for a day (``MODEL_RETRIES``), never sooner than the backoff nor than the provider asks
for. A long wait does not keep the run in memory. With fallbacks, ``chain`` says who is asked when.

**Refusals** are never repeated: 400, 401, 403, 404, 405, 413, 422, 501, an exhausted quota, a conversation that is too
long, a content filter, a name that is no model's, a key that is missing. The next model of the chain is asked at once;
without one, the step fails with the provider's words.

**Semantic faults** are not failures of the call at all: an answer that does not fit, arguments that do not fit, a tool
that is not there or that raises, a sub-agent that fails. They are recorded, and told to the model as an observation;
see ``conversation``. The agent's ``output_retries`` and ``max_turns`` bound them.

A tool's own retries (``@tool(retries=3)``) are the engine's, and happen before the model hears of it.

What providers say may quote the key that was sent: whatever looks like one is taken out of the words before they are
recorded (``without_secrets``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from holdfast.codec.redaction import without_secrets
from holdfast.core.retry_policy import RetryPolicy
from holdfast.errors import ModelError, ModelRefused, ModelUnavailable, UsageError
from holdfast.reports.recorded_reply import FailedModel

MODEL_RETRIES = RetryPolicy()
"""How model calls are repeated after an infrastructure fault, unless an agent says otherwise."""

LONGEST_WORDS = 1000
"""Characters of a provider's words that are kept."""

_PASSING_STATUS = frozenset({408, 409, 425, 429})
_NO_SUCH_PATH = frozenset({404, 405, 501})
"""How an endpoint answers that does not have the API that it is asked for."""

_TRANSPORTS = frozenset({"httpx", "httpx2", "httpcore", "httpcore2", "h2", "h11", "aiohttp", "anyio", "ssl", "grpc"})
"""Packages whose errors are those of the way."""

_SDKS = frozenset({"openai", "anthropic", "groq", "mistralai", "cohere", "google", "botocore", "huggingface_hub"})
"""Packages whose errors are sorted by the status that they carry."""

_NOT_OF_THE_WAY = frozenset({"InvalidURL", "UnsupportedProtocol"})
"""Errors of transports that are mistakes in the set-up."""


class Fault(NamedTuple):
    """What has happened to a model call."""

    passing: bool
    """It may pass: the same call may succeed later."""
    words: str
    """The provider's words, or the library's."""
    status: int | None = None
    wait: float | None = None
    """Seconds that the provider asks to wait."""
    advice: str = ""
    """What a person can do about it."""
    too_long: bool = False
    """The provider says that the conversation is longer than what the model takes."""
    refusal: str = ""
    """The words in which the model itself refuses to answer."""

    @property
    def told(self) -> str:
        """The words with the status."""
        return self.words if self.status is None else f"status {self.status}: {self.words}"


class PassingFault(Exception):
    """Tells the engine to make the call again. It is never recorded as an outcome."""

    def __init__(self, message: str, wait: float) -> None:
        super().__init__(message)
        self.wait = wait


def wait_of(error: BaseException) -> float | None:
    """How long a fault says to wait; for the engine's retry policy."""
    return error.wait if isinstance(error, PassingFault) else None


def next_wait(
    policy: RetryPolicy, fault: Fault, error: Exception, attempts: int, draw: float, failing_for: float
) -> float | None:
    """Seconds after which the same model is asked again, having failed so often and so long; ``None``: it is not."""
    if not fault.passing or not policy.wants_retry(attempts, error):
        return None
    asked = [fault.wait, None if policy.wait_of is None else policy.wait_of(error)]
    wait = policy.delay(attempts, draw, max((one for one in asked if one is not None), default=None))
    return None if policy.is_over_after(failing_for + wait) else wait


def fault_of(error: Exception) -> Fault:
    """What an exception of a model call means."""
    from pydantic_ai import exceptions as library

    if isinstance(error, ModelRefused | UsageError):  # of ours: no price for a budget, no such model, no key
        refusal = error.refusal if isinstance(error, ModelRefused) else ""
        return Fault(False, without_secrets(str(error)), refusal=without_secrets(refusal))
    if isinstance(error, library.ModelAPIError):
        return _of_provider(error)
    if isinstance(error, library.ContentFilterError):
        return Fault(False, _cut(str(error)), advice="The provider's content filter refuses it: change what is asked.")
    if isinstance(error, library.ConcurrencyLimitExceeded):
        return Fault(True, _cut(str(error)))
    if isinstance(error, library.IncompleteToolCall | library.UserError | library.UsageLimitExceeded):
        return Fault(False, _cut(str(error)))
    if isinstance(error, library.UnexpectedModelBehavior):
        return Fault(True, _cut(f"an answer that is none: {error}"))
    if isinstance(error, ExceptionGroup):  # of a `FallbackModel`
        return _of_group(cast("ExceptionGroup[Exception]", error))
    if isinstance(error, TimeoutError):
        return Fault(True, _cut(str(error)) or "timed out")
    return _of_stray(error)


def failure(model: str, fault: Fault, attempts: int, others: Sequence[FailedModel], run_id: str) -> ModelError:
    """The error with which a step fails when no model has answered; ``fault`` is that of the one asked last."""
    if fault.passing:
        happened = f"{model} gave no answer in {attempts} attempt{'' if attempts == 1 else 's'}"
    else:
        happened = f"The call of {model} was refused"
    words = f"{happened}: {_sentence(fault.told)}"
    if others:
        told = "; ".join(f"{one.model}: {one.error.rstrip('.')}" for one in others)
        words += f" The other models did not answer either: {told}."
    advice = fault.advice
    if fault.passing and fault.wait:
        advice = f"The provider asks to wait {fault.wait:,.0f} s."
    provider, _, name = model.partition(":")
    if provider == "openai" and fault.status in _NO_SUCH_PATH and "OPENAI_BASE_URL" in os.environ:
        advice += (
            f" 'openai:' uses the Responses API. For an endpoint that has only chat completions, write "
            f"'openai-chat:{name}'."
        )
    if run_id:
        advice += f" `holdfast retry {run_id}` makes the call again."
    error = ModelUnavailable if fault.passing else ModelRefused
    return error(f"{words} {advice.strip()}".strip(), model, fault.status, fault.refusal)


def _of_provider(error: Any) -> Fault:
    """An error of the library that came from a provider, or from the way to it."""
    from pydantic_ai import exceptions as library

    status: int | None = getattr(error, "status_code", None)
    words = _words_of(error)
    for kind, advice in (
        (library.ModelQuotaExceededError, "Raise the quota or the credit of the account."),
        (library.ModelAuthenticationError, "Check the key, and that it may use this model."),
        (
            library.ModelContextWindowExceededError,
            "The conversation is too long for this model: use one with a longer context.",
        ),
        (library.ModelNotFoundError, _not_found(error)),
    ):
        if isinstance(error, kind):
            too_long = kind is library.ModelContextWindowExceededError
            return Fault(False, words, status, advice=advice, too_long=too_long)
    if status is not None:
        passing = _may_pass(status) or status < 300
        return Fault(passing, words, status, error.retry_after if passing else None)
    return Fault(not isinstance(error, library.ModelRequestRejectedError), words, None, error.retry_after)


def _may_pass(status: int) -> bool:
    return status in _PASSING_STATUS or (status >= 500 and status not in _NO_SUCH_PATH)


def _not_found(error: Any) -> str:
    suggested = getattr(error, "suggested_model_id", None)
    return f"Did you mean {suggested!r}?" if suggested else "Check the model's name, and the address of the endpoint."


def _of_group(group: ExceptionGroup[Exception]) -> Fault:
    """All the models of a library's fallback model have failed: worth another try if one of them is."""
    faults = [fault_of(one) for one in group.exceptions]
    chosen = next((fault for fault in faults if fault.passing), faults[-1])
    return chosen._replace(words=_cut("; ".join(fault.told for fault in faults)), status=chosen.status)


def _of_stray(error: Exception) -> Fault:
    """An error that no layer below has translated."""
    from pydantic import ValidationError

    words = _cut(f"{type(error).__name__}: {error}".rstrip(": "))
    package = type(error).__module__.partition(".")[0]
    if package in _SDKS:
        status = getattr(error, "status_code", None) or getattr(error, "code", None)
        if isinstance(status, int):
            return Fault(_may_pass(status), words, status)
        return Fault(True, words)
    if package in _TRANSPORTS:
        return Fault(type(error).__name__ not in _NOT_OF_THE_WAY, words)
    if isinstance(error, json.JSONDecodeError | ValidationError | UnicodeDecodeError):
        return Fault(True, f"an answer that is none: {words}"[:LONGEST_WORDS])
    if isinstance(error, OSError | EOFError):
        return Fault(True, words)
    return Fault(False, words)


def _words_of(error: Any) -> str:
    """The provider's own words, from the body of its answer; else the library's."""
    body = getattr(error, "body", None)
    if isinstance(body, Mapping):
        inner: Any = cast("Mapping[str, Any]", body).get("error", cast(Any, body))
        said: Any = cast("Mapping[str, Any]", inner).get("message") if isinstance(inner, Mapping) else inner
        if isinstance(said, str) and said:
            return _cut(said)
    return _cut(str(error))


def _cut(words: str) -> str:
    words = " ".join(without_secrets(words).split())
    return words if len(words) <= LONGEST_WORDS else f"{words[:LONGEST_WORDS]}…"


def _sentence(words: str) -> str:
    return words if words.endswith((".", "!", "?", "…")) else f"{words}."
