"""The cost of model calls, and estimates for the next call.

Prices come from ``genai-prices``. A call of a model without a known price counts in tokens only. Nothing here fails a
run: after any error, the price is unknown.

That library takes 400 µs to price a call. The plain case, a price for each token, takes a few µs here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pydantic_core import PydanticSerializationError, to_json

from holdfast.admission.usage import NANO_PER_USD, Usage

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, Provider
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.usage import RequestUsage

    from holdfast.agents.models.model_call import ModelCall

CHARS_PER_TOKEN = 4
TOKENS_PER_FILE = 1500
"""Estimated tokens of an image, a document, or audio."""

_MILLION = 1_000_000
_PRICEABLE_FIELDS = frozenset({"input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "details"})
"""Usage fields of the plain case."""


class _PriceEntry(NamedTuple):
    """A model's entry in the price list."""

    provider: Provider
    info: ModelInfo
    has_variants: bool
    """Its price depends on the provider's details of a call, such as the service tier."""


_PriceKey = tuple[str | None, str | None, str]
_price_snapshot: Any = None
_price_cache: dict[_PriceKey, _PriceEntry | None] = {}


def usage_from_response(response: ModelResponse) -> Usage:
    """The usage of a call, from its answer."""
    usage = _make_usage(response.usage, compute_cost(response))
    for attempt in response.failed_attempts or ():  # of the library's fallback model: these cost money, too
        if attempt.usage is not None:
            cost = _compute_cost(attempt.usage, attempt.provider_name, None, attempt.model_name)
            usage += replace(_make_usage(attempt.usage, cost), calls=0, unpriced=0)
    return usage


def compute_cost(response: ModelResponse) -> int | None:
    """The cost of a call in billionths of a dollar; ``None``: it is unknown."""
    return _compute_cost(
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
    cost = _compute_cost(RequestUsage(input_tokens=tokens, output_tokens=output), model.system, url, model.model_name)
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


# Prices


def _compute_cost(
    usage: RequestUsage,
    provider: str | None,
    url: str | None,
    model: str | None,
    timestamp: datetime | None = None,
    details: dict[str, Any] | None = None,
) -> int | None:
    try:
        if usage.cost is not None:  # from a gateway
            return _to_nano_usd(usage.cost)
        priced = None if not model else _get_price(provider, url, model)
        if priced is None:
            return None
        dollars = _compute_dollars(
            usage, priced, timestamp or datetime.now(UTC), details if priced.has_variants else None
        )
        if usage.unmeasured_requests and not dollars:
            return None
        return _to_nano_usd(dollars)
    except Exception:
        return None


def _get_price(provider: str | None, url: str | None, model: str) -> _PriceEntry | None:
    """A model's entry in the price list: looked up once, until there is a newer list."""
    global _price_snapshot
    from genai_prices.data_snapshot import get_snapshot

    snapshot = get_snapshot()
    if snapshot is not _price_snapshot:
        _price_snapshot = snapshot
        _price_cache.clear()
    key = (provider, url, model)
    if key not in _price_cache:
        _price_cache[key] = _look_up_price(snapshot, *key)
    return _price_cache[key]


def _look_up_price(snapshot: Any, provider: str | None, url: str | None, model: str) -> _PriceEntry | None:
    # By the address first, as in the model library: it distinguishes providers that sell the same models.
    addresses = ((None, url), (provider, None)) if provider != "openai-decisions" else ((provider, None),)
    for by_name, by_url in addresses:
        if by_name is None and by_url is None:
            continue
        try:
            found, info = snapshot.find_provider_model(model, None, by_name, by_url)
        except LookupError:
            continue
        own = any(info is model_info for model_info in found.models)
        return _PriceEntry(found, info, bool(info.price_variants) and own)
    return None


def _compute_dollars(
    usage: RequestUsage, entry: _PriceEntry, timestamp: datetime, context: dict[str, Any] | None
) -> Decimal:
    price = entry.info.get_prices(timestamp, context)
    rates: dict[str, Any] = vars(price)
    plain = all(not amount or name in _PRICEABLE_FIELDS for name, amount in vars(usage).items())
    each = [rates.get(f"{kind}_mtok") for kind in ("input", "cache_read", "cache_write", "output")]
    if (
        not plain
        or rates.get("requests_kcount") is not None
        or not all(type(one) in (Decimal, type(None)) for one in each)
    ):
        return entry.info.calc_price(
            cast(Any, usage), entry.provider, genai_request_timestamp=timestamp, price_context=context
        ).total_price
    full, read, write, output = each
    fresh = usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens
    if fresh < 0:
        raise ValueError("more tokens in the cache than there were")
    return (
        fresh * (full or 0)
        + usage.cache_read_tokens * ((full if read is None else read) or 0)
        + usage.cache_write_tokens * ((full if write is None else write) or 0)
        + usage.output_tokens * (output or 0)
    ) / Decimal(_MILLION)


def _to_nano_usd(dollars: Decimal) -> int:
    return int((dollars * NANO_PER_USD).quantize(Decimal(1), ROUND_HALF_UP))


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
