"""How many requests a caller may make: so many a second, with a burst, and so many at once, in this process alone."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from math import ceil

from holdfast.server.http.problems import Problem

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

    def headers(self, caller: str) -> dict[str, str]:
        """Response headers with the limit and what is left of it (draft-ietf-httpapi-ratelimit-headers)."""
        left, _ = self._left.get(caller, (self._burst, 0.0))
        window, reset = ceil(self._burst / self._per_second), ceil((self._burst - left) / self._per_second)
        return {
            "RateLimit-Policy": f'"default";q={max(1, int(self._burst))};w={max(1, window)}',
            "RateLimit": f'"default";r={max(0, int(left))};t={reset}',
        }


class AtOnce:
    """Limits how many requests or streams each caller has open."""

    def __init__(self, most: int, what: str) -> None:
        self._most = most
        self._what = what
        self._open: Counter[str] = Counter()

    def check(self, caller: str) -> None:
        """Raise ``Problem`` if one more would exceed the limit."""
        if self._open[caller] >= self._most:
            raise Problem(
                429,
                "too-many-at-once",
                f"Too many {self._what} are open",
                f"This key may have {self._most:,} {self._what} at once: close some, or use more keys.",
                headers={"Retry-After": "1"},
            )

    @contextmanager
    def held(self, caller: str) -> Generator[None]:
        """Count one more until the end of the block. Raises ``Problem`` if it exceeds the limit."""
        self.check(caller)
        self._open[caller] += 1
        try:
            yield
        finally:
            self._open[caller] -= 1
            if not self._open[caller]:
                del self._open[caller]


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
