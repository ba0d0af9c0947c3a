"""The capabilities that Temporal does not support: errors that say what to do instead.

Some capabilities are supported in part, so that code that calls every store works here too: no queue has limits, no
workflow is disabled, and a refused document is named by the feature that it belongs to.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NoReturn

from holdfast.admission.queue_limits import QueueLimits
from holdfast.errors import UsageError
from holdfast.stores.disabled_workflows import DisabledWorkflow, DisabledWorkflows
from holdfast.stores.documents import Document, Documents
from holdfast.stores.queues import NewQueue, Queues, QueueStatus

_WORK = ("handing out work", "which hands it out itself", "start a worker: `holdfast worker` with the same URL")
_REASONS = {
    "workers": _WORK,
    "claims": _WORK,
    "disabled_workflows": (
        "disabling a workflow",
        "whose task queues cannot be closed",
        "stop its workers; what was started waits until they are back",
    ),
    "queues": (
        "queues with limits",
        "whose task queues know other ones",
        "set `max_task_queue_activities_per_second` and the like for workers, or use a store of Holdfast's own",
    ),
    "schedules": (
        "schedules of Holdfast's",
        "which has its own",
        "create one there (`temporal schedule create`, with the workflow's name as its type)",
    ),
    "step_transactions": (
        "steps with transaction=True",
        "which has no database that could commit what they do together with their outcomes",
        "use a store that has one (sqlite:///… or postgresql://…)",
    ),
    "audit_log": ("the audit log", "which has no place for it", "let the server use a store of its own"),
    "daily_usage": (
        "reports by day",
        "which adds nothing up",
        "ask single runs (`holdfast show`), or let workers send traces to where you add them up",
    ),
    "retention": ("pruning", "which deletes histories after the namespace's retention", "set that retention"),
    "erasure": (
        "erasing",
        "whose histories nothing can change",
        "delete the whole run (`temporal workflow delete`)",
    ),
    "archives": ("archives", "which has its own archival", "use that, or `temporal workflow show --output json`"),
}
"""By the name of a capability: the feature, why it is unsupported, and what to do instead."""
_DOCUMENT_FEATURES = {"address": "addresses", "key": "API keys", "policy": "policies", "webhook": "webhooks"}
"""The features that documents belong to, by kind."""


def unsupported_error(feature: str, reason: str, alternative: str) -> UsageError:
    """The error for something that Temporal does not support."""
    return UsageError(f"{feature}: not on Temporal, {reason}. Instead, {alternative}. See docs/temporal.md.")


def unsupported_capability_error(name: str) -> UsageError:
    """The error for a capability of stores that Temporal does not support."""
    return unsupported_error(*_REASONS[name])


def _reject(capability: str) -> NoReturn:
    raise unsupported_capability_error(capability)


class UnlimitedQueues(Queues):
    """Queues without limits."""

    async def declare(self, queues: Sequence[NewQueue]) -> None:
        if any(queue.limits != QueueLimits() for queue in queues):
            _reject("queues")

    async def set_limits(self, name: str, limits: QueueLimits | None) -> bool:
        _reject("queues")

    async def pause(self, name: str) -> bool:
        _reject("queues")

    async def resume(self, name: str) -> bool:
        _reject("queues")

    async def list(self, names: Collection[str] | None = None) -> list[QueueStatus]:
        return []


class NoDisabledWorkflows(DisabledWorkflows):
    """No workflow is disabled, and none can be."""

    async def disable(self, workflow: str, actor: str = "", reason: str = "", *, is_temporary: bool = False) -> bool:
        _reject("disabled_workflows")

    async def enable(self, workflow: str, *, only_temporary: bool = False) -> bool:
        _reject("disabled_workflows")

    async def get_all(self) -> Mapping[str, DisabledWorkflow]:
        return {}


class NoDocuments(Documents):
    """Refuses documents, and names the feature that they belong to."""

    async def put(self, kind: str, name: str, data: bytes, *, if_version: int | None = None) -> Document | None:
        self._reject(kind)

    async def delete(self, kind: str, name: str) -> bool:
        self._reject(kind)

    async def list(
        self, kind: str, names: Collection[str] | None = None, *, after: str = "", limit: int = 1000
    ) -> list[Document]:
        self._reject(kind)

    def _reject(self, kind: str) -> NoReturn:
        feature = _DOCUMENT_FEATURES.get(kind, "documents of a server")
        raise unsupported_error(feature, "which has no place for them", "let a server use a store of its own")
