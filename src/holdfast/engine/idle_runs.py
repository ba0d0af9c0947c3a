"""Runs that wait for nothing but time and signals, and when they leave memory.

A run is parked after a second of idleness: long enough that a quick answer finds it still there. One of a limited queue
leaves at the next look, for it keeps others from its place. An isolated one leaves at once, since its worker takes
nothing else meanwhile. When many are idle, the oldest leave at once, so that a million waiting runs cost rows, not
memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.engine.driver import PARK_AFTER, Driver

MANY = 200
"""With more idle runs than this in memory, the oldest leave at once."""

SWEEP_EVERY = 0.25


class IdleRuns:
    """The idle drivers of an engine, oldest first."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since: dict[Driver, float] = {}
        self._next_sweep: asyncio.TimerHandle | None = None

    def __contains__(self, driver: Driver) -> bool:
        return driver in self._since

    def __len__(self) -> int:
        return len(self._since)

    def add(self, driver: Driver) -> None:
        """The run has become idle (or still is)."""
        if driver in self._since:
            return
        self._since[driver] = self._now()
        if len(self._since) > MANY:
            self.sweep(at_once=len(self._since) - MANY)
        if driver.is_isolated:
            asyncio.get_running_loop().call_soon(self.sweep)
        if self._next_sweep is None:
            self._next_sweep = asyncio.get_running_loop().call_later(SWEEP_EVERY, self._sweep_again)

    def remove(self, driver: Driver) -> None:
        """The run is not idle, or not in memory, any more."""
        self._since.pop(driver, None)

    def sweep(self, at_once: int = 0) -> None:
        """Park the runs that have been idle for a while, and the first ``at_once`` in any case."""
        now = self._now()
        ripe: list[Driver] = []
        for driver, since in self._since.items():
            has_waited = not 0 <= now - since < PARK_AFTER  # a clock that was set back must not keep it here
            is_ripe = driver.run.limited or driver.is_isolated or has_waited or len(ripe) < at_once
            if is_ripe and driver.is_parkable(now):
                ripe.append(driver)
        for driver in ripe:
            del self._since[driver]
            driver.park()

    def park_all(self) -> None:
        """Park every idle run, however soon it is due."""
        idle, self._since = list(self._since), {}
        for driver in idle:
            driver.park()

    def stop(self) -> None:
        """Park nothing more."""
        self._since.clear()
        if self._next_sweep is not None:
            self._next_sweep.cancel()

    def _sweep_again(self) -> None:
        self._next_sweep = None
        try:
            self.sweep()
        finally:
            if self._since:
                self._next_sweep = asyncio.get_running_loop().call_later(SWEEP_EVERY, self._sweep_again)
