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
from holdfast.stores.memory.queue_operations import MemoryQueues
from holdfast.stores.memory.retention import MemoryRetention
from holdfast.stores.memory.schedules import MemorySchedules
from holdfast.stores.memory.server_data import MemoryAuditLog, MemoryDailyUsage, MemoryDocuments
from holdfast.stores.memory.start_operations import StartOperations
from holdfast.stores.memory.workers import MemoryClaims, MemoryDisabledWorkflows, MemoryWorkers
from holdfast.stores.operation_handler import OperationHandler
from holdfast.stores.operations import Op, OpResult, Run
from holdfast.stores.served_versions import list_served_names, make_served_name
from holdfast.stores.workers import Worker, merge_workflows

ACTIVE_POLL_S = 0.02
_ACTIVE_WINDOW_S = 1.0


class MemoryStore(
    ClaimedRunOperations,
    ClientOperations,
    StartOperations,
    OperationHandler,
    Store,
):
    """Journals in dictionaries, gone with the process."""

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

    def simulate_worker_death(self, worker: int) -> None:
        """For tests: the worker's "process" is gone, as the next ``Workers.reap_dead`` will find; not of one by
        lease, whose process no store can see."""
        with self._lock:
            if self._is_live(worker) and not self._workers[worker].is_listener:
                self._killed_workers.add(worker)
        self._notify_change()

    async def list_workers(self, extra_ids: Collection[int] = ()) -> list[Worker]:
        with self._lock:
            unfinished = [self._runs[key] for key in self._unfinished]
            referred = {run.owner for run in unfinished} | {run.starter for run in unfinished} | {*extra_ids}
            return [worker for worker in self._workers.values() if worker.state == "live" or worker.id in referred]

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
                workflows = merge_workflows(known.workflows, list_served_names(specs))
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
