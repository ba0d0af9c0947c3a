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

from holdfast.stores.temporal.history import PAGE, decoded
from holdfast.stores.temporal.outcomes import Outcomes, read_outcomes
from holdfast.stores.temporal.rows import Described

KEPT = 16
"""So many histories are kept."""


@dataclass
class _Known:
    events: list[HistoryEvent] = field(default_factory=list[HistoryEvent])
    token: bytes = b""
    outcomes: Outcomes | None = None


class Histories:
    """What was read of histories, the last ones that were asked for."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: OrderedDict[str, _Known] = OrderedDict()

    async def events(self, told: Described) -> list[HistoryEvent]:
        """The events of an execution, at least those that were there when it was described."""
        return (await self._read(told)).events

    async def outcomes(self, told: Described) -> Outcomes:
        """What they hold."""
        known = await self._read(told)
        if known.outcomes is None:
            known.outcomes = read_outcomes(known.events)
        return known.outcomes

    async def _read(self, told: Described) -> _Known:
        known = self._known.pop(told.execution, None) or _Known()
        try:
            await self._fetch_more(told, known)
        except RPCError:
            if not known.events:
                raise
            known = _Known()  # where to go on may have been forgotten over there
            await self._fetch_more(told, known)
        # The last events may be of a workflow task that is tried again: these are not written down yet, and others may
        # come in their place. So only what the server counts is kept.
        if len(known.events) == told.info.history_length:
            self._known[told.execution] = known
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        return known

    async def _fetch_more(self, told: Described, known: _Known) -> None:
        while len(known.events) < told.info.history_length:
            answer = await self._client.workflow_service.get_workflow_execution_history(
                GetWorkflowExecutionHistoryRequest(
                    namespace=self._client.namespace,
                    execution=WorkflowExecution(workflow_id=told.id, run_id=told.execution),
                    maximum_page_size=PAGE,
                    next_page_token=known.token,
                    wait_new_event=told.is_open,
                ),
                retry=True,
            )
            new = [event for event in answer.history.events if event.event_id > len(known.events)]
            known.events += await decoded(self._client, new)
            known.token, known.outcomes = answer.next_page_token, None
            if not known.token:
                return
