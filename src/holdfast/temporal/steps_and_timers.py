"""Steps and timers of a run that is fed: begun here, carried out elsewhere, and told of when they are over."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from holdfast.codec import encode_error
from holdfast.core.commands import UNREAD, Command
from holdfast.core.records import Attempt, Kind
from holdfast.engine.definitions import StepCall
from holdfast.engine.driver import Driver
from holdfast.errors import UsageError
from holdfast.stores.rules import death_error
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.outcomes import step_failure
from holdfast.stores.temporal.run_events import Ended, How, StepEnded

if TYPE_CHECKING:
    from holdfast.temporal.temporal_run import Feed


class FedStep:
    """A step that somebody else carries out."""

    was_intended = False
    """Temporal keeps what was begun: a ``once`` step is never begun twice."""
    retry_at: float | None = None
    """Temporal waits for its next attempt, not the run."""

    def __init__(self, feed: Feed, driver: Driver, command: Command) -> None:
        self.command = command
        self.withdrawn = False
        self._feed = feed
        self._driver = driver

    @property
    def call(self) -> StepCall:
        """The step, with its arguments."""
        return self.command.call

    def launch(self) -> None:
        """Let somebody carry it out."""
        step = self.call.step
        if not step.transaction:
            self._feed.activities.ask(self.command.position, partial(self._feed.begin_step, self))
            return
        error = UsageError(
            f"step {step.name!r} of run {self._driver.run.id!r} has transaction=True, and Temporal has no database "
            f"that its work could be committed in with its outcome: use `current_step().idempotency_key` instead"
        )
        self._feed.refused.add(self.command.position)
        refused = StepEnded(self.command.position, Ended(How.FAILED, encode_error(error)))
        self._feed.later(self._feed.tell, self._feed.clock.now(), [refused])

    def cancel(self, *, lost: bool = False) -> None:
        """Nobody wants the outcome any more."""
        self.withdrawn = True
        if lost:
            return
        if self.is_awaited_withdrawn:
            self._driver.journal.expect(self.command.position)
        if self._feed.activities.drop(self.command.position):
            never = StepEnded(self.command.position, Ended(How.CANCELLED, b"null"))
            self._feed.later(self._feed.tell, self._feed.clock.now(), [never])
        else:
            self._feed.cancel_step(self)

    @property
    def is_awaited_withdrawn(self) -> bool:
        """Whether it must be known if it happened, also when nobody wants the outcome: it may have to be undone."""
        return self.call.is_undoable or self.call.is_once

    def note_intent(self) -> Attempt:
        """Nothing has to be noted: that it is scheduled is in the history before anybody begins it."""
        return Attempt(self.command.position, 1, intent=True)

    def note_no_intent(self) -> Attempt:
        """The same."""
        return Attempt(self.command.position, 0)

    so_far = note_no_intent

    def ended(self, told: StepEnded) -> None:
        """It has an outcome."""
        ended = told.ended
        if self.withdrawn:
            if self.is_awaited_withdrawn:
                self._driver.journal.answered(self.command.position)
                if ended.how is How.COMPLETED:
                    self._record_hole(told)
                elif not self._driver.gone:
                    self._driver.rest()  # the run's end may have waited for this alone
            return
        if ended.how is How.DEAD or (ended.how in (How.TIMED_OUT, How.HANDED_OVER) and not self.call.is_once):
            self._driver.die(ended.payload if ended.how is How.DEAD else self._died_too_often())
            return
        ok = ended.how is How.COMPLETED
        self._driver.steps.settled(
            self,
            ok=ok,
            payload=ended.payload if ok else step_failure(ended, self.command.name, self._driver.run.id),
            value=UNREAD,
            started_at=told.started_at,
            attempts=told.attempts,
            used=None,
            model="",
            memory=None,
            preview=told.preview,
            noted=False,
        )

    def _record_hole(self, told: StepEnded) -> None:
        command = self.command
        self._driver.journal.record(
            command.kind, command.position, command.name, payload=told.ended.payload, started_at=told.started_at
        )

    def _died_too_often(self) -> bytes:
        run = self._driver.run
        return death_error(run.id, run.max_deliveries, alone=f"step {self.command.name!r} was in flight")


class FedTimers:
    """A run's timers and its deadline: each is one of Temporal's."""

    def __init__(self, feed: Feed, driver: Driver) -> None:
        self.deadline_sent = False
        self._feed = feed
        self._driver = driver
        self._set: set[int | None] = set()
        self._over: set[int | None] = set()
        self._rung: list[int | None] = []
        """Due while the run was paused."""

    def set_alarm(self) -> None:
        """Have a timer for each that the code has set, and none for those that it has called off."""
        rung, self._rung = self._rung, []
        for position in rung:
            self._record(position)
        timers, now = self._driver.execution.loop.timers, self._feed.clock.now()
        for position in [one for one in self._set if one is not None and one not in timers]:
            self._set.discard(position)
            self._feed.cancel_timer(position)
        for position, timer in timers.items():
            if position not in self._set and position not in self._over:
                self._set.add(position)
                self._feed.set_timer(
                    position, identifiers.timer_summary(position, timer.name, timer.when()), timer.when() - now
                )
        deadline = self._driver.run.deadline
        if deadline is not None and not self.deadline_sent and None not in self._set:
            self._set.add(None)
            self._feed.set_timer(None, identifiers.DEADLINE, deadline - now)

    def fired(self, position: int | None) -> None:
        """One is due."""
        self._set.discard(position)
        self._over.add(position)
        if self._driver.takes_in:
            self._record(position)
        else:
            self._rung.append(position)

    def _record(self, position: int | None) -> None:
        driver = self._driver
        if position is None:
            if not self.deadline_sent:
                self.deadline_sent = True
                driver.journal.record(Kind.DEADLINE, 0, identifiers.DEADLINE)
        elif (timer := driver.execution.loop.timers.get(position)) is not None:
            driver.journal.record(Kind.TIMER, position, timer.name)

    def stop(self) -> None:
        """Nobody is woken any more."""

    def next_due(self) -> float | None:
        """Temporal knows."""
        return None

    def record_due(self) -> bool:
        """What is due comes by itself."""
        return False
