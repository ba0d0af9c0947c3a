"""How an answer ended: whole, cut off at a limit, filtered or refused; or not at all, if its stream broke off.

A stream that just ends is hard to tell from one that is complete: the connection is closed in order either way. Every
provider says at the end why the model has stopped, so a stream without that has broken off. The library makes up for it
with OpenAI's chat protocol, because some compatible endpoints never say it; there, the count of tokens, which comes
last, counts as well.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, cast

from holdfast.agents.models.model_resolution import provider_models
from holdfast.reports.agent_result import FINISHED

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse

UNFINISHED = (
    "the stream ended before the answer did: it says neither why the model stopped nor how many tokens it used. If "
    "this endpoint never does, ask it with stream=False"
)

CONTINUE = (
    "Your answer was cut off at the limit of tokens. Continue it exactly where it ended: do not repeat anything, and "
    "do not comment on this."
)
"""What a model is told whose answer is to be continued."""

_TELLING = frozenset({"anthropic", "bedrock", "cohere", "google", "groq", "huggingface", "mistral", "openai", "xai"})
"""The modules of the library whose providers always say why a model has stopped."""


def is_unfinished(kind: type[Any], answer: ModelResponse) -> bool:
    """Whether the answer of a stream of this class has broken off, as far as that can be told."""
    if answer.state not in ("complete", "suspended"):
        return True
    has_reason = bool((answer.provider_details or {}).get("finish_reason"))
    match _sort_of(kind):
        case "chat":
            return not has_reason and not answer.usage.input_tokens and not answer.usage.output_tokens
        case "telling":
            return not has_reason and answer.finish_reason is None
        case _:
            return False


def is_cut_short(model: Any, answer: ModelResponse, *, is_streamed: bool = False) -> bool:
    """Whether an answer has broken off, told by the model that gave it.

    A whole answer (not ``is_streamed``) can only break off where the library streams it all the same, as it does with
    Anthropic's long answers. Of a model with fallbacks any may have answered, so all of them must say it.
    """
    return all(_is_cut_short(one, answer, is_streamed) for one in provider_models(model))


def _is_cut_short(model: Any, answer: ModelResponse, is_streamed: bool) -> bool:
    kind: type[Any] = cast("type[Any]", type(model))
    if is_streamed:
        return is_unfinished(getattr(model, "_streamed_response_cls", kind), answer)
    return any(one.__name__ == "AnthropicModel" for one in kind.__mro__) and is_unfinished(kind, answer)


def is_cut_text(answer: ModelResponse) -> bool:
    """Whether the answer is a text that was cut off at the limit of tokens."""
    return answer.finish_reason == "length" and bool(answer.text) and not answer.tool_calls


def refusal_in(answer: ModelResponse) -> str:
    """In which words the model refuses to answer; ``""`` if it does not, or without words."""
    return str((answer.provider_details or {}).get("refusal") or "")


def ending_of(answer: ModelResponse) -> tuple[str, str]:
    """How a final answer ended, for the result of its run: the finish reason, and the words of a refusal."""
    reason = answer.finish_reason
    return FINISHED if reason in (None, "tool_call") else reason, refusal_in(answer)


@cache
def _sort_of(kind: type[Any]) -> str:
    """How the end of a stream (or a model) of this class can be told: ``chat``, ``telling``, or not at all."""
    for one in kind.__mro__:
        library, _, module = one.__module__.partition("pydantic_ai.models.")
        module = module.partition(".")[0]
        if library or module not in _TELLING:
            continue
        if one.__name__ != "OpenAIStreamedResponse":
            return "telling"
        # Whoever has another word for a missing reason knows that its provider has none.
        reason = "_missing_finish_reason"
        return "chat" if getattr(kind, reason, None) is getattr(one, reason, None) else ""
    return ""
