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

Moment = Literal["before", "during", "after"]
What = Literal[
    "start", "step", "intent", "compensation", "child", "timer", "signal", "question", "approval", "patch", "cancel",
    "deadline", "end",
]  # fmt: skip

CARRIED_OUT = ("step", "compensation", "child")
"""What takes its time between its beginning and its record: it has a *during*."""

_BARE: dict[What, str] = {"start": "the start", "end": "the end", "deadline": "the deadline", "cancel": "the cancel"}


class Event(NamedTuple):
    """Something in a run's life that is written."""

    what: What
    number: int = 0
    """Which step, timer, signal or child, counted from 1; all but timers together, as ``holdfast show`` counts them.
    Patches are not counted: a run has one of a name."""
    name: str = ""

    def __str__(self) -> str:
        if self.what in _BARE:
            return _BARE[self.what]
        if self.what == "patch":
            return f"patch {self.name!r}"
        words = "the intent of step" if self.what == "intent" else self.what
        return f"{words} {self.number} ({self.name})" if self.name else f"{words} {self.number}"


class Place(NamedTuple):
    """An event of one run, as far as a point must know it."""

    event: Event
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

    moment: Moment
    what: What
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
    def at(cls, moment: Moment, event: Event, run_id: str = "") -> CrashPoint:
        """The point at one event of a run that was seen."""
        return cls(moment, event.what, event.number, event.name, run_id=run_id)

    def matches(self, moment: Moment, place: Place) -> bool:
        """Whether this is where the process is."""
        event = place.event
        if (self.moment, self.what) != (moment, event.what) or not self._is_of(place):
            return False
        if self.is_declared and place.numbers and self.what in ("step", "intent"):
            return self.number == place.numbers.get(event.name) and place.occurrence() == 1
        if self.number is not None:
            return self.number == event.number and (self.what != "patch" or self.name == event.name)
        return self.name == event.name and self.occurrence == place.occurrence()

    def _is_of(self, place: Place) -> bool:
        if self.run_id:
            return self.run_id == place.run_id
        return self.number is None or not place.is_child

    def __str__(self) -> str:
        return f"{self.moment} {self._subject}"

    @property
    def _subject(self) -> str:
        of_run = f" of run {self.run_id!r}" if self.run_id else ""
        if self.number is not None:
            return f"{Event(self.what, self.number, self.name)}{of_run}"
        often = f" number {self.occurrence}" if self.occurrence > 1 else ""
        return f"{'the intent of step' if self.what == 'intent' else self.what} {self.name!r}{often}{of_run}"

    @property
    def in_words(self) -> str:
        """What has happened when the process dies here."""
        if self.what in _BARE:
            whose = f"run {self.run_id!r}'s" if self.run_id else "the run's"
            return f"the process dies {self.moment} {whose} {self.what} is recorded"
        subject = self._subject
        if self.what in CARRIED_OUT and self.moment == "before":
            return f"the process dies before {subject} begins"
        if self.moment == "during":
            verb = "has ended" if self.what == "child" else "has run"
            return f"the process dies when {subject} {verb}, before its outcome is recorded"
        outcome = "" if self.what in ("intent", "question", "patch") else " the outcome of"
        verb = "is" if self.moment == "before" else "was"
        return f"the process dies {self.moment}{outcome} {subject} {verb} recorded"


# As a test says it


def point_of(moment: Moment, given: Mapping[What, Any], occurrence: int, run: str | None, call: str = "") -> CrashPoint:
    """The one point that is named; what is not named is ``None``, or false. Raises ``UsageError``."""
    call = call or f"simulate_crash_{moment}"
    targets: list[tuple[What, Any]] = [pair for pair in given.items() if pair[1] is not None and pair[1] is not False]
    if len(targets) != 1:
        *most, last = [f"{what}=True" if what in _BARE else f"{what}=" for what in given]
        raise UsageError(f"{call}: name one of {', '.join(most)} and {last}")
    what, target = targets[0]
    if isinstance(target, Step | Workflow):
        target = target.name
    if occurrence < 1 or (occurrence > 1 and not isinstance(target, str)):
        raise UsageError(f"{call}: occurrence= counts from 1 the steps (or signals) of one name")
    run_id = run or ""
    if what in _BARE:
        return CrashPoint(moment, what, 0, run_id=run_id)
    if isinstance(target, str) and what not in ("timer", "approval"):
        return CrashPoint(moment, what, None, target, occurrence, run_id=run_id)
    if isinstance(target, int) and not isinstance(target, bool) and what != "patch":
        if target < 1:
            raise UsageError(f"{call}: {what}={target!r}, but numbers begin with 1")
        return CrashPoint(moment, what, target, is_declared=True, run_id=run_id)
    how = "its number" if what in ("timer", "approval") else "its name" if what == "patch" else "its number or its name"
    raise UsageError(f"{call}: {what}={target!r}; {'an' if what == 'approval' else 'a'} {what} is told by {how}")


# As a failure prints it

_NUMBERED = r"intent of step|step|compensation|child|timer|signal|question|approval"
_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_POINT = re.compile(
    r"(?P<moment>before|during|after) (?:the )?"
    rf"(?:(?P<bare>{'|'.join(_BARE)})"
    rf"|patch (?P<patch>{_QUOTED})"
    rf"|(?P<what>{_NUMBERED}) (?P<number>\d+)(?: \((?P<name>.*)\))?)"
    rf"(?: of run (?P<run>{_QUOTED}))?",
    re.DOTALL,
)
_NEXT = re.compile(rf"(;\s*)(?=(?:before|during|after) (?:the )?(?:{'|'.join(_BARE)}|patch ['\"]|(?:{_NUMBERED}) \d))")
"""Perhaps between two points: the name of a step, and the id of a run, may have a semicolon in them, too."""


def parse_schedule(text: str) -> list[CrashPoint]:
    """The points of a schedule as a failure of ``crash_everywhere`` prints it: ``after step 2; before the end``."""
    points: list[CrashPoint] = []
    parts = deque(_NEXT.split(text))
    while parts:
        part = parts.popleft()
        while (found := _POINT.fullmatch(part.strip())) is None and parts:
            part += parts.popleft() + parts.popleft()
        if parts:
            parts.popleft()  # what is between this one and the next
        if found is None or (found["moment"] == "during" and found["what"] not in CARRIED_OUT):
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
