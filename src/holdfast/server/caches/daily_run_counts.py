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
from holdfast.stores.daily_usage import DailyRunCount, get_utc_day, list_days

CACHE_TTL_S = 3600.0
"""Seconds for which what was counted of a day that is over is told."""
MAX_CACHED_DAYS = 400
"""A longer report is not remembered."""


class _CachedDay(NamedTuple):
    counted_at: float
    runs: list[DailyRunCount]


class DailyRunCounts:
    """Counts, and remembers."""

    def __init__(self) -> None:
        self._cache: defaultdict[str, dict[str, _CachedDay]] = defaultdict(dict)
        """By namespace and day."""
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Several who ask at once wait for the same count."""

    async def count_between(self, tenant: Tenant, since: str, until: str, workflow: str | None) -> list[DailyRunCount]:
        """By day and workflow, from one day to another, both included."""
        store = await tenant.store()
        now = store.now()
        today = get_utc_day(now)
        if since >= today or _count_days(since, min(until, today)) > MAX_CACHED_DAYS:
            return await store.daily_usage.get_run_counts(since, until, workflow=workflow)
        known = self._cache[tenant.namespace]
        past = [day for day in list_days(since, min(until, today)) if day < today]
        async with self._locks[tenant.namespace]:
            missing = [day for day in past if day not in known or known[day].counted_at < now - CACHE_TTL_S]
            if missing:
                counted: defaultdict[str, list[DailyRunCount]] = defaultdict(list)
                for one in await store.daily_usage.get_run_counts(missing[0], missing[-1]):
                    counted[one.day].append(one)
                known.update((day, _CachedDay(now, counted[day])) for day in list_days(missing[0], missing[-1]))
            for day in [day for day, kept in known.items() if kept.counted_at < now - CACHE_TTL_S]:
                del known[day]
            found = [one for day in past for one in known[day].runs if workflow in (None, one.workflow)]
        return found + (
            await store.daily_usage.get_run_counts(today, until, workflow=workflow) if until >= today else []
        )


def _count_days(since: str, until: str) -> int:
    return (date.fromisoformat(until) - date.fromisoformat(since)).days + 1
