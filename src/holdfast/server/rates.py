"""How many requests a caller may make: so many a second, with a burst, counted in this process alone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from holdfast.server.problems import Problem

MOST_KNOWN = 10_000
"""Callers that are remembered; whoever was here longest ago is forgotten, and may begin anew."""


class Rates:
    """A bucket for each caller, that is refilled steadily."""

    def __init__(self, per_second: float, burst: float, clock: Callable[[], float]) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By caller: how much was left, and when."""

    def take(self, caller: str) -> None:
        """Count a request. Raises ``Problem`` when there were too many."""
        self.check(caller)
        left, since = self._left[caller]
        self._left[caller] = (left - 1, since)

    def check(self, caller: str) -> None:
        """Raises ``Problem`` when a request would be too many; counts nothing."""
        now = self._clock()
        left, since = self._left.get(caller, (self._burst, now))
        # A clock that was set back refills nothing, but goes on from there.
        left = min(self._burst, left + max(0.0, now - since) * self._per_second)
        self._left[caller] = (left, now)
        self._left.move_to_end(caller)
        if len(self._left) > MOST_KNOWN:
            self._left.popitem(last=False)
        if left < 1:
            raise too_many((1 - left) / self._per_second)


def too_many(wait: float) -> Problem:
    """The problem of who asks too often."""
    seconds = max(1, round(wait + 0.5))
    return Problem(
        429,
        "too-many-requests",
        "Too many requests",
        f"Ask again in {seconds} s.",
        headers={"Retry-After": str(seconds)},
    )
