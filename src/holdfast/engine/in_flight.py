"""The steps of a held run that have been begun and have no record yet.

A ``once`` step may not begin before its intent is durable: whoever finds that intent, and no record, must not run the
step again, but records that its outcome is unknown. Any other is launched at once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.codec import encode_error, preview
from holdfast.core.commands import Command
from holdfast.core.records import Attempt
from holdfast.core.states import Effect
from holdfast.core.usage import Usage
from holdfast.engine.hosting import Begun
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
        """What is left of an earlier holder's attempts, by position, until the step is begun here."""
        self.left_some = False
        """Some were left without an outcome: whoever takes the run up next begins them."""
        self._driver = driver

    def start(self, command: Command) -> None:
        """Begin a step."""
        step = self._driver.host.step_run(self._driver, command, self.known.pop(command.position, None))
        if step.call.step.effect is not Effect.ONCE:
            self.begun[command.position] = step
            step.launch()
        elif step.was_intended:
            self._record_unknown(step)
        else:
            self.begun[command.position] = step
            self._driver.journal.note(step.note_intent(), partial(self._intent_noted, step))

    def _intent_noted(self, step: Begun) -> None:
        driver = self._driver
        if step.withdrawn:
            driver.rest()  # the workflow may have ended meanwhile, and its end waits for nothing but this note
        elif driver.standing:
            del self.begun[step.command.position]
            self.left_some = True
            driver.journal.note(step.note_no_intent())
        else:
            step.launch()

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

    def left(self, step: Begun) -> None:
        """A step makes no further attempt here, and has no outcome."""
        if not self._driver.gone and self.begun.pop(step.command.position, None) is not None:
            self.left_some = True
            self._driver.rest()

    def leave_waiting(self) -> None:
        """Let those that wait for their next attempt not make it: how often they were tried is noted."""
        for step in [step for step in self.begun.values() if not step.is_at_work]:
            del self.begun[step.command.position]
            self.left_some = True
            step.cancel(lost=True)

    def cancel(self) -> None:
        """The run is not held here any more: nobody wants their outcomes."""
        begun, self.begun = self.begun, {}
        for step in begun.values():
            step.cancel(lost=True)
