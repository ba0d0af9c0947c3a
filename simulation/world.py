"""One seed's world: virtual time, who acts next, what goes wrong, and whether everything ends well.

At any moment there are processes with callbacks ready and events that are due (a request reaches the database, an
answer reaches its process, a pulse beats, a fault strikes). The seed chooses among them. When nothing is ready, time
jumps to the next timer or event of anybody. So one seed is one interleaving, to the callback, and always the same one.

The database is in memory. It may have a *twin* on SQL, which is asked whatever the database is asked, and must answer
the same: see ``twin``.

A world has two parts: while there is *chaos* faults happen; then everybody is resumed or replaced, and every run must
end within a bounded time, with the result that its program must have.
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
from holdfast.core.execution import current_execution
from holdfast.core.states import RunState
from holdfast.stores.memory import MemoryStore
from holdfast.stores.operations import ForkRun, Op, ReopenRun, Run
from holdfast.stores.queues import NewQueue
from simulation import faults, network, user_actions, workloads
from simulation.comparing_store import Twin
from simulation.expectations import longest
from simulation.final_checks import check_end, check_replay
from simulation.invariants import Checker, RunModel
from simulation.plan import Plan, PlannedRun, draw_plan, draw_signals
from simulation.process import DEFINITIONS, Process
from simulation.process_loop import EPOCH
from simulation.process_store import Request, at_once
from simulation.seed_failures import Broken, listening
from simulation.sql_stores import Place

PATIENCE = 60.0
"""Virtual seconds after the chaos, beside what the programs themselves take, after which a run is taken to be lost."""

BURST = 6
"""A process runs up to so many callbacks before the seed chooses anew."""


class World(workloads.Watch):
    """A database, the processes on it, and time."""

    def __init__(self, plan: Plan, tell: Callable[[str], None] | None = None, place: Place | None = None) -> None:
        self.plan = plan
        self.time = 0.0
        self.chance = random.Random(f"world {plan.seed}")
        self.oddities = random.Random(f"oddities {plan.seed}")
        """Drawn apart, so that seeds without unknown outcomes are what they were."""
        self.counts: Counter[str] = Counter()
        self.failure: Broken | None = None
        self._store = "" if place is None else place.name
        self._is_over = False
        self._tell = tell
        self._twin = None if place is None else Twin(self, self._now, place)
        self.database = self._twin or MemoryStore(clock=self._now)
        if plan.places is not None:
            at_once(self.database.put_queues([NewQueue("default", QueueLimits(plan.places))]))
        self.checker = Checker(self, self.database)
        self.processes: list[Process] = []
        self.in_chaos = True
        self.code = 0
        """Which of two versions of the code is deployed: they ask different questions, and take turns."""
        self.unreachable_until = 0.0
        self.cut_until: dict[Process, float] = {}
        self.ended: dict[str, Run] = {}
        self.endings: dict[str, list[Run]] = {}
        """Every end that a run has come to; more than one only if a person reopened it."""
        self.lineage: dict[str, set[str]] = {}
        """The ids of the runs that a fork shares its beginning with."""
        self.forced: set[str] = set()
        """Forks with an outcome that somebody gave by hand."""
        self.forks: list[str] = []
        self.cuts: dict[str, tuple[str, int]] = {}
        """Where a fork begins to go its own way: its origin, and the number of the first record of its own."""
        self._drawn: dict[tuple[str, int, int], str] = {}
        self.signals: dict[str, list[tuple[float, int, str, str]]] = {run.id: run.signals for run in plan.runs}
        """Which signals each run gets: when, from where, which name, under which key."""
        self._tries: Counter[tuple[str, str]] = Counter()
        self._accepted: set[str] = set()
        self._owners: dict[int, Process] = {}
        self._events: list[tuple[float, float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._events_made = 0
        self.callbacks = 0
        self._moments: Counter[str] = Counter()
        self._occasions: Counter[str] = Counter()
        self._urgent: list[tuple[str, Process]] = []
        self._retried: Counter[str] = Counter()

    # Telling

    def tell(self, who: Any, *words: Any) -> None:
        """A line of the seed's story."""
        if self._tell is not None:
            self._tell(f"{self.time:9.4f}  {who!s:>5}  {' '.join(str(word) for word in words)}")

    def story(self, process: Process | str, what: str, subject: Any, answer: Any) -> None:
        """A write, as a line of the story."""
        if self._tell is not None:
            self.tell(process, what, faults.in_words(subject), "->", getattr(answer, "value", answer and ""))

    def fail(self, invariant: str, what: str) -> None:
        """Something that must never happen has happened."""
        if self.failure is None and not self._is_over:
            self.failure = Broken(self.plan.seed, invariant, what, self.time, self._store)
            self.tell("!", invariant, "--", what)

    # What processes and the database tell

    def together(self, ops: Sequence[Op]) -> AbstractContextManager[None]:
        """These operations are carried out at one moment, in one commit."""
        return nullcontext() if self._twin is None else self._twin.together(ops)

    def registered(self, process: Process, worker: int) -> None:
        """A worker has registered."""
        process.workers.add(worker)
        self._owners[worker] = process
        self.tell(process, "is worker", worker)

    def owner_of(self, worker: int) -> Process:
        """The process that registered under this number."""
        return self._owners[worker]

    def written(self, by: Process | None) -> None:
        """Something was written: the others notice after a while."""
        for process in self.processes:
            if process is not by and not process.is_gone:
                process.store.written_by_others += 1
                self.at(self.time + network.latency(self), process.store.somebody_wrote)

    def run_ended(self, row: Run) -> None:
        """A run has reached its end in the database."""
        self.ended[row.id] = row
        self.endings.setdefault(row.id, []).append(row)
        self.tell("db", row.id, "is", row.state.value)
        if row.state is not RunState.COMPLETED and self._retried[row.id] < self.plan.retries:
            self._retried[row.id] += 1
            self.at(self.time + self.chance.choice([0.0, 0.1, 0.5]), self._retry, row.id)
        self.occasion("ended", None, row.id)

    def run_created(self, row: Run) -> None:
        """A run is there for the first time; if nobody planned it, it gets its signals now."""
        if row.id not in self.signals:
            program = self.checker.by_id[row.id].program
            self.signals[row.id] = signals = draw_signals(
                self.chance, row.id, program, self.time, self.plan.chaos - self.time if self.in_chaos else 1.0
            )
            for when, who, name, key in signals:
                self.at(when, self.signal, row.id, who, name, key)
        self.counts["children"] += bool(row.parent)
        self.occasion("started", None, row.id)

    def run_forked(self, row: Run, op: ForkRun) -> None:
        """A run is there that shares the beginning of another."""
        self.lineage[row.id] = {op.source} | self.lineage.get(op.source, set())
        if op.record is not None or op.source in self.forced:
            self.forced.add(row.id)
        self.cuts[row.id] = (op.source, op.keep)
        self.counts["forks"] += 1
        self.run_created(row)

    def run_reopened(self, run_id: str) -> None:
        """A person has reopened a run."""
        self.ended.pop(run_id, None)
        self.counts["retries"] += 1

    def has_deadline(self, row: Run) -> bool:
        """Whether the run, or one that it was forked from, was started with a time-out."""
        ids = {row.id} | self.lineage.get(row.id, set())
        return any(run.options["timeout"] is not None for run in self.plan.runs if run.id in ids)

    def replay_reopened(self, model: RunModel, ended: Run, children: list[int]) -> None:
        """A run was reopened, with some children: what is left of its journal must replay, and come to no end."""
        if children or self.chance.random() < 0.5:
            check_replay(self, model.row, model.journal, ended, children)

    def moment(self, what: str, process: Process | None, run_id: str | None = None) -> None:
        """Something happened after which it may hurt to fail: a fault may have waited for it."""
        if run_id is not None:
            self.occasion(what, process, run_id)
        self._moments[what] += 1
        kind = self.plan.ambushes.get((what, self._moments[what]))
        if kind is not None and process is not None and self.in_chaos:
            self._urgent.append((kind, process))

    def occasion(self, what: str, _: Process | None, run_id: str) -> None:
        """Something happened to a run: somebody may have waited for it, to do something to that run."""
        self._occasions[what] += 1
        action = self.plan.occasions.get((what, self._occasions[what]))
        if action is not None:
            self.at(self.time + self.chance.choice([0.0, 0.0, 0.001, 0.05]), user_actions.act, self, action, run_id)

    def told_of_end(self, process: Process, row: Run) -> None:
        """Somebody who waited for a run's end has been told of it."""
        known = [(end.state, end.output, end.error) for end in self.endings.get(row.id, ())]
        if (row.state, row.output, row.error) not in known:
            self.fail("who waits for a run is told how it ended", f"{process} was told that {row.id} is {row.state}")

    def signal_accepted(self, run_id: str, key: str) -> None:
        """A sender has been told that its signal is there."""
        if key not in self.checker.by_id[run_id].dedup:
            self.fail("a signal that was accepted is there", f"{key} to {run_id}")
        self._accepted.add(key)

    def process_over(self, process: Process) -> None:
        """A process has ended, and another one takes its place."""
        self.at(self.time + self.chance.choice([0.01, 0.3, 1.0]), self.add_process)

    # What steps tell (see `workloads.Watch`)

    def begun(self, run_id: str, label: str, key: str, attempt: int, found: Any) -> None:
        """An attempt has begun. What it inherits must come from earlier attempts of the same call."""
        if self.checker.keys.setdefault((run_id, label), key) != key:
            self.fail("an idempotency key is stable", f"{run_id} {label}")
        if self.checker.key_owners.setdefault(key, run_id) != run_id:
            self.fail("no two runs have the same idempotency key", f"{run_id} and {self.checker.key_owners[key]}")
        if found is not None and found not in self.checker.beats.get(key, []):
            self.fail("progress is what an earlier attempt of the same call handed in", f"{run_id} {label}: {found}")
        earlier = self.checker.attempts_begun[key]
        if attempt > earlier + 1:
            told = f"{run_id} {label} begins attempt {attempt} after {earlier} of its own"
            self.fail("an attempt counts only those of the same call", told)
        self.checker.attempts_begun[key] += 1

    def beat(self, key: str, progress: Any) -> None:
        """An attempt of the step with this idempotency key has handed in progress."""
        self.counts["heartbeats"] += 1
        self.checker.beats.setdefault(key, []).append(progress)

    def drew(self, run_id: str, value: str) -> None:
        """Workflow code has drawn something at random: the same as ever, and as its origin, in what they share."""
        execution = current_execution()
        assert execution is not None
        if execution.loop.closing:
            return  # a `finally` block of a run that leaves memory: nobody sees what it draws
        place = (execution._issued, execution._draws)
        source, cut = self.cuts.get(run_id, ("", 0))
        if self._drawn.setdefault((run_id, *place), value) != value and run_id not in self.checker.rewound:
            self.fail("P5 what is drawn at random is the same on replay", f"{run_id} after {place}")
        if (
            execution._seen < cut
            and source not in self.checker.rewound
            and self._drawn.get((source, *place), value) != value
        ):
            self.fail("a fork draws what its origin drew, in what they share", f"{run_id} after {place}")

    def tries(self, run_id: str, label: str) -> int:
        """How often something was tried in the whole life of a run, with this time."""
        self._tries[run_id, label] += 1
        return self._tries[run_id, label]

    def kill(self) -> None:
        """A step kills the process that executes it."""
        [process] = [one for one in self.processes if one.loop is asyncio.get_running_loop()]
        self.counts["kills by a step"] += 1
        faults.crash(self, process)

    # Time and events

    def _now(self) -> float:
        """The database's clock."""
        return EPOCH + self.time

    def at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        """Let something happen in the world; what is due at one moment happens in an order drawn by the seed."""
        self._events_made += 1
        heapq.heappush(self._events, (when, self.chance.random(), self._events_made, call, args))

    def send(self, request: Request) -> None:
        """A request sets out for the database."""
        network.send(self, request)

    def reachable(self, process: Process) -> bool:
        """Whether this process reaches the database now."""
        return self.time >= self.unreachable_until and not self.is_cut_off(process)

    def is_cut_off(self, process: Process) -> bool:
        """Whether this process alone does not reach the database."""
        return self.time < self.cut_until.get(process, 0.0)

    # Life

    def add_process(self) -> None:
        """Another worker starts."""
        if sum(not process.is_gone for process in self.processes) >= self.plan.workers:
            return
        number = len(self.processes) + 1
        process = Process(self, number, random.Random(f"process {self.plan.seed} {number}"))
        process.clock.skew = self.plan.skews[number % len(self.plan.skews)]
        self.processes.append(process)
        self.counts["processes"] += 1
        process.boot()

    def open_processes(self) -> list[Process]:
        """Those that serve."""
        return [one for one in self.processes if one.is_open and not one.is_closing and not one.is_gone]

    def live(self) -> None:
        """From the first worker to the last end; raises ``Broken``."""
        for _ in range(self.plan.workers):
            self.add_process()
        for run in self.plan.runs:
            for when, who in run.starts:
                self.at(when, self._start, run, who)
            for when, who, name, key in run.signals:
                self.at(when, self.signal, run.id, who, name, key)
        for when, kind in self.plan.faults:
            self.at(when, faults.strike, self, kind)
        for when, action in self.plan.people:
            self.at(when, user_actions.act, self, action)
        self._go_until(self.plan.chaos, self._nothing_left)
        self._end_chaos()
        work = sum(longest(run.program) for run in self.plan.runs) * (1 + len(self.forks))
        limit = self.time + PATIENCE + 3 * self.plan.lease + work
        self._go_until(limit, self._all_ended)
        while self._all_ended() and not self._all_quiet() and self.failure is None and self.time < limit:
            self._go_until(self.time + 1.0, self._all_quiet)
            self._go_until(limit, self._all_ended)  # somebody may have reopened one meanwhile
        if self.failure is None:
            check_end(self)
        if self._twin is not None:
            self._twin.look()
        if self.failure is not None:
            raise self.failure

    def _start(self, run: PlannedRun, who: int) -> None:
        if candidates := self.open_processes():
            process = candidates[who % len(candidates)]
            inputs = DEFINITIONS["simulated"].inputs.encode((run.program,), {})
            self.tell(process, "starts", run.id)
            process.spawn(process.start_run, run.id, inputs, run.options)
        elif not self.in_chaos:
            self.at(self.time + 0.2, self._start, run, who)

    def signal(self, run_id: str, who: int, name: str, key: str) -> None:
        """Somebody sends a signal."""
        if candidates := self.open_processes():
            process = candidates[who % len(candidates)]
            self.tell(process, "sends", key)
            process.spawn(process.send_signal, run_id, name, f'"{key}"'.encode(), key)

    def _retry(self, run_id: str) -> None:
        if self.in_chaos:
            again = ReopenRun(run_id, self.database.now(), self.chance.random() < 0.2)
            user_actions.ask(self, user_actions.settlement(self, run_id) or again)

    def _nothing_left(self) -> bool:
        """All runs have ended, and nobody is about to reopen one: more faults would meet nothing but idle workers."""
        return self._has_ended() and not self._urgent and self.chance.random() < 0.05

    def _has_ended(self) -> bool:
        known = self.checker.by_id
        return len(self.ended) == len(known) and all(run.id in known for run in self.plan.runs)

    def _end_chaos(self) -> None:
        """Nothing goes wrong any more. Whatever people have not been told is done, they do again."""
        self.in_chaos = False
        self.unreachable_until = 0.0
        self.cut_until.clear()
        for process in self.processes:
            faults.resume(process)
        for _ in range(self.plan.workers):
            self.at(self.time, self.add_process)
        self.at(self.time + 1.0, self._do_again)

    def _do_again(self) -> None:
        user_actions.let_go_on(self)
        for run in self.plan.runs:
            if run.id not in self.checker.by_id:
                self._start(run, 0)
        for run_id, model in self.checker.by_id.items():
            if run_id not in self.ended:
                for _, who, name, key in self.signals[run_id]:
                    if key not in model.dedup:
                        self.signal(run_id, who, name, key)
        if not self._all_ended():
            self.at(self.time + 1.0, self._do_again)

    def _all_ended(self) -> bool:
        """Every run has ended, and everybody has had the time to notice."""
        if not self._has_ended():
            return False
        return not any(p.in_flight or p.engine is None or p.engine._drivers for p in self.open_processes())

    def _all_quiet(self) -> bool:
        """Nobody holds anything, or waits for an answer that would give it something."""
        return not any(p.in_flight or p.engine._drivers or p.engine._coming for p in self.open_processes())

    def _go_until(self, limit: float, done: Callable[[], bool]) -> None:
        chance, events = self.chance, self._events
        draw = chance.random
        while self.failure is None:
            running = [one for one in self.processes if not (one.is_gone or one.loop_paused)]
            runnable = [one for one in running if one.loop.ready]
            due = bool(events) and events[0][0] <= self.time
            choices = len(runnable) + due
            if not choices:
                if done() or not self._jump(running, limit):
                    return
                continue
            chosen = int(draw() * choices) if choices > 1 else 0
            if chosen == len(runnable):
                _, _, _, call, args = heapq.heappop(events)
                call(*args)
                if self._urgent:
                    self._ambush()
                continue
            process = runnable[chosen]
            loop = process.loop
            burst = 1 + int(draw() * BURST)
            while burst and loop.ready and not process.is_gone:
                loop.run_one()
                burst -= 1
                self.callbacks += 1
                if self._urgent:
                    self._ambush()

    def _ambush(self) -> None:
        waiting, self._urgent = self._urgent, []
        for kind, process in waiting:
            if not process.is_gone:
                self.counts["ambushes"] += 1
                faults.strike(self, kind, process)

    def _jump(self, running: list[Process], limit: float) -> bool:
        """Let time go on to whatever happens next; false when that is beyond the limit."""
        then = self._events[0][0] if self._events else math.inf
        for process in running:
            then = min(then, process.loop.next_timer())
        if then > limit:
            self.time = max(self.time, limit)
            return False
        self.time = max(self.time, then)
        for process in running:
            process.loop.ring()
        return True

    def replay_everything(self) -> None:
        """See that what is recorded of every run so far replays."""
        for model in list(self.checker.runs.values()):
            check_replay(self, model.row, model.journal)

    def close(self) -> None:
        """Unwind whatever is left, so that nothing of this seed is collected during another."""
        self._is_over = True
        for process in self.processes:
            for execution in process.executions:
                execution.leave()
            process.executions.clear()
            process.loop.forget_everything()
        self._events.clear()
        if self._twin is not None:
            self._twin.end()


def run_seed(seed: int, tell: Callable[[str], None] | None = None, place: Place | None = None) -> Counter[str]:
    """Live through one seed, and return what was counted; raises ``Broken``. ``place``: where it has a twin."""
    world = World(draw_plan(seed), tell, place)
    with listening(world):
        try:
            world.live()
        finally:
            world.close()
    counts = world.counts
    counts["seeds"] = 1
    counts["callbacks"] = world.callbacks
    counts["writes checked"] = world.checker.checked
    counts["runs"] = len(world.checker.runs)
    counts["virtual seconds"] = round(world.time)
    for row in world.ended.values():
        counts[f"runs {row.state.value}"] += 1
    counts["runs unfinished"] = sum(
        model.row.state in (RunState.PENDING, RunState.RUNNING, RunState.WAITING)
        for model in world.checker.runs.values()
    )
    return counts
