"""What model calls used, day by day, so that a report need not read journals.

A day is a UTC day, such as ``2026-11-16``. The usage of an appended record is added to the day of its ``at``, to the
workflow of its run (not to the workflows of the runs above it), and to the model, in the same transaction, and once
however often the append is repeated. It stays when runs are pruned, and when a retry removes records.

Tokens, calls, and money are counted by day. Seconds are not: they matter to the budget of a run, but do not cost money.
The usage of a restored run was counted in its original store, and is not counted again.

Many runs use something at the same moment, on the same day, in the same workflow, and with the same model. A database
with concurrent writers keeps several counters for one key, and adds them up on reading.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import NamedTuple

from holdfast.admission.usage import Usage
from holdfast.stores.utf8 import replace_surrogates

_EPOCH = date(1970, 1, 1).toordinal()
_NOTHING = Usage()


def get_utc_day(at: float) -> str:
    """The UTC day of a time."""
    return datetime.fromtimestamp(at, UTC).date().isoformat()


def to_day_number(day: str) -> int:
    """The number of days from 1970-01-01 to a day."""
    return date.fromisoformat(day).toordinal() - _EPOCH


def from_day_number(number: int) -> str:
    """The day that is this number of days after 1970-01-01."""
    return date.fromordinal(number + _EPOCH).isoformat()


class DailyUsageIncrement(NamedTuple):
    """What an appended record adds to the counters of its run's workflow."""

    day: str
    model: str
    used: Usage


def make_increment(used: Usage | None, model: str, at: float) -> DailyUsageIncrement | None:
    """What a record from this time adds; ``None`` if nothing."""
    if used is not None and used.seconds:
        used = replace(used, seconds=0.0)
    if used is None or used == _NOTHING:
        return None
    return DailyUsageIncrement(get_utc_day(at), replace_surrogates(model), used)


@dataclass(frozen=True, slots=True)
class DailyUsage:
    """What the runs of a workflow used of a model on a day."""

    day: str
    workflow: str
    model: str
    """``""``: unknown."""
    used: Usage


@dataclass(frozen=True, slots=True)
class DailyRunCount:
    """How many runs of a workflow were created on a day, without those pruned since."""

    day: str
    workflow: str
    run_count: int


class DailyUsageCounters(ABC):
    """Usage and new runs by day."""

    @abstractmethod
    async def get(self, since: str, until: str, *, workflow: str | None = None) -> list[DailyUsage]:
        """Usage on the days from ``since`` to ``until``, both included, by day, workflow, and model."""

    @abstractmethod
    async def get_run_counts(self, since: str, until: str, *, workflow: str | None = None) -> list[DailyRunCount]:
        """How many runs were created on the days from ``since`` to ``until``, both included, by day and workflow."""
