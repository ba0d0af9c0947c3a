"""One seed's world: virtual time, who acts next, what goes wrong, and whether everything ends well.

At any moment there are processes with callbacks ready and events that are due (a request reaches the database, an
answer reaches its process, a pulse beats, a fault strikes). The seed chooses among them. When nothing is ready, time
jumps to the next timer or event of anybody. So one seed is one interleaving, to the callback, and always the same one.

A world has two parts: while there is *chaos* faults happen; then everybody is resumed or replaced, and every run must
end within a bounded time, with the result that its program must have.
"""

from __future__ import annotations

import gc
import heapq
import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from holdfast.codec import faults as errors_as_bytes
from holdfast.core.states import RunState
from holdfast.errors import StoreUnavailable
from holdfast.stores.contract import ParkRun, ReopenRun, Run
from holdfast.stores.memory import MemoryStore
from simulation import faults, workloads
from simulation.endings import check_end, check_replay
from simulation.invariants import Checker
from simulation.loop import EPOCH
from simulation.plan import Plan, PlannedRun, draw_plan
from simulation.process import DEFINITIONS, Process
from simulation.store import Request, at_once

PATIENCE = 60.0
"""Virtual seconds after the chaos, beside what the programs themselves take, after which a run is taken to be lost."""

BURST = 6
"""A process runs up to so many callbacks before the seed chooses anew."""


class Broken(Exception):
    """An invariant does not hold in this seed."""

    def __init__(self, seed: int, invariant: str, what: str, at: float) -> None:
        self.seed, self.invariant, self.what, self.at = seed, invariant, what, at
        super().__init__(
            f"seed {seed} breaks the invariant: {invariant}\n  at {at:.3f} s: {what}\n"
            f"  to see it: python -m simulation --seed {seed}"
        )

    def __reduce__(self) -> Any:
        return Broken, (self.seed, self.invariant, self.what, self.at)


