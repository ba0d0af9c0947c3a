"""What model calls used, day by day, over all runs.

Days are in UTC. Each call counts on the day on which its outcome was recorded, for the workflow of its own run: the
usage of a sub-agent is not counted again for the agent that called it. So the lines of a report add up. They stay when
runs are deleted, while the numbers of runs count only existing ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

from holdfast.admission.usage import Usage
from holdfast.errors import UsageError
from holdfast.services.json_form import UsageWithCost
from holdfast.services.timestamps import to_datetime
from holdfast.stores.contract import Store

DEFAULT_DAY_COUNT = 30
"""Number of days in a report by default."""


@dataclass(frozen=True, slots=True)
class DailyUsage:
    """What the runs of a workflow used of one model on one day."""

    day: date
    workflow: str
    """The agent's name, or the workflow's."""
    model: str
    """The requested model, such as ``openai:gpt-4o``; ``""`` if unknown."""
    usage: UsageWithCost
    """Its ``seconds`` are 0: they are not stored by day."""

    @property
    def cost(self) -> Decimal | None:
        """In dollars; ``None`` if no price is known."""
        return self.usage.cost


@dataclass(frozen=True, slots=True)
class DailyRunCount:
    """Number of runs of a workflow that were created on a day, without deleted ones."""

    day: date
    workflow: str
    run_count: int


@dataclass(frozen=True, slots=True)
class UsageReport:
    """What model calls used from one day to another."""

    since: date
    until: date
    """The last day, included."""
    daily_usage: Sequence[DailyUsage]
    """By day, workflow, and model."""
    daily_runs: Sequence[DailyRunCount]
    """By day and workflow, including workflows that called no model."""

    @property
    def total(self) -> Usage:
        """The sum over all days."""
        return sum((line.usage for line in self.daily_usage), Usage())

    @property
    def cost(self) -> Decimal | None:
        """The total cost in dollars, as far as prices are known; ``None`` if none is."""
        return self.total.cost


async def build_usage_report(store: Store, since: date | None, until: date | None, workflow: str | None) -> UsageReport:
    """What model calls used from one day to another, both included; default: the last ``DEFAULT_DAY_COUNT`` days."""
    last = to_datetime(store.now()).date() if until is None else to_utc_date(until)
    try:
        first = last - timedelta(days=DEFAULT_DAY_COUNT - 1) if since is None else to_utc_date(since)
    except OverflowError:
        first = date.min
    if first > last:
        raise UsageError(f"a report from {first} to {last} has no days: the first one comes after the last one")
    days = (first.isoformat(), last.isoformat())
    used = await store.daily_usage.get(*days, workflow=workflow)
    runs = await store.daily_usage.get_run_counts(*days, workflow=workflow)
    return UsageReport(
        first,
        last,
        [DailyUsage(date.fromisoformat(line.day), line.workflow, line.model, line.used) for line in used],
        [DailyRunCount(date.fromisoformat(line.day), line.workflow, line.run_count) for line in runs],
    )


def to_utc_date(value: date) -> date:
    """A day; for a time, its day in UTC."""
    return value.astimezone(UTC).date() if isinstance(value, datetime) else value
