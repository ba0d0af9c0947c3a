"""How an answer ended: complete, cut off at a limit, filtered, refused, or broken off with its stream.

A stream that breaks off is hard to distinguish from a complete one: the connection is closed cleanly either way. Every
provider says at the end why the model has stopped, so a stream without a reason has broken off. In OpenAI's chat
protocol, the library makes up a missing reason, because some compatible endpoints never send one; there, the token
count, which comes last, counts as an end as well.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, cast

from holdfast.agents.models.model_resolution import unwrap_models
from holdfast.reports.agent_result import FINISH_STOP

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse

UNFINISHED_MESSAGE = (
    "the stream ended before the answer did: it says neither why the model stopped nor how many tokens it used. If "
    "this endpoint never does, ask it with stream=False"
)

CONTINUE_PROMPT = (
    "Your answer was cut off at the limit of tokens. Continue it exactly where it ended: do not repeat anything, and "
    "do not comment on this."
)
"""The feedback for an answer that the model must continue."""

_REASON_GIVING_MODULES = frozenset(
    {"anthropic", "bedrock", "cohere", "google", "groq", "huggingface", "mistral", "openai", "xai"}
)
"""The library's modules for providers that always say why a model has stopped."""


def is_unfinished(cls: type[Any], response: ModelResponse) -> bool:
    """Whether the answer of a stream of this class has broken off, if the class allows to detect that."""
    if response.state not in ("complete", "suspended"):
        return True
    has_reason = bool((response.provider_details or {}).get("finish_reason"))
    match _get_finish_style(cls):
        case "chat":
            return not has_reason and not response.usage.input_tokens and not response.usage.output_tokens
        case "reason":
            return not has_reason and response.finish_reason is None
        case _:
            return False


def is_incomplete(model: Any, response: ModelResponse, *, is_streamed: bool = False) -> bool:
    """Whether an answer of this model has broken off.

    A whole answer (not ``is_streamed``) can break off only if the library streams it internally, as it does for long
    answers of Anthropic. Any model of a fallback model may have answered, so the check of all of them must agree.
    """
    return all(_is_model_incomplete(inner, response, is_streamed) for inner in unwrap_models(model))


def _is_model_incomplete(model: Any, response: ModelResponse, is_streamed: bool) -> bool:
    kind: type[Any] = cast("type[Any]", type(model))
    if is_streamed:
        return is_unfinished(getattr(model, "_streamed_response_cls", kind), response)
    return any(cls.__name__ == "AnthropicModel" for cls in kind.__mro__) and is_unfinished(kind, response)


def is_truncated_text(response: ModelResponse) -> bool:
    """Whether the answer is a text that was cut off at the token limit."""
    return response.finish_reason == "length" and bool(response.text) and not response.tool_calls


def get_refusal(response: ModelResponse) -> str:
    """The message of a model that refuses to answer; ``""`` if it does not refuse, or gives no message."""
    return str((response.provider_details or {}).get("refusal") or "")


def get_ending(response: ModelResponse) -> tuple[str, str]:
    """The end of a final answer, for the result of its run: the finish reason, and the message of a refusal."""
    reason = response.finish_reason
    return FINISH_STOP if reason in (None, "tool_call") else reason, get_refusal(response)


@cache
def _get_finish_style(cls: type[Any]) -> str:
    """How to detect the end of a stream (or model) of this class: ``chat``, ``reason``, or not at all (``""``)."""
    for ancestor in cls.__mro__:
        library, _, module = ancestor.__module__.partition("pydantic_ai.models.")
        module = module.partition(".")[0]
        if library or module not in _REASON_GIVING_MODULES:
            continue
        if ancestor.__name__ != "OpenAIStreamedResponse":
            return "reason"
        # A subclass with another value for a missing reason has a provider that never sends one.
        reason = "_missing_finish_reason"
        return "chat" if getattr(cls, reason, None) is getattr(ancestor, reason, None) else ""
    return ""
