"""When a lease has passed, and who may say so.

A worker that has not renewed its lease is dead, unless it could not: while the database is away, or its disk is full,
nobody can renew. When the database is back, all leases have passed, and the first worker to reach it must not declare
the others dead. The same holds after the clock by which leases are written down was set forward, and for a process that
was itself suspended for a while.

So whoever looks for passed leases counts only the time in which it knows that renewals go through: a ``LeaseWindow``.
``Contact`` keeps track of that time. A process knows it from its own writes (a worker's are the renewals of its own
lease). It begins with the first one that goes through, and begins anew after one that fails, after a gap between two of
them, and when the store's clock has been set. Within such a window a live worker has every chance to renew; one that
does not for the whole duration of its lease is dead. A process that has just started knows nothing about the time
before, and counts from its start.

Not all processes are back at the same moment. They try again with growing pauses, and so does TCP on a connection whose
packets get lost: a pause can be as long as the outage was. So after an outage that much more time does not count.

Death that the operating system reports (a lock that is free) is another matter, and needs no window.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

_SET_BY = 0.2
"""The store's clock counts as set when it deviates from the seconds that have passed by this part of a gap."""
MAX_GRACE = 30.0
"""Seconds after an outage that do not count, at most. By then TCP has given up, and the process connects anew."""


class LeaseWindow(NamedTuple):
    """Time in which leases count, by the store's clock."""

    since: float
    until: float

    def has_passed(self, beat_at: float, lease_until: float) -> bool:
        """Whether a lease that was last renewed at ``beat_at`` has passed within this window."""
        return max(beat_at, self.since) + (lease_until - beat_at) < self.until


class Contact:
    """Since when this process has been able to write to a store without a gap. Used from any thread.

    ``now`` is the store's clock. ``elapsed`` is a clock that nobody sets.
    """

    def __init__(self, now: Callable[[], float], elapsed: Callable[[], float], *, max_gap: float) -> None:
        self._now = now
        self._elapsed = elapsed
        self._max_gap = max_gap
        self._guard = threading.Lock()
        self._is_lost = True
        self._last: float | None = None
        """When the last write was asked for that went through."""
        self._since = elapsed()
        self._shift = now() - self._since

    def made(self, asked: float) -> None:
        """A write that was asked for at ``asked`` (``elapsed`` time) has gone through."""
        with self._guard:
            answered = self._elapsed()
            if self._last is None:
                self._since = answered
            elif self._is_lost or answered - self._last > self._max_gap:
                self._since = answered + min(answered - self._last, MAX_GRACE)
            self._last, self._is_lost = asked, False

    def lost(self) -> None:
        """A write has failed."""
        self._is_lost = True

    def window(self) -> LeaseWindow:
        """The time in which leases count, up to now."""
        with self._guard:
            now, at = self._now(), self._elapsed()
            was_set = abs(now - at - self._shift) > _SET_BY * self._max_gap
            self._shift = now - at
            if was_set or self._is_lost or self._last is None or at - self._last > self._max_gap:
                self._since = max(self._since, at)
            return LeaseWindow(now - (at - self._since), now)
