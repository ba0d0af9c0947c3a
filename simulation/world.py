"""The world of one seed: virtual time, the order of actions, faults, and the check that everything ends well.

At any moment, there are processes with ready callbacks and events that are due (a request reaches the database, an
answer reaches its process, a heartbeat, a fault). The seed chooses among them. When nothing is ready, time jumps to the
next timer or event. So a seed determines the whole interleaving, down to the callback.

The database is in memory. It may have a SQL store next to it, which gets the same requests and must give the same
answers: see ``comparing_store``.

A world has two phases. In the first, faults happen. Then every process is resumed or replaced, and every run must end
within a bounded time, with the result that its program must have.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from holdfast.admission.queue_limits import QueueLimits
from holdfast.core.execution import get_current_execution
from holdfast.core.states import RunState
from holdfast.stores.memory import MemoryStore
from holdfast.stores.operations import ForkRun, Op, ReopenRun, Run
from holdfast.stores.queues import NewQueue
from simulation import faults, network, user_actions, workloads
from simulation.comparing_store import ComparingStore
from simulation.expectations import estimate_max_duration_s
from simulation.final_checks import check_end, check_replay
from simulation.invariants import InvariantChecker, RunModel
from simulation.plan import Plan, PlannedRun, draw_plan, draw_signals
from simulation.process import DEFINITIONS, Process
from simulation.process_loop import START_TIMESTAMP
from simulation.process_store import StoreRequest, run_sync
from simulation.seed_failures import InvariantBroken, observe_world
from simulation.sql_stores import StoreFactory

MAX_RECOVERY_S = 60.0
"""A run that has not ended this long after the fault phase, in addition to its own duration, counts as lost."""

MAX_BURST = 6
"""Maximum number of callbacks that a process runs before the seed chooses again."""


class World(workloads.StepObserver):
    """A database, the processes on it, and time."""

    def __init__(
        self, plan: Plan, log_line: Callable[[str], None] | None = None, store_factory: StoreFactory | None = None
    ) -> None:
        self.plan = plan
        self.time = 0.0
        self.rng = random.Random(f"world {plan.seed}")
        self.oddity_rng = random.Random(f"oddities {plan.seed}")
        """Drawn apart, so that seeds without unknown outcomes are what they were."""
        self.counts: Counter[str] = Counter()
        self.failure: InvariantBroken | None = None
        self._store_name = "" if store_factory is None else store_factory.name
        self._is_closed = False
        self._log_line = log_line
        self._comparing_store = None if store_factory is None else ComparingStore(self, self._now, store_factory)
        self.database = self._comparing_store or MemoryStore(clock=self._now)
        if plan.max_running is not None:
            run_sync(self.database.queues.declare([NewQueue("default", QueueLimits(plan.max_running))]))
        self.checker = InvariantChecker(self, self.database)
        self.processes: list[Process] = []
        self.is_fault_phase = True
        self.code_version = 0
        """The deployed version of the code. There are two, which ask different questions and alternate."""
        self.unreachable_until = 0.0
        self.partitioned_until: dict[Process, float] = {}
        self.ended_runs: dict[str, Run] = {}
        self.endings: dict[str, list[Run]] = {}
        """Every end that a run has come to; more than one only if a person reopened it."""
        self.fork_ancestors: dict[str, set[str]] = {}
        """The ids of the runs that a fork shares its beginning with."""
        self.forced_fork_ids: set[str] = set()
        """Forks with an outcome that a user gave by hand."""
        self.fork_ids: list[str] = []
        self.fork_points: dict[str, tuple[str, int]] = {}
        """Where a fork begins to go its own way: its origin, and the number of the first record of its own."""
        self._random_draws: dict[tuple[str, int, int], str] = {}
        self.signals: dict[str, list[tuple[float, int, str, str]]] = {run.id: run.signals for run in plan.runs}
        """Which signals each run gets: when, from where, which name, under which key."""
        self._try_counts: Counter[tuple[str, str]] = Counter()
        self._accepted_signal_keys: set[str] = set()
        self._processes_by_worker: dict[int, Process] = {}
        self._events: list[tuple[float, float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._event_count = 0
        self.callback_count = 0
        self._fault_point_counts: Counter[str] = Counter()
        self._action_point_counts: Counter[str] = Counter()
        self._pending_faults: list[tuple[str, Process]] = []
        self._retry_counts: Counter[str] = Counter()

    # Logging

    def log(self, source: Any, *words: Any) -> None:
        """A line of the seed's story."""
        if self._log_line is not None:
            self._log_line(f"{self.time:9.4f}  {source!s:>5}  {' '.join(str(word) for word in words)}")

    def log_write(self, process: Process | str, operation: str, subject: Any, answer: Any) -> None:
        """A write, as a line of the story."""
        if self._log_line is not None:
            self.log(
                process, operation, faults.describe_operation(subject), "->", getattr(answer, "value", answer and "")
            )

    def fail(self, invariant: str, details: str) -> None:
        """Something that must never happen has happened."""
        if self.failure is None and not self._is_closed:
            self.failure = InvariantBroken(self.plan.seed, invariant, details, self.time, self._store_name)
            self.log("!", invariant, "--", details)

    # Called by processes and the database

    def single_commit(self, ops: Sequence[Op]) -> AbstractContextManager[None]:
        """These operations are carried out at one moment, in one commit."""
        return nullcontext() if self._comparing_store is None else self._comparing_store.single_commit(ops)

    def on_worker_registered(self, process: Process, worker: int) -> None:
        """A worker has registered."""
        process.worker_ids.add(worker)
        self._processes_by_worker[worker] = process
        self.log(process, "is worker", worker)

    def get_process(self, worker: int) -> Process:
        """The process that registered under this number."""
        return self._processes_by_worker[worker]

    def on_write(self, writer: Process | None) -> None:
        """Something was written: the other processes notice after a while."""
        for process in self.processes:
            if process is not writer and not process.is_dead:
                process.store.foreign_write_count += 1
                self.schedule(self.time + network.draw_latency(self), process.store.notify_write)

    def on_run_ended(self, row: Run) -> None:
        """A run has reached its end in the database."""
        self.ended_runs[row.id] = row
        self.endings.setdefault(row.id, []).append(row)
        self.log("db", row.id, "is", row.state.value)
        if row.state is not RunState.COMPLETED and self._retry_counts[row.id] < self.plan.max_retries:
            self._retry_counts[row.id] += 1
            self.schedule(self.time + self.rng.choice([0.0, 0.1, 0.5]), self._retry_run, row.id)
        self.reach_action_point("ended", None, row.id)

    def on_run_created(self, row: Run) -> None:
        """A run was created. If it was not planned, it gets its signals now."""
        if row.id not in self.signals:
            program = self.checker.runs_by_id[row.id].program
            self.signals[row.id] = signals = draw_signals(
                self.rng,
                row.id,
                program,
                self.time,
                self.plan.fault_phase_s - self.time if self.is_fault_phase else 1.0,
            )
            for when, who, name, key in signals:
                self.schedule(when, self.send_signal, row.id, who, name, key)
        self.counts["children"] += bool(row.parent)
        self.reach_action_point("started", None, row.id)

    def on_run_forked(self, row: Run, op: ForkRun) -> None:
        """A fork was created."""
        self.fork_ancestors[row.id] = {op.source_run} | self.fork_ancestors.get(op.source_run, set())
        if op.record is not None or op.source_run in self.forced_fork_ids:
            self.forced_fork_ids.add(row.id)
        self.fork_points[row.id] = (op.source_run, op.before_seq)
        self.counts["forks"] += 1
        self.on_run_created(row)

    def on_run_reopened(self, run_id: str) -> None:
        """A person has reopened a run."""
        self.ended_runs.pop(run_id, None)
        self.counts["retries"] += 1

    def has_deadline(self, row: Run) -> bool:
        """Whether the run, or one that it was forked from, was started with a timeout."""
        ids = {row.id} | self.fork_ancestors.get(row.id, set())
        return any(run.options["timeout"] is not None for run in self.plan.runs if run.id in ids)

    def check_reopened(self, model: RunModel, ended: Run, children: list[int]) -> None:
        """A run was reopened, with some children: the rest of its journal must replay without reaching an end."""
        if children or self.rng.random() < 0.5:
            check_replay(self, model.row, model.journal, ended, children)

    def reach_fault_point(self, point: str, process: Process | None, run_id: str | None = None) -> None:
        """Something happened after which it may hurt to fail: a fault may have waited for it."""
        if run_id is not None:
            self.reach_action_point(point, process, run_id)
        self._fault_point_counts[point] += 1
        kind = self.plan.triggered_faults.get((point, self._fault_point_counts[point]))
        if kind is not None and process is not None and self.is_fault_phase:
            self._pending_faults.append((kind, process))

    def reach_action_point(self, point: str, _: Process | None, run_id: str) -> None:
        """Something happened to a run: a planned user action may have waited for it."""
        self._action_point_counts[point] += 1
        action = self.plan.triggered_actions.get((point, self._action_point_counts[point]))
        if action is not None:
            self.schedule(
                self.time + self.rng.choice([0.0, 0.0, 0.001, 0.05]), user_actions.perform_action, self, action, run_id
            )

    def on_end_reported(self, process: Process, row: Run) -> None:
        """A caller that waited for a run's end has learned of it."""
        known = [(end.state, end.output, end.error) for end in self.endings.get(row.id, ())]
        if (row.state, row.output, row.error) not in known:
            self.fail("who waits for a run is told how it ended", f"{process} was told that {row.id} is {row.state}")

    def on_signal_accepted(self, run_id: str, key: str) -> None:
        """A sender has learned that its signal is stored."""
        if key not in self.checker.runs_by_id[run_id].payloads_by_dedup_key:
            self.fail("a signal that was accepted is there", f"{key} to {run_id}")
        self._accepted_signal_keys.add(key)

    def on_process_ended(self, process: Process) -> None:
        """A process has ended, and another one takes its place."""
        self.schedule(self.time + self.rng.choice([0.01, 0.3, 1.0]), self.add_process)

    # Called by steps (see `workloads.StepObserver`)

    def on_attempt_started(self, run_id: str, label: str, key: str, attempt: int, progress: Any) -> None:
        """An attempt has started. What it inherits must come from earlier attempts of the same call."""
        if self.checker.idempotency_keys.setdefault((run_id, label), key) != key:
            self.fail("an idempotency key is stable", f"{run_id} {label}")
        if self.checker.key_owners.setdefault(key, run_id) != run_id:
            self.fail("no two runs have the same idempotency key", f"{run_id} and {self.checker.key_owners[key]}")
        if progress is not None and progress not in self.checker.heartbeats.get(key, []):
            self.fail("progress is what an earlier attempt of the same call handed in", f"{run_id} {label}: {progress}")
        earlier = self.checker.attempt_counts[key]
        if attempt > earlier + 1:
            told = f"{run_id} {label} begins attempt {attempt} after {earlier} of its own"
            self.fail("an attempt counts only those of the same call", told)
        self.checker.attempt_counts[key] += 1

    def on_heartbeat(self, key: str, progress: Any) -> None:
        """An attempt of the step with this idempotency key has handed in progress."""
        self.counts["heartbeats"] += 1
        self.checker.heartbeats.setdefault(key, []).append(progress)

    def on_random_draw(self, run_id: str, value: str) -> None:
        """Workflow code drew a random value: it must be the same in every replay and, for shared records, in forks."""
        execution = get_current_execution()
        assert execution is not None
        if execution.loop.is_closing:
            return  # a `finally` block of a run that leaves memory: its draws have no effect
        place = (execution._issued_count, execution._draw_count)
        source, cut = self.fork_points.get(run_id, ("", 0))
        if (
            self._random_draws.setdefault((run_id, *place), value) != value
            and run_id not in self.checker.rewound_run_ids
        ):
            self.fail("P5 what is drawn at random is the same on replay", f"{run_id} after {place}")
        if (
            execution._last_seq < cut
            and source not in self.checker.rewound_run_ids
            and self._random_draws.get((source, *place), value) != value
        ):
            self.fail("a fork draws what its origin drew, in what they share", f"{run_id} after {place}")

    def count_try(self, run_id: str, label: str) -> int:
        """How often something was tried in the whole run, including this time."""
        self._try_counts[run_id, label] += 1
        return self._try_counts[run_id, label]

    def kill_process(self) -> None:
        """A step kills the process that executes it."""
        [process] = [one for one in self.processes if one.loop is asyncio.get_running_loop()]
        self.counts["kills by a step"] += 1
        faults.crash_process(self, process)

    # Time and events

    def _now(self) -> float:
        """The database's clock."""
        return START_TIMESTAMP + self.time

    def schedule(self, due: float, call: Callable[..., None], *args: Any) -> None:
        """Schedule an event. The seed decides the order of events that are due at the same time."""
        self._event_count += 1
        heapq.heappush(self._events, (due, self.rng.random(), self._event_count, call, args))

    def send(self, request: StoreRequest) -> None:
        """A request sets out for the database."""
        network.send(self, request)

    def is_reachable(self, process: Process) -> bool:
        """Whether this process reaches the database now."""
        return self.time >= self.unreachable_until and not self.is_partitioned(process)

    def is_partitioned(self, process: Process) -> bool:
        """Whether this process alone does not reach the database."""
        return self.time < self.partitioned_until.get(process, 0.0)

    # Life

    def add_process(self) -> None:
        """Another worker starts."""
        if sum(not process.is_dead for process in self.processes) >= self.plan.worker_count:
            return
        number = len(self.processes) + 1
        process = Process(self, number, random.Random(f"process {self.plan.seed} {number}"))
        process.clock.skew_s = self.plan.skews_s[number % len(self.plan.skews_s)]
        self.processes.append(process)
        self.counts["processes"] += 1
        process.start()

    def list_open_processes(self) -> list[Process]:
        """The processes that are open."""
        return [one for one in self.processes if one.is_open and not one.is_closing and not one.is_dead]

    def run(self) -> None:
        """From the first worker to the last end; raises ``Broken``."""
        for _ in range(self.plan.worker_count):
            self.add_process()
        for run in self.plan.runs:
            for when, who in run.starts:
                self.schedule(when, self._start_run, run, who)
            for when, who, name, key in run.signals:
                self.schedule(when, self.send_signal, run.id, who, name, key)
        for when, kind in self.plan.faults:
            self.schedule(when, faults.inject_fault, self, kind)
        for when, action in self.plan.scheduled_actions:
            self.schedule(when, user_actions.perform_action, self, action)
        self._run_until(self.plan.fault_phase_s, self._should_end_early)
        self._end_fault_phase()
        work = sum(estimate_max_duration_s(run.program) for run in self.plan.runs) * (1 + len(self.fork_ids))
        limit = self.time + MAX_RECOVERY_S + 3 * self.plan.lease_s + work
        self._run_until(limit, self._is_finished)
        while self._is_finished() and not self._is_quiet() and self.failure is None and self.time < limit:
            self._run_until(self.time + 1.0, self._is_quiet)
            self._run_until(limit, self._is_finished)  # a user may have reopened one meanwhile
        if self.failure is None:
            check_end(self)
        if self._comparing_store is not None:
            self._comparing_store.compare_all()
        if self.failure is not None:
            raise self.failure

    def _start_run(self, run: PlannedRun, process_index: int) -> None:
        if candidates := self.list_open_processes():
            process = candidates[process_index % len(candidates)]
            inputs = DEFINITIONS["simulated"].inputs_codec.encode((run.program,), {})
            self.log(process, "starts", run.id)
            process.spawn(process.start_run, run.id, inputs, run.options)
        elif not self.is_fault_phase:
            self.schedule(self.time + 0.2, self._start_run, run, process_index)

    def send_signal(self, run_id: str, process_index: int, name: str, key: str) -> None:
        """A user sends a signal."""
        if candidates := self.list_open_processes():
            process = candidates[process_index % len(candidates)]
            self.log(process, "sends", key)
            process.spawn(process.send_signal, run_id, name, f'"{key}"'.encode(), key)

    def _retry_run(self, run_id: str) -> None:
        if self.is_fault_phase:
            again = ReopenRun(run_id, self.database.now(), self.rng.random() < 0.2)
            user_actions.submit_change(self, user_actions.choose_settlement(self, run_id) or again)

    def _should_end_early(self) -> bool:
        """Whether all runs have ended and no user is about to reopen one: faults would only hit idle workers."""
        return self._are_runs_ended() and not self._pending_faults and self.rng.random() < 0.05

    def _are_runs_ended(self) -> bool:
        known = self.checker.runs_by_id
        return len(self.ended_runs) == len(known) and all(run.id in known for run in self.plan.runs)

    def _end_fault_phase(self) -> None:
        """End the fault phase. Users repeat every request that was not acknowledged."""
        self.is_fault_phase = False
        self.unreachable_until = 0.0
        self.partitioned_until.clear()
        for process in self.processes:
            faults.resume_process(process)
        for _ in range(self.plan.worker_count):
            self.schedule(self.time, self.add_process)
        self.schedule(self.time + 1.0, self._repeat_unfinished)

    def _repeat_unfinished(self) -> None:
        user_actions.resume_everything(self)
        for run in self.plan.runs:
            if run.id not in self.checker.runs_by_id:
                self._start_run(run, 0)
        for run_id, model in self.checker.runs_by_id.items():
            if run_id not in self.ended_runs:
                for _, who, name, key in self.signals[run_id]:
                    if key not in model.payloads_by_dedup_key:
                        self.send_signal(run_id, who, name, key)
        if not self._is_finished():
            self.schedule(self.time + 1.0, self._repeat_unfinished)

    def _is_finished(self) -> bool:
        """Whether every run has ended and every process has had the time to notice."""
        if not self._are_runs_ended():
            return False
        return not any(
            p.in_flight_count or p.engine is None or p.engine.held_runs.drivers for p in self.list_open_processes()
        )

    def _is_quiet(self) -> bool:
        """Whether no process holds a run or waits for an answer that would give it one."""
        return not any(p.in_flight_count or not p.engine.held_runs.is_idle for p in self.list_open_processes())

    def _run_until(self, limit: float, is_done: Callable[[], bool]) -> None:
        chance, events = self.rng, self._events
        draw = chance.random
        while self.failure is None:
            running = [one for one in self.processes if not (one.is_dead or one.is_loop_paused)]
            runnable = [one for one in running if one.loop.ready]
            due = bool(events) and events[0][0] <= self.time
            choices = len(runnable) + due
            if not choices:
                if is_done() or not self._advance_time(running, limit):
                    return
                continue
            chosen = int(draw() * choices) if choices > 1 else 0
            if chosen == len(runnable):
                _, _, _, call, args = heapq.heappop(events)
                call(*args)
                if self._pending_faults:
                    self._inject_pending_faults()
                continue
            process = runnable[chosen]
            loop = process.loop
            burst = 1 + int(draw() * MAX_BURST)
            while burst and loop.ready and not process.is_dead:
                loop.run_next()
                burst -= 1
                self.callback_count += 1
                if self._pending_faults:
                    self._inject_pending_faults()

    def _inject_pending_faults(self) -> None:
        waiting, self._pending_faults = self._pending_faults, []
        for kind, process in waiting:
            if not process.is_dead:
                self.counts["ambushes"] += 1
                faults.inject_fault(self, kind, process)

    def _advance_time(self, processes: list[Process], limit: float) -> bool:
        """Advance time to the next event. Returns false if that is beyond the limit."""
        then = self._events[0][0] if self._events else math.inf
        for process in processes:
            then = min(then, process.loop.get_next_due())
        if then > limit:
            self.time = max(self.time, limit)
            return False
        self.time = max(self.time, then)
        for process in processes:
            process.loop.queue_due_timers()
        return True

    def check_all_replays(self) -> None:
        """Check that every journal replays."""
        for model in list(self.checker.runs.values()):
            check_replay(self, model.row, model.journal)

    def close(self) -> None:
        """Unwind whatever is left, so that nothing of this seed is collected during another."""
        self._is_closed = True
        for process in self.processes:
            for execution in process.executions:
                execution.unload()
            process.executions.clear()
            process.loop.close_all_tasks()
        self._events.clear()
        if self._comparing_store is not None:
            self._comparing_store.dispose()


def run_seed(
    seed: int, log_line: Callable[[str], None] | None = None, store_factory: StoreFactory | None = None
) -> Counter[str]:
    """Run one seed and return its counts. Raises ``InvariantBroken``."""
    world = World(draw_plan(seed), log_line, store_factory)
    with observe_world(world):
        try:
            world.run()
        finally:
            world.close()
    counts = world.counts
    counts["seeds"] = 1
    counts["callbacks"] = world.callback_count
    counts["writes checked"] = world.checker.check_count
    counts["runs"] = len(world.checker.runs)
    counts["virtual seconds"] = round(world.time)
    for row in world.ended_runs.values():
        counts[f"runs {row.state.value}"] += 1
    counts["runs unfinished"] = sum(
        model.row.state in (RunState.PENDING, RunState.RUNNING, RunState.WAITING)
        for model in world.checker.runs.values()
    )
    return counts
