"""When a lease has passed, and who may say so.

A worker that has not renewed its lease is dead, unless it could not: while the database is away, or its disk is full,
nobody can renew. When the database is back, all leases have passed, and the first worker to reach it must not declare
the others dead. The same holds after the clock by which leases are written down was set forward, and for a process that
was itself suspended for a while.

So whoever looks for passed leases counts only the time in which it knows that renewals go through: a ``LeaseWindow``.
``LeaseWindowTracker`` keeps track of that time. A process knows it from its own writes (a worker's are the renewals of
its own lease). It begins with the first one that goes through, and begins anew after one that fails, after a gap
between two of them, and when the store's clock has been set. Within such a window a live worker has every chance to
renew; one that does not for the whole duration of its lease is dead. A process that has just started knows nothing
about the time before, and counts from its start.

Not all processes are back at the same moment. They try again with growing pauses, and so does TCP on a connection whose
packets get lost: a pause can be as long as the outage was. So after an outage that much more time does not count.

Death that the operating system reports (a lock that is free) is another matter, and needs no window.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

_CLOCK_SET_FRACTION = 0.2
"""The store's clock counts as set when it deviates from the seconds that have passed by this part of a gap."""
MAX_GRACE_S = 30.0
"""Seconds after an outage that do not count, at most. By then TCP has given up, and the process connects anew."""


class LeaseWindow(NamedTuple):
    """Time in which leases count, by the store's clock."""

    since: float
    until: float

    def has_expired(self, heartbeat_at: float, lease_expires_at: float) -> bool:
        """Whether a lease that was last renewed at ``heartbeat_at`` has passed within this window."""
        return max(heartbeat_at, self.since) + (lease_expires_at - heartbeat_at) < self.until


class LeaseWindowTracker:
    """Since when this process has been able to write to a store without a gap. Used from any thread.

    ``now`` is the store's clock. ``monotonic`` is a clock that nobody sets.
    """

    def __init__(self, now: Callable[[], float], monotonic: Callable[[], float], *, max_gap_s: float) -> None:
        self._now = now
        self._monotonic = monotonic
        self._max_gap_s = max_gap_s
        self._lock = threading.Lock()
        self._has_failed = True
        self._last_success_at: float | None = None
        """When the last write was asked for that went through."""
        self._window_start = monotonic()
        self._clock_offset = now() - self._window_start

    def note_success(self, sent_at: float) -> None:
        """A write that was asked for at ``sent_at`` (``elapsed`` time) has gone through."""
        with self._lock:
            answered = self._monotonic()
            if self._last_success_at is None:
                self._window_start = answered
            elif self._has_failed or answered - self._last_success_at > self._max_gap_s:
                self._window_start = answered + min(answered - self._last_success_at, MAX_GRACE_S)
            self._last_success_at, self._has_failed = sent_at, False

    def note_failure(self) -> None:
        """A write has failed."""
        self._has_failed = True

    def get_window(self) -> LeaseWindow:
        """The time in which leases count, up to now."""
        with self._lock:
            now, at = self._now(), self._monotonic()
            was_set = abs(now - at - self._clock_offset) > _CLOCK_SET_FRACTION * self._max_gap_s
            self._clock_offset = now - at
            if (
                was_set
                or self._has_failed
                or self._last_success_at is None
                or at - self._last_success_at > self._max_gap_s
            ):
                self._window_start = max(self._window_start, at)
            return LeaseWindow(now - (at - self._window_start), now)
