"""A step of a program on Temporal. What differs are the budgets and the sessions, which are workflows of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.admission.usage import Usage
from holdfast.codec import preview_arguments
from holdfast.engine.step_run import StepRun
from holdfast.stores.temporal.program_updates import StepInFlight

if TYPE_CHECKING:
    from holdfast.temporal.program_host import ProgramHost


class ProgramStep(StepRun):
    """A step of a program."""

    host: ProgramHost  # type: ignore[assignment]

    async def reserve(self, expected: Usage) -> None:
        """Reserve usage from the run's budgets."""
        await self.host.get_reservation(self.command.position, self.step.name).reserve(expected)

    async def get_previous_run_id(self) -> str:
        """The id of the previous run in the same session."""
        run = self.run
        return (
            run.previous_run if run.previous_run or not run.session else await self.host.engine.find_previous_run(run)
        )

    def cancel(self, *, detach: bool = False) -> None:
        """Stop, and release the reservation of a step that is not executed any more."""
        super().cancel(detach=detach)
        if not detach:
            self.host.release_reservation(self.command.position)

    def describe(self) -> StepInFlight:
        """The step in flight, for people to read."""
        call = self.call
        preview = preview_arguments(call.step.parameters, call.args, call.kwargs)
        return StepInFlight(self.command.position, call.step.name, self.attempt_number, self.started_at, preview)
