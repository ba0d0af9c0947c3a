# pyright: reportPrivateUsage=false
"""Workers, claims, and disabled workflows, in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from holdfast.core.states import RunState
from holdfast.stores import run_errors, worker_deaths
from holdfast.stores.archives import NOT_ACTIVATED
from holdfast.stores.claims import Claims, NewSignals, RunRequests
from holdfast.stores.disabled_workflows import DisabledWorkflow, DisabledWorkflows
from holdfast.stores.leases import LeaseWindow
from holdfast.stores.memory.queue_operations import MemoryCapability
from holdfast.stores.operations import CancelState, Run
from holdfast.stores.served_versions import make_served_name
from holdfast.stores.workers import NewWorker, ReapResult, Worker, Workers, describe_worker


class MemoryWorkers(MemoryCapability, Workers):
    """The workers that share a memory store."""

    async def register(self, worker: NewWorker, lease_s: float) -> int:
        tables = self._tables
        with tables._lock:
            tables._last_worker_id += 1
            worker_id, now = tables._last_worker_id, tables._clock()
            tables._workers[worker_id] = Worker(
                worker_id, worker.name, worker.host, worker.pid, "live", worker.workflows, worker.queues, now,
                now + lease_s, now, worker.is_listener,
            )  # fmt: skip
        tables._notify_change()
        return worker_id

    def renew_lease(self, worker: int, lease_s: float) -> bool:
        tables = self._tables
        with tables._lock:
            if not tables._is_live(worker):
                return False
            now = tables._clock()
            tables._workers[worker] = replace(tables._workers[worker], lease_expires_at=now + lease_s, heartbeat_at=now)
            return True

    async def renew_listener_lease(self, worker: int, lease_s: float) -> bool:
        with self._tables._lock:
            known = self._tables._workers.get(worker)
            return known is not None and known.is_listener and self.renew_lease(worker, lease_s)

    async def retire(self, worker: int, *, only_if_idle: bool = False) -> bool:
        tables = self._tables
        with tables._lock:
            if tables._is_live(worker):
                claimed = tables._list_claimed_by(worker)
                if only_if_idle and claimed:
                    return False
                tables._workers[worker] = replace(tables._workers[worker], state="retired")
                for run in claimed:
                    tables._requeue_run(run)
                tables._wake_parked_by(worker)
        tables._notify_change()
        return True

    async def reap_dead(
        self, except_worker: int | None = None, window: LeaseWindow | None = None, *, include_listeners: bool = False
    ) -> ReapResult:
        tables = self._tables
        with tables._lock:
            now = tables._clock()
            window = window or LeaseWindow(0.0, now)
            dead_workers = [
                worker
                for worker in tables._workers.values()
                if worker.state == "live"
                and worker.id != except_worker
                and (include_listeners or not worker.is_listener)
                and (
                    worker.id in tables._killed_workers
                    or window.has_expired(worker.heartbeat_at, worker.lease_expires_at)
                )
            ]
            released = 0
            dead_runs: list[str] = []
            for worker in dead_workers:
                tables._workers[worker.id] = replace(worker, state="dead")
                tables._wake_parked_by(worker.id)
                held = tables._list_claimed_by(worker.id)
                for run in held:
                    if self._requeue_or_end(run, worker, len(held), now):
                        released += 1
                    else:
                        dead_runs.append(run.id)
        if dead_workers:
            tables._notify_change()
        return ReapResult(tuple(worker.id for worker in dead_workers), released, tuple(dead_runs))

    def _requeue_or_end(self, run: Run, worker: Worker, claimed_count: int, now: float) -> bool:
        """Release a run of a dead worker, or end it if its workers died too often. Returns whether it was released."""
        tables = self._tables
        effect = worker_deaths.get_worker_death_effect(
            run.delivery_count, run.max_deliveries, run.suspicion, claimed_count
        )
        changed = replace(run, delivery_count=effect.delivery_count)
        if not effect.is_dead:
            tables._requeue_run(replace(changed, suspicion=effect.suspicion))
            return True
        description = describe_worker(worker.name, worker.host, worker.pid, is_listener=worker.is_listener)
        live_events = tables._live_events.get(run.key, {}).values()
        error = run_errors.encode_death_error(run.id, effect.delivery_count, description, live_events)
        tables._end_run(replace(changed, state=RunState.DEAD, error=error, finished_at=now))
        return False


class MemoryClaims(MemoryCapability, Claims):
    """The runs that workers claim."""

    async def claim(
        self,
        worker: int,
        *,
        workflows: Collection[str],
        queues: Collection[str] | None,
        limit: int,
        suspect_delay_s: float | None = 0.0,
    ) -> list[Run]:
        tables = self._tables
        with tables._lock:
            if limit <= 0 or not tables._is_live(worker):
                return []
            now = tables._clock()
            due = [
                run for run in self._list_claimable(workflows, queues) if run.wake_at is not None and run.wake_at <= now
            ]
            isolated = [run for run in due if worker_deaths.is_isolated(run.suspicion)]
            chosen: list[Run] = []
            if suspect_delay_s is not None:
                overdue = [run for run in isolated if run.wake_at is not None and run.wake_at <= now - suspect_delay_s]
                chosen = tables._admit_suspects(overdue, now, limit)
            if not chosen:
                chosen = tables._admit_runs(
                    [run for run in due if not worker_deaths.is_isolated(run.suspicion)], now, limit
                )
            claimed = [
                replace(run, state=RunState.RUNNING, epoch=run.epoch + 1, owner=worker, wake_at=None, waits_for="")
                for run in chosen
            ]
            for run in claimed:
                tables._save_run(run)
                if run.key in tables._debounced:
                    tables._clear_dedup_key(run.key)
        if claimed:
            tables._notify_change()
        return claimed

    async def get_next_wake_at(self, *, workflows: Collection[str], queues: Collection[str] | None) -> float | None:
        tables = self._tables
        with tables._lock:
            times = tables._iter_wake_times(self._list_claimable(workflows, queues), tables._clock())
            return min((time for time in times if time is not None), default=None)

    def _list_claimable(self, workflows: Collection[str], queues: Collection[str] | None) -> list[Run]:
        tables = self._tables
        runs = (tables._runs[key] for key in tables._unfinished)
        return [
            run
            for run in runs
            if run.state is not RunState.RUNNING
            and run.paused_at is None
            and run.workflow not in tables._disabled_workflows
            and make_served_name(run.workflow, run.version) in workflows
            and (queues is None or run.queue in queues)
        ]

    async def get_new_signals(self, worker: int, after: int) -> NewSignals:
        tables = self._tables
        with tables._lock:
            found = [
                (run.key, signal)
                for run in tables._list_claimed_by(worker)
                for signal in tables._mailboxes.get(run.key, {}).values()
                if signal.id > after
            ]
        found.sort(key=lambda pair: pair[1].id)
        return NewSignals(found, found[-1][1].id if found else after)

    async def get_run_requests(self, worker: int) -> list[RunRequests]:
        with self._tables._lock:
            requests = [
                RunRequests(run.key, run.cancel_state is CancelState.REQUESTED, run.paused_at is not None)
                for run in self._tables._list_claimed_by(worker)
            ]
        return [request for request in requests if request.is_cancel_requested or request.is_pause_requested]

    async def expire_runs(self, limit: int = 100) -> list[str]:
        tables = self._tables
        with tables._lock:
            now = tables._clock()
            overdue = [
                run
                for run in (tables._runs[key] for key in tables._unfinished)
                if run.is_delivery
                and run.deadline is not None
                and run.deadline <= now
                and run.paused_at != NOT_ACTIVATED
            ]
            overdue = sorted(overdue, key=lambda run: (run.deadline, run.key))[:limit]
            for run in overdue:
                error = run_errors.encode_deadline_error(run.id)
                tables._end_run(replace(run, state=RunState.FAILED, error=error, finished_at=now))
        if overdue:
            tables._notify_change()
        return [run.id for run in overdue]


class MemoryDisabledWorkflows(MemoryCapability, DisabledWorkflows):
    """The workflows that are disabled."""

    async def disable(self, workflow: str, actor: str = "", reason: str = "", *, is_temporary: bool = False) -> bool:
        tables = self._tables
        with tables._lock:
            known = tables._disabled_workflows.get(workflow)
            if known is not None and (is_temporary or not known.is_temporary):
                return False
            disabled_at = tables._clock() if known is None else known.disabled_at
            tables._disabled_workflows[workflow] = DisabledWorkflow(disabled_at, actor, reason, is_temporary)
        tables._notify_change()
        return True

    async def enable(self, workflow: str, *, only_temporary: bool = False) -> bool:
        tables = self._tables
        with tables._lock:
            known = tables._disabled_workflows.get(workflow)
            if known is None or (only_temporary and not known.is_temporary):
                return False
            del tables._disabled_workflows[workflow]
        tables._notify_change()
        return True

    async def get_all(self) -> Mapping[str, DisabledWorkflow]:
        with self._tables._lock:
            return dict(self._tables._disabled_workflows)
