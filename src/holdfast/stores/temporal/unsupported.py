"""What there is on other stores, and not on Temporal: all of it is refused in the same way, with what to do instead."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NoReturn

from holdfast.admission.queue_limits import QueueLimits
from holdfast.errors import UsageError
from holdfast.stores.archives import ArchivedRun, RunExtras
from holdfast.stores.audit_log import AuditEvent, AuditRow
from holdfast.stores.contract import DisabledWorkflow, NewSignals, NewWorker, ReapResult, RunRequests, Store
from holdfast.stores.daily_usage import DailyRunCount, DailyUsage
from holdfast.stores.documents import Document
from holdfast.stores.leases import LeaseWindow
from holdfast.stores.operations import Run
from holdfast.stores.queues import NewQueue, QueueStatus
from holdfast.stores.retention import PRUNE_START, PruneCursor, PruneRequest, PruneResult, SweepResult
from holdfast.stores.schedules import Schedule, ScheduleDefinition


def unsupported_error(feature: str, reason: str, alternative: str) -> UsageError:
    """What to raise for something that there is not on Temporal."""
    return UsageError(f"{feature}: not on Temporal, {reason}. Instead, {alternative}. See docs/temporal.md.")


_WORK = ("handing out work", "which hands it out itself", "start a worker: `holdfast worker` with the same URL")
_QUEUE_LIMITS = (
    "queues with limits",
    "whose task queues know other ones",
    "set `max_task_queue_activities_per_second` and the like for workers, or use a store of Holdfast's own",
)
_SCHEDULES = (
    "schedules of Holdfast's",
    "which has its own",
    "create one there (`temporal schedule create`, with the workflow's name as its type)",
)
_DOCUMENT_FEATURES = {"address": "addresses", "key": "API keys", "policy": "policies", "webhook": "webhooks"}
"""What documents are for, by their kind."""
_AUDIT = ("the audit log", "which has no place for it", "let the server use a store of its own")
_SPENDING = (
    "reports by day",
    "which adds nothing up",
    "ask single runs (`holdfast show`), or let workers send traces to where you add them up",
)
_PRUNING = ("pruning", "which deletes histories after the namespace's retention", "set that retention")
_ARCHIVES = ("archives", "which has its own archival", "use that, or `temporal workflow show --output json`")
_DISABLE = (
    "disabling a workflow",
    "whose task queues cannot be closed",
    "stop its workers; what was started waits until they are back",
)


def unsupported_work_error() -> UsageError:
    """What to raise when somebody wants to do a worker's work."""
    return unsupported_error(*_WORK)


