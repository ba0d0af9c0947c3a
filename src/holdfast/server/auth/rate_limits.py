"""How many requests a caller may make: per second, with a burst, and at once. Each server process counts for itself."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from holdfast.server.caches.lru_dict import LruDict
from holdfast.services.problems import Problem

MAX_BUCKETS = 10_000
"""Callers that are remembered. A forgotten caller starts with a full bucket again."""


class RateLimiter:
    """A token bucket for each caller."""

    def __init__(self, requests_per_s: float, burst: float, clock: Callable[[], float]) -> None:
        self._requests_per_s = requests_per_s
        self._burst = burst
        self._clock = clock
        window = max(1, ceil(burst / requests_per_s))
        self._policy_header = (b"ratelimit-policy", f'"default";q={max(1, int(burst))};w={window}'.encode())
        self._buckets: LruDict[str, tuple[float, float]] = LruDict(MAX_BUCKETS)
        """By caller: how much was left, and when."""

    def count_request(self, caller: str) -> None:
        """Count a request. Raises ``Problem``, and counts nothing, if there were too many."""
        now = self._clock()
        left, since = self._buckets.get(caller, (self._burst, now))
        # If the clock was set back, nothing is refilled, and time counts from there.
        if now > since:
            left = min(self._burst, left + (now - since) * self._requests_per_s)
        self._buckets[caller] = (left if left < 1 else left - 1, now)
        if left < 1:
            retry_after_s = max(1, round((1 - left) / self._requests_per_s + 0.5))
            raise Problem(
                429,
                "too-many-requests",
                "Too many requests",
                f"Ask again in {retry_after_s} s.",
                headers={"Retry-After": str(retry_after_s)},
            )

    def make_headers(self, caller: str) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
        """Response headers with the limit and the rest of it (draft-ietf-httpapi-ratelimit-headers)."""
        left, _ = self._buckets.get(caller, (self._burst, 0.0))
        reset = ceil((self._burst - left) / self._requests_per_s)
        return self._policy_header, (b"ratelimit", b'"default";r=%d;t=%d' % (left, reset))


class ConcurrencyLimiter:
    """Limits how many requests or streams each caller has open."""

    def __init__(self, max_open: int, kind: str) -> None:
        self._max_open = max_open
        self._kind = kind
        self._open_counts: dict[str, int] = {}

    def check(self, caller: str) -> None:
        """Raise ``Problem`` if one more would exceed the limit."""
        if self._open_counts.get(caller, 0) >= self._max_open:
            raise Problem(
                429,
                "too-many-concurrent-requests",
                f"Too many {self._kind} are open",
                f"This key may have {self._max_open:,} {self._kind} at once: close some, or use more keys.",
                headers={"Retry-After": "1"},
            )

    def acquire(self, caller: str) -> None:
        """Count one more, until ``release``. Raises ``Problem`` if it exceeds the limit."""
        self.check(caller)
        self._open_counts[caller] = self._open_counts.get(caller, 0) + 1

    def release(self, caller: str) -> None:
        """Count one less."""
        count = self._open_counts.pop(caller) - 1
        if count:
            self._open_counts[caller] = count
