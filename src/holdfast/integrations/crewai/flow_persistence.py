"""``HoldfastFlowPersistence``: the states of flows in a Holdfast store, instead of CrewAI's own SQLite file."""

from __future__ import annotations

import json
from typing import Any

from crewai.flow.async_feedback.types import PendingFeedbackContext
from crewai.flow.persistence.base import FlowPersistence
from pydantic import BaseModel, Field, PrivateAttr
from pydantic_core import to_jsonable_python

from holdfast.client.client import Client


class HoldfastFlowPersistence(FlowPersistence):
    """States of flows in the memory of a Holdfast store: ``@persist(HoldfastFlowPersistence())``.

    Args:
        url: the store (default: ``HOLDFAST_URL``, else the default file).
        namespace: the memory namespace of the states.
    """

    persistence_type: str = Field(default="HoldfastFlowPersistence")
    url: str | None = None
    namespace: str = "crewai-flows"
    _client: Client = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Make the client, which connects when it is used."""
        self.init_db()

    def init_db(self) -> None:
        """Make the client. The store creates its tables itself."""
        self._client = Client(self.url)

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
        self._client.memory.put_sync(self.namespace, flow_uuid, entry)

    def _get(self, flow_uuid: str) -> dict[str, Any] | None:
        return self._client.memory.get_sync(self.namespace, flow_uuid)
