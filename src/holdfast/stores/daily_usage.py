"""What model calls have used, day by day: kept beside the runs' own usage, so that a report need not read journals.

A day is one of UTC, as in ``2026-11-16``. What an appended record has used is added to the day of its ``at``, to the
workflow of its run (not to those of the runs above it), and to the model that was called, in the same transaction and
once however often the append is repeated. It stays when runs are pruned, and when a retry takes records back.

Tokens, calls and money are kept by day; seconds are not: the time at work matters to the budget of a run, and nobody is
sent a bill for it. What an archive brings into a store was used elsewhere, and is not counted again.

Many runs use something at the same moment, on the same day, in the same workflow and with the same model. A database in
which they write beside each other keeps several counters for one place, and adds them up for whoever asks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

from holdfast.admission.usage import Usage
from holdfast.stores.utf8 import replace_surrogates


def get_utc_day(at: float) -> str:
    """The day that a time belongs to."""
    return datetime.fromtimestamp(at, UTC).date().isoformat()


def get_day_bounds(day: str) -> tuple[float, float]:
    """The time with which a day begins, and the one with which the next one does."""
    begins = datetime.combine(date.fromisoformat(day), datetime.min.time(), UTC)
    return begins.timestamp(), (begins + timedelta(days=1)).timestamp()


def list_days(first: str, last: str) -> list[str]:
    """All days from one to another, both included."""
    begin, end = date.fromisoformat(first), date.fromisoformat(last)
    return [(begin + timedelta(days=number)).isoformat() for number in range((end - begin).days + 1)]


class DailyUsageIncrement(NamedTuple):
    """What an appended record adds to the counters of its run's workflow."""

    day: str
    model: str
    used: Usage


def make_increment(used: Usage | None, model: str, at: float) -> DailyUsageIncrement | None:
    """What a record adds that was made at this time; ``None`` if that is nothing."""
    kept = Usage() if used is None else replace(used, seconds=0.0)
    return None if kept == Usage() else DailyUsageIncrement(get_utc_day(at), replace_surrogates(model), kept)


@dataclass(frozen=True, slots=True)
class DailyUsage:
    """What the runs of a workflow have used on a day with a model."""

    day: str
    workflow: str
    model: str
    """``""``: not known."""
    used: Usage


@dataclass(frozen=True, slots=True)
class DailyRunCount:
    """How many runs of a workflow were created on a day; without those that were pruned since."""

    day: str
    workflow: str
    run_count: int


class DailyUsageCounters(ABC):
    """What was used, and how many runs were created, by day."""

    @abstractmethod
    async def get(self, since: str, until: str, *, workflow: str | None = None) -> list[DailyUsage]:
        """What was used on the days from ``since`` to ``until``, both included: by day, workflow and model."""

    @abstractmethod
    async def get_run_counts(self, since: str, until: str, *, workflow: str | None = None) -> list[DailyRunCount]:
        """How many runs were created on the days from ``since`` to ``until``, both included.

        By day and workflow.
        """
