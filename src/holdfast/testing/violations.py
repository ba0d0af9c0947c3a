"""Violations that ``crash_everywhere`` finds, and the error that reports one."""

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
    """The step that broke the rule, if it was a step."""
    execution_count: int = 0
    is_without_crash: bool = False
    """Whether it needs no crash: running the workflow twice is enough."""
    other_process: str = ""
    """The process where it happened, if that was not the test's own."""


class CrashSafetyError(AssertionError):
    """A workflow does not survive a crash. The message has the schedule, the broken rule, and the cause."""

    schedule: tuple[CrashPoint, ...] = ()
    violation: Violation
    causes: tuple[str, ...] = ()
    reproduction: str = ""
    """A line of code that reproduces it."""

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
            when = "the process shuts down cleanly"
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
        error.schedule, error.violation = schedule, violation
        error.causes, error.reproduction = tuple(causes), reproduce
        return error


def _format_entry(label: str, text: str) -> list[str]:
    first, *rest = text.splitlines() or [""]
    return [f"  {label:<10} {first}", *(f"  {'':<10} {line}" for line in rest)]


class CrashSafetyWarning(UserWarning):
    """A check of ``crash_everywhere`` was skipped."""
