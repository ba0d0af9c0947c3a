"""What model calls have used, day by day, over all runs: for whoever pays for them.

Days are those of UTC. Each call counts on the day on which its outcome was recorded, for the workflow of its own run:
what a sub-agent has used is the sub-agent's, and not once more that of the agent which asked it. So the lines of a
report add up. They stay when runs are deleted, while the numbers of runs are of those that are there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

from holdfast.admission.usage import Usage
from holdfast.errors import UsageError
from holdfast.services.json_form import UsageWithCost
from holdfast.services.timestamps import to_datetime
from holdfast.stores.contract import Store
from holdfast.stores.daily_usage import DailyRunCount as KeptRuns

DEFAULT_DAY_COUNT = 30
"""Of how many days a report is unless somebody says so."""


@dataclass(frozen=True, slots=True)
class DailyUsage:
    """What the runs of a workflow have used on a day of one model."""

    day: date
    workflow: str
    """The agent's name, or the workflow's."""
    model: str
    """As it was asked for: ``openai:gpt-4o``; ``""`` if that is not known."""
    usage: UsageWithCost
    """Its ``seconds`` are 0: they are not kept by day."""

    @property
    def cost(self) -> Decimal | None:
        """In dollars; ``None`` if no price is known."""
        return self.usage.cost


@dataclass(frozen=True, slots=True)
class DailyRunCount:
    """How many runs of a workflow were created on a day, without those that were deleted since."""

    day: date
    workflow: str
    run_count: int


@dataclass(frozen=True, slots=True)
class UsageReport:
    """What was used on some days."""

    since: date
    until: date
    """The last day, included."""
    daily_usage: Sequence[DailyUsage]
    """By day, workflow and model."""
    daily_runs: Sequence[DailyRunCount]
    """By day and workflow: of all workflows, also those that have called no model."""

    @property
    def total(self) -> Usage:
        """All of it."""
        return sum((line.usage for line in self.daily_usage), Usage())

    @property
    def cost(self) -> Decimal | None:
        """What all of it has cost in dollars, as far as prices are known; ``None`` if none is."""
        return self.total.cost


async def build_usage_report(
    store: Store,
    since: date | None,
    until: date | None,
    workflow: str | None,
    read_run_counts: Callable[[str, str], Awaitable[Sequence[KeptRuns]]] | None = None,
) -> UsageReport:
    """What was used from one day to another, both included; the last ``DEFAULT_DAY_COUNT`` unless they are given.

    ``read_run_counts`` counts the runs instead of the store.
    """
    last = to_datetime(store.now()).date() if until is None else to_utc_date(until)
    try:
        first = last - timedelta(days=DEFAULT_DAY_COUNT - 1) if since is None else to_utc_date(since)
    except OverflowError:
        first = date.min
    if first > last:
        raise UsageError(f"a report from {first} to {last} has no days: the first one comes after the last one")
    span = (first.isoformat(), last.isoformat())
    used = await store.daily_usage.get(*span, workflow=workflow)
    runs = await (
        store.daily_usage.get_run_counts(*span, workflow=workflow)
        if read_run_counts is None
        else read_run_counts(*span)
    )
    return UsageReport(
        first,
        last,
        [DailyUsage(date.fromisoformat(line.day), line.workflow, line.model, line.used) for line in used],
        [DailyRunCount(date.fromisoformat(line.day), line.workflow, line.run_count) for line in runs],
    )


def to_utc_date(value: date) -> date:
    """A day; of a moment, the one that it belongs to, as UTC has it."""
    return value.astimezone(UTC).date() if isinstance(value, datetime) else value
