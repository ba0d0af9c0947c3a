"""Crash points: where a simulated process dies, in words and as code.

A run is a sequence of *events* that are written to the store: its start, the intent of a ``once`` step, the outcome of
a step (or a timer, a signal, the deadline), its end. An approval has two events: the request (*question*) and the
recorded answer (*approval*). The first call of ``patched`` that takes the new path is an event, too (*patch*).

A process can crash *before* an event is written, or *after* it is written but before the process learns of it. A step
has one more phase, *during*: its function has returned, and its outcome is not written yet. *Before* a step therefore
means before it begins. The same holds for compensations, which are steps, and for children: before the child is
started; when it has ended and its parent has not recorded that; and after. The child's own events belong to the child.

A point belongs to one run. Without a run id, a number refers to a run that the test started itself, and a name may
match in any run.
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
"""Kinds with a duration between their beginning and their record, and so with a *during* phase."""

_UNNUMBERED_KINDS: dict[EventKind, str] = {
    "start": "the start",
    "end": "the end",
    "deadline": "the deadline",
    "cancel": "the cancel",
}


class RunEvent(NamedTuple):
    """Something about a run that is written to the store."""

    kind: EventKind
    number: int = 0
    """The number of the step, signal, or child, as in ``holdfast show``, or of the timer; numbers start at 1. Patches
    have no number, because their names are unique in a run."""
    name: str = ""

    def __str__(self) -> str:
        if self.kind in _UNNUMBERED_KINDS:
            return _UNNUMBERED_KINDS[self.kind]
        if self.kind == "patch":
            return f"patch {self.name!r}"
        words = "the intent of step" if self.kind == "intent" else self.kind
        return f"{words} {self.number} ({self.name})" if self.name else f"{words} {self.number}"


class EventLocation(NamedTuple):
    """An event of one run, with what a crash point needs to match it."""

    event: RunEvent
    run_id: str
    is_child: bool
    """Whether another run started this one."""
    occurrence: Callable[[], int]
    """Which occurrence of its kind and name the event is in its run, from 1."""
    numbers: Mapping[str, int]
    """The declared step numbers of a class workflow, by name."""


@dataclass(frozen=True)
class CrashPoint:
    """A point where the process crashes."""

    phase: Phase
    kind: EventKind
    number: int | None = None
    """``None``: matched by name."""
    name: str = ""
    occurrence: int = 1
    """With a name: which occurrence of it in its run."""
    is_declared: bool = False
    """Whether ``number`` is the declared number of a step in a class workflow."""
    run_id: str = ""
    """The run that the point belongs to; empty: see the module's docstring."""

    @classmethod
    def from_event(cls, phase: Phase, event: RunEvent, run_id: str = "") -> CrashPoint:
        """The point at an event of an observed run."""
        return cls(phase, event.kind, event.number, event.name, run_id=run_id)

    def matches(self, phase: Phase, location: EventLocation) -> bool:
        """Whether the process has reached this point."""
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
        nth = f" number {self.occurrence}" if self.occurrence > 1 else ""
        return f"{'the intent of step' if self.kind == 'intent' else self.kind} {self.name!r}{nth}{of_run}"

    @property
    def description(self) -> str:
        """A sentence that says when the process dies."""
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


# As written in a test


def build_crash_point(
    phase: Phase, targets_by_kind: Mapping[EventKind, Any], occurrence: int, run: str | None, caller: str = ""
) -> CrashPoint:
    """The point for the one target that is neither ``None`` nor false. Raises ``UsageError``."""
    caller = caller or f"simulate_crash_{phase}"
    targets: list[tuple[EventKind, Any]] = [
        pair for pair in targets_by_kind.items() if pair[1] is not None and pair[1] is not False
    ]
    if len(targets) != 1:
        *others, last = [f"{kind}=True" if kind in _UNNUMBERED_KINDS else f"{kind}=" for kind in targets_by_kind]
        raise UsageError(f"{caller}: name one of {', '.join(others)} and {last}")
    kind, target = targets[0]
    if isinstance(target, Step | Workflow):
        target = target.name
    if occurrence < 1 or (occurrence > 1 and not isinstance(target, str)):
        raise UsageError(f"{caller}: occurrence= counts from 1 the steps (or signals) of one name")
    run_id = run or ""
    if kind in _UNNUMBERED_KINDS:
        return CrashPoint(phase, kind, 0, run_id=run_id)
    if isinstance(target, str) and kind not in ("timer", "approval"):
        return CrashPoint(phase, kind, None, target, occurrence, run_id=run_id)
    if isinstance(target, int) and not isinstance(target, bool) and kind != "patch":
        if target < 1:
            raise UsageError(f"{caller}: {kind}={target!r}, but numbers start at 1")
        return CrashPoint(phase, kind, target, is_declared=True, run_id=run_id)
    accepted = "number" if kind in ("timer", "approval") else "name" if kind == "patch" else "number or name"
    raise UsageError(f"{caller}: {kind}={target!r}: give its {accepted}")


# As printed by a failure

_NUMBERED_KINDS = r"intent of step|step|compensation|child|timer|signal|question|approval"
_QUOTED_PATTERN = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_POINT_PATTERN = re.compile(
    r"(?P<phase>before|during|after) (?:the )?"
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
"""A possible separator of two points: step names and run ids may contain a semicolon, too."""


def parse_schedule(text: str) -> list[CrashPoint]:
    """The points of a schedule as a failure of ``crash_everywhere`` prints it: ``after step 2; before the end``."""
    points: list[CrashPoint] = []
    parts = deque(_SEPARATOR_PATTERN.split(text))
    while parts:
        part = parts.popleft()
        while (found := _POINT_PATTERN.fullmatch(part.strip())) is None and parts:
            part += parts.popleft() + parts.popleft()
        if parts:
            parts.popleft()  # the separator
        if found is None or (found["phase"] == "during" and found["what"] not in EXECUTED_KINDS):
            raise UsageError(
                f"{part!r} is not a crash point. Write what a failure of crash_everywhere prints, such as "
                f"'after step 2; before the end'."
            )
        kind = found["bare"] or ("patch" if found["patch"] else found["what"].partition(" ")[0])
        name = ast.literal_eval(found["patch"]) if found["patch"] else found["name"] or ""
        number = int(found["number"]) if found["number"] else 0
        run_id = ast.literal_eval(found["run"]) if found["run"] else ""
        points.append(CrashPoint(found["phase"], kind, number, name, run_id=run_id))  # type: ignore[arg-type]
    return points
