"""Time that stands still until it is moved, for tests."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from holdfast.errors import UsageError

START = datetime(2030, 1, 1, tzinfo=UTC).timestamp()
"""When virtual time begins: the same in every test, so that nothing depends on the day it runs."""


class _Alarm:
    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self.is_off = False

    def cancel(self) -> None:
        self.is_off = True

    def ring(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon(self._call)

    def _call(self) -> None:
        if not self.is_off:
            self._callback()


class VirtualClock:
    """The clock of a ``Runner``: workflow timers, time-outs and retry pauses take no time at all.

    What a step itself does (``asyncio.sleep`` in a step, a network call) takes the time that it takes.
    """

    def __init__(self, start: float = START) -> None:
        self._now = start
        self._alarms: list[tuple[float, int, _Alarm]] = []
        self._count = itertools.count()
        self.sleeping = 0
        """How many callers of ``sleep`` wait for time to pass."""

    @property
    def datetime(self) -> datetime:
        """The virtual time, in UTC."""
        return datetime.fromtimestamp(self._now, UTC)

    def advance(self, by: timedelta | float) -> None:
        """Let time pass at once. Runs that were waiting for it go on with the runner's next call."""
        seconds = by.total_seconds() if isinstance(by, timedelta) else by
        if seconds < 0:
            raise UsageError(f"time does not go back: advance({by!r})")
        self.move_to(self._now + seconds)

    def move_to(self, when: float) -> None:
        """Let it be ``when``, and ring the alarms that are due; time never goes back."""
        self._now = max(self._now, when)
        while self._alarms and self._alarms[0][0] <= self._now:
            heapq.heappop(self._alarms)[2].ring()

    def next_alarm(self) -> float | None:
        """When somebody wants to be woken next."""
        while self._alarms and self._alarms[0][2].is_off:
            heapq.heappop(self._alarms)
        return self._alarms[0][0] if self._alarms else None

    # What the engine asks (see `engine.clock.Clock`)

    def now(self) -> float:
        """Seconds since 1970."""
        return self._now

    def monotonic(self) -> float:
        """Real time: what the heartbeat's thread measures by."""
        return time.monotonic()

    def call_at(self, when: float, callback: Callable[[], object]) -> _Alarm:
        """Call back when it is ``when``."""
        alarm = _Alarm(callback)
        heapq.heappush(self._alarms, (when, next(self._count), alarm))
        self.move_to(self._now)  # it may be due already
        return alarm

    async def sleep(self, seconds: float) -> None:
        """Let time pass: until somebody moves it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not future.done():
                self.sleeping -= 1  # here and not below: from now on its caller is busy
                future.set_result(None)

        alarm = self.call_at(self._now + seconds, wake)
        self.sleeping += 1
        try:
            await future
        except BaseException:
            if future.cancelled() or not future.done():
                self.sleeping -= 1
            alarm.cancel()
            raise

    def draw(self) -> float:
        """For jitter: always the same."""
        return 0.5
