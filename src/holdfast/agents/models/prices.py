"""The usage and cost of the model library's answers, and estimates for the next call.

Nothing here fails a run: after any error, the price is unknown (see ``services.model_prices``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import PydanticSerializationError, to_json

from holdfast.admission.usage import Usage
from holdfast.services.model_prices import compute_token_cost

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.usage import RequestUsage

    from holdfast.agents.models.model_call import ModelCall

CHARS_PER_TOKEN = 4
TOKENS_PER_FILE = 1500
"""Estimated tokens of an image, a document, or audio."""


def usage_from_response(response: ModelResponse) -> Usage:
    """The usage of a call, from its answer."""
    usage = _make_usage(response.usage, compute_cost(response))
    for attempt in response.failed_attempts or ():  # of the library's fallback model: these cost money, too
        if attempt.usage is not None:
            cost = compute_token_cost(attempt.usage, attempt.provider_name, None, attempt.model_name)
            usage += replace(_make_usage(attempt.usage, cost), calls=0, unpriced=0)
    return usage


def compute_cost(response: ModelResponse) -> int | None:
    """The cost of a call in billionths of a dollar; ``None``: it is unknown."""
    return compute_token_cost(
        response.usage,
        response.provider_name,
        response.provider_url,
        response.model_name,
        response.timestamp,
        response.provider_details,
    )


def estimate_usage(model_call: ModelCall, model: Model, messages: Sequence[ModelMessage]) -> Usage:
    """The usage of the next call: the estimated input, and the output's limit or the longest output so far."""
    from pydantic_ai.usage import RequestUsage

    tokens = estimate_input_tokens(model_call.last_usage, model_call.parameters, messages)
    settings: dict[str, Any] = {**(model.settings or {}), **(model_call.model_chain.settings or {})}
    output: int = settings.get("max_tokens") or model_call.peak_output_tokens
    try:
        url: str | None = model.base_url
    except Exception:  # models without one raise different errors
        url = None
    cost = compute_token_cost(
        RequestUsage(input_tokens=tokens, output_tokens=output), model.system, url, model.model_name
    )
    return Usage(1, tokens, output, nano_usd=cost or 0, unpriced=1 if cost is None else 0)


def estimate_input_tokens(
    last_usage: Usage | None, parameters: ModelRequestParameters, messages: Sequence[ModelMessage]
) -> int:
    """The estimated input tokens of the next call.

    The provider has counted the conversation up to its last answer; the messages after it are estimated. All
    ``messages`` are read only before the first answer.
    """
    if last_usage is None:
        characters = sum(map(count_message_chars, messages)) + count_parameter_chars(parameters)
        known = 0
    else:
        characters, known = _count_new_chars(messages), last_usage.tokens
    return known + -(-characters // CHARS_PER_TOKEN)


def _make_usage(usage: RequestUsage, cost: int | None) -> Usage:
    return Usage(
        calls=1,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cache_read_tokens,
        nano_usd=cost or 0,
        unpriced=1 if cost is None else 0,
    )


# Sizes, in characters


def _count_new_chars(messages: Sequence[ModelMessage]) -> int:
    from pydantic_ai.messages import ModelResponse

    size = 0
    for message in reversed(messages):
        if isinstance(message, ModelResponse):
            break
        size += count_message_chars(message)
    return size


def count_message_chars(message: ModelMessage) -> int:
    """The size of a message in characters."""
    return sum(map(_count_part_chars, message.parts))


def _count_part_chars(part: Any) -> int:
    content = getattr(part, "content", None)
    size = _count_content_chars(content) if content is not None else 0
    args = getattr(part, "args", None)
    return size + (0 if args is None else _count_value_chars(args))


def _count_content_chars(content: Any) -> int:
    if isinstance(content, str):
        return len(content)
    if isinstance(content, list | tuple):
        return sum(map(_count_content_chars, cast("Sequence[Any]", content)))
    kind = getattr(content, "kind", None)
    if isinstance(kind, str):
        text = getattr(content, "content", None)
        return len(text) if isinstance(text, str) else TOKENS_PER_FILE * CHARS_PER_TOKEN if kind != "cache-point" else 0
    return _count_value_chars(content)


def _count_value_chars(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    try:
        return len(to_json(value))
    except (PydanticSerializationError, ValueError, TypeError):
        return len(str(value))


def count_parameter_chars(parameters: ModelRequestParameters) -> int:
    """The size of instructions and tools in characters."""
    instructions = sum(len(part.content) for part in parameters.instruction_parts or ())
    tools = (*parameters.function_tools, *parameters.output_tools)
    return instructions + sum(
        len(tool.name) + len(tool.description or "") + _count_value_chars(tool.parameters_json_schema) for tool in tools
    )