class World(workloads.Watch):
    """A database, the processes on it, and time."""

    def __init__(self, plan: Plan, tell: Callable[[str], None] | None = None) -> None:
        self.plan = plan
        self.time = 0.0
        self.chance = random.Random(f"world {plan.seed}")
        self.database = MemoryStore(clock=lambda: EPOCH + self.time)
        self.checker = Checker(self, self.database)
        self.counts: Counter[str] = Counter()
        self.processes: list[Process] = []
        self.in_chaos = True
        self.unreachable_until = 0.0
        self.cut_until: dict[Process, float] = {}
        self.failure: Broken | None = None
        self.ended: dict[str, Run] = {}
        self.endings: dict[str, list[Run]] = {}
        """Every end that a run has come to; more than one only if a person reopened it."""
        self._accepted: set[str] = set()
        self._owners: dict[int, Process] = {}
        self._events: list[tuple[float, float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._events_made = 0
        self.callbacks = 0
        self._moments: Counter[str] = Counter()
        self._urgent: list[tuple[str, Process]] = []
        self._retried: Counter[str] = Counter()
        self._is_over = False
        self._tell = tell

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
            self.failure = Broken(self.plan.seed, invariant, what, self.time)
            self.tell("!", invariant, "--", what)

    # What processes and the database tell

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
                self.at(self.time + self._latency(), process.store.somebody_wrote)

    def run_ended(self, row: Run) -> None:
        """A run has reached its end in the database."""
        self.ended[row.id] = row
        self.endings.setdefault(row.id, []).append(row)
        self.tell("db", row.id, "is", row.state.value)
        if row.state is not RunState.COMPLETED and self._retried[row.id] < self.plan.retries:
            self._retried[row.id] += 1
            self.at(self.time + self.chance.choice([0.0, 0.1, 0.5]), self._retry, row.id)

    def run_reopened(self, run_id: str) -> None:
        """A person has reopened a run."""
        self.ended.pop(run_id, None)
        self.counts["retries"] += 1

    def moment(self, what: str, process: Process | None) -> None:
        """Something happened after which it may hurt to fail: a fault may have waited for it."""
        self._moments[what] += 1
        kind = self.plan.ambushes.get((what, self._moments[what]))
        if kind is not None and process is not None and self.in_chaos:
            self._urgent.append((kind, process))

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

    def progress(self, run_id: str, label: str, key: str, found: Any) -> None:
        """An attempt found progress of an earlier one: it must be one that was handed in."""
        if self.checker.keys.setdefault((run_id, label), key) != key:
            self.fail("an idempotency key is stable", f"{run_id} {label}")
        if found is not None and found not in self.checker.beats.get((run_id, label), []):
            if run_id in self.checker.rewound:
                # Known: a retry that takes the last record away leaves the attempts that came after it, and the step
                # that is now at the position of one of them takes it for its own.
                self.counts["progress of another step after a retry"] += 1
                return
            self.fail("progress is what an attempt handed in", f"{run_id} {label} found {found}")

    def beat(self, run_id: str, label: str, progress: Any) -> None:
        """An attempt has handed in progress."""
        self.counts["heartbeats"] += 1
        self.checker.beats.setdefault((run_id, label), []).append(progress)

    # Time and events

    def at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        """Let something happen in the world; what is due at one moment happens in an order drawn by the seed."""
        self._events_made += 1
        heapq.heappush(self._events, (when, self.chance.random(), self._events_made, call, args))

    def _latency(self) -> float:
        latency = self.plan.latency
        return latency[int(self.chance.random() * len(latency))]

    def _travel(self, process: Process) -> float:
        if self.in_chaos and self.time < process.slow_until:
            return self.plan.lease * self.chance.choice([0.0, 0.6, 1.2])
        if self.in_chaos and self.plan.slow and self.chance.random() < self.plan.slow:
            if process.pulse is None:
                process.disturbed = True  # its lease may pass before its pulse beats for the first time
            return self.chance.choice([0.1, 0.5, 1.5])
        return self._latency()

    def reachable(self, process: Process) -> bool:
        """Whether this process reaches the database now."""
        return self.time >= self.unreachable_until and self.time >= self.cut_until.get(process, 0.0)

    def send(self, request: Request) -> None:
        """A request sets out for the database."""
        travel = self._travel(request.process)
        if request.name == "retire" and self.plan.slow and self.in_chaos and self.chance.random() < 0.3:
            travel += self.plan.lease * self.chance.choice([0.5, 1.5])  # the moment at which a slow database hurts
        elif request.name == "commit":
            self.moment("sent", request.process)
        if self._is_late(request):
            # The caller gives up before the request has arrived; it arrives all the same.
            self.counts["late requests"] += 1
            self.tell("db", f"{request.process} hears nothing of its {request.name} and gives up")
            self.at(self.time + travel, request.answer, StoreUnavailable("no answer in time"))
            travel += self.plan.lease * self.chance.choice([0.0, 0.02, 0.3, 0.9])
        self.at(self.time + travel, self._arrive, request)

    def _is_late(self, request: Request) -> bool:
        if not (self.in_chaos and self.plan.late) or request.name not in ("commit", "claim"):
            return False
        parks = [op for op in request.ops if isinstance(op, ParkRun)]
        if self.chance.random() >= (5 * self.plan.late if parks else self.plan.late):
            return False
        for op in parks:  # the worst that can come between a park and its repetition is the signal it waits for
            for run in self.plan.runs:
                if run.id == self.checker.runs[op.key].row.id and run.signals:
                    _, who, name, key = self.chance.choice(run.signals)
                    self.at(self.time + self.chance.choice([0.0, 0.01, 0.03]), self._signal, run, who, name, key)
        return True

    def _arrive(self, request: Request) -> None:
        process = request.process
        if process.is_gone and self.chance.random() < 0.5:
            return  # it was still on its way out when the process died
        if not self.reachable(process):
            self.at(self.time + self._latency(), request.answer, StoreUnavailable("the database cannot be reached"))
            return
        try:
            answer = request.call()
        except Exception as error:  # as a database would answer a request that it cannot carry out
            self.fail("the database carries out what it is asked", f"{request.name}: {error!r}")
            return
        self.counts["requests"] += 1
        if request.name == "commit":
            self.moment("carried out", process)
        if self.in_chaos and self.plan.unknown and self.chance.random() < self.plan.unknown:
            self.counts["unknown outcomes"] += 1
            self.tell("db", f"the answer to a {request.name} of {process} is lost")
            if request.name in ("retire", "register"):
                process.disturbed = True
            answer = StoreUnavailable("the connection was lost")
        self.at(self.time + self._travel(process), request.answer, answer)

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
                self.at(when, self._signal, run, who, name, key)
        for when, kind in self.plan.faults:
            self.at(when, faults.strike, self, kind)
        self._go_until(self.plan.chaos, self._nothing_left)
        self._end_chaos()
        limit = (
            self.time + PATIENCE + 3 * self.plan.lease + sum(workloads.longest(run.program) for run in self.plan.runs)
        )
        self._go_until(limit, self._all_ended)
        while self._all_ended() and not self._all_quiet() and self.failure is None and self.time < limit:
            self._go_until(self.time + 1.0, self._all_quiet)
            self._go_until(limit, self._all_ended)  # somebody may have reopened one meanwhile
        if self.failure is None:
            check_end(self)
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

    def _signal(self, run: PlannedRun, who: int, name: str, key: str) -> None:
        if candidates := self.open_processes():
            process = candidates[who % len(candidates)]
            self.tell(process, "sends", key)
            process.spawn(process.send_signal, run.id, name, f'"{key}"'.encode(), key)

    def _retry(self, run_id: str) -> None:
        """A person's ``holdfast retry``: from a process that is no worker."""
        if self.in_chaos and self.time >= self.unreachable_until:
            op = ReopenRun(run_id, self.database.now())
            [answer] = at_once(self.database.commit([op]))
            self.story("someone", "commit", op, answer)
            self.checker.operation(None, op, answer)
            self.written(None)

    def _nothing_left(self) -> bool:
        """All runs have ended, and nobody is about to reopen one: more faults would meet nothing but idle workers."""
        return len(self.ended) == len(self.plan.runs) and not self._urgent and self.chance.random() < 0.05

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
        for run in self.plan.runs:
            if run.id not in self.checker.by_id:
                self._start(run, 0)
            elif run.id not in self.ended:
                for _, who, name, key in run.signals:
                    if key not in self.checker.by_id[run.id].dedup:
                        self._signal(run, who, name, key)
        if not self._all_ended():
            self.at(self.time + 1.0, self._do_again)

    def _all_ended(self) -> bool:
        """Every run has ended, and everybody has had the time to notice."""
        if len(self.ended) < len(self.plan.runs):
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


class _Errors(logging.Handler):
    """What the engine logs as an error is one: nothing in a seed is meant to go wrong inside it."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """Fail the seed, unless it is about an exception that the program itself left unseen."""
        if record.msg != "run %r: %s":
            error = record.exc_info[1] if record.exc_info else ""
            self._world.fail("the engine has nothing to log as an error", f"{record.getMessage()} {error!r}")


@contextmanager
def _listening(world: World) -> Iterator[None]:
    log = logging.getLogger("holdfast")
    before = log.level, log.propagate, log.disabled
    handler = _Errors(world)
    log.addHandler(handler)
    log.setLevel(logging.ERROR)
    log.propagate, log.disabled = False, False
    workloads.watch = world
    collecting = gc.isenabled()
    gc.disable()  # nothing of another seed is finalised in the middle of this one
    try:
        # Tracebacks are for people, name this machine's folders, and cost a tenth of the time.
        with patch.object(errors_as_bytes, "_traceback_of", lambda *_: ""):
            yield
    finally:
        log.removeHandler(handler)
        log.level, log.propagate, log.disabled = before
        logging.Logger.manager._clear_cache()  # type: ignore[attr-defined]
        workloads.watch = workloads.Watch()
        if collecting:
            gc.enable()


def run_seed(seed: int, tell: Callable[[str], None] | None = None) -> Counter[str]:
    """Live through one seed, and return what was counted; raises ``Broken``."""
    world = World(draw_plan(seed), tell)
    with _listening(world):
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
