"""How an answer ended: whole, cut off at a limit, filtered or refused; or not at all, if its stream broke off.

A stream that just ends is hard to tell from one that is complete: the connection is closed in order either way. Every
provider says at the end why the model has stopped, so a stream without that has broken off. The library makes up for it
with OpenAI's chat protocol, because some compatible endpoints never say it; there, the count of tokens, which comes
last, counts as well.
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
"""What a model is told whose answer is to be continued."""

_REASON_GIVING_MODULES = frozenset(
    {"anthropic", "bedrock", "cohere", "google", "groq", "huggingface", "mistral", "openai", "xai"}
)
"""The modules of the library whose providers always say why a model has stopped."""


def is_unfinished(cls: type[Any], response: ModelResponse) -> bool:
    """Whether the answer of a stream of this class has broken off, as far as that can be told."""
    if response.state not in ("complete", "suspended"):
        return True
    has_reason = bool((response.provider_details or {}).get("finish_reason"))
    match _get_finish_style(cls):
        case "chat":
            return not has_reason and not response.usage.input_tokens and not response.usage.output_tokens
        case "telling":
            return not has_reason and response.finish_reason is None
        case _:
            return False


def is_incomplete(model: Any, response: ModelResponse, *, is_streamed: bool = False) -> bool:
    """Whether an answer has broken off, told by the model that gave it.

    A whole answer (not ``is_streamed``) can only break off where the library streams it all the same, as it does with
    Anthropic's long answers. Of a model with fallbacks any may have answered, so all of them must say it.
    """
    return all(_is_model_incomplete(one, response, is_streamed) for one in unwrap_models(model))


def _is_model_incomplete(model: Any, response: ModelResponse, is_streamed: bool) -> bool:
    kind: type[Any] = cast("type[Any]", type(model))
    if is_streamed:
        return is_unfinished(getattr(model, "_streamed_response_cls", kind), response)
    return any(one.__name__ == "AnthropicModel" for one in kind.__mro__) and is_unfinished(kind, response)


def is_truncated_text(response: ModelResponse) -> bool:
    """Whether the answer is a text that was cut off at the limit of tokens."""
    return response.finish_reason == "length" and bool(response.text) and not response.tool_calls


def get_refusal(response: ModelResponse) -> str:
    """In which words the model refuses to answer; ``""`` if it does not, or without words."""
    return str((response.provider_details or {}).get("refusal") or "")


def get_ending(response: ModelResponse) -> tuple[str, str]:
    """How a final answer ended, for the result of its run: the finish reason, and the words of a refusal."""
    reason = response.finish_reason
    return FINISH_STOP if reason in (None, "tool_call") else reason, get_refusal(response)


@cache
def _get_finish_style(cls: type[Any]) -> str:
    """How the end of a stream (or a model) of this class can be told: ``chat``, ``telling``, or not at all."""
    for one in cls.__mro__:
        library, _, module = one.__module__.partition("pydantic_ai.models.")
        module = module.partition(".")[0]
        if library or module not in _REASON_GIVING_MODULES:
            continue
        if one.__name__ != "OpenAIStreamedResponse":
            return "telling"
        # Whoever has another word for a missing reason knows that its provider has none.
        reason = "_missing_finish_reason"
        return "chat" if getattr(cls, reason, None) is getattr(one, reason, None) else ""
    return ""
