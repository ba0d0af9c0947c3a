"""Tokens, money and budgets: as people read them, and as programs do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.admission.usage import NANO, Budget, Limits, Usage
from holdfast.reports.formatting import counted, duration
from holdfast.stores.contract import RunUsage, Store
from holdfast.stores.operations import Run
from holdfast.stores.rules import is_above

if TYPE_CHECKING:
    from holdfast.reports.budgets import Allowance


def money(nano_usd: int) -> str:
    """``$1.50``, ``$0.000132``: cents at least, and millionths of a dollar at most."""
    if 0 < nano_usd < NANO // 1_000_000:
        return "less than $0.000001"
    whole, _, part = f"{Decimal(nano_usd) / NANO:,.6f}".partition(".")
    return f"${whole}.{part.rstrip('0').ljust(2, '0')}"


def cost(used: Usage) -> str:
    """What model calls have cost, as far as their prices are known."""
    if used.cost is None:
        return "price not known"
    return (
        f"{money(used.nano_usd)} or more ({used.unpriced:,} of unknown price)"
        if used.unpriced
        else money(used.nano_usd)
    )


def brief_cost(used: Usage) -> str:
    """The same for a column of a table."""
    if not used.calls:
        return ""
    if used.cost is None:
        return "not known"
    digits = -5 if used.nano_usd >= NANO // 100 else 1 - Decimal(used.nano_usd).adjusted()
    return f"{money(round(used.nano_usd, digits))}{'+' if used.unpriced else ''}"


def tokens_and_cost(used: Usage) -> str:
    """``1,200 tokens in (800 cached), 56 out, $0.0012``."""
    cached = f" ({used.cached_tokens:,} cached)" if used.cached_tokens else ""
    return f"{counted(used.input_tokens, 'token')} in{cached}, {used.output_tokens:,} out, {cost(used)}"


def in_words(used: Usage) -> str:
    """All of a run's model calls together."""
    return f"{counted(used.calls, 'model call')}: {tokens_and_cost(used)}" if used.calls else "no model calls"


# Budgets


class Share(NamedTuple):
    """One limit of a budget, in the units in which it is given."""

    name: str
    """``usd``, ``tokens``, ``turns`` or ``seconds``."""
    most: float
    used: float

    @property
    def left(self) -> float:
        """What may still be used."""
        return max(0, round(self.most - self.used, 9))

    def worded(self, amount: float) -> str:
        """An amount of it."""
        if self.name == "usd":
            return money(round(amount * NANO))
        return duration(amount) if self.name == "seconds" else f"{amount:,.0f}"

    @property
    def enough(self) -> str:
        """A higher limit, to be given on the command line: twice what it is, or was used."""
        twice = 2 * max(self.most, self.used)
        if self.name != "usd":
            return str(math.ceil(twice))
        return f"{math.ceil(round(100 * twice, 6)) / 100:.2f}"


def shares(told: RunUsage | Allowance) -> list[Share]:
    """The limits of a run's budget, and what of each is used."""
    own, used = told.budget, told.used
    limits = own.limits() if isinstance(own, Budget) else own or Limits()
    every: list[tuple[str, float | None, float]] = [
        ("usd", None if limits.nano_usd is None else limits.nano_usd / NANO, used.nano_usd / NANO),
        ("tokens", limits.tokens, used.tokens),
        ("turns", limits.calls, used.calls),
        ("seconds", None if limits.seconds is None else float(limits.seconds), used.seconds),
    ]
    return [Share(name, most, amount) for name, most, amount in every if most is not None]


def left_in_words(told: RunUsage | Allowance) -> str:
    """``$4.02 of $5.00 and 3 of 20 turns``."""
    words = {"usd": "", "tokens": " tokens", "turns": " turns", "seconds": " at work"}
    parts = [f"{one.worded(one.left)} of {one.worded(one.most)}{words[one.name]}" for one in shares(told)]
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def budget_as_json(told: RunUsage | Allowance) -> dict[str, Any] | None:
    """A run's own budget, under stable names; null for none."""
    return None if told.budget is None else {one.name: one.most for one in shares(told)}


def left_as_json(told: RunUsage | Allowance) -> dict[str, Any] | None:
    """What is left of it."""
    return None if told.budget is None else {one.name: one.left for one in shares(told)}


async def budgets_over(store: Store, run: Run) -> list[tuple[str, RunUsage]]:
    """The budgets that a run's model calls have to keep to: its own, and those of the runs above it, by run id."""
    found: list[tuple[str, RunUsage]] = []
    above: Run | None = run if run.has_budget else None
    while above is not None:
        told = (await store.usages([above.id])).get(above.id)
        if told is not None and told.budget is not None:
            found.append((above.id, told))
        parent = await store.get(above.parent) if above.parent else None
        above = parent if parent is not None and is_above(parent.key, above.key) else None
    return found


async def usage_of(store: Store, run_ids: Sequence[str]) -> dict[str, RunUsage]:
    """What runs have used, with those below them; for each of them, also if that is nothing."""
    known = await store.usages(run_ids)
    return {run_id: known.get(run_id, RunUsage()) for run_id in run_ids}
