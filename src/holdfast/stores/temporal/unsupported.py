"""What there is on other stores, and not on Temporal: all of it is refused in the same way, with what to do instead."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NoReturn

from holdfast.admission.queue_limits import QueueLimits
from holdfast.errors import UsageError
from holdfast.stores.archives import Archived, Belongings
from holdfast.stores.audit_log import Audit, NewAudit
from holdfast.stores.contract import NewSignals, NewWorker, Reaped, Request, Store, SwitchedOff
from holdfast.stores.daily_usage import DayRuns, DayUsage
from holdfast.stores.documents import Document
from holdfast.stores.leases import LeaseWindow
from holdfast.stores.operations import Run
from holdfast.stores.queues import KeptQueue, NewQueue
from holdfast.stores.retention import START, Place, Pruned, Pruning, Swept
from holdfast.stores.schedules import NewSchedule, Schedule


def lacking(what: str, why: str, instead: str) -> UsageError:
    """What to raise for something that there is not on Temporal."""
    return UsageError(f"{what}: not on Temporal, {why}. Instead, {instead}. See docs/temporal.md.")


_WORK = ("handing out work", "which hands it out itself", "start a worker: `holdfast worker` with the same URL")
_LIMITS = (
    "queues with limits",
    "whose task queues know other ones",
    "set `max_task_queue_activities_per_second` and the like for workers, or use a store of Holdfast's own",
)
_SCHEDULES = (
    "schedules of Holdfast's",
    "which has its own",
    "create one there (`temporal schedule create`, with the workflow's name as its type)",
)
_DOCUMENTS = {"address": "addresses", "key": "API keys", "policy": "policies", "webhook": "webhooks"}
"""What documents are for, by their kind."""
_AUDIT = ("the audit log", "which has no place for it", "let the server use a store of its own")
_SPENDING = (
    "reports by day",
    "which adds nothing up",
    "ask single runs (`holdfast show`), or let workers send traces to where you add them up",
)
_PRUNING = ("pruning", "which deletes histories after the namespace's retention", "set that retention")
_ARCHIVES = ("archives", "which has its own archival", "use that, or `temporal workflow show --output json`")
_SWITCH = (
    "switching a workflow off",
    "whose task queues cannot be closed",
    "stop its workers; what was started waits until they are back",
)


def no_work() -> UsageError:
    """What to raise when somebody wants to do a worker's work."""
    return lacking(*_WORK)


