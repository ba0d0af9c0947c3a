# ruff: noqa: D102 - what the methods of a store are for is said once, in the contract
"""A store that hands everything on to another one: whoever wraps a store says only what is different."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from holdfast.admission.queue_limits import QueueLimits
from holdfast.core.records import Attempt, Record
from holdfast.core.states import RunState
from holdfast.stores.approvals import Approval, ApprovalFilter
from holdfast.stores.archives import Archived, Belongings
from holdfast.stores.audit_log import Audit, NewAudit
from holdfast.stores.contract import (
    Found,
    History,
    NewSignals,
    NewWorker,
    Reaped,
    Request,
    RunFilter,
    RunUsage,
    Store,
    SwitchedOff,
    Worker,
    WorkflowSpec,
)
from holdfast.stores.daily_usage import DayRuns, DayUsage
from holdfast.stores.documents import Document
from holdfast.stores.journal_pages import Outline
from holdfast.stores.leases import LeaseWindow
from holdfast.stores.live_events import Feed
from holdfast.stores.memories import Memory
from holdfast.stores.operations import Answer, Op, Run
from holdfast.stores.queues import KeptQueue, NewQueue
from holdfast.stores.retention import START, Place, Pruned, Pruning, Swept
from holdfast.stores.schedules import NewSchedule, Schedule
from holdfast.stores.step_transactions import StepTransaction


class PassingStore(Store):
    """Hands everything on to ``inner``."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.url = inner.url
        self.namespace = inner.namespace

    async def open(self) -> None:
        await self.inner.open()

    async def close(self) -> None:
        await self.inner.close()

    def abandon(self) -> None:
        self.inner.abandon()

    async def commit(self, ops: Sequence[Op]) -> list[Answer]:
        return await self.inner.commit(ops)

    async def begin_step(
        self, run: Run, attempt: Attempt, *, plain: bool, limit: float | None = None
    ) -> StepTransaction | None:
        return await self.inner.begin_step(run, attempt, plain=plain, limit=limit)

    async def register_worker(self, worker: NewWorker, lease: float) -> int:
        return await self.inner.register_worker(worker, lease)

    def renew_lease(self, worker: int, lease: float) -> bool:
        return self.inner.renew_lease(worker, lease)

    async def retire_worker(self, worker: int) -> None:
        await self.inner.retire_worker(worker)

    async def keep_worker(self, worker: int, lease: float) -> bool:
        return await self.inner.keep_worker(worker, lease)

    async def reap(self, me: int | None = None, window: LeaseWindow | None = None, *, by_lease: bool = False) -> Reaped:
        return await self.inner.reap(me, window, by_lease=by_lease)

    async def expire(self, limit: int = 100) -> list[str]:
        return await self.inner.expire(limit)

    async def workers(self, also: Collection[int] = ()) -> list[Worker]:
        return await self.inner.workers(also)

    async def claim(
        self,
        worker: int,
        *,
        workflows: Collection[str],
        queues: Collection[str] | None,
        limit: int,
        suspects_after: float | None = 0.0,
    ) -> list[Run]:
        return await self.inner.claim(
            worker, workflows=workflows, queues=queues, limit=limit, suspects_after=suspects_after
        )

    async def next_wake(self, *, workflows: Collection[str], queues: Collection[str] | None) -> float | None:
        return await self.inner.next_wake(workflows=workflows, queues=queues)

    async def histories(self, keys: Sequence[int]) -> list[History]:
        return await self.inner.histories(keys)

    async def new_signals(self, worker: int, after: int) -> NewSignals:
        return await self.inner.new_signals(worker, after)

    async def requests(self, worker: int) -> list[Request]:
        return await self.inner.requests(worker)

    async def switch_off(self, workflow: str, by: str = "", reason: str = "", *, temporary: bool = False) -> bool:
        return await self.inner.switch_off(workflow, by, reason, temporary=temporary)

    async def switch_on(self, workflow: str, *, only_temporary: bool = False) -> bool:
        return await self.inner.switch_on(workflow, only_temporary=only_temporary)

    async def switched_off(self) -> Mapping[str, SwitchedOff]:
        return await self.inner.switched_off()

    async def get(self, run_id: str) -> Run | None:
        return await self.inner.get(run_id)

    async def get_many(self, run_ids: Sequence[str]) -> list[Run]:
        return await self.inner.get_many(run_ids)

    async def list_runs(self, where: RunFilter, *, limit: int = 50, before: int | None = None) -> list[Run]:
        return await self.inner.list_runs(where, limit=limit, before=before)

    async def search_runs(
        self, where: RunFilter, *, limit: int = 50, before: int | None = None, most: int = 10_000
    ) -> Found:
        return await self.inner.search_runs(where, limit=limit, before=before, most=most)

    async def usages(self, run_ids: Sequence[str]) -> Mapping[str, RunUsage]:
        return await self.inner.usages(run_ids)

    async def listed_usages(self, run_ids: Sequence[str]) -> Mapping[str, RunUsage]:
        return await self.inner.listed_usages(run_ids)

    async def count_runs(self, most: int | None = None) -> Mapping[tuple[str, RunState], int]:
        return await self.inner.count_runs(most)

    async def count_unfinished(self, workflows: Collection[str] | None = None) -> Mapping[tuple[str, str], int]:
        return await self.inner.count_unfinished(workflows)

    async def last_record(self, run_id: str, name: str) -> Record | None:
        return await self.inner.last_record(run_id, name)

    async def feed(self, run_id: str, after_seq: int, after_notice: int, limit: int = 1000) -> Feed | None:
        return await self.inner.feed(run_id, after_seq, after_notice, limit)

    async def outline(
        self, run_id: str, after_seq: int = -1, limit: int | None = None, *, whole: bool = True
    ) -> Outline | None:
        return await self.inner.outline(run_id, after_seq, limit, whole=whole)

    async def approvals(self, where: ApprovalFilter, limit: int = 1000) -> list[Approval]:
        return await self.inner.approvals(where, limit)

    async def get_memory(self, namespace: str, key: str) -> Memory | None:
        return await self.inner.get_memory(namespace, key)

    async def list_memories(self, namespace: str, *, after: str = "", limit: int = 100) -> list[Memory]:
        return await self.inner.list_memories(namespace, after=after, limit=limit)

    async def search_memories(self, namespace: str, words: str, *, limit: int = 10) -> list[Memory]:
        return await self.inner.search_memories(namespace, words, limit=limit)

    async def publish(self, specs: Sequence[WorkflowSpec], worker: int | None = None) -> None:
        await self.inner.publish(specs, worker)

    async def specs(self) -> Mapping[str, WorkflowSpec]:
        return await self.inner.specs()

    async def put_queues(self, queues: Sequence[NewQueue]) -> None:
        await self.inner.put_queues(queues)

    async def set_queue(self, name: str, limits: QueueLimits | None) -> bool:
        return await self.inner.set_queue(name, limits)

    async def pause_queue(self, name: str) -> bool:
        return await self.inner.pause_queue(name)

    async def resume_queue(self, name: str) -> bool:
        return await self.inner.resume_queue(name)

    async def queues(self, names: Collection[str] | None = None) -> list[KeptQueue]:
        return await self.inner.queues(names)

    async def put_schedules(
        self, schedules: Sequence[NewSchedule], *, worker: int | None = None, replace: bool = True
    ) -> list[Schedule]:
        return await self.inner.put_schedules(schedules, worker=worker, replace=replace)

    async def schedules(self, names: Collection[str] | None = None) -> list[Schedule]:
        return await self.inner.schedules(names)

    async def settle_schedule(
        self, name: str, if_was: float, fired_up_to: float, *, run: str = "", skipped: float | None = None
    ) -> bool:
        return await self.inner.settle_schedule(name, if_was, fired_up_to, run=run, skipped=skipped)

    async def pause_schedule(self, name: str) -> bool:
        return await self.inner.pause_schedule(name)

    async def resume_schedule(self, name: str) -> bool:
        return await self.inner.resume_schedule(name)

    async def delete_schedule(self, name: str) -> bool:
        return await self.inner.delete_schedule(name)

    async def put_document(
        self, kind: str, name: str, data: bytes, *, if_version: int | None = None
    ) -> Document | None:
        return await self.inner.put_document(kind, name, data, if_version=if_version)

    async def documents(
        self, kind: str, names: Collection[str] | None = None, *, after: str = "", limit: int = 1000
    ) -> list[Document]:
        return await self.inner.documents(kind, names, after=after, limit=limit)

    async def delete_document(self, kind: str, name: str) -> bool:
        return await self.inner.delete_document(kind, name)

    async def note_audit(self, entries: Sequence[NewAudit]) -> None:
        await self.inner.note_audit(entries)

    async def audit(self, *, before: int | None = None, limit: int = 100) -> list[Audit]:
        return await self.inner.audit(before=before, limit=limit)

    async def trim_audit(self, before: float, limit: int = 10000) -> int:
        return await self.inner.trim_audit(before, limit)

    async def usage_by_day(self, since: str, until: str, *, workflow: str | None = None) -> list[DayUsage]:
        return await self.inner.usage_by_day(since, until, workflow=workflow)

    async def runs_by_day(self, since: str, until: str, *, workflow: str | None = None) -> list[DayRuns]:
        return await self.inner.runs_by_day(since, until, workflow=workflow)

    async def prune(self, what: Pruning, after: Place = START, limit: int = 100) -> Pruned:
        return await self.inner.prune(what, after, limit)

    async def sweep(self, limit: int = 2000) -> Swept:
        return await self.inner.sweep(limit)

    async def belongings(self, key: int) -> Belongings:
        return await self.inner.belongings(key)

    async def restore(self, archived: Archived) -> bool:
        return await self.inner.restore(archived)

    async def set_going(self, archived: Archived) -> None:
        await self.inner.set_going(archived)

    async def changed(self, timeout: float, *, follows: bool = True) -> bool:
        return await self.inner.changed(timeout, follows=follows)

    def now(self) -> float:
        return self.inner.now()
