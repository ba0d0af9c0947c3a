"""The steps of a held run that have started and have no record yet.

A ``once`` step may not start before its intent is durable: a worker that finds an intent and no record must not run the
step again, but records that its outcome is unknown. In a run that was restored from a backup, any ``once`` step without
a record may have started after the backup was made: see ``core.records.RESTORED_POSITION``. While a ``once`` step waits
for its next attempt, it has no intent, because its failure proves that nothing happened. Steps that are not ``once``
are launched immediately.

A step whose attempt has failed waits for its next attempt in memory. That wait does not keep the run there: the state
of the step is saved, with the time of the next attempt, so the run may be parked, paused, or released meanwhile. The
step is then *requeued*: its command starts again, here or on another worker, and waits for the same time.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from holdfast.codec import encode_error, preview_arguments
from holdfast.core.commands import Command
from holdfast.core.records import RESTORED_POSITION, Attempt, RecordKind
from holdfast.core.states import Effect
from holdfast.engine.host import StartedStep
from holdfast.stores.run_errors import make_unknown_outcome_error

if TYPE_CHECKING:
    from holdfast.engine.driver import Driver


class StepsInFlight:
    """The started steps of a driver's run."""

    def __init__(self, driver: Driver) -> None:
        self.started: dict[int, StartedStep] = {}
        """By position."""
        self.earlier_attempts: dict[int, Attempt] = {}
        """The saved state of earlier attempts, by position, until the step starts here (again)."""
        self._driver = driver

    @property
    def restored_from(self) -> str:
        """The backup from which the run was restored, as text; ``""``: it was not."""
        restored = self.earlier_attempts.get(RESTORED_POSITION)
        return "" if restored is None else restored.name

    @property
    def has_running_attempt(self) -> bool:
        """Whether an attempt is running, and not only waited for."""
        for step in self.started.values():  # noqa: SIM110  # asked for each step
            if step.retry_at is None:
                return True
        return False

    @property
    def waiting_retries(self) -> list[tuple[float, str]]:
        """The times of the next attempts, the earliest first, each with the name of its step."""
        return sorted((step.retry_at, step.command.name) for step in self.started.values() if step.retry_at is not None)

    def start(self, command: Command) -> None:
        """Start a step."""
        earlier_attempt = self.earlier_attempts.pop(command.position, None)
        step = self._driver.host.create_step(self._driver, command, earlier_attempt)
        if step.has_prior_intent:
            self._record_unknown_outcome(step)
            return
        is_once = step.call.step.effect is Effect.ONCE
        if is_once and self._may_have_begun_before_restore(command, earlier_attempt):
            self._record_unknown_outcome(step)
            return
        self.started[command.position] = step
        if not is_once or step.retry_at is not None:
            step.launch()
        else:
            self.launch_once(step)

    def _may_have_begun_before_restore(self, command: Command, earlier_attempt: Attempt | None) -> bool:
        """Whether the run was restored from a backup, and an execution after that backup may have begun this step."""
        restored = self.earlier_attempts.get(RESTORED_POSITION)
        return restored is not None and restored.may_have_begun(command.name, earlier_attempt)

    def launch_once(self, step: StartedStep) -> None:
        """Launch an attempt of a ``once`` step, as soon as its intent is durable."""
        self._driver.recorder.save_attempt(step.make_intent(), partial(self._on_intent_saved, step))

    def _on_intent_saved(self, step: StartedStep) -> None:
        driver = self._driver
        if step.is_withdrawn:
            driver.finish_turn()  # the workflow may have ended meanwhile, and its end waits only for this write
        elif driver.is_halted or driver.host.is_draining:
            self.cancel_start(step)
        else:
            step.launch()

    def cancel_start(self, step: StartedStep) -> None:
        """A step does not start after all, because this worker starts nothing more of the run for now."""
        attempt = step.make_intent_withdrawal()
        self._requeue(step, attempt)
        if step.call.is_once:
            self._driver.recorder.save_attempt(attempt)  # the intent is durable
        else:
            self._driver.finish_turn()

    def _record_unknown_outcome(self, step: StartedStep) -> None:
        command, call = step.command, step.call
        self._driver.recorder.record(
            command.kind,
            command.position,
            command.name,
            ok=False,
            payload=encode_error(make_unknown_outcome_error(self._driver.run.id, command.name, self.restored_from)),
            has_attempt_row=True,
            # A person has to find out what happened.
            preview=preview_arguments(call.step.parameters, call.args, call.kwargs),
        )

    def record_committed_outcomes(self) -> None:
        """Record the outcomes of transactional steps of an earlier holder that the workflow has cancelled since.

        Their changes were committed with the outcome, and only the record is missing: it is needed to compensate them.
        """
        driver = self._driver
        for position, attempt in list(self.earlier_attempts.items()):
            if attempt.outcome is not None and driver.execution.is_unrecorded_cancelled_step(position, attempt.name):
                del self.earlier_attempts[position]
                driver.recorder.record(
                    RecordKind.STEP,
                    position,
                    attempt.name,
                    payload=attempt.outcome,
                    started_at=attempt.at,
                    attempts=attempt.attempt,
                    has_attempt_row=True,
                )

    def postpone(self, step: StartedStep) -> None:
        """A step makes no further attempt for now, and has no outcome."""
        if not self._driver.is_closed and step.command.position in self.started:
            self._requeue(step, step.to_attempt())
            self._driver.finish_turn()

    def requeue_waiting(self) -> None:
        """Requeue the steps that wait for their next attempt."""
        for step in [step for step in self.started.values() if step.retry_at is not None]:
            self._requeue(step, step.to_attempt())
            step.cancel(detach=True)

    def _requeue(self, step: StartedStep, attempt: Attempt) -> None:
        del self.started[step.command.position]
        self.earlier_attempts[step.command.position] = attempt
        self._driver.requeue(step.command)

    def cancel_all(self) -> None:
        """This worker no longer holds the run: stop all its steps."""
        if self.started:
            started, self.started = self.started, {}
            for step in started.values():
                step.cancel(detach=True)
