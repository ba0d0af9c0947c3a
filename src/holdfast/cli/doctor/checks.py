"""The result of a check: a status, and what to do if it is not ``ok``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from holdfast.cli.shared.formatting import format_duration

OK, WARN, FAIL = "ok", "warn", "fail"
SLOW_COMMIT_S = 0.05


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check."""

    status: str
    name: str
    message: str
    advice: str = ""
    """What to do; if the status is ``OK``, what could be better still."""


ok = partial(CheckResult, OK)
warn = partial(CheckResult, WARN)
"""It works, but needs attention."""
fail = partial(CheckResult, FAIL)


def diagnose_commit(commit_times_s: Sequence[float], advice: str) -> CheckResult:
    """The time of a durable commit, from a few measurements; ``advice`` is for a slow one."""
    typical, worst = sorted(commit_times_s)[len(commit_times_s) // 2], max(commit_times_s)
    message = (
        f"{format_duration(typical)} a durable commit (slowest of {len(commit_times_s)}: {format_duration(worst)})"
    )
    return warn("commit", message, advice) if typical > SLOW_COMMIT_S else ok("commit", message)


def diagnose_namespace(namespace: str, location: str, others: Sequence[str]) -> CheckResult:
    """The namespace in use, and the others in the same place."""
    also = f"; others here: {', '.join(others)}" if others else ""
    return ok("namespace", f"{namespace}, in {location}{also}")
