"""Time that stands still until it is moved, for tests."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from datetime import UTC, datetime

from holdfast.admission.durations import Duration, duration_to_seconds

START_TIMESTAMP = datetime(2030, 1, 1, tzinfo=UTC).timestamp()
"""When virtual time begins: the same in every test, so that nothing depends on the day it runs."""


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
    """The clock of a ``Runner``: workflow timers, time-outs and retry pauses take no time at all.

    What a step itself does (``asyncio.sleep`` in a step, a network call) takes the time that it takes.
    """

    def __init__(self, start: float = START_TIMESTAMP) -> None:
        self._now = start
        self._scheduled_calls: list[tuple[float, int, _ScheduledCall]] = []
        self._count = itertools.count()
        self.sleeper_count = 0
        """How many callers of ``sleep`` wait for time to pass."""

    @property
    def datetime(self) -> datetime:
        """The virtual time, in UTC."""
        return datetime.fromtimestamp(self._now, UTC)

    def advance(self, by: Duration) -> None:
        """Let time pass at once. Runs that were waiting for it continue with the runner's next call."""
        self.advance_to(self._now + duration_to_seconds(by, "advance by", may_be_zero=True))

    def advance_to(self, timestamp: float) -> None:
        """Let it be ``timestamp``, and ring the alarms that are due; time never goes back."""
        self._now = max(self._now, timestamp)
        while self._scheduled_calls and self._scheduled_calls[0][0] <= self._now:
            heapq.heappop(self._scheduled_calls)[2].fire()

    def get_next_due(self) -> float | None:
        """When somebody wants to be woken next."""
        while self._scheduled_calls and self._scheduled_calls[0][2].is_cancelled:
            heapq.heappop(self._scheduled_calls)
        return self._scheduled_calls[0][0] if self._scheduled_calls else None

    # What the engine asks (see `engine.clock.Clock`)

    def now(self) -> float:
        """Seconds since 1970."""
        return self._now

    def monotonic(self) -> float:
        """Real time: what the heartbeat's thread measures by."""
        return time.monotonic()

    def call_at(self, when: float, callback: Callable[[], object]) -> _ScheduledCall:
        """Call back when it is ``when``."""
        alarm = _ScheduledCall(callback)
        heapq.heappush(self._scheduled_calls, (when, next(self._count), alarm))
        self.advance_to(self._now)  # it may be due already
        return alarm

    async def sleep(self, seconds: float) -> None:
        """Let time pass: until somebody moves it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not future.done():
                self.sleeper_count -= 1  # here and not below: from now on its caller is busy
                future.set_result(None)

        alarm = self.call_at(self._now + seconds, wake)
        self.sleeper_count += 1
        try:
            await future
        except BaseException:
            if future.cancelled() or not future.done():
                self.sleeper_count -= 1
            alarm.cancel()
            raise

    def draw_random(self) -> float:
        """For jitter: always the same."""
        return 0.5
