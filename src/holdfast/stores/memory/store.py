"""The memory store: the contract, implemented over its tables.

Several engines may share one object as if they were processes on one database. No operating system notices the end of
such a "process", so a worker dies when its lease expires, or when a test calls ``simulate_worker_death``.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from holdfast.core.records import Record
from holdfast.core.states import RunState
from holdfast.stores import rules, run_errors
from holdfast.stores.contract import (
    DEFAULT_NAMESPACE,
    History,
    RunFilter,
    RunSearchPage,
    RunUsage,
    Store,
    WorkflowSpec,
)
from holdfast.stores.live_events import RunUpdates
from holdfast.stores.memory.approval_operations import MemoryMemories
from holdfast.stores.memory.archives import MemoryArchives
from holdfast.stores.memory.claimed_run_operations import ClaimedRunOperations
from holdfast.stores.memory.client_operations import ClientOperations
from holdfast.stores.memory.erasure import MemoryErasure
from holdfast.stores.memory.queue_operations import MemoryQueues
from holdfast.stores.memory.retention import MemoryRetention
from holdfast.stores.memory.schedules import MemorySchedules
from holdfast.stores.memory.server_data import MemoryAuditLog, MemoryDailyUsage, MemoryDocuments
from holdfast.stores.memory.start_operations import StartOperations
from holdfast.stores.memory.usage_accounts import MemoryUsageAccounts
from holdfast.stores.memory.workers import MemoryClaims, MemoryDisabledWorkflows, MemoryWorkers
from holdfast.stores.operations import Op, OpResult, Run
from holdfast.stores.served_versions import list_served_names, make_served_name
from holdfast.stores.shared_operations import SharedOperations
from holdfast.stores.workers import Worker, merge_workflows

ACTIVE_POLL_S = 0.02
_ACTIVE_WINDOW_S = 1.0


class MemoryStore(
    ClaimedRunOperations,
    ClientOperations,
    StartOperations,
    SharedOperations[Run, MemoryUsageAccounts],
    Store,
):
    """Journals in dictionaries, lost when the process ends."""

    url = "memory://"

    def __init__(self, *, clock: Callable[[], float] = time.time, namespace: str = DEFAULT_NAMESPACE) -> None:
        super().__init__(clock)
        self.namespace = namespace
        self.workers = MemoryWorkers(self)
        self.claims = MemoryClaims(self)
        self.disabled_workflows = MemoryDisabledWorkflows(self)
        self.queues = MemoryQueues(self)
        self.schedules = MemorySchedules(self)
        self.memories = MemoryMemories(self)
        self.documents = MemoryDocuments(self)
        self.audit_log = MemoryAuditLog(self)
        self.daily_usage = MemoryDailyUsage(self)
        self.retention = MemoryRetention(self)
        self.archives = MemoryArchives(self)
        self.erasure = MemoryErasure(self)

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        """Does nothing: another engine may share this object, or open it again."""

    def abandon(self) -> None:
        pass

    def now(self) -> float:
        return self._clock()

    # Writing

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        with self._lock:
            answers = [self._apply_op(op) for op in ops]
        self._notify_change()
        return answers

    def simulate_worker_death(self, worker: int) -> None:
        """For tests: end the worker's "process", so that the next ``Workers.reap_dead`` finds it dead.

        Listeners are excluded: no store can see their processes."""
        with self._lock:
            if self._is_live(worker) and not self._workers[worker].is_listener:
                self._killed_workers.add(worker)
        self._notify_change()

    def forget_worker_deaths(self) -> None:
        """For tests: the deaths of workers so far no longer count against the runs they held."""
        with self._lock:
            for key in self._unfinished:
                self._runs[key] = replace(self._runs[key], delivery_count=0)

    async def list_workers(self, extra_ids: Collection[int] = ()) -> list[Worker]:
        with self._lock:
            unfinished = [self._runs[key] for key in self._unfinished]
            ids = {run.owner for run in unfinished} | {run.starter for run in unfinished} | {*extra_ids}
            return [worker for worker in self._workers.values() if worker.state == "live" or worker.id in ids]

    # Reading

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

    def _search(self, where: RunFilter, limit: int, before: int | None, max_scanned: int | None) -> RunSearchPage:
        found: list[Run] = []
        with self._lock:
            below = [key for key in sorted(self._runs, reverse=True) if before is None or key < before]
            for scanned, key in enumerate(below):
                if len(found) >= limit or scanned == max_scanned:
                    if not scanned:
                        return RunSearchPage(found, before)
                    last = self._runs[below[scanned - 1]]
                    return RunSearchPage(found, last.key, last.created_at)
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
        limited = {kind: min(count, max_ended) if kind[1].is_terminal else count for kind, count in counts.items()}
        return {kind: count for kind, count in limited.items() if count}

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
            live_events = [item for item in self._live_events.get(run.key, {}).items() if item[0] > after_event_id]
            return RunUpdates(run, records[:limit], live_events[:limit])

    # Workflows

    async def announce_workflows(self, specs: Sequence[WorkflowSpec], worker: int | None = None) -> None:
        with self._lock:
            for spec in specs:
                name = make_served_name(spec.name, spec.version)
                known = self._specs.get(name)
                if known != spec:  # `serves` and `announced_at` are not compared
                    announced_at = self._clock() if known is None else known.announced_at
                    self._specs[name] = replace(spec, serves=(), announced_at=announced_at)
            if worker is not None and worker in self._workers:
                known = self._workers[worker]
                workflows = merge_workflows(known.workflows, list_served_names(specs))
                self._workers[worker] = replace(known, workflows=workflows)
        self._notify_change()

    async def get_workflow_specs(self, workflow: str | None = None) -> Mapping[str, WorkflowSpec]:
        with self._lock:
            return {name: spec for name, spec in self._specs.items() if workflow in (None, spec.name)}

    # Change

    async def wait_for_change(self, timeout_s: float, *, follow_runs: bool = True) -> bool:
        """Wakes at any write, because the store does not know which of the engines that share it made the write.

        It does not know which engine waits either, so it recognizes a write since that engine's last call only by being
        recent: then the wait ends at the next poll interval, as on a store that polls.
        """
        is_recent = time.monotonic() - self._last_write_at < _ACTIVE_WINDOW_S
        waiter = (asyncio.get_running_loop(), asyncio.Event())
        self._change_waiters.add(waiter)
        try:
            # Not `wait_for`: on Python 3.11 it swallows a cancellation that comes together with the event.
            async with asyncio.timeout(min(timeout_s, ACTIVE_POLL_S) if is_recent else timeout_s):
                await waiter[1].wait()
        except TimeoutError:
            return is_recent and timeout_s >= ACTIVE_POLL_S
        finally:
            self._change_waiters.discard(waiter)
        return True


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
        and (where.text is None or run_errors.has_text(run, where.text))
    )
