"""What a test sets up before it runs a workflow: mocks, answers, and the points where the process crashes."""

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
    """Sets up the world that a runner's processes share."""

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
        """Replace a step's function: return a value, call a function (or use the next outcome of a list), or raise.

        The step's retries and its recording do not change. Returns the mock, whose ``calls`` has the arguments of each
        call.
        """
        if not isinstance(step, Step | str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"mock takes a step or the name of one, not {step!r}: put @step on it")
        name = step.name if isinstance(step, Step) else step
        mock = self._world.mocks[name] = Mock(name, return_value, side_effect, raises)
        return mock

    def answer_signal(self, signal: str, *values: Any) -> None:
        """Send the next of these values whenever a run waits for this signal."""
        self._world.signal_answers[signal] = list(values)

    def answer_approval(self, question: str, *answers: Any) -> None:
        """Give the next of these answers whenever a run asks for this approval.

        ``True`` approves, ``False`` denies, and ``None`` leaves the approval open. Any other value is the choice, or
        the content of the form. For a tool call, ``question`` may be the tool's name, and an answer may be a dictionary
        of arguments that replace those of the call.
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
        """Request the cancellation of the run as soon as the step's outcome (or the signal, the timer) is recorded.

        The arguments select the point as in ``simulate_crash_after``. ``crash_everywhere`` does this in every trial.
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
        """Crash the process before the step begins (or before the signal, the timer, or the run's end is recorded).

        Select a step by its number (from 1), or by the step or its name, with ``occurrence`` for a later call. In a
        class workflow, the number is the declared one; for a fan-out, it selects the first item. Compensations are
        selected the same way, and children by their workflow: before a child means before it is started. A patch is
        selected by its name: before it means that the code has called ``patched`` and nothing is recorded yet.

        A name is looked up in every run; everything else refers to the runs that the test starts itself. ``run``
        selects another run by its id: ``simulate_crash_after(step=1, run="order-1:pack-2")``.
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
        """Crash the process after the step has run (or the child has ended), before its outcome is recorded."""
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
        """Crash the process right after the step's outcome (or the signal, the timer, the run's end) is recorded."""
        given: dict[EventKind, Any] = {"step": step, "signal": signal, "approval": approval, "timer": timer}
        given |= {"compensation": compensation, "child": child, "patch": patch, "cancel": cancel, "end": end}
        self._world.crash_points.append(build_crash_point("after", given, occurrence, run))
