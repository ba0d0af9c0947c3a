"""The prices of models, and the cost of a call.

Prices come from ``genai-prices``. A call of a model without a known price counts in tokens only. Nothing here fails a
run: after any error, the price is unknown.

That library takes 400 µs to price a call. The plain case, a price for each token, takes a few µs here.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from holdfast.admission.usage import NANO_PER_USD, Usage

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, Provider

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


@dataclass
class TokenCounts:
    """The tokens of one call, for code that does not use the model library."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost: Decimal | float | None = None
    """Dollars, if the provider or a gateway reports them."""

    @property
    def unmeasured_requests(self) -> int:
        """As in the model library: requests with unknown tokens."""
        return 0


def make_usage(model: str, counts: TokenCounts, url: str | None = None) -> Usage:
    """The usage of one call of a model such as ``openai:gpt-4o``; the URL of its API is optional."""
    provider, _, name = model.rpartition(":")
    cost = compute_token_cost(counts, provider or None, url, name)
    return Usage(
        calls=1,
        input_tokens=counts.input_tokens,
        output_tokens=counts.output_tokens,
        cached_tokens=counts.cache_read_tokens,
        nano_usd=cost or 0,
        unpriced=1 if cost is None else 0,
    )


def compute_token_cost(
    usage: Any,
    provider: str | None,
    url: str | None,
    model: str | None,
    timestamp: datetime | None = None,
    details: dict[str, Any] | None = None,
) -> int | None:
    """The cost of a call in billionths of a dollar; ``None``: it is unknown.

    ``usage`` is a ``RequestUsage`` of the model library, or a ``TokenCounts``.
    """
    try:
        if usage.cost is not None:  # from a gateway
            return _to_nano_usd(Decimal(str(usage.cost)))
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


def _compute_dollars(usage: Any, entry: _PriceEntry, timestamp: datetime, context: dict[str, Any] | None) -> Decimal:
    price = entry.info.get_prices(timestamp, context)
    rates: dict[str, Any] = vars(price)
    amounts = cast("dict[str, Any]", vars(usage))
    plain = all(not amount or name in _PRICEABLE_FIELDS for name, amount in amounts.items() if name != "cost")
    each = [rates.get(f"{kind}_mtok") for kind in ("input", "cache_read", "cache_write", "output")]
    if (
        not plain
        or rates.get("requests_kcount") is not None
        or not all(type(one) in (Decimal, type(None)) for one in each)
    ):
        return entry.info.calc_price(
            usage, entry.provider, genai_request_timestamp=timestamp, price_context=context
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
