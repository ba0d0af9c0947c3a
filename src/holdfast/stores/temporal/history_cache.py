"""Histories that are read again and again, as those who follow a run do: only what is new is fetched.

A server that is asked to wait for new events tells where to go on, also at the end of a history. So what was read stays
here for a while, with that place, and grows as the server says that there is more.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest
from temporalio.client import Client
from temporalio.service import RPCError

from holdfast.stores.temporal.history import PAGE_SIZE, decode_events
from holdfast.stores.temporal.outcomes import Outcomes, read_outcomes
from holdfast.stores.temporal.rows import ExecutionDescription

MAX_CACHED_HISTORIES = 16
"""So many histories are kept."""


@dataclass
class _CachedHistory:
    events: list[HistoryEvent] = field(default_factory=list[HistoryEvent])
    page_token: bytes = b""
    outcomes: Outcomes | None = None


class HistoryCache:
    """What was read of histories, the last ones that were asked for."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._cache: OrderedDict[str, _CachedHistory] = OrderedDict()

    async def get_events(self, execution: ExecutionDescription) -> list[HistoryEvent]:
        """The events of an execution, at least those that were there when it was described."""
        return (await self._load(execution)).events

    async def get_outcomes(self, execution: ExecutionDescription) -> Outcomes:
        """What they hold."""
        known = await self._load(execution)
        if known.outcomes is None:
            known.outcomes = read_outcomes(known.events)
        return known.outcomes

    async def _load(self, execution: ExecutionDescription) -> _CachedHistory:
        known = self._cache.pop(execution.execution_id, None) or _CachedHistory()
        try:
            await self._fetch_more(execution, known)
        except RPCError:
            if not known.events:
                raise
            known = _CachedHistory()  # where to go on may have been forgotten over there
            await self._fetch_more(execution, known)
        # The last events may be of a workflow task that is tried again: these are not written down yet, and others may
        # come in their place. So only what the server counts is kept.
        if len(known.events) == execution.info.history_length:
            self._cache[execution.execution_id] = known
        while len(self._cache) > MAX_CACHED_HISTORIES:
            self._cache.popitem(last=False)
        return known

    async def _fetch_more(self, execution: ExecutionDescription, cached: _CachedHistory) -> None:
        while len(cached.events) < execution.info.history_length:
            answer = await self._client.workflow_service.get_workflow_execution_history(
                GetWorkflowExecutionHistoryRequest(
                    namespace=self._client.namespace,
                    execution=WorkflowExecution(workflow_id=execution.id, run_id=execution.execution_id),
                    maximum_page_size=PAGE_SIZE,
                    next_page_token=cached.page_token,
                    wait_new_event=execution.is_open,
                ),
                retry=True,
            )
            new = [event for event in answer.history.events if event.event_id > len(cached.events)]
            cached.events += await decode_events(self._client, new)
            cached.page_token, cached.outcomes = answer.next_page_token, None
            if not cached.page_token:
                return
