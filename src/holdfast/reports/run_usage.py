"""Tokens, costs, and budgets: as text for people, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.admission.usage import NANO_PER_USD, Budget, BudgetLimits, Usage
from holdfast.reports.formatting import format_count, format_duration, format_list
from holdfast.stores.contract import RunUsage, Store
from holdfast.stores.operations import Run
from holdfast.stores.rules import can_be_parent

if TYPE_CHECKING:
    from holdfast.reports.budgets import RunBudget


def format_money(nano_usd: int) -> str:
    """``$1.50``, ``$0.000132``: with two to six digits after the point."""
    if 0 < nano_usd < NANO_PER_USD // 1_000_000:
        return "less than $0.000001"
    whole, _, part = f"{Decimal(nano_usd) / NANO_PER_USD:,.6f}".partition(".")
    return f"${whole}.{part.rstrip('0').ljust(2, '0')}"


def format_cost(usage: Usage) -> str:
    """The cost of model calls, as far as their prices are known."""
    if usage.cost is None:
        return "price not known"
    more = f" or more ({usage.unpriced:,} of unknown price)" if usage.unpriced else ""
    return f"{format_money(usage.nano_usd)}{more}"


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
    """The usage of all model calls of a run."""
    if not usage.calls:
        return "no model calls"
    return f"{format_count(usage.calls, 'model call')}: {format_tokens_and_cost(usage)}"


# Budgets


class BudgetLimit(NamedTuple):
    """One limit of a budget, in the units in which it is given."""

    name: str
    """``usd``, ``tokens``, ``turns`` or ``seconds``."""
    max_amount: float
    used: float

    @property
    def remaining(self) -> float:
        """The unused amount."""
        return max(0, round(self.max_amount - self.used, 9))

    def format_amount(self, amount: float) -> str:
        """An amount, as text."""
        if self.name == "usd":
            return format_money(round(amount * NANO_PER_USD))
        return format_duration(amount) if self.name == "seconds" else f"{amount:,.0f}"

    @property
    def suggested_limit(self) -> str:
        """A higher limit for the command line: twice the current limit, or twice the used amount."""
        twice = 2 * max(self.max_amount, self.used)
        if self.name != "usd":
            return str(math.ceil(twice))
        return f"{math.ceil(round(100 * twice, 6)) / 100:.2f}"


def list_budget_limits(usage: RunUsage | RunBudget) -> list[BudgetLimit]:
    """The limits of a run's budget, each with its used amount."""
    budget, used = usage.budget, usage.used
    limits = budget.to_limits() if isinstance(budget, Budget) else budget or BudgetLimits()
    amounts: list[tuple[str, float | None, float]] = [
        ("usd", None if limits.nano_usd is None else limits.nano_usd / NANO_PER_USD, used.nano_usd / NANO_PER_USD),
        ("tokens", limits.tokens, used.tokens),
        ("turns", limits.calls, used.calls),
        ("seconds", None if limits.seconds is None else float(limits.seconds), used.seconds),
    ]
    return [BudgetLimit(name, limit, amount) for name, limit, amount in amounts if limit is not None]


def format_remaining(usage: RunUsage | RunBudget) -> str:
    """``$4.02 of $5.00 and 3 of 20 turns``."""
    units = {"usd": "", "tokens": " tokens", "turns": " turns", "seconds": " at work"}
    return format_list(
        [
            f"{limit.format_amount(limit.remaining)} of {limit.format_amount(limit.max_amount)}{units[limit.name]}"
            for limit in list_budget_limits(usage)
        ]
    )


def budget_to_json(usage: RunUsage | RunBudget) -> dict[str, Any] | None:
    """The limits of a run's own budget; ``None`` if it has no budget."""
    return None if usage.budget is None else {limit.name: limit.max_amount for limit in list_budget_limits(usage)}


def remaining_to_json(usage: RunUsage | RunBudget) -> dict[str, Any] | None:
    """The unused amounts of a run's own budget; ``None`` if it has no budget."""
    return None if usage.budget is None else {limit.name: limit.remaining for limit in list_budget_limits(usage)}


async def load_applicable_budgets(store: Store, run: Run) -> list[tuple[str, RunUsage]]:
    """The budgets that limit a run's model calls: its own, and those of the runs above it, with the run ids."""
    found: list[tuple[str, RunUsage]] = []
    current: Run | None = run if run.has_budget else None
    while current is not None:
        usage = (await store.get_usages([current.id])).get(current.id)
        if usage is not None and usage.budget is not None:
            found.append((current.id, usage))
        parent = await store.get_run(current.parent) if current.parent else None
        current = parent if parent is not None and can_be_parent(parent.key, current.key) else None
    return found


async def load_usage(store: Store, run_ids: Sequence[str]) -> dict[str, RunUsage]:
    """The usage of each run, with the runs below it."""
    known = await store.get_usages(run_ids)
    return {run_id: known.get(run_id, RunUsage()) for run_id in run_ids}
