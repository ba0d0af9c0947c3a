"""Steps and timers of a run: Temporal executes them, and events report their ends."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from holdfast.codec import encode_error
from holdfast.core.commands import Command
from holdfast.core.records import Attempt, RecordKind
from holdfast.engine.definitions import StepCall
from holdfast.engine.driver import Driver
from holdfast.engine.step_outcome import StepOutcome
from holdfast.errors import UsageError
from holdfast.stores.run_errors import encode_death_error
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.outcomes import encode_step_failure
from holdfast.stores.temporal.run_events import EndResult, EndStatus, StepEnded, format_timer_summary

if TYPE_CHECKING:
    from holdfast.telemetry.telemetry import StepTelemetry
    from holdfast.temporal.temporal_run import TemporalRun


class TemporalStep:
    """A step that an activity executes."""

    has_prior_intent = False
    """Temporal records the start of an activity, so it never starts a ``once`` step twice."""
    retry_at: float | None = None
    """Temporal, not the run, waits for the next attempt."""
    telemetry: StepTelemetry | None = None

    def __init__(self, run: TemporalRun, driver: Driver, command: Command) -> None:
        self.command = command
        self.is_withdrawn = False
        self._run = run
        self._driver = driver

    @property
    def call(self) -> StepCall:
        """The step, with its arguments."""
        return self.command.call

    def launch(self) -> None:
        """Start the activity as soon as the limits allow it."""
        step = self.call.step
        if not step.is_transactional:
            self._run.activity_limiter.start_when_possible(self.command.position, partial(self._run.start_step, self))
            return
        error = UsageError(
            f"step {step.name!r} of run {self._driver.run.id!r} has transaction=True, and Temporal has no database "
            f"that its work could be committed in with its outcome: use `current_step().idempotency_key` instead"
        )
        self._run.refused_positions.add(self.command.position)
        refused = StepEnded(self.command.position, EndResult(EndStatus.FAILED, encode_error(error)))
        self._run.call_soon(self._run.apply_workflow_task, self._run.clock.now(), [refused])

    def cancel(self, *, detach: bool = False) -> None:
        """Withdraw the step, and cancel its activity unless ``detach``."""
        self.is_withdrawn = True
        if detach:
            return
        if self.is_outcome_required:
            self._driver.recorder.add_pending(self.command.position)
        if self._run.activity_limiter.discard_waiting(self.command.position):
            cancelled = StepEnded(self.command.position, EndResult(EndStatus.CANCELLED))
            self._run.call_soon(self._run.apply_workflow_task, self._run.clock.now(), [cancelled])
        else:
            self._run.cancel_step(self)

    @property
    def is_outcome_required(self) -> bool:
        """Whether even a withdrawn step needs a known outcome, because it may have to be compensated."""
        return self.call.has_compensation or self.call.is_once

    def make_intent(self) -> Attempt:
        """Not stored: the history has the scheduled activity before a worker starts it."""
        return Attempt(self.command.position, 1, intent=True)

    def make_intent_withdrawal(self) -> Attempt:
        """Not stored, for the same reason."""
        return Attempt(self.command.position, 0)

    to_attempt = make_intent_withdrawal

    def on_ended(self, event: StepEnded) -> None:
        """Record the outcome."""
        ended = event.result
        if self._driver.is_closed:
            return
        if self.is_withdrawn:
            if self.is_outcome_required:
                self._driver.recorder.remove_answered(self.command.position)
                if ended.status is EndStatus.COMPLETED:
                    self._record_withdrawn(event)
                else:
                    self._driver.finish_turn()  # the end of the run may have waited only for this
            return
        if ended.status is EndStatus.DEAD or (
            ended.status in (EndStatus.TIMED_OUT, EndStatus.HANDED_OVER) and not self.call.is_once
        ):
            self._driver.mark_dead(ended.payload if ended.status is EndStatus.DEAD else self._encode_death_error())
            return
        ok = ended.status is EndStatus.COMPLETED
        payload = ended.payload if ok else encode_step_failure(ended, self.command.name, self._driver.run.id)
        self._driver.record_outcome(self, StepOutcome(ok, payload, event.started_at, event.attempts, event.preview))

    def _record_withdrawn(self, event: StepEnded) -> None:
        command = self.command
        self._driver.recorder.record(
            command.kind, command.position, command.name, payload=event.result.payload, started_at=event.started_at
        )

    def _encode_death_error(self) -> bytes:
        run = self._driver.run
        return encode_death_error(run.id, run.max_deliveries, circumstance=f"step {self.command.name!r} was in flight")


class TemporalTimers:
    """A run's timers and its deadline: each is a timer of Temporal."""

    def __init__(self, run: TemporalRun, driver: Driver) -> None:
        self.is_deadline_recorded = False
        self._run = run
        self._driver = driver
        self._set_positions: set[int | None] = set()
        self._fired_positions: set[int | None] = set()
        self._fired_while_paused: list[int | None] = []

    def arm(self) -> None:
        """Set the timers that the code has set since the last call, and cancel those that it has cancelled."""
        fired, self._fired_while_paused = self._fired_while_paused, []
        for position in fired:
            self._record_fired(position)
        timers, now = self._driver.execution.loop.timers, self._run.clock.now()
        for position in list(self._set_positions):
            if position is not None and position not in timers:
                self._set_positions.discard(position)
                self._run.cancel_timer(position)
        for position, timer in timers.items():
            if position not in self._set_positions and position not in self._fired_positions:
                self._set_positions.add(position)
                summary = format_timer_summary(position, timer.name, timer.when())
                self._run.set_timer(position, summary, timer.when() - now)
        deadline = self._driver.run.deadline
        if deadline is not None and not self.is_deadline_recorded and None not in self._set_positions:
            self._set_positions.add(None)
            self._run.set_timer(None, identifiers.DEADLINE_SUMMARY, deadline - now)

    def on_fired(self, position: int | None) -> None:
        """A timer fired: record it, or remember it while the run is paused."""
        self._set_positions.discard(position)
        self._fired_positions.add(position)
        if self._driver.is_accepting:
            self._record_fired(position)
        else:
            self._fired_while_paused.append(position)

    def _record_fired(self, position: int | None) -> None:
        driver = self._driver
        if position is None:
            if not self.is_deadline_recorded:
                self.is_deadline_recorded = True
                driver.recorder.record(RecordKind.DEADLINE, 0, identifiers.DEADLINE_SUMMARY)
        elif (timer := driver.execution.loop.timers.get(position)) is not None:
            driver.recorder.record(RecordKind.TIMER, position, timer.name)

    def stop(self) -> None:
        """Does nothing: timers end with the execution."""

    def get_next_due_at(self) -> float | None:
        """Always ``None``: Temporal knows when the next timer is due."""
        return None

    def record_due(self) -> bool:
        """Does nothing: events report the timers that fired."""
        return False
