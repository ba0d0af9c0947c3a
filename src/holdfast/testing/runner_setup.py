"""What a test arranges before it runs a workflow: mocks, answers of the world, and where the process dies."""

from __future__ import annotations

from typing import Any

from holdfast.authoring.step import Step
from holdfast.authoring.workflow import Workflow
from holdfast.errors import UsageError
from holdfast.testing.crash_points import EventKind, build_crash_point
from holdfast.testing.mocks import MISSING, Mock
from holdfast.testing.simulated_process import World

AnyStep = Step[..., Any] | int | str
AnyWorkflow = Workflow[..., Any] | int | str


class RunnerSetup:
    """A world in which something is going to happen."""

    def __init__(self, world: World) -> None:
        self._world = world

    def mock(
        self,
        step: Step[..., Any] | str,
        *,
        return_value: Any = MISSING,
        side_effect: Any = MISSING,
        raises: Any = MISSING,
    ) -> Mock:
        """Let a step return this value, call this function (or take these outcomes one by one), or raise this.

        The step's retries and its recording stay as they are. Returns the mock, whose ``calls`` tell how it was called.
        """
        if not isinstance(step, Step | str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"mock takes a step or the name of one, not {step!r}: put @step on it")
        name = step.name if isinstance(step, Step) else step
        made = self._world.mocks[name] = Mock(name, return_value, side_effect, raises)
        return made

    def answer_signal(self, signal: str, *values: Any) -> None:
        """Whenever a run waits for this signal, send it the next of these values."""
        self._world.signal_answers[signal] = list(values)

    def answer_approval(self, question: str, *answers: Any) -> None:
        """Whenever a run asks this question, give it the next of these answers.

        ``True`` is yes and ``False`` is no; anything else is the choice, or what is filled into the form. ``None``:
        nobody answers. For the call of a tool, ``question`` may be the tool's name, and an answer the arguments in
        place of those that it was called with.
        """
        self._world.approval_answers[question] = list(answers)

    def cancel_after(
        self,
        step: AnyStep | None = None,
        *,
        occurrence: int = 1,
        signal: int | str | None = None,
        approval: int | None = None,
        timer: int | None = None,
        child: AnyWorkflow | None = None,
        run: str | None = None,
    ) -> None:
        """Ask for the run to be cancelled as soon as the step's outcome (or the signal, the timer) is recorded.

        What is meant is told as for ``simulate_crash_after``. In ``crash_everywhere`` this is done in every trial.
        """
        given: dict[EventKind, Any] = {
            "step": step,
            "signal": signal,
            "approval": approval,
            "timer": timer,
            "child": child,
        }
        self._world.cancel_points.append(build_crash_point("after", given, occurrence, run, "cancel_after"))

    def simulate_crash_before(
        self,
        step: AnyStep | None = None,
        *,
        occurrence: int = 1,
        signal: int | str | None = None,
        approval: int | None = None,
        timer: int | None = None,
        compensation: AnyStep | None = None,
        child: AnyWorkflow | None = None,
        patch: str | None = None,
        cancel: bool = False,
        end: bool = False,
        run: str | None = None,
    ) -> None:
        """Let the process die before the step begins (or before the signal, the timer or the run's end is recorded).

        A step is named by its number (from 1), or by itself or its name and which ``occurrence`` of it is meant. In a
        class workflow the number is the declared one; for a fan-out it means the first item. So are a compensation, and
        a child by its workflow: before a child is before it is started. A patch is told by its name: before one is when
        the code has asked for it, and nothing of that is recorded.

        A name is looked for in every run; anything else is meant of the runs that the test has started itself. With
        ``run``, it is meant of the run with that id: ``simulate_crash_after(step=1, run="order-1:pack-2")``.
        """
        given: dict[EventKind, Any] = {"step": step, "signal": signal, "approval": approval, "timer": timer}
        given |= {"compensation": compensation, "child": child, "patch": patch, "cancel": cancel, "end": end}
        self._world.crash_points.append(build_crash_point("before", given, occurrence, run))

    def simulate_crash_during(
        self,
        step: AnyStep | None = None,
        *,
        occurrence: int = 1,
        compensation: AnyStep | None = None,
        child: AnyWorkflow | None = None,
        run: str | None = None,
    ) -> None:
        """Let the process die when the step has run (or the child has ended), before its outcome is recorded."""
        given: dict[EventKind, Any] = {"step": step, "compensation": compensation, "child": child}
        self._world.crash_points.append(build_crash_point("during", given, occurrence, run))

    def simulate_crash_after(
        self,
        step: AnyStep | None = None,
        *,
        occurrence: int = 1,
        signal: int | str | None = None,
        approval: int | None = None,
        timer: int | None = None,
        compensation: AnyStep | None = None,
        child: AnyWorkflow | None = None,
        patch: str | None = None,
        cancel: bool = False,
        end: bool = False,
        run: str | None = None,
    ) -> None:
        """Let the process die when the step's outcome (or the signal, the timer, the run's end) has been recorded."""
        given: dict[EventKind, Any] = {"step": step, "signal": signal, "approval": approval, "timer": timer}
        given |= {"compensation": compensation, "child": child, "patch": patch, "cancel": cancel, "end": end}
        self._world.crash_points.append(build_crash_point("after", given, occurrence, run))
