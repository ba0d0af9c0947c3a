"""What ``doctor`` finds: a verdict, and what to do when it is not ``ok``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.cli.formatting import duration

OK, WARN, FAIL = "ok", "warn", "fail"
SLOW_COMMIT = 0.05


@dataclass(frozen=True, slots=True)
class Check:
    """One finding."""

    name: str
    status: str
    message: str
    advice: str = ""


def commit_check(times: Sequence[float], advice: str) -> Check:
    """What a durable commit takes, by the times of a few; ``advice`` is for when that is slow."""
    typical, worst = sorted(times)[len(times) // 2], max(times)
    message = f"{duration(typical)} a durable commit (slowest of {len(times)}: {duration(worst)})"
    return Check("commit", WARN, message, advice) if typical > SLOW_COMMIT else Check("commit", OK, message)


def namespace_check(namespace: str, place: str, others: Sequence[str]) -> Check:
    """Whose runs these are, and who else has some here."""
    told = f"{namespace}, in {place}"
    return Check("namespace", OK, told + (f"; others here: {', '.join(others)}" if others else ""))
