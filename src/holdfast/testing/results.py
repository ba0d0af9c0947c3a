"""Results that a test can inspect: a run's state, its steps, and its children."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from holdfast.admission.usage import Usage
from holdfast.services.approvals import ApprovalInfo


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step of a run."""

    number: int
    """In a class workflow, the declared number (0 for a compensation). In a function, the position among the steps,
    signals, and children that the workflow called, from 1: the number in ``holdfast show``."""
    name: str
    output: Any
    """The step's result as the workflow saw it; ``None`` if it has no outcome or failed."""
    error: BaseException | None
    """The exception that the step raised."""
    is_recorded: bool
    """Whether the journal has the step's outcome."""
    was_replayed: bool
    """Whether the last process of the run replayed the outcome from the journal and did not run the step."""
    attempt_count: int
    """Number of attempts for the recorded outcome; 0 if there is none."""
    execution_count: int
    """How often the step's function (or its mock) was really called, in all processes."""
    compensates: int | None = None
    """For a compensation: the number of the step that it undoes."""
    was_compensated: bool = False
    """Whether a recorded compensation has undone the step."""
    was_repeated: bool = False
    """Whether the workflow called a model again because of this outcome: the answer was invalid, or the budget was
    exceeded."""
    usage: Usage | None = None
    """The usage of a model call; ``None`` for other steps."""

    @property
    def is_compensation(self) -> bool:
        """Whether the step compensates another one."""
        return self.compensates is not None


class Steps(Collection[StepResult]):
    """The steps of a run, in the order of the calls, followed by compensations.

    ``steps[2]`` is the step with number 2 (numbers start at 1), and ``steps["charge"]`` is the list of steps of that
    name. In a class workflow, the number of a fan-out selects all of its items: ``steps[2].output`` is a list. This is
    not a ``Sequence``, because its numbers do not start at 0.
    """

    def __init__(
        self,
        steps: Sequence[StepResult],
        other_commands: dict[int, str],
        declared_names: Mapping[int, str] | None = None,
        fan_outs: Collection[int] = (),
    ) -> None:
        self._steps = list(steps)
        self._other_commands = other_commands
        """Descriptions of commands that are not steps, by their numbers."""
        self._declared_names = declared_names or {}
        """In a class workflow: the names of its steps, by their numbers."""
        self._fan_outs = fan_outs
        """The numbers of steps that are called once for each item."""

    @overload
    def __getitem__(self, key: int) -> StepResult: ...
    @overload
    def __getitem__(self, key: str) -> list[StepResult]: ...  # type: ignore[overload-overlap]
    @overload
    def __getitem__(self, key: slice) -> list[StepResult]: ...
    def __getitem__(self, key: int | str | slice) -> StepResult | list[StepResult]:  # type: ignore[override]
        if isinstance(key, str):
            return [step for step in self._steps if step.name == key]
        if isinstance(key, slice):
            return self._steps[key]
        if key < 0:
            return self._steps[key]
        found = [step for step in self._steps if step.number == key]
        if key in self._fan_outs and found:
            return _merge_fan_out([step for step in found if not step.was_repeated] or found)
        if found:
            return found[-1]  # in a class workflow, a repeated model call has the same number
        raise IndexError(self._describe_missing(key))

    def _describe_missing(self, key: int) -> str:
        if key in self._declared_names:
            reasons = "has no items, was skipped" if key in self._fan_outs else "was skipped"
            return f"step {key} ({self._declared_names[key]}) was not called: it {reasons}, or has not been reached"
        named = self._declared_names or {step.number: step.name for step in self._steps}
        known = ", ".join(f"{number} ({name})" for number, name in named.items()) or "none"
        reason = (
            f"number {key} is {self._other_commands[key]}" if key in self._other_commands else f"there is no step {key}"
        )
        return f"{reason}; numbers start at 1, and the steps are: {known}"

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[StepResult]:
        return iter(self._steps)

    def __reversed__(self) -> Iterator[StepResult]:
        return reversed(self._steps)

    def __contains__(self, step: object) -> bool:
        return step in self._steps

    def __repr__(self) -> str:
        return f"<steps {', '.join(f'{step.number} {step.name}' for step in self._steps) or 'none'}>"


