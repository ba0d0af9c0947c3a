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
from holdfast.codec import encode_error, preview
from holdfast.core.commands import Command
from holdfast.core.records import Attempt, Kind
from holdfast.core.states import Effect
from holdfast.engine.host import Begun
from holdfast.stores.memories import MemoryChange
from holdfast.stores.rules import unknown_outcome

if TYPE_CHECKING:
    from holdfast.engine.driver import Driver


class StepsInFlight:
    """What a driver knows of the steps that its run has begun."""

    def __init__(self, driver: Driver) -> None:
        self.begun: dict[int, Begun] = {}
        """By position."""
        self.known: dict[int, Attempt] = {}
        """What is left of earlier attempts, by position, until the step is begun here (again)."""
        self._driver = driver

    @property
    def at_work(self) -> bool:
        """Whether an attempt is being made, and not only waited for."""
        return any(step.retry_at is None for step in self.begun.values())

    @property
    def waiting(self) -> list[tuple[float, str]]:
        """When the next attempts are made, the earliest first, and of which steps."""
        return sorted((step.retry_at, step.command.name) for step in self.begun.values() if step.retry_at is not None)

    def start(self, command: Command) -> None:
        """Begin a step."""
        step = self._driver.host.step_run(self._driver, command, self.known.pop(command.position, None))
        if step.was_intended:
            self._record_unknown(step)
            return
        self.begun[command.position] = step
        if step.call.step.effect is not Effect.ONCE or step.retry_at is not None:
            step.launch()
        else:
            self.launch_once(step)

    def launch_once(self, step: Begun) -> None:
        """Launch an attempt of a ``once`` step, as soon as its intent is durable."""
        self._driver.journal.note(step.note_intent(), partial(self._intent_noted, step))

    def _intent_noted(self, step: Begun) -> None:
        driver = self._driver
        if step.withdrawn:
            driver.rest()  # the workflow may have ended meanwhile, and its end waits for nothing but this note
        elif driver.is_halted or driver.host.draining:
            self.not_begun(step)
        else:
            step.launch()

    def not_begun(self, step: Begun) -> None:
        """A step does not begin after all, because nothing more is to be begun here for now."""
        known = step.note_no_intent()
        self._put_back(step, known)
        if step.call.is_once:
            self._driver.journal.note(known)  # the intent is durable
        else:
            self._driver.rest()

    def _record_unknown(self, step: Begun) -> None:
        command, call = step.command, step.call
        self._driver.journal.record(
            command.kind,
            command.position,
            command.name,
            ok=False,
            payload=encode_error(unknown_outcome(self._driver.run.id, command.name)),
            noted=True,
            preview=preview(call.step.parameters, call.args, call.kwargs),  # somebody has to find out what came of it
        )

    def settled(
        self,
        step: Begun,
        *,
        ok: bool,
        payload: bytes,
        value: Any,
        started_at: float,
        attempts: int,
        used: Usage | None,
        model: str,
        memory: MemoryChange | None,
        preview: str,
        noted: bool,
    ) -> None:
        """A step has its outcome: record it."""
        command = step.command
        if self._driver.gone or self.begun.pop(command.position, None) is None:
            return
        self._driver.journal.record(
            command.kind,
            command.position,
            command.name,
            ok=ok,
            payload=payload,
            value=value,
            started_at=started_at,
            attempts=attempts,
            used=used,
            model=model,
            memory=memory,
            preview=preview,
            noted=noted,
        )

    def record_kept_outcomes(self) -> None:
        """Record what transactional steps of an earlier holder have done that the workflow then cancelled.

        What they did was committed with their outcome, and only the record is missing: it has to be undone.
        """
        driver = self._driver
        for position, known in list(self.known.items()):
            if known.outcome is not None and driver.execution.may_have_to_undo(position, known.name):
                del self.known[position]
                driver.journal.record(
                    Kind.STEP,
                    position,
                    known.name,
                    payload=known.outcome,
                    started_at=known.at,
                    attempts=known.attempt,
                    noted=True,
                )

    def left(self, step: Begun) -> None:
        """A step makes no further attempt for now, and has no outcome."""
        if not self._driver.gone and step.command.position in self.begun:
            self._put_back(step, step.so_far())
            self._driver.rest()

    def put_back_waiting(self) -> None:
        """Let those that wait for their next attempt not make it for now."""
        for step in [step for step in self.begun.values() if step.retry_at is not None]:
            self._put_back(step, step.so_far())
            step.cancel(lost=True)

    def _put_back(self, step: Begun, known: Attempt) -> None:
        del self.begun[step.command.position]
        self.known[step.command.position] = known
        self._driver.put_back(step.command)

    def cancel(self) -> None:
        """The run is not held here any more: nobody wants their outcomes."""
        begun, self.begun = self.begun, {}
        for step in begun.values():
            step.cancel(lost=True)