class UnsupportedOperations(Store):
    """Refuses what Temporal cannot do."""

    # Work: Temporal's workers are handed it by the server

    async def register_worker(self, worker: NewWorker, lease_s: float) -> int:
        """Refused."""
        _reject(_WORK)

    def renew_lease(self, worker: int, lease_s: float) -> bool:
        """Refused."""
        _reject(_WORK)

    async def retire_worker(self, worker: int) -> None:
        """Refused."""
        _reject(_WORK)

    async def renew_listener_lease(self, worker: int, lease_s: float) -> bool:
        """Refused."""
        _reject(_WORK)

    async def reap_dead_workers(
        self, except_worker: int | None = None, window: LeaseWindow | None = None, *, include_listeners: bool = False
    ) -> ReapResult:
        """Refused."""
        _reject(_WORK)

    async def expire_runs(self, limit: int = 100) -> list[str]:
        """Refused."""
        _reject(_WORK)

    async def claim_runs(
        self,
        worker: int,
        *,
        workflows: Collection[str],
        queues: Collection[str] | None,
        limit: int,
        suspect_delay_s: float | None = 0.0,
    ) -> list[Run]:
        """Refused."""
        _reject(_WORK)

    async def get_next_wake_at(self, *, workflows: Collection[str], queues: Collection[str] | None) -> float | None:
        """Refused."""
        _reject(_WORK)

    async def get_new_signals(self, worker: int, after: int) -> NewSignals:
        """Refused."""
        _reject(_WORK)

    async def get_run_requests(self, worker: int) -> list[RunRequests]:
        """Refused."""
        _reject(_WORK)

    # The switch

    async def disable_workflow(
        self, workflow: str, actor: str = "", reason: str = "", *, is_temporary: bool = False
    ) -> bool:
        """Refused."""
        _reject(_DISABLE)

    async def enable_workflow(self, workflow: str, *, only_temporary: bool = False) -> bool:
        """Refused."""
        _reject(_DISABLE)

    async def get_disabled_workflows(self) -> Mapping[str, DisabledWorkflow]:
        """None ever is."""
        return {}

    # Queues

    async def declare_queues(self, queues: Sequence[NewQueue]) -> None:
        """Refused, unless they have no limits: then there is nothing to announce."""
        if any(queue.limits != QueueLimits() for queue in queues):
            _reject(_QUEUE_LIMITS)

    async def set_queue_limits(self, name: str, limits: QueueLimits | None) -> bool:
        """Refused."""
        _reject(_QUEUE_LIMITS)

    async def pause_queue(self, name: str) -> bool:
        """Refused."""
        _reject(_QUEUE_LIMITS)

    async def resume_queue(self, name: str) -> bool:
        """Refused."""
        _reject(_QUEUE_LIMITS)

    async def list_queues(self, names: Collection[str] | None = None) -> list[QueueStatus]:
        """None has limits."""
        return []

    # Schedules

    async def put_schedules(
        self, schedules: Sequence[ScheduleDefinition], *, worker: int | None = None, replace: bool = True
    ) -> list[Schedule]:
        """Refused, unless there are none."""
        return _reject(_SCHEDULES) if schedules else []

    async def list_schedules(self, names: Collection[str] | None = None) -> list[Schedule]:
        """Refused."""
        _reject(_SCHEDULES)

    async def advance_schedule(
        self,
        name: str,
        expected_fired_up_to: float,
        fired_up_to: float,
        *,
        run_id: str = "",
        skipped_at: float | None = None,
    ) -> bool:
        """Refused."""
        _reject(_SCHEDULES)

    async def pause_schedule(self, name: str) -> bool:
        """Refused."""
        _reject(_SCHEDULES)

    async def resume_schedule(self, name: str) -> bool:
        """Refused."""
        _reject(_SCHEDULES)

    async def delete_schedule(self, name: str) -> bool:
        """Refused."""
        _reject(_SCHEDULES)

    # Documents, the audit log, spending

    async def put_document(
        self, kind: str, name: str, data: bytes, *, if_version: int | None = None
    ) -> Document | None:
        """Refused."""
        _reject_documents(kind)

    async def list_documents(
        self, kind: str, names: Collection[str] | None = None, *, after: str = "", limit: int = 1000
    ) -> list[Document]:
        """Refused."""
        _reject_documents(kind)

    async def delete_document(self, kind: str, name: str) -> bool:
        """Refused."""
        _reject_documents(kind)

    async def append_audit(self, events: Sequence[AuditEvent]) -> None:
        """Refused."""
        _reject(_AUDIT)

    async def list_audit(self, *, before_id: int | None = None, limit: int = 100) -> list[AuditRow]:
        """Refused."""
        _reject(_AUDIT)

    async def trim_audit(self, before: float, limit: int = 10_000) -> int:
        """Refused."""
        _reject(_AUDIT)

    async def get_daily_usage(self, since: str, until: str, *, workflow: str | None = None) -> list[DailyUsage]:
        """Refused."""
        _reject(_SPENDING)

    async def get_daily_run_counts(self, since: str, until: str, *, workflow: str | None = None) -> list[DailyRunCount]:
        """Refused."""
        _reject(_SPENDING)

    # Pruning, archives

    async def prune_runs(
        self, request: PruneRequest, cursor: PruneCursor = PRUNE_START, limit: int = 100
    ) -> PruneResult:
        """Refused."""
        _reject(_PRUNING)

    async def sweep_pruned(self, limit: int = 2000) -> SweepResult:
        """Refused."""
        _reject(_PRUNING)

    async def get_run_extras(self, key: int) -> RunExtras:
        """Refused."""
        _reject(_ARCHIVES)

    async def restore_run(self, archived: ArchivedRun) -> bool:
        """Refused."""
        _reject(_ARCHIVES)

    async def activate_run(self, archived: ArchivedRun) -> None:
        """Refused."""
        _reject(_ARCHIVES)


def _reject_documents(kind: str) -> NoReturn:
    what = _DOCUMENT_FEATURES.get(kind, "documents of a server")
    _reject((what, "which has no place for them", "let a server use a store of its own"))


def _reject(feature: tuple[str, str, str]) -> NoReturn:
    raise unsupported_error(*feature)