class Lacking(Store):
    """Refuses what Temporal cannot do."""

    # Work: Temporal's workers are handed it by the server

    async def register_worker(self, worker: NewWorker, lease: float) -> int:
        """Refused."""
        _refuse(_WORK)

    def renew_lease(self, worker: int, lease: float) -> bool:
        """Refused."""
        _refuse(_WORK)

    async def retire_worker(self, worker: int) -> None:
        """Refused."""
        _refuse(_WORK)

    async def keep_worker(self, worker: int, lease: float) -> bool:
        """Refused."""
        _refuse(_WORK)

    async def reap(self, me: int | None = None, window: LeaseWindow | None = None, *, by_lease: bool = False) -> Reaped:
        """Refused."""
        _refuse(_WORK)

    async def expire(self, limit: int = 100) -> list[str]:
        """Refused."""
        _refuse(_WORK)

    async def claim(
        self,
        worker: int,
        *,
        workflows: Collection[str],
        queues: Collection[str] | None,
        limit: int,
        suspects_after: float | None = 0.0,
    ) -> list[Run]:
        """Refused."""
        _refuse(_WORK)

    async def next_wake(self, *, workflows: Collection[str], queues: Collection[str] | None) -> float | None:
        """Refused."""
        _refuse(_WORK)

    async def new_signals(self, worker: int, after: int) -> NewSignals:
        """Refused."""
        _refuse(_WORK)

    async def requests(self, worker: int) -> list[Request]:
        """Refused."""
        _refuse(_WORK)

    # The switch

    async def switch_off(self, workflow: str, by: str = "", reason: str = "", *, temporary: bool = False) -> bool:
        """Refused."""
        _refuse(_SWITCH)

    async def switch_on(self, workflow: str, *, only_temporary: bool = False) -> bool:
        """Refused."""
        _refuse(_SWITCH)

    async def switched_off(self) -> Mapping[str, SwitchedOff]:
        """None ever is."""
        return {}

    # Queues

    async def put_queues(self, queues: Sequence[NewQueue]) -> None:
        """Refused, unless they have no limits: then there is nothing to announce."""
        if any(queue.limits != QueueLimits() for queue in queues):
            _refuse(_LIMITS)

    async def set_queue(self, name: str, limits: QueueLimits | None) -> bool:
        """Refused."""
        _refuse(_LIMITS)

    async def pause_queue(self, name: str) -> bool:
        """Refused."""
        _refuse(_LIMITS)

    async def resume_queue(self, name: str) -> bool:
        """Refused."""
        _refuse(_LIMITS)

    async def queues(self, names: Collection[str] | None = None) -> list[KeptQueue]:
        """None has limits."""
        return []

    # Schedules

    async def put_schedules(
        self, schedules: Sequence[NewSchedule], *, worker: int | None = None, replace: bool = True
    ) -> list[Schedule]:
        """Refused, unless there are none."""
        return _refuse(_SCHEDULES) if schedules else []

    async def schedules(self, names: Collection[str] | None = None) -> list[Schedule]:
        """Refused."""
        _refuse(_SCHEDULES)

    async def settle_schedule(
        self, name: str, if_was: float, fired_up_to: float, *, run: str = "", skipped: float | None = None
    ) -> bool:
        """Refused."""
        _refuse(_SCHEDULES)

    async def pause_schedule(self, name: str) -> bool:
        """Refused."""
        _refuse(_SCHEDULES)

    async def resume_schedule(self, name: str) -> bool:
        """Refused."""
        _refuse(_SCHEDULES)

    async def delete_schedule(self, name: str) -> bool:
        """Refused."""
        _refuse(_SCHEDULES)

    # Documents, the audit log, spending

    async def put_document(
        self, kind: str, name: str, data: bytes, *, if_version: int | None = None
    ) -> Document | None:
        """Refused."""
        _refuse_documents(kind)

    async def documents(
        self, kind: str, names: Collection[str] | None = None, *, after: str = "", limit: int = 1000
    ) -> list[Document]:
        """Refused."""
        _refuse_documents(kind)

    async def delete_document(self, kind: str, name: str) -> bool:
        """Refused."""
        _refuse_documents(kind)

    async def note_audit(self, entries: Sequence[NewAudit]) -> None:
        """Refused."""
        _refuse(_AUDIT)

    async def audit(self, *, before: int | None = None, limit: int = 100) -> list[Audit]:
        """Refused."""
        _refuse(_AUDIT)

    async def trim_audit(self, before: float, limit: int = 10_000) -> int:
        """Refused."""
        _refuse(_AUDIT)

    async def usage_by_day(self, since: str, until: str, *, workflow: str | None = None) -> list[DayUsage]:
        """Refused."""
        _refuse(_SPENDING)

    async def runs_by_day(self, since: str, until: str, *, workflow: str | None = None) -> list[DayRuns]:
        """Refused."""
        _refuse(_SPENDING)

    # Pruning, archives

    async def prune(self, what: Pruning, after: Place = START, limit: int = 100) -> Pruned:
        """Refused."""
        _refuse(_PRUNING)

    async def sweep(self, limit: int = 2000) -> Swept:
        """Refused."""
        _refuse(_PRUNING)

    async def belongings(self, key: int) -> Belongings:
        """Refused."""
        _refuse(_ARCHIVES)

    async def restore(self, archived: Archived) -> bool:
        """Refused."""
        _refuse(_ARCHIVES)

    async def set_going(self, archived: Archived) -> None:
        """Refused."""
        _refuse(_ARCHIVES)


def _refuse_documents(kind: str) -> NoReturn:
    what = _DOCUMENTS.get(kind, "documents of a server")
    _refuse((what, "which has no place for them", "let a server use a store of its own"))


def _refuse(told: tuple[str, str, str]) -> NoReturn:
    raise lacking(*told)
