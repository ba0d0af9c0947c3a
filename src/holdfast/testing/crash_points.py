"""Where a simulated process dies, in words and as code.

A run's life is a row of *events*: its start is written, a step begins, the intent of a ``once`` step is written, the
outcome of a step (or a timer, a signal, the deadline) is written, its end is written. A question to a person is written
when it is asked, and the answer is recorded (an *approval*). That a run takes the new way of a change is written when
its code asks for it the first time (a *patch*).

A process can die *before* an event is written, or *after* it was written but before anybody in the process knew. For a
step there is one more place, *during*: it has run to its end, and its outcome was not written. (Before a step is
therefore before it begins.) So it is for a compensation, which is a step, and for a child: before it is started, when
it has ended and the run that waits for it has not written that down, and after. The child's own events are those of its
own life.

A point belongs to one run. Unless it says which, that is a run that nobody but the test has started; a name, however,
may be found in any run.
"""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from holdfast.authoring.step import Step
from holdfast.authoring.workflow import Workflow
from holdfast.errors import UsageError

Phase = Literal["before", "during", "after"]
EventKind = Literal[
    "start", "step", "intent", "compensation", "child", "timer", "signal", "question", "approval", "patch", "cancel",
    "deadline", "end",
]  # fmt: skip

EXECUTED_KINDS = ("step", "compensation", "child")
"""What takes its time between its beginning and its record: it has a *during*."""

_UNNUMBERED_KINDS: dict[EventKind, str] = {
    "start": "the start",
    "end": "the end",
    "deadline": "the deadline",
    "cancel": "the cancel",
}


class RunEvent(NamedTuple):
    """Something in a run's life that is written."""

    kind: EventKind
    number: int = 0
    """Which step, timer, signal or child, counted from 1; all but timers together, as ``holdfast show`` counts them.
    Patches are not counted: a run has one of a name."""
    name: str = ""

    def __str__(self) -> str:
        if self.kind in _UNNUMBERED_KINDS:
            return _UNNUMBERED_KINDS[self.kind]
        if self.kind == "patch":
            return f"patch {self.name!r}"
        words = "the intent of step" if self.kind == "intent" else self.kind
        return f"{words} {self.number} ({self.name})" if self.name else f"{words} {self.number}"


class EventLocation(NamedTuple):
    """An event of one run, as far as a point must know it."""

    event: RunEvent
    run_id: str
    is_child: bool
    """Another run has started this one."""
    occurrence: Callable[[], int]
    """The how manieth event of its kind and name this is in its run."""
    numbers: Mapping[str, int]
    """The numbers of the steps, if the run is one of a class workflow."""


@dataclass(frozen=True)
class CrashPoint:
    """A moment at which the process dies."""

    phase: Phase
    kind: EventKind
    number: int | None = None
    """``None``: found by name."""
    name: str = ""
    occurrence: int = 1
    """With a name: the how manieth of that name in its run."""
    is_declared: bool = False
    """In the class form, ``number`` is the one that the step was declared with."""
    run_id: str = ""
    """The run that it is a point of; empty: see above."""

    @classmethod
    def from_event(cls, phase: Phase, event: RunEvent, run_id: str = "") -> CrashPoint:
        """The point at one event of a run that was seen."""
        return cls(phase, event.kind, event.number, event.name, run_id=run_id)

    def matches(self, phase: Phase, location: EventLocation) -> bool:
        """Whether this is where the process is."""
        event = location.event
        if (self.phase, self.kind) != (phase, event.kind) or not self._is_in_run(location):
            return False
        if self.is_declared and location.numbers and self.kind in ("step", "intent"):
            return self.number == location.numbers.get(event.name) and location.occurrence() == 1
        if self.number is not None:
            return self.number == event.number and (self.kind != "patch" or self.name == event.name)
        return self.name == event.name and self.occurrence == location.occurrence()

    def _is_in_run(self, location: EventLocation) -> bool:
        if self.run_id:
            return self.run_id == location.run_id
        return self.number is None or not location.is_child

    def __str__(self) -> str:
        return f"{self.phase} {self._subject}"

    @property
    def _subject(self) -> str:
        of_run = f" of run {self.run_id!r}" if self.run_id else ""
        if self.number is not None:
            return f"{RunEvent(self.kind, self.number, self.name)}{of_run}"
        often = f" number {self.occurrence}" if self.occurrence > 1 else ""
        return f"{'the intent of step' if self.kind == 'intent' else self.kind} {self.name!r}{often}{of_run}"

    @property
    def description(self) -> str:
        """What has happened when the process dies here."""
        if self.kind in _UNNUMBERED_KINDS:
            whose = f"run {self.run_id!r}'s" if self.run_id else "the run's"
            return f"the process dies {self.phase} {whose} {self.kind} is recorded"
        subject = self._subject
        if self.kind in EXECUTED_KINDS and self.phase == "before":
            return f"the process dies before {subject} begins"
        if self.phase == "during":
            verb = "has ended" if self.kind == "child" else "has run"
            return f"the process dies when {subject} {verb}, before its outcome is recorded"
        outcome = "" if self.kind in ("intent", "question", "patch") else " the outcome of"
        verb = "is" if self.phase == "before" else "was"
        return f"the process dies {self.phase}{outcome} {subject} {verb} recorded"


