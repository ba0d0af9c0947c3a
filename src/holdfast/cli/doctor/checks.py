"""What ``doctor`` finds: a verdict, and what to do when it is not ``ok``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.cli.shared.formatting import format_duration

OK, WARN, FAIL = "ok", "warn", "fail"
SLOW_COMMIT_S = 0.05


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One finding."""

    name: str
    status: str
    message: str
    advice: str = ""


def diagnose_commit(commit_times_s: Sequence[float], advice: str) -> CheckResult:
    """What a durable commit takes, by the times of a few; ``advice`` is for when that is slow."""
    typical, worst = sorted(commit_times_s)[len(commit_times_s) // 2], max(commit_times_s)
    message = (
        f"{format_duration(typical)} a durable commit (slowest of {len(commit_times_s)}: {format_duration(worst)})"
    )
    return (
        CheckResult("commit", WARN, message, advice) if typical > SLOW_COMMIT_S else CheckResult("commit", OK, message)
    )


def diagnose_namespace(namespace: str, location: str, others: Sequence[str]) -> CheckResult:
    """Whose runs these are, and who else has some here."""
    told = f"{namespace}, in {location}"
    return CheckResult("namespace", OK, told + (f"; others here: {', '.join(others)}" if others else ""))
