"""A clock for tests: time moves only when a test moves it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from datetime import UTC, datetime

from holdfast.admission.durations import Duration, duration_to_seconds

START_TIMESTAMP = datetime(2030, 1, 1, tzinfo=UTC).timestamp()
"""The start of virtual time: the same in every test, so that nothing depends on the date."""


class _ScheduledCall:
    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def fire(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon(self._run_callback)

    def _run_callback(self) -> None:
        if not self.is_cancelled:
            self._callback()


class VirtualClock:
    """The clock of a ``Runner``: workflow timers, timeouts, and retry delays take no real time.

    The code of a step runs in real time (``asyncio.sleep`` in a step, a network call).
    """

    def __init__(self, start: float = START_TIMESTAMP) -> None:
        self._now = start
        self._scheduled_calls: list[tuple[float, int, _ScheduledCall]] = []
        self._count = itertools.count()
        self.sleeper_count = 0
        """Number of callers of ``sleep`` that wait for time to pass."""

    @property
    def datetime(self) -> datetime:
        """The virtual time, in UTC."""
        return datetime.fromtimestamp(self._now, UTC)

    def advance(self, by: Duration) -> None:
        """Move time forward. Runs that wait for it continue with the runner's next call."""
        self.advance_to(self._now + duration_to_seconds(by, "advance by", may_be_zero=True))

    def advance_to(self, timestamp: float) -> None:
        """Set the time, and make the calls that are due. Time never moves backward."""
        self._now = max(self._now, timestamp)
        while self._scheduled_calls and self._scheduled_calls[0][0] <= self._now:
            heapq.heappop(self._scheduled_calls)[2].fire()

    def get_next_due(self) -> float | None:
        """The time of the next scheduled call."""
        while self._scheduled_calls and self._scheduled_calls[0][2].is_cancelled:
            heapq.heappop(self._scheduled_calls)
        return self._scheduled_calls[0][0] if self._scheduled_calls else None

    # Used by the engine (see `engine.clock.Clock`)

    def now(self) -> float:
        """Seconds since 1970."""
        return self._now

    def monotonic(self) -> float:
        """Real time, for the heartbeat thread."""
        return time.monotonic()

    def call_at(self, when: float, callback: Callable[[], object]) -> _ScheduledCall:
        """Schedule a call."""
        call = _ScheduledCall(callback)
        heapq.heappush(self._scheduled_calls, (when, next(self._count), call))
        self.advance_to(self._now)  # it may be due already
        return call

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has moved this far."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not future.done():
                self.sleeper_count -= 1  # here and not below, because the caller is busy from now on
                future.set_result(None)

        call = self.call_at(self._now + seconds, wake)
        self.sleeper_count += 1
        try:
            await future
        except BaseException:
            if future.cancelled() or not future.done():
                self.sleeper_count -= 1
            call.cancel()
            raise

    def draw_random(self) -> float:
        """The same jitter every time."""
        return 0.5
