"""What ``crash_everywhere`` finds, and how it is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from holdfast.testing.crash_points import CrashPoint

Rule = Literal[
    "ran-again",
    "once",
    "started-twice",
    "drift",
    "arguments",
    "commands",
    "result",
    "step-result",
    "order",
    "swallowed",
    "unfit",
]


@dataclass(frozen=True)
class Violation:
    """A rule that a run has broken."""

    rule: Rule
    message: str
    step: str = ""
    """The step it is about, if it is about one."""
    execution_count: int = 0
    is_without_crash: bool = False
    """It needs no crash: the workflow was only run twice."""
    other_process: str = ""
    """The process in which it showed, if it was another than that of the test."""


class CrashSafetyError(AssertionError):
    """A workflow does not survive a crash. The message tells the schedule, the rule it breaks, and the cause."""

    schedule: tuple[CrashPoint, ...] = ()
    violation: Violation
    causes: tuple[str, ...] = ()
    reproduction: str = ""
    """A line of code that does it again."""

    @classmethod
    def from_violation(
        cls,
        workflow: str,
        call: str,
        violation: Violation,
        schedule: tuple[CrashPoint, ...],
        causes: Sequence[str],
    ) -> CrashSafetyError:
        """The error for one violation."""
        if violation.other_process:
            when = f"the process dies before the run's end is recorded, and {violation.other_process} takes over"
        elif violation.rule == "unfit":
            when = "no crash at all"
        elif schedule:
            when = "; then ".join(point.description for point in schedule) + "; another takes over"
        elif violation.rule == "swallowed":
            when = "the process stops in good order"
        elif violation.is_without_crash:
            when = "no crash at all: the workflow was run twice"
        else:
            when = "the process dies before the run's end is recorded; another takes over"
        text = "; ".join(map(str, schedule)) or "before the end"
        reproduce = f"await Runner(only={text!r}).crash_everywhere({call})"
        headline = "does something else each time it runs" if violation.is_without_crash else "does not survive a crash"
        if violation.rule == "unfit":
            headline, reproduce = "cannot be replayed at all", f"await Runner().run({call})"
        lines = [f"workflow {workflow!r} {headline}.", "", *_format_entry("Schedule", when)]
        lines += _format_entry("Broken", violation.message)
        for at, cause in enumerate(causes):
            lines += _format_entry("or" if at else "Cause", cause)
        lines += ["", *_format_entry("Reproduce", reproduce)]
        error = cls("\n".join(lines))
        error.schedule, error.violation, error.causes, error.reproduction = (
            schedule,
            violation,
            tuple(causes),
            reproduce,
        )
        return error


def _format_entry(label: str, text: str) -> list[str]:
    first, *rest = text.splitlines() or [""]
    return [f"  {label:<10} {first}", *(f"  {'':<10} {line}" for line in rest)]


class CrashSafetyWarning(UserWarning):
    """A part of ``crash_everywhere`` could not be done."""
