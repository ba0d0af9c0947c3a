# ruff: noqa: D102 - what the methods of a store are for is said once, in the contract
"""The store in memory: the contract, spelled out over its tables.

Several engines may share one object as if they were processes on one database. There is no kernel to tell that such a
"process" is gone, so a worker dies when its lease passes, or when a test calls ``simulate_worker_death``.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from holdfast.core.records import Record
from holdfast.core.states import RunState
from holdfast.stores import rules
from holdfast.stores.archives import NOT_ACTIVATED
from holdfast.stores.contract import (
    DEFAULT_NAMESPACE,
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
from holdfast.stores.leases import LeaseWindow
from holdfast.stores.live_events import RunUpdates
from holdfast.stores.memory.archives import ArchiveOperations
from holdfast.stores.memory.claimed_run_operations import ClaimedRunOperations
from holdfast.stores.memory.client_operations import ClientOperations
from holdfast.stores.memory.retention import PruneOperations
from holdfast.stores.memory.schedules import ScheduleOperations
from holdfast.stores.memory.server_data import ServerDataOperations
from holdfast.stores.memory.start_operations import StartOperations
from holdfast.stores.operation_handler import OperationHandler
from holdfast.stores.operations import (
    CancelState,
    Op,
    OpResult,
    Run,
)
from holdfast.stores.served_versions import list_served_names, make_served_name

ACTIVE_POLL_S = 0.02
_ACTIVE_WINDOW_S = 1.0


class MemoryStore(
    ClaimedRunOperations,
    ClientOperations,
    StartOperations,
    PruneOperations,
    ArchiveOperations,
    ScheduleOperations,
    ServerDataOperations,
    OperationHandler,
    Store,
):
    """Journals in dictionaries, gone with the process."""

    url = "memory://"

    def __init__(self, *, clock: Callable[[], float] = time.time, namespace: str = DEFAULT_NAMESPACE) -> None:
        super().__init__(clock)
        self.namespace = namespace
        self._change_waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._last_write_at = float("-inf")

    async def open(self) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """Nothing is closed: another engine may share this object, or open it again."""

    def abandon(self) -> None:
        """As ``close``."""

    def now(self) -> float:
        return self._clock()

    # Writing

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        with self._lock:
            answers = [self._apply_op(op) for op in ops]
        self._notify_change()
        return answers

    # Workers

    async def register_worker(self, worker: NewWorker, lease_s: float) -> int:
        with self._lock:
            self._last_worker_id += 1
            number, now = self._last_worker_id, self._clock()
            self._workers[number] = Worker(
                number,
                worker.name,
                worker.host,
                worker.pid,
                "live",
                worker.workflows,
                worker.queues,
                now,
                now + lease_s,
                now,
                worker.is_listener,
            )
        self._notify_change()
        return number

    def renew_lease(self, worker: int, lease_s: float) -> bool:
        with self._lock:
            if not self._is_live(worker):
                return False
            now = self._clock()
            self._workers[worker] = replace(self._workers[worker], lease_expires_at=now + lease_s, heartbeat_at=now)
            return True

    async def renew_listener_lease(self, worker: int, lease_s: float) -> bool:
        with self._lock:
            known = self._workers.get(worker)
            return known is not None and known.is_listener and self.renew_lease(worker, lease_s)

    async def retire_worker(self, worker: int) -> None:
        with self._lock:
            if self._is_live(worker):
                self._workers[worker] = replace(self._workers[worker], state="retired")
                for run in self._list_claimed_by(worker):
                    self._requeue_run(run)
                self._wake_parked_by(worker)
        self._notify_change()

    def simulate_worker_death(self, worker: int) -> None:
        """For tests: the worker's "process" is gone, as the next ``reap_dead_workers`` will find; not of one by lease,
        whose process no store can see."""
        with self._lock:
            if self._is_live(worker) and not self._workers[worker].is_listener:
                self._killed_workers.add(worker)
        self._notify_change()

    async def reap_dead_workers(
        self, except_worker: int | None = None, window: LeaseWindow | None = None, *, include_listeners: bool = False
    ) -> ReapResult:
        with self._lock:
            now = self._clock()
            window = window or LeaseWindow(0.0, now)
            gone = [
                worker
                for worker in self._workers.values()
                if worker.state == "live"
                and worker.id != except_worker
                and (include_listeners or not worker.is_listener)
                and (
                    worker.id in self._killed_workers
                    or window.has_expired(worker.heartbeat_at, worker.lease_expires_at)
                )
            ]
            released = 0
            dead: list[str] = []
            for worker in gone:
                self._workers[worker.id] = replace(worker, state="dead")
                self._wake_parked_by(worker.id)
                held = self._list_claimed_by(worker.id)
                for run in held:
                    if self._requeue_or_end(run, worker, len(held), now):
                        released += 1
                    else:
                        dead.append(run.id)
        if gone:
            self._notify_change()
        return ReapResult(tuple(worker.id for worker in gone), released, tuple(dead))

    def _requeue_or_end(self, run: Run, worker: Worker, held: int, now: float) -> bool:
        """Free a run whose worker, which held so many, is dead; or end it if that was once too often."""
        after = rules.get_worker_death_effect(run.delivery_count, run.max_deliveries, run.suspicion, held)
        if not after.is_dead:
            self._requeue_run(replace(run, delivery_count=after.delivery_count, suspicion=after.suspicion))
            return True
        who = rules.describe_worker(worker.name, worker.host, worker.pid, is_listener=worker.is_listener)
        error = rules.encode_death_error(run.id, after.delivery_count, who, self._live_events.get(run.key, {}).values())
        self._end_run(
            replace(run, state=RunState.DEAD, delivery_count=after.delivery_count, error=error, finished_at=now)
        )
        return False

    async def expire_runs(self, limit: int = 100) -> list[str]:
        with self._lock:
            now = self._clock()
            late = [
                run
                for run in (self._runs[key] for key in self._unfinished)
                if run.is_delivery
                and run.deadline is not None
                and run.deadline <= now
                and run.paused_at != NOT_ACTIVATED
            ]
            late = sorted(late, key=lambda run: (run.deadline, run.key))[:limit]
            for run in late:
                error = rules.encode_deadline_error(run.id)
                self._end_run(replace(run, state=RunState.FAILED, error=error, finished_at=now))
        if late:
            self._notify_change()
        return [run.id for run in late]

    def _list_claimed_by(self, worker: int) -> list[Run]:
        runs = (self._runs[key] for key in sorted(self._unfinished))
        return [run for run in runs if run.owner == worker and run.state is RunState.RUNNING]

    async def list_workers(self, extra_ids: Collection[int] = ()) -> list[Worker]:
        with self._lock:
            unfinished = [self._runs[key] for key in self._unfinished]
            referred = {run.owner for run in unfinished} | {run.starter for run in unfinished} | {*extra_ids}
            return [worker for worker in self._workers.values() if worker.state == "live" or worker.id in referred]

    # Claims

    async def claim_runs(
        self,
        worker: int,
        *,
        workflows: Collection[str],
        queues: Collection[str] | None,
        limit: int,
        suspect_delay_s: float | None = 0.0,
    ) -> list[Run]:
        with self._lock:
            if limit <= 0 or not self._is_live(worker):
                return []
            now = self._clock()
            due = [
                run for run in self._list_claimable(workflows, queues) if run.wake_at is not None and run.wake_at <= now
            ]
            isolated = [run for run in due if rules.is_isolated(run.suspicion)]
            chosen: list[Run] = []
            if suspect_delay_s is not None:
                overdue = [run for run in isolated if run.wake_at is not None and run.wake_at <= now - suspect_delay_s]
                chosen = self._admit_suspects(overdue, now, limit)
            if not chosen:
                chosen = self._admit_runs([run for run in due if not rules.is_isolated(run.suspicion)], now, limit)
            claimed = [
                replace(run, state=RunState.RUNNING, epoch=run.epoch + 1, owner=worker, wake_at=None, waits_for="")
                for run in chosen
            ]
            for run in claimed:
                self._save_run(run)
                if run.key in self._debounced:
                    self._clear_dedup_key(run.key)
        if claimed:
            self._notify_change()
        return claimed

    async def get_next_wake_at(self, *, workflows: Collection[str], queues: Collection[str] | None) -> float | None:
        with self._lock:
            times = self._iter_wake_times(self._list_claimable(workflows, queues), self._clock())
            return min((time for time in times if time is not None), default=None)

    def _list_claimable(self, workflows: Collection[str], queues: Collection[str] | None) -> list[Run]:
        runs = (self._runs[key] for key in self._unfinished)
        return [
            run
            for run in runs
            if run.state is not RunState.RUNNING
            and run.paused_at is None
            and run.workflow not in self._disabled_workflows
            and make_served_name(run.workflow, run.version) in workflows
            and (queues is None or run.queue in queues)
        ]

    # Reading a held run

    async def get_histories(self, keys: Sequence[int]) -> list[History]:
        with self._lock:
            return [
                History(
                    records=list(self._records.get(key, ())),
                    attempts=dict(self._attempts.get(key, {})),
                    signals=list(self._mailboxes.get(key, {}).values()),
                    links={
                        position: (self._runs[link.child_key].id, self._runs[link.child_key].digest)
                        for position in self._link_positions.get(key, ())
                        if (link := self._links[key, position]).state is not rules.LinkState.LATE
                    },
                )
                for key in keys
            ]

    async def get_new_signals(self, worker: int, after: int) -> NewSignals:
        with self._lock:
            found = [
                (run.key, signal)
                for run in self._list_claimed_by(worker)
                for signal in self._mailboxes.get(run.key, {}).values()
                if signal.id > after
            ]
        found.sort(key=lambda pair: pair[1].id)
        return NewSignals(found, found[-1][1].id if found else after)

    async def get_run_requests(self, worker: int) -> list[RunRequests]:
        with self._lock:
            asked = [
                RunRequests(run.key, run.cancel_state is CancelState.REQUESTED, run.paused_at is not None)
                for run in self._list_claimed_by(worker)
            ]
        return [request for request in asked if request.is_cancel_requested or request.is_pause_requested]

    # The switch

    async def disable_workflow(
        self, workflow: str, actor: str = "", reason: str = "", *, is_temporary: bool = False
    ) -> bool:
        with self._lock:
            known = self._disabled_workflows.get(workflow)
            if known is not None and (is_temporary or not known.is_temporary):
                return False
            since = self._clock() if known is None else known.disabled_at
            self._disabled_workflows[workflow] = DisabledWorkflow(since, actor, reason, is_temporary)
        self._notify_change()
        return True

    async def enable_workflow(self, workflow: str, *, only_temporary: bool = False) -> bool:
        with self._lock:
            known = self._disabled_workflows.get(workflow)
            if known is None or (only_temporary and not known.is_temporary):
                return False
            del self._disabled_workflows[workflow]
        self._notify_change()
        return True

    async def get_disabled_workflows(self) -> Mapping[str, DisabledWorkflow]:
        with self._lock:
            return dict(self._disabled_workflows)

    # Reading

    async def get_run(self, run_id: str) -> Run | None:
        with self._lock:
            return self._get_by_id(run_id)

    async def get_runs(self, run_ids: Sequence[str]) -> list[Run]:
        with self._lock:
            return [run for run_id in dict.fromkeys(run_ids) if (run := self._get_by_id(run_id)) is not None]

    async def list_runs(self, where: RunFilter, *, limit: int = 50, before_key: int | None = None) -> list[Run]:
        return self._search(where, limit, before_key, None).runs

    async def search_runs(
        self, where: RunFilter, *, limit: int = 50, before_key: int | None = None, max_scanned: int = 10_000
    ) -> RunSearchPage:
        return self._search(where, limit, before_key, max_scanned)

    def _search(self, where: RunFilter, limit: int, before: int | None, most: int | None) -> RunSearchPage:
        found: list[Run] = []
        with self._lock:
            below = [key for key in sorted(self._runs, reverse=True) if before is None or key < before]
            for looked_at, key in enumerate(below):
                if len(found) >= limit or looked_at == most:
                    last = self._runs[below[looked_at - 1]] if looked_at else None
                    return RunSearchPage(
                        found, before if last is None else last.key, None if last is None else last.created_at
                    )
                if _matches_filter(self._runs[key], where):
                    found.append(self._runs[key])
        return RunSearchPage(found, None)

    async def get_usages(self, run_ids: Sequence[str]) -> Mapping[str, RunUsage]:
        with self._lock:
            runs = [run for run_id in run_ids if (run := self._get_by_id(run_id)) is not None]
            found = {run.id: self._accounts.get(run.key).to_run_usage() for run in runs}
        return {run_id: usage for run_id, usage in found.items() if usage != RunUsage()}

    async def count_runs(self, max_ended: int | None = None) -> Mapping[tuple[str, RunState], int]:
        with self._lock:
            counts = Counter((run.workflow, run.state) for run in self._runs.values())
        if max_ended is None:
            return counts
        told = {place: min(count, max_ended) if place[1].is_terminal else count for place, count in counts.items()}
        return {place: count for place, count in told.items() if count}

    async def count_unfinished_runs(self, workflows: Collection[str] | None = None) -> Mapping[tuple[str, str], int]:
        with self._lock:
            runs = [self._runs[key] for key in self._unfinished]
        return Counter((run.workflow, run.version) for run in runs if workflows is None or run.workflow in workflows)

    async def get_last_record(self, run_id: str, name: str) -> Record | None:
        with self._lock:
            journal = self._records.get(self._keys_by_id.get(run_id, 0), [])
            return next((record for record in reversed(journal) if record.ok and record.name == name), None)

    async def get_run_updates(
        self, run_id: str, after_seq: int, after_event_id: int, limit: int = 1000
    ) -> RunUpdates | None:
        with self._lock:
            run = self._get_by_id(run_id)
            if run is None:
                return None
            records = [record for record in self._records.get(run.key, ()) if record.seq > after_seq]
            told = [one for one in self._live_events.get(run.key, {}).items() if one[0] > after_event_id]
            return RunUpdates(run, records[:limit], told[:limit])

    # Workflows

    async def publish_workflows(self, specs: Sequence[WorkflowSpec], worker: int | None = None) -> None:
        with self._lock:
            for spec in specs:
                name = make_served_name(spec.name, spec.version)
                known = self._specs.get(name)
                if known != spec:  # apart from `serves` and `announced_at`, which are not compared
                    announced_at = self._clock() if known is None else known.announced_at
                    self._specs[name] = replace(spec, serves=(), announced_at=announced_at)
            if worker is not None and worker in self._workers:
                known = self._workers[worker]
                workflows = rules.merge_workflows(known.workflows, list_served_names(specs))
                self._workers[worker] = replace(known, workflows=workflows)
        self._notify_change()

    async def get_workflow_specs(self) -> Mapping[str, WorkflowSpec]:
        with self._lock:
            return dict(self._specs)

    # Change

    async def wait_for_change(self, timeout_s: float, *, follow_runs: bool = True) -> bool:
        """Wakes at any write, since nobody can tell which of the engines that share this object made it.

        Nor can it tell who waits, so a write since the same engine's last call is recognised only by its being recent:
        then the wait ends at the next tick, as it would on a store that polls.
        """
        recent = time.monotonic() - self._last_write_at < _ACTIVE_WINDOW_S
        waiter = (asyncio.get_running_loop(), asyncio.Event())
        self._change_waiters.add(waiter)
        try:
            # Not `wait_for`: on Python 3.11 it swallows a cancellation that comes together with the event.
            async with asyncio.timeout(min(timeout_s, ACTIVE_POLL_S) if recent else timeout_s):
                await waiter[1].wait()
        except TimeoutError:
            return recent and timeout_s >= ACTIVE_POLL_S
        finally:
            self._change_waiters.discard(waiter)
        return True

    def _notify_change(self) -> None:
        self._last_write_at = time.monotonic()
        for loop, event in tuple(self._change_waiters):
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)


def _matches_filter(run: Run, where: RunFilter) -> bool:
    return (
        (not where.states or run.state in where.states)
        and (where.workflow is None or run.workflow == where.workflow)
        and (where.tag is None or where.tag in run.tags)
        and (where.id_prefix is None or run.id.startswith(where.id_prefix))
        and (where.created_after is None or run.created_at >= where.created_after)
        and (where.created_before is None or run.created_at < where.created_before)
        and (where.parent is None or (where.parent != "" and run.parent == where.parent))
        and (where.owner is None or run.owner == where.owner)
        and (where.text is None or rules.has_text(run, where.text))
    )
