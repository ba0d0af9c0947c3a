"""Rate limits for a fleet. Pure: the time is an argument.

A ``Rate`` is strict: ``100/min`` is at most 100 in *any* minute, wherever the minute begins, because providers of
models and services count in this way, and people mean it. The usual algorithms do not guarantee it. A token bucket that
holds 100 and refills at 100 a minute allows up to 200 in one: those it held, and those that flow in. Counting by the
minute of the clock allows 200 around the turn of a minute. A bucket (or GCRA, which is the same) keeps the bound only
if its capacity and its refill during a minute are 100 *together*, so it gives up either bursts or half of the rate.
Storing the time of every start is exact, but a row of 10,000 times is too much to write for each start.

So the state is a short log of amounts and times, by which they leave the window again. A rate of at most
``SLOTS_PER_WINDOW`` has an entry for every start, and is exact. For a larger rate, all starts in the same slot, a
``SLOTS_PER_WINDOW``-th of the window, share one entry with the time of the latest. So an entry leaves the window up to
a slot too late, and never too early. Hence:

- There is never more than the rate in any window: the tests prove it for arbitrary times.
- A burst of the full rate is granted at once, and again when the window has passed: such a fleet gets the whole rate.
- With evenly spaced starts, at most one part in ``SLOTS_PER_WINDOW + 1`` of the rate is lost (5 %).
- The state is at most ``SLOTS_PER_WINDOW + 1`` pairs of numbers and one more, whatever the rate: one small row.

A start counts when it happens. The tokens of a model call are known when it has ended, so they are *charged* then, and
cannot be refused: tokens that do not fit into the window are **debt**. Nothing is granted while there is debt. Room
that becomes free pays the debt first, as if it had been taken at that time. So in the long run, charges cannot exceed
the rate: three windows' worth charged at once stop everything for three windows.

The bound holds if all callers use the same clock, which is meant to be the clock of the store. If two clocks differ by
a second, a window may be a second short. An entry from the future, left by a clock that was set back, counts as taken
now, so that it cannot stop a rate for longer than a window.
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
    """At most ``max_count`` in any window of ``window_s`` seconds. ``str`` is its text, which ``parse`` reads back."""

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
        """Parse a rate: ``100/min``, ``5/s``, ``10000 tokens/min``, ``100/15min``, ``1000/hour``."""
        match = _RATE_PATTERN.fullmatch(text)
        if match is None:
            raise UsageError(
                f"rate {text!r}: say how many, and in how much time, as in '100/min', '5/s', '1000/hour', '100/15 min' "
                f"or '10000 tokens/min'. How many is a whole number"
            )
        number, word, window = match.groups()
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
        """The length of a slot; 0 if every start has an entry of its own."""
        return 0.0 if self.max_count <= SLOTS_PER_WINDOW else self.window_s / SLOTS_PER_WINDOW


class RateEntry(NamedTuple):
    """The amount of one slot, and the time of its latest start."""

    time: float
    amount: int


class TakeResult(NamedTuple):
    """The result of ``RateState.take``."""

    is_granted: bool
    state: RateState
    """The new state; if it was refused, the old one, so that there is nothing to store."""


@dataclass(frozen=True, slots=True)
class RateState:
    """The usage of a rate. A new state is unused."""

    rate: Rate
    entries: tuple[RateEntry, ...] = ()
    """In order of time."""
    debt: int = 0
    """The charged amount that does not fit into the window yet. While there is debt, the window is full."""

    def take(self, now: float, amount: int = 1) -> TakeResult:
        """Take ``amount`` now, if the rate allows it.

        An amount of 0 is for usage that is charged later: it is granted if there is room for any.
        """
        self._check_amount(amount)
        state = self._advance_to(now)
        if not state._has_capacity(amount):
            return TakeResult(False, self)
        return TakeResult(True, state._add_entry(now, amount))

    def charge(self, now: float, amount: int) -> RateState:
        """Count usage that was not taken before. The part that does not fit into the window becomes debt."""
        if amount < 0:
            raise UsageError(f"rate {self.rate}: {amount} cannot be charged: what was used is not given back")
        state = self._advance_to(now)
        fitting = min(amount, max(0, self.rate.max_count - state._sum_amounts()))
        return replace(state._add_entry(now, fitting), debt=state.debt + amount - fitting)

    def get_next_grant_at(self, amount: int = 1) -> float:
        """When ``take`` would grant this amount, if nothing else is taken until then; 0 if at once."""
        self._check_amount(amount)
        state, at = self, 0.0
        while not state._has_capacity(amount):
            # Skip whole windows of debt at once.
            state = state._skip_full_windows(math.inf)
            at = state.entries[0].time + self.rate.window_s
            state = state._drop_oldest()
        return at

    def to_numbers(self) -> tuple[float, ...]:
        """The state as plain numbers, for JSON: the debt, and the time and the amount of each entry."""
        return (self.debt, *(number for entry in self.entries for number in entry))

    @classmethod
    def from_numbers(cls, rate: Rate, numbers: Sequence[float]) -> RateState:
        """The state from ``to_numbers``. The rate may have changed since."""
        if not numbers:
            return cls(rate)
        debt, *rest = numbers
        pairs = zip(rest[::2], rest[1::2], strict=True)
        entries = tuple(RateEntry(float(time), int(amount)) for time, amount in pairs)
        # If the window is shorter now, some entries have left it, and if the rate is higher, there is room for debt.
        # Without these two steps, entries might be further apart than a window, or there might be debt and free room.
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
        """The state at this time: without the entries that have left the window, and with the debt paid from them."""
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
        """The state after all windows that have passed and that debt filled completely."""
        if not self.debt or self._sum_amounts() != self.rate.max_count:
            return self
        if self._is_same_slot(self.entries[0].time + self.rate.window_s, self.entries[-1].time):
            return self  # the first payment would merge with the newest entry, so the entries would not stay the same
        passed = (now - self.entries[-1].time) / self.rate.window_s
        windows = int(min(passed, self.debt // self.rate.max_count))
        if windows < 1:
            return self
        shift_s = windows * self.rate.window_s
        return replace(
            self,
            entries=tuple(RateEntry(time + shift_s, amount) for time, amount in self.entries),
            debt=self.debt - windows * self.rate.max_count,
        )

    def _drop_oldest(self) -> RateState:
        """The state when the oldest entry has left the window."""
        oldest, *rest = self.entries
        state = replace(self, entries=tuple(rest))
        # Not before the newest entry, so that the entries stay in order when the window has become shorter.
        return state._pay_debt(max(oldest.time + self.rate.window_s, rest[-1].time if rest else 0.0))

    def _pay_debt(self, at: float) -> RateState:
        """The state when debt has filled the free room."""
        paid = min(self.debt, max(0, self.rate.max_count - self._sum_amounts()))
        return replace(self._add_entry(at, paid), debt=self.debt - paid) if paid else self

    def _add_entry(self, time: float, amount: int) -> RateState:
        if not amount:
            return self
        if self.entries and self._is_same_slot(self.entries[-1].time, time):
            *earlier, last = self.entries
            return replace(self, entries=(*earlier, RateEntry(time, last.amount + amount)))
        return replace(self, entries=(*self.entries, RateEntry(time, amount)))

    def _is_same_slot(self, one: float, other: float) -> bool:
        slot = self.rate.slot_s
        return one == other or (slot > 0 and one // slot == other // slot)
