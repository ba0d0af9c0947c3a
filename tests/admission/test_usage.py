"""Usage and budgets: sums, words, what a budget may be, and when a call would pass one."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from holdfast.admission.usage import NANO_PER_USD, Budget, BudgetLimits, BudgetShortage, Usage, find_shortage
from holdfast.errors import UsageError

A = Usage(1, 100, 20, 30, NANO_PER_USD // 2, 0, 1.5)
B = Usage(2, 1, 2, 3, 4, 1, 0.25)
NOTHING = Usage()


# Usage


def test_usages_are_added_up_field_by_field():
    assert Usage(3, 101, 22, 33, NANO_PER_USD // 2 + 4, 1, 1.75) == A + B
    assert A + NOTHING == A
    assert sum([A, B, A], Usage()) == Usage(4, 201, 42, 63, NANO_PER_USD + 4, 1, 3.25)


def test_tokens_are_those_in_and_out():
    assert A.tokens == 120


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        (NOTHING, Decimal(0)),
        (A, Decimal("0.5")),
        (Usage(calls=1, nano_usd=1), Decimal("0.000000001")),
        (Usage(calls=2, nano_usd=NANO_PER_USD, unpriced=1), Decimal(1)),
        (Usage(calls=2, unpriced=2), None),
    ],
)
def test_the_cost_is_exact_and_unknown_if_no_price_is_known(usage: Usage, cost: Decimal | None):
    assert usage.cost == cost


@pytest.mark.parametrize(
    ("usage", "words"),
    [
        (NOTHING, "0 model calls, 0 tokens in, 0 out"),
        (Usage(1, 1200, 34), "1 model call, 1,200 tokens in, 34 out, $0"),
        (Usage(2, 1, 2, nano_usd=1_234_600), "2 model calls, 1 tokens in, 2 out, $0.001235"),
        (Usage(2, 1, 2, nano_usd=10 * NANO_PER_USD), "2 model calls, 1 tokens in, 2 out, $10"),
        (Usage(1, 1, 2, unpriced=1), "1 model call, 1 tokens in, 2 out (price not known)"),
        (
            Usage(3, 1, 2, nano_usd=NANO_PER_USD // 2, unpriced=1),
            "3 model calls, 1 tokens in, 2 out, $0.5 (1 of them of unknown price)",
        ),
    ],
)
def test_a_usage_in_words(usage: Usage, words: str):
    assert str(usage) == words


# Budgets


@pytest.mark.parametrize(
    ("budget", "limits"),
    [
        (Budget(usd=0.1), BudgetLimits(nano_usd=NANO_PER_USD // 10)),
        (Budget(usd=Decimal("1.000000001")), BudgetLimits(nano_usd=NANO_PER_USD + 1)),
        (Budget(usd=3), BudgetLimits(nano_usd=3 * NANO_PER_USD)),
        (Budget(tokens=100_000, turns=5), BudgetLimits(tokens=100_000, calls=5)),
        (Budget(seconds=0.5), BudgetLimits(seconds=0.5)),
        (Budget(tokens=10**400), BudgetLimits(tokens=10**400)),
    ],
)
def test_a_budget_in_the_units_of_usage(budget: Budget, limits: BudgetLimits):
    assert budget.to_limits() == limits


def test_whole_numbers_stay_whole():
    limits = Budget(tokens=1e3, turns=2.0).to_limits()  # type: ignore[arg-type]
    assert (limits, type(limits.tokens), type(limits.calls)) == (BudgetLimits(tokens=1000, calls=2), int, int)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "say what is limited"),
        ({"usd": "1"}, r"usd='1'\) is no number"),
        ({"turns": True}, r"turns=True\) is no number"),
        ({"usd": 0}, "must be more than 0"),
        ({"tokens": -1}, "must be more than 0"),
        ({"seconds": float("nan")}, "must be more than 0"),
        ({"seconds": float("inf")}, "must be more than 0"),
        ({"usd": Decimal("Infinity")}, "must be more than 0"),
        ({"tokens": 1.5}, "must be a whole number"),
        ({"turns": Decimal("2.5"), "usd": 1}, "must be a whole number"),
    ],
)
def test_a_budget_that_is_none_is_refused(given: dict[str, Any], words: str):
    with pytest.raises(UsageError, match=words):
        Budget(**given)


# Shortages


@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        (BudgetLimits(nano_usd=100), "usd"),
        (BudgetLimits(tokens=100), "tokens"),
        (BudgetLimits(calls=100), "turns"),
    ],
)
@pytest.mark.parametrize(
    ("used", "reserved", "expected", "fate"),
    [
        (0, 0, 100, None),
        (50, 0, 50, None),
        (30, 30, 40, None),
        (0, 0, 101, "real"),
        (60, 0, 41, "real"),
        (60, 30, 41, "real"),
        (60, 1, 40, "passing"),
        (0, 100, 1, "passing"),
        (100, 0, 0, None),
        (101, 0, 0, "real"),
    ],
)
def test_a_call_fits_as_long_as_no_limit_is_passed(
    limits: BudgetLimits, limit: str, used: int, reserved: int, expected: int, fate: str | None
):
    def of(amount: int) -> Usage:
        return Usage(calls=amount, input_tokens=amount // 2, output_tokens=amount - amount // 2, nano_usd=amount)

    found = find_shortage("r", limits, of(used), of(reserved), of(expected))
    if fate is None:
        assert found is None
        return
    unit = NANO_PER_USD if limit == "usd" else 1
    numbers = (100 / unit, used / unit, reserved / unit, expected / unit)
    assert found == BudgetShortage("r", limit, *numbers, is_temporary=fate == "passing")
    assert found.is_exhausted is (fate == "real")


def test_no_limit_is_never_passed():
    much = Usage(10**9, 10**12, 10**12, 0, 10**18, 0, 1e9)
    assert find_shortage("r", BudgetLimits(), much, much, much) is None


def test_time_counts_when_it_is_used_up():
    limits = BudgetLimits(seconds=2.0)
    assert find_shortage("r", limits, Usage(seconds=1.9), Usage(seconds=9.0), Usage(seconds=9.0)) is None
    assert find_shortage("r", limits, Usage(seconds=2.0), NOTHING, NOTHING) == BudgetShortage(
        "r", "seconds", 2.0, 2.0, 0, 0, False
    )


def test_a_permanent_shortage_is_reported_first():
    limits = BudgetLimits(nano_usd=10, tokens=10, calls=1)
    found = find_shortage("r", limits, Usage(calls=1), Usage(input_tokens=10, nano_usd=10), Usage(1, 5, nano_usd=5))
    assert found == BudgetShortage("r", "turns", 1.0, 1.0, 0.0, 1.0, is_temporary=False)


def test_dollars_need_a_price_and_more_of_them_would_not_help():
    found = find_shortage("r", BudgetLimits(nano_usd=NANO_PER_USD), NOTHING, NOTHING, Usage(calls=1, unpriced=1))
    assert found is not None
    assert (found.limit_name, found.is_temporary, found.is_exhausted) == ("price", False, False)
    assert find_shortage("r", BudgetLimits(tokens=10), NOTHING, NOTHING, Usage(calls=1, unpriced=1)) is None