# As a test says it


def build_crash_point(
    phase: Phase, targets_by_kind: Mapping[EventKind, Any], occurrence: int, run: str | None, caller: str = ""
) -> CrashPoint:
    """The one point that is named; what is not named is ``None``, or false. Raises ``UsageError``."""
    caller = caller or f"simulate_crash_{phase}"
    targets: list[tuple[EventKind, Any]] = [
        pair for pair in targets_by_kind.items() if pair[1] is not None and pair[1] is not False
    ]
    if len(targets) != 1:
        *most, last = [f"{what}=True" if what in _UNNUMBERED_KINDS else f"{what}=" for what in targets_by_kind]
        raise UsageError(f"{caller}: name one of {', '.join(most)} and {last}")
    what, target = targets[0]
    if isinstance(target, Step | Workflow):
        target = target.name
    if occurrence < 1 or (occurrence > 1 and not isinstance(target, str)):
        raise UsageError(f"{caller}: occurrence= counts from 1 the steps (or signals) of one name")
    run_id = run or ""
    if what in _UNNUMBERED_KINDS:
        return CrashPoint(phase, what, 0, run_id=run_id)
    if isinstance(target, str) and what not in ("timer", "approval"):
        return CrashPoint(phase, what, None, target, occurrence, run_id=run_id)
    if isinstance(target, int) and not isinstance(target, bool) and what != "patch":
        if target < 1:
            raise UsageError(f"{caller}: {what}={target!r}, but numbers begin with 1")
        return CrashPoint(phase, what, target, is_declared=True, run_id=run_id)
    how = "its number" if what in ("timer", "approval") else "its name" if what == "patch" else "its number or its name"
    raise UsageError(f"{caller}: {what}={target!r}; {'an' if what == 'approval' else 'a'} {what} is told by {how}")


# As a failure prints it

_NUMBERED_KINDS = r"intent of step|step|compensation|child|timer|signal|question|approval"
_QUOTED_PATTERN = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_POINT_PATTERN = re.compile(
    r"(?P<moment>before|during|after) (?:the )?"
    rf"(?:(?P<bare>{'|'.join(_UNNUMBERED_KINDS)})"
    rf"|patch (?P<patch>{_QUOTED_PATTERN})"
    rf"|(?P<what>{_NUMBERED_KINDS}) (?P<number>\d+)(?: \((?P<name>.*)\))?)"
    rf"(?: of run (?P<run>{_QUOTED_PATTERN}))?",
    re.DOTALL,
)
_SEPARATOR_PATTERN = re.compile(
    rf"(;\s*)(?=(?:before|during|after) (?:the )?(?:{'|'.join(_UNNUMBERED_KINDS)}|patch ['\"]|(?:{_NUMBERED_KINDS}) "
    r"\d))"
)
"""Perhaps between two points: the name of a step, and the id of a run, may have a semicolon in them, too."""


def parse_schedule(text: str) -> list[CrashPoint]:
    """The points of a schedule as a failure of ``crash_everywhere`` prints it: ``after step 2; before the end``."""
    points: list[CrashPoint] = []
    parts = deque(_SEPARATOR_PATTERN.split(text))
    while parts:
        part = parts.popleft()
        while (found := _POINT_PATTERN.fullmatch(part.strip())) is None and parts:
            part += parts.popleft() + parts.popleft()
        if parts:
            parts.popleft()  # what is between this one and the next
        if found is None or (found["moment"] == "during" and found["what"] not in EXECUTED_KINDS):
            raise UsageError(
                f"{part!r} is no crash point. Write what a failure of crash_everywhere prints, such as "
                f"'after step 2; before the end'."
            )
        what = found["bare"] or ("patch" if found["patch"] else found["what"].partition(" ")[0])
        name = ast.literal_eval(found["patch"]) if found["patch"] else found["name"] or ""
        number = int(found["number"]) if found["number"] else 0
        run_id = ast.literal_eval(found["run"]) if found["run"] else ""
        points.append(CrashPoint(found["moment"], what, number, name, run_id=run_id))  # type: ignore[arg-type]
    return points
