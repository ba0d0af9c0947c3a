"""The steps of a held run that have been begun and have no record yet.

A ``once`` step may not begin before its intent is durable: whoever finds that intent, and no record, must not run the
step again, but records that its outcome is unknown. While such a step waits for its next attempt (it failed in a way
that says that nothing happened) it has no intent. Any other is launched at once.

A step whose attempt has failed waits for its next one in memory. Such a wait is no reason to keep the run there: what
is known of the step is noted, with the time of the attempt, so the run may be parked, paused or given back meanwhile.
The step is then *put back*: its command is to be begun again, here or by another worker, and waits for the same time.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.admission.usage import Usage
from holdfast.codec import encode_error, preview_arguments
from holdfast.core.commands import Command
from holdfast.core.records import Attempt, RecordKind
from holdfast.core.states import Effect
from holdfast.engine.host import StartedStep
from holdfast.stores.memories import MemoryChange
from holdfast.stores.run_errors import make_unknown_outcome_error

if TYPE_CHECKING:
    from holdfast.engine.driver import Driver


class StepsInFlight:
    """What a driver knows of the steps that its run has begun."""

    def __init__(self, driver: Driver) -> None:
        self.started: dict[int, StartedStep] = {}
        """By position."""
        self.earlier_attempts: dict[int, Attempt] = {}
        """What is left of earlier attempts, by position, until the step is begun here (again)."""
        self._driver = driver

    @property
    def has_running_attempt(self) -> bool:
        """Whether an attempt is being made, and not only waited for."""
        return any(step.retry_at is None for step in self.started.values())

    @property
    def waiting_retries(self) -> list[tuple[float, str]]:
        """When the next attempts are made, the earliest first, and of which steps."""
        return sorted((step.retry_at, step.command.name) for step in self.started.values() if step.retry_at is not None)

    def start(self, command: Command) -> None:
        """Begin a step."""
        step = self._driver.host.create_step(self._driver, command, self.earlier_attempts.pop(command.position, None))
        if step.has_prior_intent:
            self._record_unknown_outcome(step)
            return
        self.started[command.position] = step
        if step.call.step.effect is not Effect.ONCE or step.retry_at is not None:
            step.launch()
        else:
            self.launch_once(step)

    def launch_once(self, step: StartedStep) -> None:
        """Launch an attempt of a ``once`` step, as soon as its intent is durable."""
        self._driver.recorder.save_attempt(step.make_intent(), partial(self._on_intent_saved, step))

    def _on_intent_saved(self, step: StartedStep) -> None:
        driver = self._driver
        if step.is_withdrawn:
            driver.finish_turn()  # the workflow may have ended meanwhile, and its end waits for nothing but this note
        elif driver.is_halted or driver.host.is_draining:
            self.cancel_start(step)
        else:
            step.launch()

    def cancel_start(self, step: StartedStep) -> None:
        """A step does not begin after all, because nothing more is to be begun here for now."""
        known = step.make_intent_withdrawal()
        self._requeue(step, known)
        if step.call.is_once:
            self._driver.recorder.save_attempt(known)  # the intent is durable
        else:
            self._driver.finish_turn()

    def _record_unknown_outcome(self, step: StartedStep) -> None:
        command, call = step.command, step.call
        self._driver.recorder.record(
            command.kind,
            command.position,
            command.name,
            ok=False,
            payload=encode_error(make_unknown_outcome_error(self._driver.run.id, command.name)),
            has_attempt_row=True,
            preview=preview_arguments(
                call.step.parameters, call.args, call.kwargs
            ),  # somebody has to find out what came of it
        )

    def record_outcome(
        self,
        step: StartedStep,
        *,
        ok: bool,
        payload: bytes,
        value: Any,
        started_at: float,
        attempts: int,
        usage: Usage | None,
        model: str,
        memory_change: MemoryChange | None,
        preview: str,
        has_attempt_row: bool,
    ) -> None:
        """A step has its outcome: record it."""
        command = step.command
        if self._driver.is_closed or self.started.pop(command.position, None) is None:
            return
        self._driver.recorder.record(
            command.kind,
            command.position,
            command.name,
            ok=ok,
            payload=payload,
            value=value,
            started_at=started_at,
            attempts=attempts,
            usage=usage,
            model=model,
            memory_change=memory_change,
            preview=preview,
            has_attempt_row=has_attempt_row,
        )

    def record_committed_outcomes(self) -> None:
        """Record what transactional steps of an earlier holder have done that the workflow then cancelled.

        What they did was committed with their outcome, and only the record is missing: it has to be undone.
        """
        driver = self._driver
        for position, known in list(self.earlier_attempts.items()):
            if known.outcome is not None and driver.execution.is_unrecorded_cancelled_step(position, known.name):
                del self.earlier_attempts[position]
                driver.recorder.record(
                    RecordKind.STEP,
                    position,
                    known.name,
                    payload=known.outcome,
                    started_at=known.at,
                    attempts=known.attempt,
                    has_attempt_row=True,
                )

    def postpone(self, step: StartedStep) -> None:
        """A step makes no further attempt for now, and has no outcome."""
        if not self._driver.is_closed and step.command.position in self.started:
            self._requeue(step, step.to_attempt())
            self._driver.finish_turn()

    def requeue_waiting(self) -> None:
        """Let those that wait for their next attempt not make it for now."""
        for step in [step for step in self.started.values() if step.retry_at is not None]:
            self._requeue(step, step.to_attempt())
            step.cancel(detach=True)

    def _requeue(self, step: StartedStep, attempt: Attempt) -> None:
        del self.started[step.command.position]
        self.earlier_attempts[step.command.position] = attempt
        self._driver.requeue(step.command)

    def cancel_all(self) -> None:
        """The run is not held here any more: nobody wants their outcomes."""
        begun, self.started = self.started, {}
        for step in begun.values():
            step.cancel(detach=True)
