"""How many runs were created on which day, remembered for days that are over.

To count the runs of a day by workflow, a store reads their rows, and a report may be of a million of them. What is over
changes only when runs are deleted, or come from elsewhere, so that it is counted once an hour for whoever asks. (A cost
report is no place where a few deleted runs matter for so long.) Today is counted each time.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import date
from typing import NamedTuple

from holdfast.server.tenants import Tenant
from holdfast.stores.daily_usage import DayRuns, day_of, days_between

KEPT_FOR = 3600.0
"""Seconds for which what was counted of a day that is over is told."""
MOST_DAYS = 400
"""A longer report is not remembered."""


class _Day(NamedTuple):
    counted_at: float
    runs: list[DayRuns]


class StartedByDay:
    """Counts, and remembers."""

    def __init__(self) -> None:
        self._known: defaultdict[str, dict[str, _Day]] = defaultdict(dict)
        """By namespace and day."""
        self._counting: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Several who ask at once wait for the same count."""

    async def between(self, tenant: Tenant, since: str, until: str, workflow: str | None) -> list[DayRuns]:
        """By day and workflow, from one day to another, both included."""
        store = await tenant.store()
        now = store.now()
        today = day_of(now)
        if since >= today or _days(since, min(until, today)) > MOST_DAYS:
            return await store.runs_by_day(since, until, workflow=workflow)
        known = self._known[tenant.namespace]
        past = [day for day in days_between(since, min(until, today)) if day < today]
        async with self._counting[tenant.namespace]:
            missing = [day for day in past if day not in known or known[day].counted_at < now - KEPT_FOR]
            if missing:
                counted: defaultdict[str, list[DayRuns]] = defaultdict(list)
                for one in await store.runs_by_day(missing[0], missing[-1]):
                    counted[one.day].append(one)
                known.update((day, _Day(now, counted[day])) for day in days_between(missing[0], missing[-1]))
            for day in [day for day, kept in known.items() if kept.counted_at < now - KEPT_FOR]:
                del known[day]
            found = [one for day in past for one in known[day].runs if workflow in (None, one.workflow)]
        return found + (await store.runs_by_day(today, until, workflow=workflow) if until >= today else [])


def _days(since: str, until: str) -> int:
    return (date.fromisoformat(until) - date.fromisoformat(since)).days + 1
