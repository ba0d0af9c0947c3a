"""Clocks that nobody can set: time that has passed on this machine, and the time on a database server."""

from __future__ import annotations

import logging
import sys
import time

log = logging.getLogger("holdfast.stores")

MAX_CLOCK_SKEW_S = 2.0
"""Seconds by which a wall clock may differ from a database's without a warning."""

if sys.platform == "linux":

    def monotonic() -> float:
        """Seconds since some moment in the past, including those for which the machine was suspended."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

elif sys.platform == "darwin":

    def monotonic() -> float:
        """Seconds since some moment in the past, including those for which the machine was suspended."""
        return time.clock_gettime(time.CLOCK_MONOTONIC)  # which Python's `time.monotonic` is not

else:

    def monotonic() -> float:
        """Seconds since some moment in the past."""
        return time.monotonic()


class DatabaseClock:
    """An estimate of a database server's clock that costs no round trip.

    The server tells its time now and then, along with answers to other questions. From then on this machine counts the
    seconds with ``monotonic``, so a change of its own wall clock makes no difference.

    An answer that was asked for at ``asked`` and came at ``answered`` (both in ``monotonic`` time) was given somewhere
    in between. As long as the estimate agrees with that, it stays as it is: slow answers and jitter do not move it.
    """

    def __init__(self, display_url: str) -> None:
        """``display_url`` is the database as people may see it."""
        self._display_url = display_url
        self._has_warned = False
        self._offset: float | None = None
        """The server's clock minus ``monotonic()``."""

    def now(self) -> float:
        """The server's time, in seconds since 1970; this machine's as long as the server has not told its own."""
        return time.time() if self._offset is None else monotonic() + self._offset

    def sync(self, server_time: float, sent_at: float, received_at: float) -> None:
        """The server has told its time. Called from any thread."""
        lowest, highest = server_time - received_at, server_time - sent_at
        offset = (lowest + highest) / 2 if self._offset is None else self._offset
        self._offset = min(max(offset, lowest), highest)

    def warn_if_skewed(self) -> None:
        """Warn once if this machine's wall clock differs from the server's: logs and users' code still go by it."""
        ahead = time.time() - self.now()
        if self._has_warned or abs(ahead) < MAX_CLOCK_SKEW_S:
            return
        self._has_warned = True
        log.warning(
            "the clock of this machine is %.1f s %s the clock of %s. Holdfast goes by the database's clock; code in "
            "steps that reads the time, and the times in logs, are off by that much. Check this machine's NTP service.",
            abs(ahead),
            "ahead of" if ahead > 0 else "behind",
            self._display_url,
        )
