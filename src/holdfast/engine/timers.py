"""The timers and the deadline of a held run: one wakeup for the one that is due next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.records import RecordKind
from holdfast.engine.clock import ScheduledCall

if TYPE_CHECKING:
    from holdfast.engine.driver import Driver


class ClockTimers:
    """Wakes a run when a timer or the deadline is due, and records that."""

    def __init__(self, driver: Driver) -> None:
        self.is_deadline_recorded = False
        self._driver = driver
        self._wakeup: ScheduledCall | None = None
        self._wakeup_at = 0.0

    def arm(self) -> None:
        """Schedule a wakeup for the timer that is due next."""
        driver = self._driver
        if self._wakeup is None and driver.run.deadline is None and not driver.execution.loop.timers:
            return
        when = self.get_next_due_at()
        if self._wakeup is not None:
            if when == self._wakeup_at:
                return
            self.stop()
        if when is not None:
            self._wakeup_at = when
            self._wakeup = self._driver.host.clock.call_at(when, self._on_wakeup)

    def stop(self) -> None:
        """Cancel the wakeup."""
        if self._wakeup is not None:
            self._wakeup.cancel()
            self._wakeup = None

    def get_next_due_at(self) -> float | None:
        """When the next timer, or the deadline, is due."""
        timer = self._driver.execution.loop.get_next_timer()
        deadline = None if self.is_deadline_recorded else self._driver.run.deadline
        if timer is None:
            return deadline
        return timer.when() if deadline is None else min(deadline, timer.when())

    def _on_wakeup(self) -> None:
        self._wakeup = None
        if self._driver.is_accepting:
            self.record_due()
            self.arm()

    def record_due(self) -> bool:
        """Record the timers that are due, and the deadline; true if there were any."""
        driver = self._driver
        if driver.run.deadline is None and not driver.execution.loop.timers:
            return False
        now = driver.host.clock.now()
        due = driver.execution.loop.take_due_timers(now)
        for timer in due:
            driver.recorder.record(RecordKind.TIMER, timer.position, timer.name, at=max(now, timer.when()))
        deadline = driver.run.deadline
        if deadline is None or deadline > now or self.is_deadline_recorded:
            return bool(due)
        self.is_deadline_recorded = True
        driver.recorder.record(RecordKind.DEADLINE, 0, "deadline", at=now)
        return True
