"""How many requests a caller may make: so many a second, with a burst, and so many at once, in this process alone."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from math import ceil

from holdfast.server.http.problems import Problem

MAX_BUCKETS = 10_000
"""Callers that are remembered; whoever was here longest ago is forgotten, and may begin anew."""


class RateLimiter:
    """A bucket for each caller, that is refilled steadily."""

    def __init__(self, requests_per_s: float, burst: float, clock: Callable[[], float]) -> None:
        self._requests_per_s = requests_per_s
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By caller: how much was left, and when."""

    def count_request(self, caller: str) -> None:
        """Count a request. Raises ``Problem`` when there were too many."""
        self.check(caller)
        left, since = self._buckets[caller]
        self._buckets[caller] = (left - 1, since)

    def check(self, caller: str) -> None:
        """Raises ``Problem`` when a request would be too many; counts nothing."""
        now = self._clock()
        left, since = self._buckets.get(caller, (self._burst, now))
        # A clock that was set back refills nothing, but goes on from there.
        left = min(self._burst, left + max(0.0, now - since) * self._requests_per_s)
        self._buckets[caller] = (left, now)
        self._buckets.move_to_end(caller)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        if left < 1:
            raise too_many_requests_problem((1 - left) / self._requests_per_s)

    def make_headers(self, caller: str) -> dict[str, str]:
        """Response headers with the limit and what is left of it (draft-ietf-httpapi-ratelimit-headers)."""
        left, _ = self._buckets.get(caller, (self._burst, 0.0))
        window, reset = ceil(self._burst / self._requests_per_s), ceil((self._burst - left) / self._requests_per_s)
        return {
            "RateLimit-Policy": f'"default";q={max(1, int(self._burst))};w={max(1, window)}',
            "RateLimit": f'"default";r={max(0, int(left))};t={reset}',
        }


class ConcurrencyLimiter:
    """Limits how many requests or streams each caller has open."""

    def __init__(self, max_open: int, kind: str) -> None:
        self._max_open = max_open
        self._kind = kind
        self._open_counts: Counter[str] = Counter()

    def check(self, caller: str) -> None:
        """Raise ``Problem`` if one more would exceed the limit."""
        if self._open_counts[caller] >= self._max_open:
            raise Problem(
                429,
                "too-many-at-once",
                f"Too many {self._kind} are open",
                f"This key may have {self._max_open:,} {self._kind} at once: close some, or use more keys.",
                headers={"Retry-After": "1"},
            )

    @contextmanager
    def acquire(self, caller: str) -> Generator[None]:
        """Count one more until the end of the block. Raises ``Problem`` if it exceeds the limit."""
        self.check(caller)
        self._open_counts[caller] += 1
        try:
            yield
        finally:
            self._open_counts[caller] -= 1
            if not self._open_counts[caller]:
                del self._open_counts[caller]


def too_many_requests_problem(wait_s: float) -> Problem:
    """The problem of who asks too often."""
    seconds = max(1, round(wait_s + 0.5))
    return Problem(
        429,
        "too-many-requests",
        "Too many requests",
        f"Ask again in {seconds} s.",
        headers={"Retry-After": str(seconds)},
    )
