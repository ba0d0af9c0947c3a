"""``HoldfastFlowPersistence``: the states of flows in a Holdfast store, instead of CrewAI's own SQLite file."""

from __future__ import annotations

import json
from collections.abc import Coroutine
from typing import Any

from crewai.flow.async_feedback.types import PendingFeedbackContext
from crewai.flow.persistence.base import FlowPersistence
from pydantic import BaseModel, Field, PrivateAttr
from pydantic_core import to_jsonable_python

from holdfast.client.client import Client
from holdfast.client.loop_thread import LoopThread


class HoldfastFlowPersistence(FlowPersistence):
    """States of flows in the memory of a Holdfast store: ``@persist(HoldfastFlowPersistence())``.

    Args:
        url: the store (default: ``HOLDFAST_URL``, else the default file).
        namespace: the memory namespace of the states.
    """

    persistence_type: str = Field(default="HoldfastFlowPersistence")
    url: str | None = None
    namespace: str = "crewai-flows"
    _client: Client | None = PrivateAttr(default=None)
    _loop: LoopThread | None = PrivateAttr(default=None)

    def init_db(self) -> None:
        """Nothing: the store creates its tables when it is used."""

    def save_state(self, flow_uuid: str, method_name: str, state_data: dict[str, Any] | BaseModel) -> None:
        """Save the state of a flow."""
        self._put(flow_uuid, {"method": method_name, "state": to_jsonable_python(state_data)})

    def load_state(self, flow_uuid: str) -> dict[str, Any] | None:
        """The latest state of a flow; ``None`` if there is none."""
        entry = self._get(flow_uuid)
        return None if entry is None else entry["state"]

    def save_pending_feedback(
        self, flow_uuid: str, context: PendingFeedbackContext, state_data: dict[str, Any] | BaseModel
    ) -> None:
        """Save the state of a flow that waits for feedback."""
        pending = json.loads(json.dumps(context.to_dict(), default=str))
        self._put(
            flow_uuid, {"method": context.method_name, "state": to_jsonable_python(state_data), "pending": pending}
        )

    def load_pending_feedback(self, flow_uuid: str) -> tuple[dict[str, Any], PendingFeedbackContext] | None:
        """The state of a flow that waits for feedback, and what it waits for."""
        entry = self._get(flow_uuid)
        if entry is None or "pending" not in entry:
            return None
        return entry["state"], PendingFeedbackContext.from_dict(entry["pending"])

    def clear_pending_feedback(self, flow_uuid: str) -> None:
        """The flow no longer waits."""
        entry = self._get(flow_uuid)
        if entry is not None and entry.pop("pending", None) is not None:
            self._put(flow_uuid, entry)

    def _put(self, flow_uuid: str, entry: dict[str, Any]) -> None:
        self._run(self._get_client().memory.put(self.namespace, flow_uuid, entry))

    def _get(self, flow_uuid: str) -> dict[str, Any] | None:
        return self._run(self._get_client().memory.get(self.namespace, flow_uuid))

    def _get_client(self) -> Client:
        if self._client is None:
            self._client = Client(self.url)
        return self._client

    def _run(self, operation: Coroutine[Any, Any, Any]) -> Any:
        # CrewAI calls these methods on the event loops of flows, where blocking methods of the client are refused.
        if self._loop is None or not self._loop.is_alive:
            self._loop = LoopThread("holdfast-crewai-flows")
        return self._loop.run(operation)
