"""Runs that wait only for time and signals, and when they leave memory.

A run is parked after ``PARK_AFTER_S`` of idleness, long enough that a quick answer still finds it in memory, and stays
if it is due within that time. A run of a limited queue leaves at the next sweep, because it occupies a slot that others
need. An isolated run leaves at once, because its worker takes nothing else meanwhile. With more than ``MAX_IDLE_RUNS``
in memory, the oldest leave at once, so a million waiting runs cost rows, not memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.engine.driver import PARK_AFTER_S, Driver

MAX_IDLE_RUNS = 200
"""With more idle runs than this in memory, the oldest leave at once."""

SWEEP_INTERVAL_S = 0.25


class IdleRuns:
    """The idle drivers of an engine, oldest first."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._idle_since: dict[Driver, float] = {}
        self._sweep_timer: asyncio.TimerHandle | None = None

    def __contains__(self, driver: Driver) -> bool:
        return driver in self._idle_since

    def __len__(self) -> int:
        return len(self._idle_since)

    def add(self, driver: Driver) -> None:
        """The run is idle."""
        if driver in self._idle_since:
            return
        self._idle_since[driver] = self._now()
        if len(self._idle_since) > MAX_IDLE_RUNS:
            self.sweep(min_count=len(self._idle_since) - MAX_IDLE_RUNS)
        if driver.is_isolated:
            asyncio.get_running_loop().call_soon(self.sweep)
        if self._sweep_timer is None:
            self._sweep_timer = asyncio.get_running_loop().call_later(SWEEP_INTERVAL_S, self._sweep_and_reschedule)

    def remove(self, driver: Driver) -> None:
        """The run is no longer idle, or no longer in memory."""
        self._idle_since.pop(driver, None)

    def sweep(self, min_count: int = 0) -> None:
        """Park the runs that have been idle for a while, and the first ``min_count`` in any case."""
        now = self._now()
        parked: list[Driver] = []
        for driver, since in self._idle_since.items():
            has_waited = not 0 <= now - since < PARK_AFTER_S  # a clock that was set back must not keep it here
            should_park = driver.run.is_limited or driver.is_isolated or has_waited or len(parked) < min_count
            if should_park and driver.is_parkable(now):
                parked.append(driver)
        for driver in parked:
            del self._idle_since[driver]
            driver.park()

    def park_all(self) -> None:
        """Park every idle run, however soon it is due."""
        idle, self._idle_since = list(self._idle_since), {}
        for driver in idle:
            driver.park()

    def stop(self) -> None:
        """Park nothing more."""
        self._idle_since.clear()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()

    def _sweep_and_reschedule(self) -> None:
        self._sweep_timer = None
        try:
            self.sweep()
        finally:
            if self._idle_since:
                self._sweep_timer = asyncio.get_running_loop().call_later(SWEEP_INTERVAL_S, self._sweep_and_reschedule)
