"""When a lease has expired, and which process may decide that.

A worker that has not renewed its lease is dead, unless it could not renew: while the database is down or its disk is
full, no worker can. When the database is back, all leases have expired, and the first worker to reach it must not
declare the others dead. The same is true after the clock that leases are written with was set forward, and for a
process that was itself suspended for a while.

So a process that checks for expired leases counts only the time in which it knows that renewals succeed: a
``LeaseWindow``. ``LeaseWindowTracker`` tracks that time by the process's own writes (for a worker, the renewals of its
own lease). A window starts with the first successful write, and starts over after a failed write, after a gap between
two writes, and when the store's clock was set. Within a window a live worker has every chance to renew; a worker that
does not renew for the whole duration of its lease is dead. A process that has just started knows nothing about the time
before, and counts from its start.

Not all processes come back at the same moment. They retry with growing pauses, and so does TCP on a connection that
loses packets: a pause can be as long as the outage. So after an outage, as much time again does not count.

A death that the operating system reports (a free lock) is another matter, and needs no window.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

_CLOCK_SET_FRACTION = 0.2
"""The store's clock counts as set when it deviates from elapsed time by this fraction of the maximum gap."""
MAX_GRACE_S = 30.0
"""Maximum seconds after an outage that do not count. By then TCP has given up, and processes reconnect."""


class LeaseWindow(NamedTuple):
    """The time in which leases count, by the store's clock."""

    since: float
    until: float

    def has_expired(self, heartbeat_at: float, lease_expires_at: float) -> bool:
        """Whether a lease that was last renewed at ``heartbeat_at`` has expired within this window."""
        return max(heartbeat_at, self.since) + (lease_expires_at - heartbeat_at) < self.until


class LeaseWindowTracker:
    """Tracks since when this process has been able to write to a store without a gap. Used from any thread.

    ``now`` is the store's clock. ``monotonic`` is a clock that cannot be set.
    """

    def __init__(self, now: Callable[[], float], monotonic: Callable[[], float], *, max_gap_s: float) -> None:
        self._now = now
        self._monotonic = monotonic
        self._max_gap_s = max_gap_s
        self._lock = threading.Lock()
        self._has_failed = True
        self._last_success_at: float | None = None
        """When the last successful write was sent."""
        self._window_start = monotonic()
        self._clock_offset = now() - self._window_start

    def note_success(self, sent_at: float) -> None:
        """A write that was sent at ``sent_at`` (in ``monotonic`` time) has succeeded."""
        with self._lock:
            received_at = self._monotonic()
            if self._last_success_at is None:
                self._window_start = received_at
            elif self._has_failed or received_at - self._last_success_at > self._max_gap_s:
                self._window_start = received_at + min(received_at - self._last_success_at, MAX_GRACE_S)
            self._last_success_at, self._has_failed = sent_at, False

    def note_failure(self) -> None:
        """A write has failed."""
        self._has_failed = True

    def get_window(self) -> LeaseWindow:
        """The current window, up to now."""
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
