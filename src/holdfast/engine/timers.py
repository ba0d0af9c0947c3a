"""A held run's timers and its deadline: one alarm for whichever is due next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.records import Kind
from holdfast.engine.clock import Alarm

if TYPE_CHECKING:
    from holdfast.engine.driver import Driver


class Timers:
    """When something of one run is due, and recording that it is."""

    def __init__(self, driver: Driver) -> None:
        self.deadline_sent = False
        self._driver = driver
        self._alarm: Alarm | None = None
        self._alarm_at = 0.0

    def set_alarm(self) -> None:
        """Be woken when the next one is due."""
        when = self.next_due()
        if self._alarm is not None:
            if when == self._alarm_at:
                return
            self.stop()
        if when is not None:
            self._alarm_at = when
            self._alarm = self._driver.host.clock.call_at(when, self._ring)

    def stop(self) -> None:
        """Be woken no more."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def next_due(self) -> float | None:
        """When the next one is due."""
        timer = self._driver.execution.loop.next_timer()
        deadline = None if self.deadline_sent else self._driver.run.deadline
        if timer is None:
            return deadline
        return timer.when() if deadline is None else min(deadline, timer.when())

    def _ring(self) -> None:
        self._alarm = None
        if self._driver.takes_in:
            self.record_due()
            self.set_alarm()

    def record_due(self) -> bool:
        """Record what is due; true when there was anything."""
        driver = self._driver
        now = driver.host.clock.now()
        due = driver.execution.loop.take_due(now)
        for timer in due:
            driver.journal.record(Kind.TIMER, timer.position, timer.name, at=max(now, timer.when()))
        deadline = driver.run.deadline
        if deadline is None or deadline > now or self.deadline_sent:
            return bool(due)
        self.deadline_sent = True
        driver.journal.record(Kind.DEADLINE, 0, "deadline", at=now)
        return True
