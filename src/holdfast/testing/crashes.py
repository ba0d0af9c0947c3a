"""Where a simulated process dies, in words and as code.

A run's life is a row of *events*: its start is written, a step begins, the intent of a ``once`` step is written, the
outcome of a step (or a timer, a signal, the deadline) is written, its end is written. A process can die *before* an
event is written, or *after* it was written but before anybody in the process knew. For a step there is one more place,
*during*: it has run to its end, and its outcome was not written. (Before a step is therefore before it begins.)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from holdfast.errors import UsageError

Moment = Literal["before", "during", "after"]
What = Literal["start", "step", "intent", "timer", "signal", "deadline", "end"]

NUMBERED = ("step", "intent", "timer", "signal")


class Event(NamedTuple):
    """Something in a run's life that is written."""

    what: What
    number: int = 0
    """Which step, timer or signal, counted from 1; steps and signals together, as ``holdfast show`` counts them."""
    name: str = ""

    def __str__(self) -> str:
        if self.what not in NUMBERED:
            return {"start": "the start", "end": "the end", "deadline": "the deadline"}[self.what]
        words = {"intent": "the intent of step", "timer": "timer", "signal": "signal"}.get(self.what, "step")
        return f"{words} {self.number} ({self.name})" if self.name else f"{words} {self.number}"


@dataclass(frozen=True)
class CrashPoint:
    """A moment at which the process dies."""

    moment: Moment
    what: What
    number: int | None = None
    """``None``: found by name."""
    name: str = ""
    occurrence: int = 1
    """With a name: the how manieth of that name."""

    @classmethod
    def at(cls, moment: Moment, event: Event) -> CrashPoint:
        """The point at one event of a run that was seen."""
        return cls(moment, event.what, event.number, event.name)

    def matches(self, moment: Moment, event: Event, occurrence: Callable[[], int]) -> bool:
        """Whether this is where the process is; ``occurrence`` counts the events of the same kind and name."""
        if (self.moment, self.what) != (moment, event.what):
            return False
        if self.number is not None:
            return self.number == event.number
        return self.name == event.name and self.occurrence == occurrence()

    def __str__(self) -> str:
        if self.number is not None:
            return f"{self.moment} {Event(self.what, self.number, self.name)}"
        often = f" number {self.occurrence}" if self.occurrence > 1 else ""
        return f"{self.moment} {'the intent of step' if self.what == 'intent' else self.what} {self.name!r}{often}"

    @property
    def in_words(self) -> str:
        """What has happened when the process dies here."""
        event = Event(self.what, self.number or 0, self.name)
        subject = str(event) if self.number is not None else str(self).partition(" ")[2]
        if self.what == "start":
            return f"the process dies {self.moment} the run's start is recorded"
        if self.what in ("end", "deadline"):
            return f"the process dies {self.moment} the run's {self.what} is recorded"
        if self.what == "step" and self.moment == "before":
            return f"the process dies before {subject} begins"
        if self.moment == "during":
            return f"the process dies when {subject} has run, before its outcome is recorded"
        outcome = "" if self.what == "intent" else " the outcome of"
        verb = "is" if self.moment == "before" else "was"
        return f"the process dies {self.moment}{outcome} {subject} {verb} recorded"


_POINT = re.compile(
    r"(?P<moment>before|during|after) (?:the )?"
    r"(?:(?P<bare>start|end|deadline)"
    r"|(?P<what>intent of step|step|timer|signal) (?P<number>\d+)(?: \((?P<name>.*)\))?)",
    re.DOTALL,
)
_NEXT = re.compile(
    r";\s*(?=(?:before|during|after) (?:the )?(?:start|end|deadline|(?:intent of step|step|timer|signal) \d))"
)
"""Between two points; the name of a step may have a semicolon in it, too."""


def parse_schedule(text: str) -> list[CrashPoint]:
    """The points of a schedule as a failure of ``crash_everywhere`` prints it: ``after step 2; before the end``."""
    points: list[CrashPoint] = []
    for part in (part.strip() for part in _NEXT.split(text)):
        found = _POINT.fullmatch(part)
        if not found or (found["moment"] == "during" and found["what"] != "step"):
            raise UsageError(
                f"{part!r} is no crash point. Write what a failure of crash_everywhere prints, such as "
                f"'after step 2; before the end'."
            )
        what = found["bare"] or found["what"].partition(" ")[0]
        number = int(found["number"]) if found["number"] else 0
        points.append(CrashPoint(found["moment"], what, number, found["name"] or ""))  # type: ignore[arg-type]
    return points
