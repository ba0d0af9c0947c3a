"""What model calls have used, day by day: kept beside the runs' own usage, so that a report need not read journals.

A day is one of UTC, as in ``2026-11-16``. What an appended record has used is added to the day of its ``at``, to the
workflow of its run (not to those of the runs above it), and to the model that was called, in the same transaction and
once however often the append is repeated. It stays when runs are pruned.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from holdfast.core.usage import Usage


def day_of(at: float) -> str:
    """The day that a time belongs to."""
    return datetime.fromtimestamp(at, UTC).date().isoformat()


@dataclass(frozen=True, slots=True)
class DayUsage:
    """What the runs of a workflow have used on a day with a model."""

    day: str
    workflow: str
    model: str
    """``""``: not known."""
    used: Usage


@dataclass(frozen=True, slots=True)
class DayRuns:
    """How many runs of a workflow were created on a day; without those that were pruned since."""

    day: str
    workflow: str
    runs: int