def _merge_fan_out(items: Sequence[StepResult]) -> StepResult:
    """Combine the items of a fan-out into one step."""
    return StepResult(
        number=items[0].number,
        name=items[0].name,
        output=[item.output for item in items],
        error=next((item.error for item in items if item.error is not None), None),
        is_recorded=all(item.is_recorded for item in items),
        was_replayed=all(item.was_replayed for item in items),
        attempt_count=max(item.attempt_count for item in items),
        execution_count=sum(item.execution_count for item in items),
        was_compensated=all(item.was_compensated for item in items),
        usage=sum(used, Usage()) if (used := [item.usage for item in items if item.usage is not None]) else None,
    )


class Children(Collection["RunResult"]):
    """The child runs of a run, in the order of the calls.

    As with steps, ``children[2]`` is the child with number 2 (as in ``holdfast show``, which numbers steps and children
    together), and ``children["pack"]`` is the list of the runs of workflow ``pack``.
    """

    def __init__(self, children: Mapping[int, RunResult]) -> None:
        self._by_number = dict(children)

    @property
    def _all(self) -> list[RunResult]:
        return list(self._by_number.values())

    @overload
    def __getitem__(self, key: int) -> RunResult: ...
    @overload
    def __getitem__(self, key: str) -> list[RunResult]: ...  # type: ignore[overload-overlap]
    @overload
    def __getitem__(self, key: slice) -> list[RunResult]: ...
    def __getitem__(self, key: int | str | slice) -> RunResult | list[RunResult]:  # type: ignore[override]
        if isinstance(key, str):
            return [child for child in self._all if child.workflow == key]
        if isinstance(key, slice):
            return self._all[key]
        if key < 0:
            return self._all[key]
        if key in self._by_number:
            return self._by_number[key]
        known = ", ".join(f"{number} ({child.workflow})" for number, child in self._by_number.items()) or "none"
        raise IndexError(f"there is no child {key}; they are numbered with the steps, from 1: {known}")

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[RunResult]:
        return iter(self._all)

    def __reversed__(self) -> Iterator[RunResult]:
        return reversed(self._all)

    def __contains__(self, child: object) -> bool:
        return child in self._all

    def __repr__(self) -> str:
        return f"<children {', '.join(f'{number} {child!r}' for number, child in self._by_number.items()) or 'none'}>"


@dataclass(frozen=True, slots=True)
class RunResult:
    """The state of a run after a call of the runner."""

    run_id: str
    workflow: str
    """The workflow's name."""
    status: str
    """One of the run states: ``completed``, ``failed``, ``waiting``, ``running`` (its process died), and so on."""
    has_crashed: bool
    """Whether the call ended with a simulated crash."""
    output: Any
    """The workflow's result; ``None`` unless it is completed."""
    error: BaseException | None
    """The exception of a failed workflow, or why the run is cancelled or dead."""
    waits_for: str
    """What a waiting run waits for, in words."""
    steps: Steps = field(repr=False)
    children: Children = field(repr=False)
    """The child runs that the workflow called or started."""
    is_paused: bool = False
    usage: Usage = field(default_factory=Usage)
    """The usage of the model calls of the run and its descendants."""
    approvals: list[ApprovalInfo] = field(default_factory=list["ApprovalInfo"], repr=False)
    """All approvals that the run asked for, oldest first."""

    def __repr__(self) -> str:
        if self.status == "completed":
            outcome = f" with {self.output!r}"
        elif self.error is not None:
            first_line = str(self.error).partition("\n")[0]
            outcome = f": {type(self.error).__name__}: {first_line}"
        else:
            outcome = f" for {self.waits_for}" if self.waits_for else ""
        flags = f"{', paused' if self.is_paused else ''}{', its process crashed' if self.has_crashed else ''}"
        return f"<run {self.run_id!r} {self.status}{outcome}{flags}>"
