"""Runs that wait only for time and signals, and when they leave memory.

A run is parked after ``PARK_AFTER_S`` of idleness, long enough that a quick answer still finds it in memory, and stays
if it is due within that time. A run of a limited queue leaves at the next sweep, because it occupies a slot that others
need. An isolated run leaves at once, because its worker takes nothing else meanwhile. With more than ``MAX_IDLE_RUNS``
in memory, the oldest leave at once, so a million waiting runs cost rows, not memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.engine.held_run import PARK_AFTER_S, HeldRun

MAX_IDLE_RUNS = 200
"""With more idle runs than this in memory, the oldest leave at once."""

SWEEP_INTERVAL_S = 0.25


class IdleRuns:
    """The idle runs of an engine, oldest first."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._idle_since: dict[HeldRun, float] = {}
        self._sweep_timer: asyncio.TimerHandle | None = None

    def __contains__(self, held_run: HeldRun) -> bool:
        return held_run in self._idle_since

    def __len__(self) -> int:
        return len(self._idle_since)

    def add(self, held_run: HeldRun) -> None:
        """The run is idle."""
        if held_run in self._idle_since:
            return
        self._idle_since[held_run] = self._now()
        if len(self._idle_since) > MAX_IDLE_RUNS:
            self.sweep(min_count=len(self._idle_since) - MAX_IDLE_RUNS)
        if held_run.is_isolated:
            asyncio.get_running_loop().call_soon(self.sweep)
        if self._sweep_timer is None:
            self._sweep_timer = asyncio.get_running_loop().call_later(SWEEP_INTERVAL_S, self._sweep_and_reschedule)

    def remove(self, held_run: HeldRun) -> None:
        """The run is no longer idle, or no longer in memory."""
        self._idle_since.pop(held_run, None)

    def sweep(self, min_count: int = 0) -> None:
        """Park the runs that have been idle for a while, and the first ``min_count`` in any case."""
        now = self._now()
        parked: list[HeldRun] = []
        for held_run, since in self._idle_since.items():
            has_waited = not 0 <= now - since < PARK_AFTER_S  # a clock that was set back must not keep it here
            should_park = held_run.run.is_limited or held_run.is_isolated or has_waited or len(parked) < min_count
            if should_park and held_run.is_parkable(now):
                parked.append(held_run)
        for held_run in parked:
            del self._idle_since[held_run]
            held_run.park()

    def park_all(self) -> None:
        """Park every idle run, however soon it is due."""
        idle, self._idle_since = list(self._idle_since), {}
        for held_run in idle:
            held_run.park()

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
