"""The usage of model calls, and the budgets of runs.

Money is counted in billionths of a dollar, as whole numbers, so that sums in a database are exact.

A run's usage includes that of the whole run tree below it, and so does its budget. Before a model call, its expected
usage is *reserved* with every budget above it. When its outcome is recorded, its real usage replaces the reservation. A
call that would exceed a budget is not made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from holdfast.errors import UsageError

NANO_PER_USD = 1_000_000_000
"""Billionths of a dollar in a dollar."""

BUDGET_SIGNAL = "holdfast:budget"
"""The signal that a budget was raised, for a run that waits because its next model call would exceed it."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of one model call, or of all calls of a run."""

    calls: int = 0
    """Model calls that were answered: the turns of an agent."""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """The input tokens that the provider had in its cache."""
    nano_usd: int = 0
    """The cost of the calls with a known price, in billionths of a dollar."""
    unpriced: int = 0
    """Calls of models with an unknown price: they count as tokens only."""
    seconds: float = 0.0
    """The time in model calls and tools, without the time that a run waits. Recorded for runs with a budget."""

    @property
    def tokens(self) -> int:
        """Input and output tokens."""
        return self.input_tokens + self.output_tokens

    @property
    def cost(self) -> Decimal | None:
        """The cost in dollars of the calls with a known price; ``None`` when no call has one."""
        if self.calls and self.unpriced >= self.calls:
            return None
        return Decimal(self.nano_usd) / NANO_PER_USD

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.nano_usd + other.nano_usd,
            self.unpriced + other.unpriced,
            self.seconds + other.seconds,
        )

    def __str__(self) -> str:
        words = f"{self.calls} model call{'' if self.calls == 1 else 's'}, "
        words += f"{self.input_tokens:,} tokens in, {self.output_tokens:,} out"
        if self.cost is not None and self.calls:
            words += f", ${self.cost:.6f}".rstrip("0").rstrip(".") if self.nano_usd else ", $0"
        if self.unpriced:
            words += " (price not known)" if self.cost is None else f" ({self.unpriced} of them of unknown price)"
        return words


@dataclass(frozen=True, slots=True)
class Budget:
    """How much a run may use, together with all the runs that it starts. Arguments that are left out are not limited.

    Args:
        usd: dollars. The price of every model must be known (see ``genai-prices``).
        tokens: input and output tokens.
        turns: model calls.
        seconds: the time in model calls and tools; the time that a run waits does not count.
    """

    usd: float | Decimal | None = None
    tokens: int | None = None
    turns: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        limits = {name: getattr(self, name) for name in ("usd", "tokens", "turns", "seconds")}
        if all(value is None for value in limits.values()):
            raise UsageError("Budget(): say what is limited, as in Budget(usd=1.5) or Budget(tokens=100_000)")
        for name, value in limits.items():
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
                raise UsageError(f"Budget({name}={value!r}) is no number")
            if not (isinstance(value, int) or math.isfinite(value)) or value <= 0:
                raise UsageError(f"Budget({name}={value!r}) must be more than 0")
            if name in ("tokens", "turns") and value != int(value):
                raise UsageError(f"Budget({name}={value!r}) must be a whole number")

    @property
    def nano_usd(self) -> int | None:
        """``usd`` in billionths of a dollar."""
        return None if self.usd is None else int(Decimal(str(self.usd)) * NANO_PER_USD)

    def to_limits(self) -> BudgetLimits:
        """The limits in the units of the stores."""
        tokens, turns = (None if limit is None else int(limit) for limit in (self.tokens, self.turns))
        return BudgetLimits(self.nano_usd, tokens, turns, self.seconds)

    @classmethod
    def from_limits(cls, limits: BudgetLimits) -> Budget:
        """The budget with these limits."""
        usd = None if limits.nano_usd is None else float(Decimal(limits.nano_usd) / NANO_PER_USD)
        return cls(usd, limits.tokens, limits.calls, limits.seconds)


class BudgetLimits(NamedTuple):
    """A budget in the units of ``Usage``; ``None`` is no limit."""

    nano_usd: int | None = None
    tokens: int | None = None
    calls: int | None = None
    seconds: float | None = None


class BudgetShortage(NamedTuple):
    """Why a reservation was refused: the budget, and the limit that it would exceed."""

    run_id: str
    """The run with the budget: the caller's run, or one above it."""
    limit_name: str
    """``usd``, ``tokens``, ``turns`` or ``seconds``; ``price``: a budget in dollars, and a call of unknown price."""
    max_amount: float
    """The limit itself; dollars for ``usd``."""
    used: float
    reserved: float
    """The reservations of other calls in flight."""
    expected: float
    """The expected usage of the call."""
    is_temporary: bool
    """Only the reservations of other calls are in the way: it may be granted once their outcomes are known."""

    @property
    def is_exhausted(self) -> bool:
        """Whether it can be granted only after the budget is raised."""
        return not self.is_temporary and self.limit_name != "price"


def find_shortage(
    run_id: str, limits: BudgetLimits, used: Usage, reserved: Usage, expected: Usage
) -> BudgetShortage | None:
    """The limit that a call would exceed, if any; preferably one that it would exceed without other reservations.

    Time is not reserved, because the duration of a call is unknown. A call may start as long as there is time left.
    """
    if limits.seconds is not None and used.seconds >= limits.seconds:
        return BudgetShortage(run_id, "seconds", limits.seconds, used.seconds, 0.0, 0.0, is_temporary=False)
    if limits.nano_usd is not None and expected.unpriced:
        return BudgetShortage(
            run_id, "price", limits.nano_usd / NANO_PER_USD, used.nano_usd / NANO_PER_USD, 0.0, 0.0, is_temporary=False
        )
    shortage: BudgetShortage | None = None
    for name, limit, used_amount, reserved_amount, expected_amount in (
        ("usd", limits.nano_usd, used.nano_usd, reserved.nano_usd, expected.nano_usd),
        ("tokens", limits.tokens, used.tokens, reserved.tokens, expected.tokens),
        ("turns", limits.calls, used.calls, reserved.calls, expected.calls),
    ):
        if limit is None or used_amount + reserved_amount + expected_amount <= limit:
            continue
        unit = NANO_PER_USD if name == "usd" else 1
        is_temporary = used_amount + expected_amount <= limit
        if shortage is None or not is_temporary:
            amounts = (limit / unit, used_amount / unit, reserved_amount / unit, expected_amount / unit)
            shortage = BudgetShortage(run_id, name, *amounts, is_temporary)
        if not is_temporary:
            break
    return shortage
