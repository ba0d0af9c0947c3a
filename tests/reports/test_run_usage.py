"""How tokens, money and budgets are worded."""

from __future__ import annotations

import pytest

from holdfast.admission.usage import Budget, Usage
from holdfast.reports.run_usage import (
    format_brief_cost,
    format_cost,
    format_money,
    format_remaining,
    format_tokens_and_cost,
    list_budget_limits,
    remaining_to_json,
)
from holdfast.stores.contract import RunUsage


@pytest.mark.parametrize(
    ("nano_usd", "words"),
    [
        (0, "$0.00"),
        (1, "less than $0.000001"),
        (1_000, "$0.000001"),
        (132_000, "$0.000132"),
        (500_000_000, "$0.50"),
        (1_234_567_890_000, "$1,234.56789"),
    ],
)
def test_money_has_cents_at_least_and_millionths_at_most(nano_usd: int, words: str):
    assert format_money(nano_usd) == words


@pytest.mark.parametrize(
    ("used", "words", "brief"),
    [
        (Usage(), "$0.00", ""),
        (Usage(calls=2, nano_usd=18_144_000), "$0.018144", "$0.0181"),
        (Usage(calls=2, nano_usd=144_000), "$0.000144", "$0.00014"),
        (Usage(calls=2, nano_usd=0), "$0.00", "$0.00"),
        (Usage(calls=2, unpriced=2), "price not known", "not known"),
        (Usage(calls=2, nano_usd=5_000_000, unpriced=1), "$0.005 or more (1 of unknown price)", "$0.005+"),
    ],
)
def test_unknown_costs_are_mentioned(used: Usage, words: str, brief: str):
    assert (format_cost(used), format_brief_cost(used)) == (words, brief)


def test_cached_tokens_are_mentioned():
    used = Usage(calls=1, input_tokens=1200, output_tokens=56, cached_tokens=800, nano_usd=1_200_000)
    assert format_tokens_and_cost(used) == "1,200 tokens in (800 cached), 56 out, $0.0012"


def test_the_rest_of_a_budget_is_exact_and_never_negative():
    used = Usage(calls=3, input_tokens=900, output_tokens=200, nano_usd=30_000_000, seconds=90.5)
    told = RunUsage(used, Budget(usd=0.05, tokens=1000, turns=3, seconds=600).to_limits())
    assert remaining_to_json(told) == {"usd": 0.02, "tokens": 0, "turns": 0, "seconds": 509.5}
    assert format_remaining(told) == (
        "$0.02 of $0.05, 0 of 1,000 tokens, 0 of 3 turns and 8 min 30 s of 10 min 00 s at work"
    )


def test_the_suggested_limit_exceeds_the_used_amount():
    used = Usage(calls=3, input_tokens=90_000, nano_usd=333_333_333, seconds=0.5)
    told = RunUsage(used, Budget(usd=0.05, tokens=1000, turns=30_000_000_000, seconds=0.5).to_limits())
    assert {one.name: one.suggested_limit for one in list_budget_limits(told)} == {
        "usd": "0.67",
        "tokens": "180000",
        "turns": "60000000000",
        "seconds": "1",
    }
