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
from typing import Any

from holdfast.admission.usage import Usage
from holdfast.errors import UsageError
from holdfast.reports.recorded_reply import usage_as_json
from holdfast.services.timestamps import moment
from holdfast.stores.contract import Store
from holdfast.stores.daily_usage import DayRuns as KeptRuns

DAYS = 30
"""Of how many days a report is unless somebody says so."""


@dataclass(frozen=True, slots=True)
class DaySpending:
    """What the runs of a workflow have used on a day of one model."""

    day: date
    workflow: str
    """The agent's name, or the workflow's."""
    model: str
    """As it was asked for: ``openai:gpt-4o``; ``""`` if that is not known."""
    usage: Usage
    """Its ``seconds`` are 0: they are not kept by day."""

    @property
    def cost(self) -> Decimal | None:
        """In dollars; ``None`` if no price is known."""
        return self.usage.cost


@dataclass(frozen=True, slots=True)
class DayRuns:
    """How many runs of a workflow were created on a day, without those that were deleted since."""

    day: date
    workflow: str
    runs: int


@dataclass(frozen=True, slots=True)
class UsageReport:
    """What was used on some days."""

    since: date
    until: date
    """The last day, included."""
    spending: Sequence[DaySpending]
    """By day, workflow and model."""
    runs: Sequence[DayRuns]
    """By day and workflow: of all workflows, also those that have called no model."""

    @property
    def total(self) -> Usage:
        """All of it."""
        return sum((line.usage for line in self.spending), Usage())

    @property
    def cost(self) -> Decimal | None:
        """What all of it has cost in dollars, as far as prices are known; ``None`` if none is."""
        return self.total.cost

    def as_json(self) -> dict[str, Any]:
        """The same under stable names."""
        return {
            "since": self.since.isoformat(),
            "until": self.until.isoformat(),
            "total": _used(self.total),
            "spending": [
                {"day": line.day.isoformat(), "workflow": line.workflow, "model": line.model, **_used(line.usage)}
                for line in self.spending
            ],
            "runs": [{"day": line.day.isoformat(), "workflow": line.workflow, "runs": line.runs} for line in self.runs],
        }


def _used(usage: Usage) -> dict[str, Any]:
    return {name: value for name, value in usage_as_json(usage).items() if name != "seconds"}


async def usage_report(
    store: Store,
    since: date | None,
    until: date | None,
    workflow: str | None,
    runs_by_day: Callable[[str, str], Awaitable[Sequence[KeptRuns]]] | None = None,
) -> UsageReport:
    """What was used from one day to another, both included; the last ``DAYS`` unless they are given.

    ``runs_by_day``: who knows how many runs there were, if not the store.
    """
    last = moment(store.now()).date() if until is None else day_of(until)
    try:
        first = last - timedelta(days=DAYS - 1) if since is None else day_of(since)
    except OverflowError:
        first = date.min
    if first > last:
        raise UsageError(f"a report from {first} to {last} has no days: the first one comes after the last one")
    span = (first.isoformat(), last.isoformat())
    used = await store.usage_by_day(*span, workflow=workflow)
    runs = await (store.runs_by_day(*span, workflow=workflow) if runs_by_day is None else runs_by_day(*span))
    return UsageReport(
        first,
        last,
        [DaySpending(date.fromisoformat(line.day), line.workflow, line.model, line.used) for line in used],
        [DayRuns(date.fromisoformat(line.day), line.workflow, line.runs) for line in runs],
    )


def day_of(given: date) -> date:
    """A day; of a moment, the one that it belongs to, as UTC has it."""
    return given.astimezone(UTC).date() if isinstance(given, datetime) else given
