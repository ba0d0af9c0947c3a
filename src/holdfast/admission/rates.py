"""How often something may happen, and how a fleet keeps to it. Pure: the time is handed in.

A ``Rate`` is read strictly: ``100/min`` is at most 100 in *any* minute, wherever the minute begins, because that is how
providers of models and services count, and what people mean. The usual algorithms do not keep that. A token bucket that
holds 100 and is filled at 100 a minute lets up to 200 pass in one: those it held, and those that flow in. Counting by
the minute of the clock lets 200 pass around the turn of a minute. A bucket (or GCRA, which is the same) keeps the bound
only if its capacity and what flows in during a minute are 100 *together*, so that it gives up either bursts or half of
the rate. To remember the time of every start is exact, but a row of 10,000 times is too much to write for each.

So the state is a short log: of when how much was taken, by which it leaves the window again. A rate of at most
``SLOTS_PER_WINDOW`` has an entry for every start, and is exact. For a larger one, what is taken in the same slot, a
``SLOTS_PER_WINDOW``-th of the window, is one entry with the time of the latest. This makes an entry leave the window up
to a slot too late and never too early. Hence:

- Never more than the rate in any window: proven by the tests for arbitrary times.
- A burst of the full rate is granted at once, and again when the window has passed: such a fleet gets the whole rate.
- Where starts come evenly, at most one part in ``SLOTS_PER_WINDOW + 1`` of the rate is lost (5 %).
- The state is at most ``SLOTS_PER_WINDOW + 1`` pairs of numbers and one more, whatever the rate: one small row.

What is taken counts when it starts. How many tokens a model call uses is known when it has ended, so it is *charged*
then, and nobody can refuse it: what does not fit into the window is **debt**. Nothing is granted while there is debt.
It is paid with the room that becomes free, as if that had been taken then. So what is charged cannot pass the rate in
the long run: three windows' worth charged at once stop everything for three windows.

The bound holds as far as the clocks of those who take agree: it is meant to be the clock of the store, which there is
one of. If two differ by a second, a window may be a second short. An entry from the future, as a clock that was set
back leaves behind, counts as taken now, so that it cannot stop a rate for longer than a window.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from holdfast.admission.durations import MAX_DURATION_S, duration_to_seconds, format_duration
from holdfast.errors import UsageError

SLOTS_PER_WINDOW = 20
"""How many slots a window has."""

Unit = Literal["calls", "tokens"]

_RATE_PATTERN = re.compile(r"\s*(\d[\d_,]*)\s*([a-z]*)\s*(?:/|\bper\b)\s*(.+)", re.IGNORECASE)
_UNITS_BY_WORD: dict[str, Unit] = {
    "": "calls",
    "call": "calls",
    "calls": "calls",
    "token": "tokens",
    "tokens": "tokens",
}


@dataclass(frozen=True, slots=True)
class Rate:
    """At most so many in any window of so many seconds. ``str`` is its text, which ``parse`` reads back."""

    max_count: int
    window_s: float
    unit: Unit = "calls"

    def __post_init__(self) -> None:
        if self.max_count < 1:
            raise UsageError(f"a rate of {self.max_count}: at least 1 must be allowed, as in '1/min'")
        if not 0 < self.window_s <= MAX_DURATION_S:
            raise UsageError(
                f"a rate in {self.window_s} seconds: the window must be longer than no time, as in '1/min'"
            )

    @classmethod
    def parse(cls, text: str) -> Rate:
        """The rate that a text stands for: ``100/min``, ``5/s``, ``10000 tokens/min``, ``100/15min``, ``1000/hour``."""
        found = _RATE_PATTERN.fullmatch(text)
        if found is None:
            raise UsageError(
                f"rate {text!r}: say how many, and in how much time, as in '100/min', '5/s', '1000/hour', '100/15 min' "
                f"or '10000 tokens/min'. How many is a whole number"
            )
        number, word, window = found.groups()
        unit = _UNITS_BY_WORD.get(word.lower())
        if unit is None:
            raise UsageError(
                f"rate {text!r}: {word!r} cannot be counted. Give 'calls' or 'tokens'; no word means calls"
            )
        return cls(int(re.sub("[_,]", "", number)), duration_to_seconds(window, f"rate {text!r}:"), unit)

    def __str__(self) -> str:
        return f"{self.max_count}{' tokens' if self.unit == 'tokens' else ''}/{format_duration(self.window_s)}"

    @property
    def slot_s(self) -> float:
        """Seconds for which one entry stands; 0: every start has its own."""
        return 0.0 if self.max_count <= SLOTS_PER_WINDOW else self.window_s / SLOTS_PER_WINDOW


class RateEntry(NamedTuple):
    """What was taken in one slot, and when the last of it was."""

    time: float
    amount: int


class TakeResult(NamedTuple):
    """The answer to who wants to take."""

    is_granted: bool
    state: RateState
    """What is to be kept; if it was refused, the state that was asked, so that there is nothing to write."""


@dataclass(frozen=True, slots=True)
class RateState:
    """How much of a rate is used up. A new one is unused."""

    rate: Rate
    entries: tuple[RateEntry, ...] = ()
    """In order of time."""
    debt: int = 0
    """What was charged and has not yet had its place in a window. While there is some, the window is full."""

    def take(self, now: float, amount: int = 1) -> TakeResult:
        """Take ``amount`` now, if the rate allows it.

        An amount of 0 is for what will be charged when it is known: it is granted if there is room for some.
        """
        self._check_amount(amount)
        settled = self._advance_to(now)
        if not settled._has_capacity(amount):
            return TakeResult(False, self)
        return TakeResult(True, settled._add_entry(now, amount))

    def charge(self, now: float, amount: int) -> RateState:
        """Count what was used without having been taken. What the window has no room for becomes debt."""
        if amount < 0:
            raise UsageError(f"rate {self.rate}: {amount} cannot be charged: what was used is not given back")
        settled = self._advance_to(now)
        fits = min(amount, max(0, self.rate.max_count - settled._sum_amounts()))
        return replace(settled._add_entry(now, fits), debt=settled.debt + amount - fits)

    def get_next_grant_at(self, amount: int = 1) -> float:
        """From when on ``take`` would grant this, if nothing else is taken until then; 0: at once."""
        self._check_amount(amount)
        state, at = self, 0.0
        while not state._has_capacity(amount):
            # Whole windows of debt are passed over at once.
            state = state._skip_full_windows(math.inf)
            at = state.entries[0].time + self.rate.window_s
            state = state._drop_oldest()
        return at

    def to_numbers(self) -> tuple[float, ...]:
        """The state as plain numbers, for JSON: the debt, and the time and the amount of each entry."""
        return (self.debt, *(number for entry in self.entries for number in entry))

    @classmethod
    def from_numbers(cls, rate: Rate, numbers: Sequence[float]) -> RateState:
        """What ``to_numbers`` gave, under the same rate or another: rates are changed while they are in use."""
        if not numbers:
            return cls(rate)
        debt, *rest = numbers
        pairs = zip(rest[::2], rest[1::2], strict=True)
        entries = tuple(RateEntry(float(time), int(amount)) for time, amount in pairs)
        # If the window was shortened, some have left it, and if the rate was raised, there is room for debt. Without
        # these two steps, the entries might be further apart than a window, or there might be debt beside free room.
        newest = entries[-1].time if entries else 0.0
        return cls(rate, entries, int(debt))._advance_to(newest)._pay_debt(newest)

    def _check_amount(self, amount: int) -> None:
        if amount < 0:
            raise UsageError(f"rate {self.rate}: an amount is 0 or more, not {amount}")
        if amount > self.rate.max_count:
            raise UsageError(
                f"rate {self.rate}: {amount} at once would never be allowed, as it is more than the whole rate. Take "
                f"less at a time, or raise the rate"
            )

    def _sum_amounts(self) -> int:
        return sum(entry.amount for entry in self.entries)

    def _has_capacity(self, amount: int) -> bool:
        return not self.debt and self._sum_amounts() + max(amount, 1) <= self.rate.max_count

    def _advance_to(self, now: float) -> RateState:
        """The state at this time: without what has left the window, and with the debt that this has paid."""
        state = self
        if self.entries and self.entries[-1].time > now:
            state = replace(self, entries=())
            for time, amount in self.entries:
                state = state._add_entry(min(time, now), amount)
        state = state._skip_full_windows(now)
        while state.entries and state.entries[0].time + self.rate.window_s <= now:
            state = state._drop_oldest()._skip_full_windows(now)
        return state

    def _skip_full_windows(self, now: float) -> RateState:
        """The same after as many windows as have passed, and been taken up by debt altogether."""
        if not self.debt or self._sum_amounts() != self.rate.max_count:
            return self
        if self._is_same_slot(self.entries[0].time + self.rate.window_s, self.entries[-1].time):
            return self  # what is paid first becomes one entry with the newest: that is no longer the same entries
        passed = (now - self.entries[-1].time) / self.rate.window_s
        windows = int(min(passed, self.debt // self.rate.max_count))
        if windows < 1:
            return self
        later = windows * self.rate.window_s
        return replace(
            self,
            entries=tuple(RateEntry(time + later, amount) for time, amount in self.entries),
            debt=self.debt - windows * self.rate.max_count,
        )

    def _drop_oldest(self) -> RateState:
        """The same when the oldest entry has left the window."""
        gone, *rest = self.entries
        left = replace(self, entries=tuple(rest))
        # Not before the newest, so that the entries stay in order when the window was shortened meanwhile.
        return left._pay_debt(max(gone.time + self.rate.window_s, rest[-1].time if rest else 0.0))

    def _pay_debt(self, at: float) -> RateState:
        """The same when the debt has been given the room that there is."""
        pays = min(self.debt, max(0, self.rate.max_count - self._sum_amounts()))
        return replace(self._add_entry(at, pays), debt=self.debt - pays) if pays else self

    def _add_entry(self, time: float, amount: int) -> RateState:
        if not amount:
            return self
        if self.entries and self._is_same_slot(self.entries[-1].time, time):
            *before, last = self.entries
            return replace(self, entries=(*before, RateEntry(time, last.amount + amount)))
        return replace(self, entries=(*self.entries, RateEntry(time, amount)))

    def _is_same_slot(self, one: float, other: float) -> bool:
        slot = self.rate.slot_s
        return one == other or (slot > 0 and one // slot == other // slot)
