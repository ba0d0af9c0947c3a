"""Clocks that cannot be set on this machine: elapsed time, and the time on a database server."""

from __future__ import annotations

import logging
import sys
import time

log = logging.getLogger("holdfast.stores")

MAX_CLOCK_SKEW_S = 2.0
"""Seconds by which a wall clock may differ from a database's without a warning."""


def monotonic() -> float:
    """Seconds since some moment in the past, on Linux and macOS including the time in which the machine was
    suspended."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    if sys.platform == "darwin":
        return time.clock_gettime(time.CLOCK_MONOTONIC)  # which Python's `time.monotonic` is not
    return time.monotonic()


class DatabaseClock:
    """An estimate of a database server's clock that costs no round trip.

    Now and then the server reports its time along with the answer to another query. From then on this machine counts
    the seconds with ``monotonic``, so a change of its own wall clock makes no difference.

    A server time whose query was sent at ``sent_at`` and answered at ``received_at`` (both in ``monotonic`` time) was
    read somewhere in between. While the estimate agrees with that, it stays as it is: slow answers and jitter do not
    move it.
    """

    def __init__(self, display_url: str) -> None:
        """``display_url`` names the database in messages."""
        self._display_url = display_url
        self._has_warned = False
        self._offset: float | None = None
        """The server's clock minus ``monotonic()``."""

    def now(self) -> float:
        """The server's time, in seconds since 1970; until the server has reported it, this machine's."""
        return time.time() if self._offset is None else monotonic() + self._offset

    def sync(self, server_time: float, sent_at: float, received_at: float) -> None:
        """Correct the estimate by a time that the server reported. Called from any thread."""
        lowest, highest = server_time - received_at, server_time - sent_at
        offset = (lowest + highest) / 2 if self._offset is None else self._offset
        self._offset = min(max(offset, lowest), highest)

    def warn_if_skewed(self) -> None:
        """Warn once if this machine's wall clock differs from the server's: logs and users' code still use it."""
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
