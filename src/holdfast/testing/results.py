"""What a test may look at after a run: how it stands, and what became of each of its steps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, overload


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step of a run."""

    number: int
    """Its place among the steps and signals that the workflow asked for, from 1; the number in ``holdfast show``."""
    name: str
    output: Any
    """What it returned, as the workflow saw it; ``None`` while it has no outcome, or when it failed."""
    error: BaseException | None
    """What it raised."""
    is_recorded: bool
    """Whether its outcome is in the journal."""
    was_replayed: bool
    """Whether the process that had the run last took the outcome from the journal, and did not run the step."""
    attempts: int
    """How many attempts the recorded outcome took; 0 while there is none."""
    executions: int
    """How often the step's function (or its mock) was really called, in all processes."""


class Steps(Collection[StepResult]):
    """The steps of a run, in the order the workflow called them.

    ``steps[2]`` is the step with number 2 (numbers begin with 1), ``steps["charge"]`` the list of those of that name.
    It is no sequence: whatever counts from 0 would be wrong.
    """

    def __init__(self, steps: Sequence[StepResult], others: dict[int, str]) -> None:
        self._steps = list(steps)
        self._others = others
        """Numbers that belong to something else, in words."""

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
        for step in self._steps:
            if step.number == key:
                return step
        known = ", ".join(f"{step.number} ({step.name})" for step in self._steps) or "none"
        reason = f"number {key} is {self._others[key]}" if key in self._others else f"there is no step {key}"
        raise IndexError(f"{reason}; numbers begin with 1, and the steps are: {known}")

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


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run stands after a call of the runner."""

    run_id: str
    status: str
    """One of the run states: ``completed``, ``failed``, ``waiting``, ``running`` (its process died), and so on."""
    crashed: bool
    """Whether the call ended with a simulated crash."""
    output: Any
    """The workflow's result; ``None`` unless it is completed."""
    error: BaseException | None
    """What a failed workflow raised, or why the run is dead."""
    waits_for: str
    """What a waiting run waits for, in words."""
    steps: Steps = field(repr=False)

    def __repr__(self) -> str:
        if self.status == "completed":
            outcome = f" with {self.output!r}"
        elif self.error is not None:
            outcome = f": {type(self.error).__name__}: {self.error}"
        else:
            outcome = f" for {self.waits_for}" if self.waits_for else ""
        crash = ", its process crashed" if self.crashed else ""
        return f"<run {self.run_id!r} {self.status}{outcome}{crash}>"
