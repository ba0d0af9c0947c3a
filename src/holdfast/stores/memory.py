# ruff: noqa: D102 - what the methods of a store are for is said once, in the contract
"""The store in memory, for tests and trials: the whole contract, and nothing on disk.

Several engines may share one object as if they were processes on one database. There is no kernel to tell that such a
"process" is gone, so a worker dies when its lease passes, or when a test calls ``kill_worker``.
"""

from __future__ import annotations

import asyncio
import bisect
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from holdfast.core.records import Attempt, Kind, Record, Signal
from holdfast.core.states import TERMINAL, UNFINISHED, RunState
from holdfast.stores import rules
from holdfast.stores.contract import (
    Answer,
    AppendRecord,
    FinishRun,
    History,
    NewRun,
    NewWorker,
    NoteAttempt,
    Op,
    ParkRun,
    Reaped,
    ReleaseRun,
    ReopenRun,
    Run,
    RunFilter,
    SendSignal,
    Started,
    StartRun,
    Store,
    Verdict,
    Worker,
    WorkflowSpec,
)

TICK = 0.02
_RECENT = 1.0


class MemoryStore(Store):
    """Journals in dictionaries, gone with the process."""

    url = "memory://"

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._runs: dict[int, Run] = {}
        self._keys: dict[str, int] = {}
        self._unfinished: dict[int, None] = {}
        self._generated: set[int] = set()
        """Runs with a made-up id."""
        self._unclaimed: set[int] = set()
        """Those of them whose result nobody has had."""
        self._records: dict[int, list[Record]] = {}
        self._attempts: dict[int, dict[int, Attempt]] = {}
        self._mailboxes: dict[int, dict[int, Signal]] = {}
        self._signal_keys: set[tuple[int, str]] = set()
        self._last_signal = 0
        self._workers: dict[int, Worker] = {}
        self._killed: set[int] = set()
        self._specs: dict[str, WorkflowSpec] = {}
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

    def _carry_out(self, op: Op) -> Answer:
        match op:
            case AppendRecord():
                return self._append(op)
            case NoteAttempt():
                return self._note_attempt(op)
            case FinishRun():
                return self._finish(op)
            case ParkRun():
                return self._park(op)
            case ReleaseRun():
                return self._release(op)
            case SendSignal():
                return self._send(op)
            case StartRun():
                return self._start(op)
            case ReopenRun():
                return self._reopen(op)

    def _held(self, key: int, epoch: int) -> Run | None:
        run = self._runs.get(key)
        return run if run is not None and rules.holds(run.state, run.epoch, epoch) else None

    def _put(self, run: Run) -> None:
        self._runs[run.key] = run
        if run.state in UNFINISHED:
            self._unfinished[run.key] = None
        else:
            self._unfinished.pop(run.key, None)
            # Whoever started it is there to take its result when it ends, unless it was taken down before.
            starter = None if run.starter is None else self._workers.get(run.starter)
            if starter is None or starter.state != "dead":
                self._unclaimed.discard(run.key)

    def _append(self, op: AppendRecord) -> Verdict:
        held = self._held(op.key, op.record.epoch)
        journal = self._records.get(op.key, [])
        if journal and journal[-1].seq >= op.record.seq:  # not new, else it would be the last
            present = next((record for record in journal if record.seq == op.record.seq), None)
            if present is not None:
                if held is not None and op.clear_attempt:  # the note of it was repeated as well
                    self._attempts.get(op.key, {}).pop(op.record.position, None)
                return Verdict.DONE if present.epoch == op.record.epoch else Verdict.FENCED
        if held is None:
            return Verdict.FENCED
        bisect.insort(self._records.setdefault(op.key, []), op.record, key=lambda record: record.seq)
        if op.consume is not None:
            self._mailboxes.get(op.key, {}).pop(op.consume, None)
        if op.clear_attempt:
            self._attempts.get(op.key, {}).pop(op.record.position, None)
        if op.reset_deliveries:
            self._put(replace(held, deliveries=0))
        return Verdict.DONE

    def _note_attempt(self, op: NoteAttempt) -> Verdict:
        if self._held(op.key, op.epoch) is None:
            return Verdict.FENCED
        self._attempts.setdefault(op.key, {})[op.attempt.position] = op.attempt
        return Verdict.DONE

    def _finish(self, op: FinishRun) -> Verdict:
        run = self._runs.get(op.key)
        if run is None:
            return Verdict.FENCED
        if not rules.holds(run.state, run.epoch, op.epoch):
            return Verdict.DONE if rules.is_finish_repeat(run.state, run.epoch, op) else Verdict.FENCED
        ended = replace(run, state=op.state, output=op.output, error=op.error, finished_at=op.at, owner=None)
        self._put(ended)
        return Verdict.DONE

    def _park(self, op: ParkRun) -> Verdict:
        run = self._runs.get(op.key)
        if run is None:
            return Verdict.FENCED
        if not rules.holds(run.state, run.epoch, op.epoch):
            return Verdict.DONE if rules.is_park_repeat(run.state, run.epoch, op.epoch) else Verdict.FENCED
        journal = self._records.get(op.key)
        if op.next_seq is not None and journal and journal[-1].seq >= op.next_seq:
            return Verdict.FENCED
        if any(signal.name in op.signals for signal in self._mailboxes.get(op.key, {}).values()):
            return Verdict.REFUSED
        self._put(replace(run, state=RunState.WAITING, owner=None, wake_at=op.wake_at, waits_for=op.waits_for))
        return Verdict.DONE

    def _release(self, op: ReleaseRun) -> Verdict:
        run = self._held(op.key, op.epoch)
        if run is None:
            return Verdict.FENCED
        self._put(replace(run, state=RunState.PENDING, owner=None, wake_at=self._clock()))
        return Verdict.DONE

    def _send(self, op: SendSignal) -> Verdict:
        run = self._by_id(op.run_id)
        if run is None:
            return Verdict.UNKNOWN_RUN
        if op.dedup is not None and (run.key, op.dedup) in self._signal_keys:
            return Verdict.DUPLICATE
        if run.state in TERMINAL:
            return Verdict.ENDED
        if op.dedup is not None:
            self._signal_keys.add((run.key, op.dedup))
        self._last_signal += 1
        signal = Signal(self._last_signal, op.name, op.payload, op.at)
        self._mailboxes.setdefault(run.key, {})[signal.id] = signal
        if run.state is RunState.WAITING:
            self._put(replace(run, wake_at=self._clock()))
        return Verdict.DONE

    def _reopen(self, op: ReopenRun) -> Verdict:
        run = self._by_id(op.run_id)
        if run is None:
            return Verdict.UNKNOWN_RUN
        if run.state not in rules.REOPENABLE:
            return Verdict.ENDED
        journal = self._records.get(run.key, [])
        if journal and journal[-1].kind is Kind.STEP and not journal[-1].ok:
            if rules.is_outcome_unknown(journal[-1].payload) and not op.run_again:
                return Verdict.REFUSED
            self._records[run.key] = journal[:-1]
        elif journal and journal[-1].kind is Kind.DEADLINE:
            self._records[run.key] = journal[:-1]
        if run.key in self._generated:
            self._unclaimed.add(run.key)
        now = self._clock()
        deadline = run.deadline if run.deadline is not None and run.deadline > now else None
        self._put(
            replace(
                run, state=RunState.PENDING, owner=None, deliveries=0, output=None, error=None, finished_at=None,
                wake_at=now, deadline=deadline,
            )
        )  # fmt: skip
        return Verdict.DONE

    def _start(self, op: StartRun) -> Started:
        new = op.run
        present = self._by_id(new.id)
        if present is not None:
            return Started(present, created=present.seed == new.seed)
        if op.join_orphan and (orphan := self._orphan(new)) is not None:
            joined = replace(orphan, starter=new.starter)
            self._put(joined)
            return Started(joined, created=False)
        owner = op.claim_as if op.claim_as is not None and self._is_live(op.claim_as) else None
        run = Run(
            key=len(self._runs) + 1, id=new.id, workflow=new.workflow, queue=new.queue,
            state=RunState.PENDING if owner is None else RunState.RUNNING, epoch=0 if owner is None else 1,
            owner=owner, starter=new.starter, deliveries=0, max_deliveries=new.max_deliveries,
            wake_at=rules.first_wake(new, self._clock()) if owner is None else None, waits_for="",
            priority=new.priority, deadline=new.deadline, inputs=new.inputs, digest=new.digest, seed=new.seed,
            output=None, error=None, tags=new.tags, python=new.python, created_at=new.created_at, finished_at=None,
        )  # fmt: skip
        self._keys[run.id] = run.key
        if new.generated_id:
            self._generated.add(run.key)
            self._unclaimed.add(run.key)
        self._put(run)
        return Started(run, created=True)

    def _orphan(self, new: NewRun) -> Run | None:
        for key in sorted(self._unclaimed):
            run = self._runs[key]
            if (run.workflow, run.digest) != (new.workflow, new.digest):
                continue
            if run.starter is not None and not self._is_live(run.starter):
                return run
        return None

    # Workers

    async def register_worker(self, worker: NewWorker, lease: float) -> int:
        with self._lock:
            number, now = len(self._workers) + 1, self._clock()
            self._workers[number] = Worker(
                number, worker.name, worker.host, worker.pid, "live", worker.workflows, worker.queues, now, now + lease
            )
        self._announce()
        return number

    def renew_lease(self, worker: int, lease: float) -> bool:
        with self._lock:
            if not self._is_live(worker):
                return False
            self._workers[worker] = replace(self._workers[worker], lease_until=self._clock() + lease)
            return True

    async def retire_worker(self, worker: int) -> None:
        with self._lock:
            if self._is_live(worker):
                self._workers[worker] = replace(self._workers[worker], state="retired")
                for run in self._held_by(worker):
                    self._put(replace(run, state=RunState.PENDING, owner=None, wake_at=self._clock()))
        self._announce()

    def kill_worker(self, worker: int) -> None:
        """For tests: the worker's "process" is gone, as the next ``reap`` will find."""
        with self._lock:
            if self._is_live(worker):
                self._killed.add(worker)
        self._announce()

    async def reap(self, me: int | None = None) -> Reaped:
        with self._lock:
            now = self._clock()
            gone = [
                worker
                for worker in self._workers.values()
                if worker.state == "live"
                and worker.id != me
                and (worker.id in self._killed or worker.lease_until < now)
            ]
            released = 0
            dead: list[str] = []
            for worker in gone:
                self._workers[worker.id] = replace(worker, state="dead")
                for run in self._held_by(worker.id):
                    freed = self._after_death(run, worker, now)
                    self._put(freed)
                    if freed.state is RunState.DEAD:
                        dead.append(freed.id)
                    else:
                        released += 1
        if gone:
            self._announce()
        return Reaped(tuple(worker.id for worker in gone), released, tuple(dead))

    def _after_death(self, run: Run, worker: Worker, now: float) -> Run:
        count = run.deliveries + 1
        if count < run.max_deliveries:
            return replace(run, state=RunState.PENDING, owner=None, deliveries=count, wake_at=now)
        error = rules.death_error(run.id, count, rules.describe_worker(worker.name, worker.host, worker.pid))
        return replace(run, state=RunState.DEAD, owner=None, deliveries=count, error=error, finished_at=now)

    def _held_by(self, worker: int) -> list[Run]:
        runs = (self._runs[key] for key in sorted(self._unfinished))
        return [run for run in runs if run.owner == worker and run.state is RunState.RUNNING]

    def _is_live(self, worker: int) -> bool:
        known = self._workers.get(worker)
        return known is not None and known.state == "live"

    async def workers(self, also: Collection[int] = ()) -> list[Worker]:
        with self._lock:
            unfinished = [self._runs[key] for key in self._unfinished]
            referred = {run.owner for run in unfinished} | {run.starter for run in unfinished} | {*also}
            return [worker for worker in self._workers.values() if worker.state == "live" or worker.id in referred]

    # Claims

    async def claim(
        self, worker: int, *, workflows: Collection[str], queues: Collection[str] | None, limit: int
    ) -> list[Run]:
        with self._lock:
            if limit <= 0 or not self._is_live(worker):
                return []
            now = self._clock()
            due = [run for run in self._sleeping(workflows, queues) if run.wake_at is not None and run.wake_at <= now]
            due.sort(key=lambda run: (-run.priority, run.key))
            claimed = [
                replace(run, state=RunState.RUNNING, epoch=run.epoch + 1, owner=worker, wake_at=None, waits_for="")
                for run in due[:limit]
            ]
            for run in claimed:
                self._put(run)
        if claimed:
            self._announce()
        return claimed

    async def next_wake(self, *, workflows: Collection[str], queues: Collection[str] | None) -> float | None:
        with self._lock:
            times = (run.wake_at for run in self._sleeping(workflows, queues))
            return min((time for time in times if time is not None), default=None)

    def _sleeping(self, workflows: Collection[str], queues: Collection[str] | None) -> list[Run]:
        runs = (self._runs[key] for key in self._unfinished)
        return [
            run
            for run in runs
            if run.state is not RunState.RUNNING
            and run.workflow in workflows
            and (queues is None or run.queue in queues)
        ]

    # Reading

    async def histories(self, keys: Sequence[int]) -> list[History]:
        with self._lock:
            return [
                History(
                    records=list(self._records.get(key, ())),
                    attempts=dict(self._attempts.get(key, {})),
                    signals=list(self._mailboxes.get(key, {}).values()),
                )
                for key in keys
            ]

    async def new_signals(self, worker: int, after: int) -> list[tuple[int, Signal]]:
        with self._lock:
            found = [
                (run.key, signal)
                for run in self._held_by(worker)
                for signal in self._mailboxes.get(run.key, {}).values()
                if signal.id > after
            ]
        return sorted(found, key=lambda pair: pair[1].id)

    def _by_id(self, run_id: str) -> Run | None:
        key = self._keys.get(run_id)
        return None if key is None else self._runs[key]

    async def get(self, run_id: str) -> Run | None:
        with self._lock:
            return self._by_id(run_id)

    async def get_many(self, run_ids: Sequence[str]) -> list[Run]:
        with self._lock:
            return [run for run_id in dict.fromkeys(run_ids) if (run := self._by_id(run_id)) is not None]

    async def list_runs(self, where: RunFilter, *, limit: int = 50, before: int | None = None) -> list[Run]:
        found: list[Run] = []
        with self._lock:
            for key in sorted(self._runs, reverse=True):
                if len(found) >= limit:
                    break
                if (before is None or key < before) and _matches(self._runs[key], where):
                    found.append(self._runs[key])
        return found

    async def count_runs(self) -> Mapping[tuple[str, RunState], int]:
        counts: dict[tuple[str, RunState], int] = {}
        with self._lock:
            for run in self._runs.values():
                counts[run.workflow, run.state] = counts.get((run.workflow, run.state), 0) + 1
        return counts

    # Workflows

    async def publish(self, specs: Sequence[WorkflowSpec], worker: int | None = None) -> None:
        with self._lock:
            self._specs.update((spec.name, spec) for spec in specs)
            if worker is not None and worker in self._workers:
                known = self._workers[worker]
                workflows = rules.joined(known.workflows, [spec.name for spec in specs])
                self._workers[worker] = replace(known, workflows=workflows)
        self._announce()

    async def specs(self) -> Mapping[str, WorkflowSpec]:
        with self._lock:
            return dict(self._specs)

    # Change

    async def changed(self, timeout: float) -> bool:
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
    )
