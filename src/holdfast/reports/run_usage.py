"""Tokens, money and budgets: as people read them, and as programs do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.admission.usage import NANO_PER_USD, Budget, BudgetLimits, Usage
from holdfast.reports.formatting import format_count, format_duration
from holdfast.stores.contract import RunUsage, Store
from holdfast.stores.operations import Run
from holdfast.stores.rules import can_be_parent

if TYPE_CHECKING:
    from holdfast.reports.budgets import RunBudget


def format_money(nano_usd: int) -> str:
    """``$1.50``, ``$0.000132``: cents at least, and millionths of a dollar at most."""
    if 0 < nano_usd < NANO_PER_USD // 1_000_000:
        return "less than $0.000001"
    whole, _, part = f"{Decimal(nano_usd) / NANO_PER_USD:,.6f}".partition(".")
    return f"${whole}.{part.rstrip('0').ljust(2, '0')}"


def format_cost(usage: Usage) -> str:
    """What model calls have cost, as far as their prices are known."""
    if usage.cost is None:
        return "price not known"
    return (
        f"{format_money(usage.nano_usd)} or more ({usage.unpriced:,} of unknown price)"
        if usage.unpriced
        else format_money(usage.nano_usd)
    )


def format_brief_cost(usage: Usage) -> str:
    """The same for a column of a table."""
    if not usage.calls:
        return ""
    if usage.cost is None:
        return "not known"
    digits = -5 if usage.nano_usd >= NANO_PER_USD // 100 else 1 - Decimal(usage.nano_usd).adjusted()
    return f"{format_money(round(usage.nano_usd, digits))}{'+' if usage.unpriced else ''}"


def format_tokens_and_cost(usage: Usage) -> str:
    """``1,200 tokens in (800 cached), 56 out, $0.0012``."""
    cached = f" ({usage.cached_tokens:,} cached)" if usage.cached_tokens else ""
    return f"{format_count(usage.input_tokens, 'token')} in{cached}, {usage.output_tokens:,} out, {format_cost(usage)}"


def format_usage(usage: Usage) -> str:
    """All of a run's model calls together."""
    return (
        f"{format_count(usage.calls, 'model call')}: {format_tokens_and_cost(usage)}"
        if usage.calls
        else "no model calls"
    )


# Budgets


class BudgetLimit(NamedTuple):
    """One limit of a budget, in the units in which it is given."""

    name: str
    """``usd``, ``tokens``, ``turns`` or ``seconds``."""
    max_amount: float
    used: float

    @property
    def remaining(self) -> float:
        """What may still be used."""
        return max(0, round(self.max_amount - self.used, 9))

    def format_amount(self, amount: float) -> str:
        """An amount of it."""
        if self.name == "usd":
            return format_money(round(amount * NANO_PER_USD))
        return format_duration(amount) if self.name == "seconds" else f"{amount:,.0f}"

    @property
    def suggested_limit(self) -> str:
        """A higher limit, to be given on the command line: twice what it is, or was used."""
        twice = 2 * max(self.max_amount, self.used)
        if self.name != "usd":
            return str(math.ceil(twice))
        return f"{math.ceil(round(100 * twice, 6)) / 100:.2f}"


def list_budget_limits(usage: RunUsage | RunBudget) -> list[BudgetLimit]:
    """The limits of a run's budget, and what of each is used."""
    own, used = usage.budget, usage.used
    limits = own.to_limits() if isinstance(own, Budget) else own or BudgetLimits()
    every: list[tuple[str, float | None, float]] = [
        ("usd", None if limits.nano_usd is None else limits.nano_usd / NANO_PER_USD, used.nano_usd / NANO_PER_USD),
        ("tokens", limits.tokens, used.tokens),
        ("turns", limits.calls, used.calls),
        ("seconds", None if limits.seconds is None else float(limits.seconds), used.seconds),
    ]
    return [BudgetLimit(name, most, amount) for name, most, amount in every if most is not None]


def format_remaining(usage: RunUsage | RunBudget) -> str:
    """``$4.02 of $5.00 and 3 of 20 turns``."""
    words = {"usd": "", "tokens": " tokens", "turns": " turns", "seconds": " at work"}
    parts = [
        f"{one.format_amount(one.remaining)} of {one.format_amount(one.max_amount)}{words[one.name]}"
        for one in list_budget_limits(usage)
    ]
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def budget_to_json(usage: RunUsage | RunBudget) -> dict[str, Any] | None:
    """A run's own budget, under stable names; null for none."""
    return None if usage.budget is None else {one.name: one.max_amount for one in list_budget_limits(usage)}


def remaining_to_json(usage: RunUsage | RunBudget) -> dict[str, Any] | None:
    """What is left of it."""
    return None if usage.budget is None else {one.name: one.remaining for one in list_budget_limits(usage)}


async def load_applicable_budgets(store: Store, run: Run) -> list[tuple[str, RunUsage]]:
    """The budgets that a run's model calls have to keep to: its own, and those of the runs above it, by run id."""
    found: list[tuple[str, RunUsage]] = []
    above: Run | None = run if run.has_budget else None
    while above is not None:
        told = (await store.get_usages([above.id])).get(above.id)
        if told is not None and told.budget is not None:
            found.append((above.id, told))
        parent = await store.get_run(above.parent) if above.parent else None
        above = parent if parent is not None and can_be_parent(parent.key, above.key) else None
    return found


async def load_usage(store: Store, run_ids: Sequence[str]) -> dict[str, RunUsage]:
    """What runs have used, with those below them; for each of them, also if that is nothing."""
    known = await store.get_usages(run_ids)
    return {run_id: known.get(run_id, RunUsage()) for run_id in run_ids}
