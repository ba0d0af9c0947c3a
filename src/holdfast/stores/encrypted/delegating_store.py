# ruff: noqa: D102 - what the methods of a store are for is said once, in the contract
"""A store that hands everything on to another one: whoever wraps a store says only what is different."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from holdfast.admission.queue_limits import QueueLimits
from holdfast.core.records import Attempt, Record
from holdfast.core.states import RunState
from holdfast.stores.approvals import Approval, ApprovalFilter
from holdfast.stores.archives import ArchivedRun, RunExtras
from holdfast.stores.audit_log import AuditEvent, AuditRow
from holdfast.stores.contract import (
    DisabledWorkflow,
    History,
    NewSignals,
    NewWorker,
    ReapResult,
    RunFilter,
    RunRequests,
    RunSearchPage,
    RunUsage,
    Store,
    Worker,
    WorkflowSpec,
)
from holdfast.stores.daily_usage import DailyRunCount, DailyUsage
from holdfast.stores.documents import Document
from holdfast.stores.journal_pages import JournalPage
from holdfast.stores.leases import LeaseWindow
from holdfast.stores.live_events import RunUpdates
from holdfast.stores.memories import Memory
from holdfast.stores.operations import Op, OpResult, Run
from holdfast.stores.queues import NewQueue, QueueStatus
from holdfast.stores.retention import PRUNE_START, PruneCursor, PruneRequest, PruneResult, SweepResult
from holdfast.stores.schedules import Schedule, ScheduleDefinition
from holdfast.stores.step_transactions import StepTransaction


class DelegatingStore(Store):
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

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        return await self.inner.commit(ops)

    async def begin_step_transaction(
        self, run: Run, attempt: Attempt, *, is_sync: bool, timeout_s: float | None = None
    ) -> StepTransaction | None:
        return await self.inner.begin_step_transaction(run, attempt, is_sync=is_sync, timeout_s=timeout_s)

    async def register_worker(self, worker: NewWorker, lease_s: float) -> int:
        return await self.inner.register_worker(worker, lease_s)

    def renew_lease(self, worker: int, lease_s: float) -> bool:
        return self.inner.renew_lease(worker, lease_s)

    async def retire_worker(self, worker: int) -> None:
        await self.inner.retire_worker(worker)

    async def renew_listener_lease(self, worker: int, lease_s: float) -> bool:
        return await self.inner.renew_listener_lease(worker, lease_s)

    async def reap_dead_workers(
        self, except_worker: int | None = None, window: LeaseWindow | None = None, *, include_listeners: bool = False
    ) -> ReapResult:
        return await self.inner.reap_dead_workers(except_worker, window, include_listeners=include_listeners)

    async def expire_runs(self, limit: int = 100) -> list[str]:
        return await self.inner.expire_runs(limit)

    async def list_workers(self, extra_ids: Collection[int] = ()) -> list[Worker]:
        return await self.inner.list_workers(extra_ids)

    async def claim_runs(
        self,
        worker: int,
        *,
        workflows: Collection[str],
        queues: Collection[str] | None,
        limit: int,
        suspect_delay_s: float | None = 0.0,
    ) -> list[Run]:
        return await self.inner.claim_runs(
            worker, workflows=workflows, queues=queues, limit=limit, suspect_delay_s=suspect_delay_s
        )

    async def get_next_wake_at(self, *, workflows: Collection[str], queues: Collection[str] | None) -> float | None:
        return await self.inner.get_next_wake_at(workflows=workflows, queues=queues)

    async def get_histories(self, keys: Sequence[int]) -> list[History]:
        return await self.inner.get_histories(keys)

    async def get_new_signals(self, worker: int, after: int) -> NewSignals:
        return await self.inner.get_new_signals(worker, after)

    async def get_run_requests(self, worker: int) -> list[RunRequests]:
        return await self.inner.get_run_requests(worker)

    async def disable_workflow(
        self, workflow: str, actor: str = "", reason: str = "", *, is_temporary: bool = False
    ) -> bool:
        return await self.inner.disable_workflow(workflow, actor, reason, is_temporary=is_temporary)

    async def enable_workflow(self, workflow: str, *, only_temporary: bool = False) -> bool:
        return await self.inner.enable_workflow(workflow, only_temporary=only_temporary)

    async def get_disabled_workflows(self) -> Mapping[str, DisabledWorkflow]:
        return await self.inner.get_disabled_workflows()

    async def get_run(self, run_id: str) -> Run | None:
        return await self.inner.get_run(run_id)

    async def get_runs(self, run_ids: Sequence[str]) -> list[Run]:
        return await self.inner.get_runs(run_ids)

    async def list_runs(self, where: RunFilter, *, limit: int = 50, before_key: int | None = None) -> list[Run]:
        return await self.inner.list_runs(where, limit=limit, before_key=before_key)

    async def search_runs(
        self, where: RunFilter, *, limit: int = 50, before_key: int | None = None, max_scanned: int = 10_000
    ) -> RunSearchPage:
        return await self.inner.search_runs(where, limit=limit, before_key=before_key, max_scanned=max_scanned)

    async def get_usages(self, run_ids: Sequence[str]) -> Mapping[str, RunUsage]:
        return await self.inner.get_usages(run_ids)

    async def get_approximate_usages(self, run_ids: Sequence[str]) -> Mapping[str, RunUsage]:
        return await self.inner.get_approximate_usages(run_ids)

    async def count_runs(self, max_ended: int | None = None) -> Mapping[tuple[str, RunState], int]:
        return await self.inner.count_runs(max_ended)

    async def count_unfinished_runs(self, workflows: Collection[str] | None = None) -> Mapping[tuple[str, str], int]:
        return await self.inner.count_unfinished_runs(workflows)

    async def get_last_record(self, run_id: str, name: str) -> Record | None:
        return await self.inner.get_last_record(run_id, name)

    async def get_run_updates(
        self, run_id: str, after_seq: int, after_event_id: int, limit: int = 1000
    ) -> RunUpdates | None:
        return await self.inner.get_run_updates(run_id, after_seq, after_event_id, limit)

    async def get_journal_page(
        self, run_id: str, after_seq: int = -1, limit: int | None = None, *, include_large_payloads: bool = True
    ) -> JournalPage | None:
        return await self.inner.get_journal_page(
            run_id, after_seq, limit, include_large_payloads=include_large_payloads
        )

    async def list_approvals(self, where: ApprovalFilter, limit: int = 1000) -> list[Approval]:
        return await self.inner.list_approvals(where, limit)

    async def get_memory(self, namespace: str, key: str) -> Memory | None:
        return await self.inner.get_memory(namespace, key)

    async def list_memories(self, namespace: str, *, after: str = "", limit: int = 100) -> list[Memory]:
        return await self.inner.list_memories(namespace, after=after, limit=limit)

    async def search_memories(self, namespace: str, words: str, *, limit: int = 10) -> list[Memory]:
        return await self.inner.search_memories(namespace, words, limit=limit)

    async def publish_workflows(self, specs: Sequence[WorkflowSpec], worker: int | None = None) -> None:
        await self.inner.publish_workflows(specs, worker)

    async def get_workflow_specs(self) -> Mapping[str, WorkflowSpec]:
        return await self.inner.get_workflow_specs()

    async def declare_queues(self, queues: Sequence[NewQueue]) -> None:
        await self.inner.declare_queues(queues)

    async def set_queue_limits(self, name: str, limits: QueueLimits | None) -> bool:
        return await self.inner.set_queue_limits(name, limits)

    async def pause_queue(self, name: str) -> bool:
        return await self.inner.pause_queue(name)

    async def resume_queue(self, name: str) -> bool:
        return await self.inner.resume_queue(name)

    async def list_queues(self, names: Collection[str] | None = None) -> list[QueueStatus]:
        return await self.inner.list_queues(names)

    async def put_schedules(
        self, schedules: Sequence[ScheduleDefinition], *, worker: int | None = None, replace: bool = True
    ) -> list[Schedule]:
        return await self.inner.put_schedules(schedules, worker=worker, replace=replace)

    async def list_schedules(self, names: Collection[str] | None = None) -> list[Schedule]:
        return await self.inner.list_schedules(names)

    async def advance_schedule(
        self,
        name: str,
        expected_fired_up_to: float,
        fired_up_to: float,
        *,
        run_id: str = "",
        skipped_at: float | None = None,
    ) -> bool:
        return await self.inner.advance_schedule(
            name, expected_fired_up_to, fired_up_to, run_id=run_id, skipped_at=skipped_at
        )

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

    async def list_documents(
        self, kind: str, names: Collection[str] | None = None, *, after: str = "", limit: int = 1000
    ) -> list[Document]:
        return await self.inner.list_documents(kind, names, after=after, limit=limit)

    async def delete_document(self, kind: str, name: str) -> bool:
        return await self.inner.delete_document(kind, name)

    async def append_audit(self, events: Sequence[AuditEvent]) -> None:
        await self.inner.append_audit(events)

    async def list_audit(self, *, before_id: int | None = None, limit: int = 100) -> list[AuditRow]:
        return await self.inner.list_audit(before_id=before_id, limit=limit)

    async def trim_audit(self, before: float, limit: int = 10000) -> int:
        return await self.inner.trim_audit(before, limit)

    async def get_daily_usage(self, since: str, until: str, *, workflow: str | None = None) -> list[DailyUsage]:
        return await self.inner.get_daily_usage(since, until, workflow=workflow)

    async def get_daily_run_counts(self, since: str, until: str, *, workflow: str | None = None) -> list[DailyRunCount]:
        return await self.inner.get_daily_run_counts(since, until, workflow=workflow)

    async def prune_runs(
        self, request: PruneRequest, cursor: PruneCursor = PRUNE_START, limit: int = 100
    ) -> PruneResult:
        return await self.inner.prune_runs(request, cursor, limit)

    async def sweep_pruned(self, limit: int = 2000) -> SweepResult:
        return await self.inner.sweep_pruned(limit)

    async def get_run_extras(self, key: int) -> RunExtras:
        return await self.inner.get_run_extras(key)

    async def restore_run(self, archived: ArchivedRun) -> bool:
        return await self.inner.restore_run(archived)

    async def activate_run(self, archived: ArchivedRun) -> None:
        await self.inner.activate_run(archived)

    async def wait_for_change(self, timeout_s: float, *, follow_runs: bool = True) -> bool:
        return await self.inner.wait_for_change(timeout_s, follow_runs=follow_runs)

    def now(self) -> float:
        return self.inner.now()
