"""Caches the histories that readers poll while they follow a run, so that only new events are fetched.

When a request waits for new events, the server returns a page token even at the end of a history. The cache keeps the
events it has read together with that token and continues from there.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.service import RPCError

from holdfast.stores.temporal.history import decode_events, fetch_page
from holdfast.stores.temporal.outcomes import Outcomes, read_outcomes
from holdfast.stores.temporal.rows import ExecutionDescription

MAX_CACHED_HISTORIES = 16


@dataclass
class _CachedHistory:
    events: list[HistoryEvent] = field(default_factory=list[HistoryEvent])
    page_token: bytes = b""
    outcomes: Outcomes | None = None


class HistoryCache:
    """The most recently used histories."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._cache: OrderedDict[str, _CachedHistory] = OrderedDict()

    async def get_events(self, execution: ExecutionDescription) -> list[HistoryEvent]:
        """The events of an execution: at least those that existed when it was described."""
        return (await self._load(execution)).events

    async def get_outcomes(self, execution: ExecutionDescription) -> Outcomes:
        """The index of these events."""
        cached = await self._load(execution)
        if cached.outcomes is None:
            cached.outcomes = read_outcomes(cached.events)
        return cached.outcomes

    async def _load(self, execution: ExecutionDescription) -> _CachedHistory:
        cached = self._cache.pop(execution.execution_id, None) or _CachedHistory()
        try:
            await self._fetch_more(execution, cached)
        except RPCError:
            if not cached.events:
                raise
            cached = _CachedHistory()  # the server may have forgotten the page token
            await self._fetch_more(execution, cached)
        # The newest events may belong to a workflow task that the server retries. Such events are not durable, and
        # others may replace them. So a history is cached only if it has as many events as the server counts.
        if len(cached.events) == execution.info.history_length:
            self._cache[execution.execution_id] = cached
        while len(self._cache) > MAX_CACHED_HISTORIES:
            self._cache.popitem(last=False)
        return cached

    async def _fetch_more(self, execution: ExecutionDescription, cached: _CachedHistory) -> None:
        while len(cached.events) < execution.info.history_length:
            page = await fetch_page(
                self.client,
                execution.id,
                execution.execution_id,
                page_token=cached.page_token,
                wait=execution.is_open,
            )
            new = [event for event in page.history.events if event.event_id > len(cached.events)]
            cached.events += await decode_events(self.client, new)
            cached.page_token, cached.outcomes = page.next_page_token, None
            if not cached.page_token:
                return
