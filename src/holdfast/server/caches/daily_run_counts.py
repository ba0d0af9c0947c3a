"""How many runs of a namespace were created on which day, remembered for past days.

To count the runs of a day by workflow, a store reads their rows, and a report may cover a million of them. The counts
of a past day change only when runs are deleted or imported, so the server counts them once an hour for all callers. (In
a cost report, it does not matter if a few deleted runs are missing an hour later.) Today is counted each time.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import date
from typing import NamedTuple

from holdfast.stores.contract import Store
from holdfast.stores.daily_usage import DailyRunCount, get_utc_day, list_days

CACHE_TTL_S = 3600.0
MAX_CACHED_DAYS = 400
"""The counts of a longer report are not remembered."""


class _CachedDay(NamedTuple):
    counted_at: float
    runs: list[DailyRunCount]


class DailyRunCounts:
    """Counts the runs of one namespace, and remembers the counts."""

    def __init__(self) -> None:
        self._cache: dict[str, _CachedDay] = {}
        """By day."""
        self._lock = asyncio.Lock()
        """Concurrent requests wait for the same count."""

    async def count_between(self, store: Store, since: str, until: str, workflow: str | None) -> list[DailyRunCount]:
        """Counts by day and workflow, from one day to another, both included."""
        now = store.now()
        today = get_utc_day(now)
        if since >= today or _count_days(since, min(until, today)) > MAX_CACHED_DAYS:
            return await store.daily_usage.get_run_counts(since, until, workflow=workflow)
        known = self._cache
        past = [day for day in list_days(since, min(until, today)) if day < today]
        async with self._lock:
            missing = [day for day in past if day not in known or known[day].counted_at < now - CACHE_TTL_S]
            if missing:
                counted: defaultdict[str, list[DailyRunCount]] = defaultdict(list)
                for row in await store.daily_usage.get_run_counts(missing[0], missing[-1]):
                    counted[row.day].append(row)
                known.update((day, _CachedDay(now, counted[day])) for day in list_days(missing[0], missing[-1]))
            for day in [day for day, cached in known.items() if cached.counted_at < now - CACHE_TTL_S]:
                del known[day]
            found = [row for day in past for row in known[day].runs if workflow in (None, row.workflow)]
        return found + (
            await store.daily_usage.get_run_counts(today, until, workflow=workflow) if until >= today else []
        )


def _count_days(since: str, until: str) -> int:
    return (date.fromisoformat(until) - date.fromisoformat(since)).days + 1
