"""What a call has cost, and what the next one may use."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import genai_prices
import pytest
from genai_prices.data_snapshot import get_snapshot, set_custom_snapshot
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    InstructionPart,
    ModelMessage,
    ModelRequest,
    ModelRequestAttempt,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.test import TestModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage

from holdfast.admission.usage import Usage
from holdfast.agents.models.chain import ModelChain
from holdfast.agents.models.model_call import ModelCall
from holdfast.agents.models.prices import TOKENS_PER_FILE, compute_cost, estimate_usage, usage_from_response
from holdfast.services import model_prices as prices

WHEN = datetime(2026, 11, 15, tzinfo=UTC)


def response(
    usage: RequestUsage, model: str | None = "gpt-4o", provider: str = "openai", **fields: Any
) -> ModelResponse:
    return ModelResponse(
        [TextPart("Hi")], usage=usage, model_name=model, provider_name=provider, timestamp=WHEN, **fields
    )


class Priced(TestModel):
    """A model in the price list."""

    @property
    def model_name(self) -> str:
        return "gpt-4o"

    @property
    def system(self) -> str:
        return "openai"


# What a call has cost


def test_usage_and_cost_of_an_answer():
    used = usage_from_response(response(RequestUsage(input_tokens=1000, cache_read_tokens=100, output_tokens=100)))
    # 900 at $2.50, 100 at $1.25 and 100 at $10 a million.
    assert used == Usage(1, 1000, 100, 100, nano_usd=2_250_000 + 125_000 + 1_000_000)


def test_a_fraction_of_a_billionth_is_rounded_half_up():
    assert prices._to_nano_usd(Decimal("0.0000000015")) == 2
    assert prices._to_nano_usd(Decimal("0.0000000005")) == 1
    assert prices._to_nano_usd(Decimal("0.00000000049")) == 0


def test_a_reported_cost_counts_as_it_is():
    told = RequestUsage(input_tokens=1000, output_tokens=1000, cost=Decimal("0.5"))
    assert usage_from_response(response(told)).nano_usd == 500_000_000
    assert usage_from_response(response(RequestUsage(cost=Decimal(0)), "nobody")) == Usage(1)


@pytest.mark.parametrize(("model", "provider"), [("no-such-model", "openai"), ("gpt-4o", "nobody"), (None, "openai")])
def test_a_model_without_a_price_is_counted_in_tokens(model: str | None, provider: str):
    used = usage_from_response(response(RequestUsage(input_tokens=10, output_tokens=5), model, provider))
    assert used == Usage(1, 10, 5, unpriced=1)


def test_an_answer_without_usage_is_of_unknown_price():
    assert usage_from_response(response(RequestUsage(unmeasured_requests=1))) == Usage(1, unpriced=1)
    assert usage_from_response(response(RequestUsage())) == Usage(1)


def test_the_address_of_a_provider_wins_over_its_name():
    usage = RequestUsage(input_tokens=1000)
    by_address = response(usage, provider="my-proxy", provider_url="https://api.openai.com/v1/")
    assert compute_cost(by_address) == 2_500_000
    assert compute_cost(response(usage, provider_url="https://localhost:1234/v1")) == 2_500_000


def test_attempts_of_a_fallback_model_were_paid_for_too():
    attempt = ModelRequestAttempt(
        model_name="gpt-4o",
        provider_name="openai",
        outcome="rejected",
        timestamp=WHEN,
        duration=WHEN - WHEN,
        usage=RequestUsage(input_tokens=1000, output_tokens=7),
    )
    used = usage_from_response(response(RequestUsage(input_tokens=10, output_tokens=5), failed_attempts=[attempt]))
    assert used == Usage(1, 1010, 12, nano_usd=75_000 + 2_570_000)


def test_a_service_tier_has_its_own_price():
    flex = next(
        (provider, model, variant)
        for provider in get_snapshot().providers
        for model in provider.models
        for variant in model.price_variants or ()
        if variant.constraint is None and variant.when.get("service_tier") == "flex"
    )
    provider, model, variant = flex
    usage = RequestUsage(input_tokens=1000, output_tokens=100)
    one = response(usage, model.id, provider.id, provider_details={**variant.when, "other": 1})
    library = genai_prices.calc_price(
        usage, model.id, provider_id=provider.id, genai_request_timestamp=WHEN, price_context=dict(variant.when)
    )
    plain = compute_cost(response(usage, model.id, provider.id))
    assert compute_cost(one) == prices._to_nano_usd(library.total_price)
    assert compute_cost(one) != plain


def test_the_fast_path_computes_the_same_as_the_library():
    """For models of the whole list, over and under the thresholds of their tiers."""
    chance = random.Random(5)
    compared = 0
    for provider in get_snapshot().providers:
        for model in chance.sample(provider.models, min(3, len(provider.models))):
            usage = RequestUsage(input_tokens=chance.choice([0, 900, 250_000]), output_tokens=chance.choice([0, 77]))
            usage.cache_read_tokens = chance.randint(0, usage.input_tokens // 3)
            usage.cache_write_tokens = chance.choice([0, usage.input_tokens // 3])
            if chance.random() < 0.2:
                usage.output_reasoning_tokens = usage.output_tokens // 2
            one = response(usage, model.id, provider.id)
            try:
                library = one.cost().total_price
            except (LookupError, ValueError):
                assert compute_cost(one) is None, (provider.id, model.id, usage)
                continue
            assert compute_cost(one) == prices._to_nano_usd(library), (provider.id, model.id, usage)
            compared += 1
    assert compared > 50


def test_a_price_list_that_fails_does_not_fail_a_run(monkeypatch: pytest.MonkeyPatch):
    def broken(*args: Any) -> Any:
        raise RuntimeError("no list")

    monkeypatch.setattr(prices, "_get_price", broken)
    assert usage_from_response(response(RequestUsage(input_tokens=10))) == Usage(1, 10, unpriced=1)


def test_usage_that_cannot_be_is_of_unknown_price():
    assert compute_cost(response(RequestUsage(input_tokens=10, cache_read_tokens=11))) is None


def test_a_newer_price_list_is_used_at_once():
    before = get_snapshot()
    one = response(RequestUsage(input_tokens=1000))
    assert compute_cost(one) == 2_500_000
    set_custom_snapshot(type(before)(providers=[], from_auto_update=True))
    try:
        assert compute_cost(one) is None
    finally:
        set_custom_snapshot(None)
    assert compute_cost(one) == 2_500_000


def test_a_model_is_looked_up_once(monkeypatch: pytest.MonkeyPatch):
    looked_up: list[Any] = []
    original = prices._look_up_price
    monkeypatch.setattr(prices, "_look_up_price", lambda *args: looked_up.append(args) or original(*args))
    prices._price_cache.clear()
    for _ in range(5):
        compute_cost(response(RequestUsage(input_tokens=1)))
        compute_cost(response(RequestUsage(input_tokens=1), "no-such-model"))
    assert len(looked_up) == 2


# What the next call may use


def ask(messages: list[ModelMessage], settings: ModelSettings | None = None, **fields: Any) -> ModelCall:
    parameters = fields.pop("parameters", ModelRequestParameters())
    return ModelCall(ModelChain(("m",), settings), messages, parameters, **fields)


def expect(messages: list[ModelMessage], model: Model | None = None, **fields: Any) -> Usage:
    return estimate_usage(ask(messages, **fields), model or Priced(), messages)


def test_the_first_call_is_estimated_from_all_that_is_sent():
    tool = ToolDefinition(name="look", description="Look it up.", parameters_json_schema={"type": "object"})
    parameters = ModelRequestParameters(function_tools=[tool], instruction_parts=[InstructionPart(content="i" * 40)])
    messages: list[ModelMessage] = [
        ModelRequest([UserPromptPart("p" * 400)]),
        ModelResponse([TextPart("t" * 80), ToolCallPart("look", {"a": 1})]),
        ModelRequest([ToolReturnPart("look", {"b": [2]}), UserPromptPart("x")]),
    ]
    characters = (
        400 + 80 + len('{"a":1}') + len('{"b":[2]}') + 1 + 40 + len("lookLook it up.") + len('{"type":"object"}')
    )
    tokens = -(-characters // 4)
    assert expect(messages, parameters=parameters) == Usage(1, tokens, nano_usd=tokens * 2_500)


def test_a_later_call_is_what_was_counted_and_what_is_new():
    messages: list[ModelMessage] = [
        ModelRequest([UserPromptPart("p" * 100_000)]),
        ModelResponse([TextPart("t" * 100_000)]),
        ModelRequest([ToolReturnPart("look", "r" * 40)]),
    ]
    told = Usage(1, 700, 30, 600, nano_usd=5)
    may_use = expect(messages, last_usage=told, peak_output_tokens=55)
    assert may_use == Usage(1, 700 + 30 + 10, 55, nano_usd=740 * 2_500 + 55 * 10_000)


def test_only_what_is_new_is_read():
    unreadable: Any = object()
    messages: list[ModelMessage] = [unreadable, ModelResponse([]), ModelRequest([UserPromptPart("p" * 8)])]
    assert expect(messages, last_usage=Usage(1, 10, 5)).input_tokens == 17


def test_files_count_by_the_piece():
    image = ImageUrl("https://example.org/a.png")
    content = ["Look: 12", image, BinaryContent(b"x" * 10_000, media_type="application/pdf")]
    assert expect([ModelRequest([UserPromptPart(content)])]).input_tokens == 2 + 2 * TOKENS_PER_FILE


@pytest.mark.parametrize(
    ("settings", "of_model", "output"),
    [({"max_tokens": 100}, {"max_tokens": 7}, 100), (None, {"max_tokens": 7}, 7), ({}, None, 20)],
)
def test_the_output_is_what_it_may_be(settings: Any, of_model: Any, output: int):
    messages: list[ModelMessage] = [ModelRequest([UserPromptPart("p")])]
    assert expect(messages, Priced(settings=of_model), settings=settings, peak_output_tokens=20).output_tokens == output


def test_a_model_of_unknown_price_counts_as_unpriced():
    assert expect([ModelRequest([UserPromptPart("p" * 8)])], TestModel()) == Usage(1, 2, unpriced=1)
