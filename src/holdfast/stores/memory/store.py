# ruff: noqa: D102 - what the methods of a store are for is said once, in the contract
"""The store in memory: the contract, spelled out over its tables.

Several engines may share one object as if they were processes on one database. There is no kernel to tell that such a
"process" is gone, so a worker dies when its lease passes, or when a test calls ``kill_worker``.
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
from holdfast.stores.archives import HELD_BACK
from holdfast.stores.contract import (
    DEFAULT_NAMESPACE,
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
from holdfast.stores.leases import LeaseWindow
from holdfast.stores.live_events import Feed
from holdfast.stores.memory.archives import Restoring
from holdfast.stores.memory.claimed_run_operations import Holding
from holdfast.stores.memory.client_operations import Requests
from holdfast.stores.memory.retention import Prunable
from holdfast.stores.memory.schedules import Scheduling
from holdfast.stores.memory.server_data import Keeping
from holdfast.stores.memory.start_operations import Starting
from holdfast.stores.operation_handler import Carrier
from holdfast.stores.operations import (
    Answer,
    Cancel,
    Op,
    Run,
)
from holdfast.stores.served_versions import names_served, served_name

TICK = 0.02
_RECENT = 1.0


class MemoryStore(Holding, Requests, Starting, Prunable, Restoring, Scheduling, Keeping, Carrier, Store):
    """Journals in dictionaries, gone with the process."""

    url = "memory://"

    def __init__(self, *, clock: Callable[[], float] = time.time, namespace: str = DEFAULT_NAMESPACE) -> None:
        super().__init__(clock)
        self.namespace = namespace
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._written_at = float("-inf")

    async def open(self) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """Nothing is closed: another engine may share this object, or open it again."""

    def abandon(self) -> None:
        """As ``close``."""

    def now(self) -> float:
        return self._clock()

    # Writing

    async def commit(self, ops: Sequence[Op]) -> list[Answer]:
        with self._lock:
            answers = [self._carry_out(op) for op in ops]
        self._announce()
        return answers

    # Workers

    async def register_worker(self, worker: NewWorker, lease: float) -> int:
        with self._lock:
            self._last_worker += 1
            number, now = self._last_worker, self._clock()
            self._workers[number] = Worker(
                number,
                worker.name,
                worker.host,
                worker.pid,
                "live",
                worker.workflows,
                worker.queues,
                now,
                now + lease,
                now,
                worker.by_lease,
            )
        self._announce()
        return number

    def renew_lease(self, worker: int, lease: float) -> bool:
        with self._lock:
            if not self._is_live(worker):
                return False
            now = self._clock()
            self._workers[worker] = replace(self._workers[worker], lease_until=now + lease, beat_at=now)
            return True

    async def keep_worker(self, worker: int, lease: float) -> bool:
        with self._lock:
            known = self._workers.get(worker)
            return known is not None and known.by_lease and self.renew_lease(worker, lease)

    async def retire_worker(self, worker: int) -> None:
        with self._lock:
            if self._is_live(worker):
                self._workers[worker] = replace(self._workers[worker], state="retired")
                for run in self._held_by(worker):
                    self._free(run)
                self._wake_parked_by(worker)
        self._announce()

    def kill_worker(self, worker: int) -> None:
        """For tests: the worker's "process" is gone, as the next ``reap`` will find; not of one by lease, whose
        process no store can see."""
        with self._lock:
            if self._is_live(worker) and not self._workers[worker].by_lease:
                self._killed.add(worker)
        self._announce()

    async def reap(self, me: int | None = None, window: LeaseWindow | None = None, *, by_lease: bool = False) -> Reaped:
        with self._lock:
            now = self._clock()
            window = window or LeaseWindow(0.0, now)
            gone = [
                worker
                for worker in self._workers.values()
                if worker.state == "live"
                and worker.id != me
                and (by_lease or not worker.by_lease)
                and (worker.id in self._killed or window.has_passed(worker.beat_at, worker.lease_until))
            ]
            released = 0
            dead: list[str] = []
            for worker in gone:
                self._workers[worker.id] = replace(worker, state="dead")
                self._wake_parked_by(worker.id)
                held = self._held_by(worker.id)
                for run in held:
                    if self._outlives(run, worker, len(held), now):
                        released += 1
                    else:
                        dead.append(run.id)
        if gone:
            self._announce()
        return Reaped(tuple(worker.id for worker in gone), released, tuple(dead))

    def _outlives(self, run: Run, worker: Worker, held: int, now: float) -> bool:
        """Free a run whose worker, which held so many, is dead; or end it if that was once too often."""
        after = rules.after_death(run.deliveries, run.max_deliveries, run.suspicion, held)
        if not after.is_dead:
            self._free(replace(run, deliveries=after.deliveries, suspicion=after.suspicion))
            return True
        who = rules.describe_worker(worker.name, worker.host, worker.pid, by_lease=worker.by_lease)
        error = rules.death_error(run.id, after.deliveries, who, self._notices.get(run.key, {}).values())
        self._end(replace(run, state=RunState.DEAD, deliveries=after.deliveries, error=error, finished_at=now))
        return False

    async def expire(self, limit: int = 100) -> list[str]:
        with self._lock:
            now = self._clock()
            late = [
                run
                for run in (self._runs[key] for key in self._unfinished)
                if run.by_delivery and run.deadline is not None and run.deadline <= now and run.paused_at != HELD_BACK
            ]
            late = sorted(late, key=lambda run: (run.deadline, run.key))[:limit]
            for run in late:
                error = rules.deadline_error(run.id)
                self._end(replace(run, state=RunState.FAILED, error=error, finished_at=now))
        if late:
            self._announce()
        return [run.id for run in late]

    def _held_by(self, worker: int) -> list[Run]:
        runs = (self._runs[key] for key in sorted(self._unfinished))
        return [run for run in runs if run.owner == worker and run.state is RunState.RUNNING]

    async def workers(self, also: Collection[int] = ()) -> list[Worker]:
        with self._lock:
            unfinished = [self._runs[key] for key in self._unfinished]
            referred = {run.owner for run in unfinished} | {run.starter for run in unfinished} | {*also}
            return [worker for worker in self._workers.values() if worker.state == "live" or worker.id in referred]

    # Claims

    async def claim(
        self,
        worker: int,
        *,
        workflows: Collection[str],
        queues: Collection[str] | None,
        limit: int,
        suspects_after: float | None = 0.0,
    ) -> list[Run]:
        with self._lock:
            if limit <= 0 or not self._is_live(worker):
                return []
            now = self._clock()
            due = [run for run in self._sleeping(workflows, queues) if run.wake_at is not None and run.wake_at <= now]
            isolated = [run for run in due if rules.is_isolated(run.suspicion)]
            chosen: list[Run] = []
            if suspects_after is not None:
                overdue = [run for run in isolated if run.wake_at is not None and run.wake_at <= now - suspects_after]
                chosen = self._let_suspects_through(overdue, now, limit)
            if not chosen:
                chosen = self._let_through([run for run in due if not rules.is_isolated(run.suspicion)], now, limit)
            claimed = [
                replace(run, state=RunState.RUNNING, epoch=run.epoch + 1, owner=worker, wake_at=None, waits_for="")
                for run in chosen
            ]
            for run in claimed:
                self._put(run)
                if run.key in self._debounced:
                    self._forget_dedup(run.key)
        if claimed:
            self._announce()
        return claimed

    async def next_wake(self, *, workflows: Collection[str], queues: Collection[str] | None) -> float | None:
        with self._lock:
            times = self._wake_times(self._sleeping(workflows, queues), self._clock())
            return min((time for time in times if time is not None), default=None)

    def _sleeping(self, workflows: Collection[str], queues: Collection[str] | None) -> list[Run]:
        runs = (self._runs[key] for key in self._unfinished)
        return [
            run
            for run in runs
            if run.state is not RunState.RUNNING
            and run.paused_at is None
            and run.workflow not in self._switches
            and served_name(run.workflow, run.version) in workflows
            and (queues is None or run.queue in queues)
        ]

    # Reading a held run

    async def histories(self, keys: Sequence[int]) -> list[History]:
        with self._lock:
            return [
                History(
                    records=list(self._records.get(key, ())),
                    attempts=dict(self._attempts.get(key, {})),
                    signals=list(self._mailboxes.get(key, {}).values()),
                    links={
                        position: (self._runs[link.child].id, self._runs[link.child].digest)
                        for position in self._places.get(key, ())
                        if (link := self._links[key, position]).told is not rules.Told.LATE
                    },
                )
                for key in keys
            ]

    async def new_signals(self, worker: int, after: int) -> NewSignals:
        with self._lock:
            found = [
                (run.key, signal)
                for run in self._held_by(worker)
                for signal in self._mailboxes.get(run.key, {}).values()
                if signal.id > after
            ]
        found.sort(key=lambda pair: pair[1].id)
        return NewSignals(found, found[-1][1].id if found else after)

    async def requests(self, worker: int) -> list[Request]:
        with self._lock:
            asked = [
                Request(run.key, run.cancel is Cancel.ASKED, run.paused_at is not None) for run in self._held_by(worker)
            ]
        return [request for request in asked if request.cancel or request.pause]

    # The switch

    async def switch_off(self, workflow: str, by: str = "", reason: str = "", *, temporary: bool = False) -> bool:
        with self._lock:
            known = self._switches.get(workflow)
            if known is not None and (temporary or not known.is_temporary):
                return False
            since = self._clock() if known is None else known.since
            self._switches[workflow] = SwitchedOff(since, by, reason, temporary)
        self._announce()
        return True

    async def switch_on(self, workflow: str, *, only_temporary: bool = False) -> bool:
        with self._lock:
            known = self._switches.get(workflow)
            if known is None or (only_temporary and not known.is_temporary):
                return False
            del self._switches[workflow]
        self._announce()
        return True

    async def switched_off(self) -> Mapping[str, SwitchedOff]:
        with self._lock:
            return dict(self._switches)

    # Reading

    async def get(self, run_id: str) -> Run | None:
        with self._lock:
            return self._by_id(run_id)

    async def get_many(self, run_ids: Sequence[str]) -> list[Run]:
        with self._lock:
            return [run for run_id in dict.fromkeys(run_ids) if (run := self._by_id(run_id)) is not None]

    async def list_runs(self, where: RunFilter, *, limit: int = 50, before: int | None = None) -> list[Run]:
        return self._searched(where, limit, before, None).runs

    async def search_runs(
        self, where: RunFilter, *, limit: int = 50, before: int | None = None, most: int = 10_000
    ) -> Found:
        return self._searched(where, limit, before, most)

    def _searched(self, where: RunFilter, limit: int, before: int | None, most: int | None) -> Found:
        found: list[Run] = []
        with self._lock:
            below = [key for key in sorted(self._runs, reverse=True) if before is None or key < before]
            for looked_at, key in enumerate(below):
                if len(found) >= limit or looked_at == most:
                    last = self._runs[below[looked_at - 1]] if looked_at else None
                    return Found(found, before if last is None else last.key, None if last is None else last.created_at)
                if _matches(self._runs[key], where):
                    found.append(self._runs[key])
        return Found(found, None)

    async def usages(self, run_ids: Sequence[str]) -> Mapping[str, RunUsage]:
        with self._lock:
            runs = [run for run_id in run_ids if (run := self._by_id(run_id)) is not None]
            found = {run.id: self._accounts.of(run.key).told() for run in runs}
        return {run_id: usage for run_id, usage in found.items() if usage != RunUsage()}

    async def count_runs(self, most: int | None = None) -> Mapping[tuple[str, RunState], int]:
        with self._lock:
            counts = Counter((run.workflow, run.state) for run in self._runs.values())
        if most is None:
            return counts
        told = {place: min(count, most) if place[1].is_terminal else count for place, count in counts.items()}
        return {place: count for place, count in told.items() if count}

    async def count_unfinished(self, workflows: Collection[str] | None = None) -> Mapping[tuple[str, str], int]:
        with self._lock:
            runs = [self._runs[key] for key in self._unfinished]
        return Counter((run.workflow, run.version) for run in runs if workflows is None or run.workflow in workflows)

    async def last_record(self, run_id: str, name: str) -> Record | None:
        with self._lock:
            journal = self._records.get(self._keys.get(run_id, 0), [])
            return next((record for record in reversed(journal) if record.ok and record.name == name), None)

    async def feed(self, run_id: str, after_seq: int, after_notice: int, limit: int = 1000) -> Feed | None:
        with self._lock:
            run = self._by_id(run_id)
            if run is None:
                return None
            records = [record for record in self._records.get(run.key, ()) if record.seq > after_seq]
            told = [one for one in self._notices.get(run.key, {}).items() if one[0] > after_notice]
            return Feed(run, records[:limit], told[:limit])

    # Workflows

    async def publish(self, specs: Sequence[WorkflowSpec], worker: int | None = None) -> None:
        with self._lock:
            for spec in specs:
                name = served_name(spec.name, spec.version)
                known = self._specs.get(name)
                if known != spec:  # apart from `serves` and `announced_at`, which are not compared
                    announced_at = self._clock() if known is None else known.announced_at
                    self._specs[name] = replace(spec, serves=(), announced_at=announced_at)
            if worker is not None and worker in self._workers:
                known = self._workers[worker]
                workflows = rules.joined(known.workflows, names_served(specs))
                self._workers[worker] = replace(known, workflows=workflows)
        self._announce()

    async def specs(self) -> Mapping[str, WorkflowSpec]:
        with self._lock:
            return dict(self._specs)

    # Change

    async def changed(self, timeout: float, *, follows: bool = True) -> bool:
        """Wakes at any write, since nobody can tell which of the engines that share this object made it.

        Nor can it tell who waits, so a write since the same engine's last call is recognised only by its being recent:
        then the wait ends at the next tick, as it would on a store that polls.
        """
        recent = time.monotonic() - self._written_at < _RECENT
        waiter = (asyncio.get_running_loop(), asyncio.Event())
        self._waiting.add(waiter)
        try:
            # Not `wait_for`: on Python 3.11 it swallows a cancellation that comes together with the event.
            async with asyncio.timeout(min(timeout, TICK) if recent else timeout):
                await waiter[1].wait()
        except TimeoutError:
            return recent and timeout >= TICK
        finally:
            self._waiting.discard(waiter)
        return True

    def _announce(self) -> None:
        self._written_at = time.monotonic()
        for loop, event in tuple(self._waiting):
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)


def _matches(run: Run, where: RunFilter) -> bool:
    return (
        (not where.states or run.state in where.states)
        and (where.workflow is None or run.workflow == where.workflow)
        and (where.tag is None or where.tag in run.tags)
        and (where.id_prefix is None or run.id.startswith(where.id_prefix))
        and (where.created_after is None or run.created_at >= where.created_after)
        and (where.created_before is None or run.created_at < where.created_before)
        and (where.parent is None or (where.parent != "" and run.parent == where.parent))
        and (where.owner is None or run.owner == where.owner)
        and (where.text is None or rules.mentions(run, where.text))
    )
