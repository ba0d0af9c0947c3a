"""``crash_everywhere``: a workflow is run once for every point at which its process can die, and held to the promises.

First it runs without a crash: this *reference* tells which events there are, and what the result should be. Then it
runs once for each *schedule* (one crash at each point, then pairs of them), each time on a store of its own, until it
has ended. The runs that it starts belong to it: their events are points, too, and they must keep the same rules. Every
such *trial* must keep these (see ``crash_rules``):

- a recorded step never ran again, and a ``once`` step ran at most once; the same goes for compensations;
- each process asked for the same commands, with the same encoded arguments, as long as it had seen the same records,
  and so did the reference; so no call of a workflow has started two runs;
- the journal can be replayed, and replaying it comes to the same end;
- the result is that of the reference (unless a crash has left the outcome of a ``once`` step unknown). A run that fails
  or is cancelled, and is undone, has a result like any other; but one that was cancelled may have failed before;
- no workflow code caught the exception with which a run leaves memory.

Last, the reference's journals are replayed in new Python processes, in which the hashes of strings, the addresses of
objects and the contents of modules are others.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.authoring.registry import definition_of
from holdfast.authoring.workflow import Workflow
from holdfast.core.states import RunState
from holdfast.errors import UsageError
from holdfast.services.journal_files import export_run
from holdfast.testing import crash_rules
from holdfast.testing.crash_points import CARRIED_OUT, CrashPoint
from holdfast.testing.crash_rules import Seen, Trial
from holdfast.testing.heap_shuffle import shake
from holdfast.testing.journal_replay import replay
from holdfast.testing.nondeterminism_causes import Suspects
from holdfast.testing.results import RunResult
from holdfast.testing.simulated_process import World
from holdfast.testing.subprocess_replay import replay_elsewhere
from holdfast.testing.violations import CrashSafetyError, Violation

if TYPE_CHECKING:
    from holdfast.testing.runner import Runner

MOST_LIVES = 20
OFTEN_ENOUGH = 5
"""How often the same journal is replayed. Most trials leave the same, and each of them has replayed a part of it."""

MOST_ELSEWHERE = 50
"""How many journals of one trial are replayed in new processes."""


BeforeEach = Callable[[], Awaitable[None] | None]
AfterEach = Callable[[RunResult], Awaitable[None] | None]


@dataclass
class Settings:
    """What a runner was told about its checks."""

    pairs: int
    processes: int
    same_result: bool
    only: Sequence[CrashPoint] | None
    before_each: list[BeforeEach] = field(default_factory=list[BeforeEach])
    after_each: list[AfterEach] = field(default_factory=list[AfterEach])


class Fresh(NamedTuple):
    """A runner where nothing has happened yet, and its world."""

    runner: Runner
    world: World


@dataclass(frozen=True)
class Report:
    """What ``crash_everywhere`` has tried. It raises if anything was found."""

    workflow: str
    result: RunResult
    """The run without a crash."""
    points: int
    """At how many points the process died, one at a time."""
    pairs: int
    """How many schedules with two crashes were tried."""
    processes: int
    """In how many new Python processes the journal was replayed."""

    def __str__(self) -> str:
        return (
            f"workflow {self.workflow!r} survived {self.points} single crashes, {self.pairs} pairs of crashes, and "
            f"replay in {self.processes} other Python processes"
        )


class Everywhere:
    """All the trials of one workflow with one set of inputs."""

    def __init__(
        self,
        fresh: Callable[[], Fresh],
        settings: Settings,
        workflow: Workflow[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._fresh = fresh
        self._settings = settings
        self._workflow = workflow
        self._args = args
        self._kwargs = kwargs
        self._suspects = Suspects(workflow.definition.function)
        self._replayed: Counter[Hashable] = Counter()

    async def check(self) -> Report:
        """Try everything; raises ``CrashSafetyError`` at the first schedule that breaks a rule."""
        __tracebackhide__ = True
        only = self._settings.only
        reference = await self._try(())
        for seen in reference.runs.values():
            self._suspects.add(definition_of(seen.trace.workflow, seen.trace.version).function)
        self._report_first(reference, crash_rules.unfit)
        points = [tuple(only)] if only is not None else [(point,) for point in _points(reference)]
        # First whatever a crash alone brings out, in the order of the run's life: the first schedule that fails is then
        # the shortest. A run that differs from the reference may do so without any crash, which is told as such.
        trials = [reference]
        for schedule in points:
            trials.append(trial := await self._try(schedule))
            self._report_first(trial, crash_rules.ran_again, crash_rules.lives_differ, crash_rules.swallowed)
        self._report_first(reference, self._replay_differs)
        control = replace(await self._try(()), is_control=True)
        for trial in [control, *trials[1:]]:
            self._hold_against(reference, trial)
        doubles = [] if only is not None else _pairs([point for (point,) in points], self._settings.pairs)
        whole = 0
        for schedule in doubles:
            trial = await self._try(schedule)
            whole += trial.is_whole
            self._report_first(trial, crash_rules.ran_again, crash_rules.lives_differ, crash_rules.swallowed)
            self._hold_against(reference, trial)
        processes = await self._replay_elsewhere(reference)
        if only is not None and not trials[-1].is_whole:
            raise UsageError(
                f"the schedule {_in_short(only)!r} breaks nothing: the run never came to all of it. Its points are: "
                f"{_in_short(_points(reference))}"
            )
        return Report(self._workflow.name, reference.result, len(points), whole, processes)

    # Trying

    async def _try(self, schedule: Sequence[CrashPoint]) -> Trial:
        runner, world = self._fresh()
        world.armed, world.then = list(schedule[:1]), deque(schedule[1:])
        await _call_each(self._settings.before_each)
        shake(len(schedule))
        result = await runner.run(self._workflow, *self._args, **self._kwargs)
        lives = 1
        while result.crashed:
            lives += 1
            if lives > MOST_LIVES:
                raise UsageError(f"run {result.run_id!r} crashed {MOST_LIVES} times")
            shake(lives)
            if await world.store.get(result.run_id) is None:  # it died before the run was there
                result = await runner.run(self._workflow, *self._args, **self._kwargs)
            else:
                result = await runner.resume(result.run_id)
        if not schedule and world.cancels:
            raise UsageError(f"run {result.run_id!r} never came to the simulated cancel {world.cancels[0]}")
        trial = await self._look_at(world, result, tuple(schedule))
        if result.status == "waiting":
            # The last of them, if it waits for one that it has started.
            waits = [seen.journal.run for seen in trial.runs.values() if seen.journal.run.state is RunState.WAITING]
            how = "say what to send with `runner.answer(name, value)`"
            if "approval " in waits[-1].waits_for:
                how = "say what people answer with `runner.answer_question(question, answer)`"
            raise UsageError(f"run {waits[-1].id!r} waits for {waits[-1].waits_for}, and nobody sends it: {how}")
        await _call_each(self._settings.after_each, result)
        return trial

    async def _look_at(self, world: World, result: RunResult, schedule: tuple[CrashPoint, ...]) -> Trial:
        runs = {
            trace.run_id: Seen(await export_run(world.store, trace.run_id), trace)
            for trace in world.family(result.run_id)
        }
        return Trial(schedule, result, runs, world.life, not (world.armed or world.then))

    # Judging

    def _report_first(self, trial: Trial, *those: Callable[[Seen], Violation | None]) -> None:
        __tracebackhide__ = True
        for rule in those:
            for seen in trial.begun:
                if (violation := rule(seen)) is not None:
                    self._report(violation, trial, seen)

    def _hold_against(self, reference: Trial, trial: Trial) -> None:
        __tracebackhide__ = True
        for seen in trial.begun:
            before = reference.runs.get(seen.trace.run_id)
            if before is not None and before.trace.lives:
                violation = crash_rules.commands_differ(before, seen, is_control=trial.is_control)
                if violation is not None:
                    self._report(violation, trial, seen)
        self._report_first(trial, self._replay_differs)
        if self._settings.same_result and (found := crash_rules.results_differ(reference, trial)) is not None:
            self._report(found[0], trial, found[1])

    def _replay_differs(self, seen: Seen) -> Violation | None:
        """The journal that a run has left, once more from the beginning."""
        journal = seen.journal
        left = (journal.run.id, *map(crash_rules.essence, journal.records), journal.run.output, journal.run.error)
        self._replayed[left] += 1
        if self._replayed[left] > OFTEN_ENOUGH:
            return None
        shake(self._replayed[left])
        now = replay(journal)
        return crash_rules.replay_differs(seen, now.issued, now.output_bytes, str(now.fault or ""), now.differs)

    async def _replay_elsewhere(self, reference: Trial) -> int:
        __tracebackhide__ = True
        journals = [seen.journal for seen in reference.begun[:MOST_ELSEWHERE]]
        processes = await asyncio.to_thread(replay_elsewhere, journals, self._settings.processes)
        for process in processes:
            for run_id, now in process.replays.items():
                seen = reference.runs[run_id]
                violation = crash_rules.replay_differs(seen, now.issued, now.output, now.fault, now.differs)
                if violation is not None:
                    self._report(replace(violation, elsewhere=process.description), reference, seen)
        return len(processes)

    def _report(self, violation: Violation, trial: Trial, seen: Seen) -> None:
        __tracebackhide__ = True
        violation = replace(violation, twice=trial.is_control)
        causes = self._suspects.name(violation, seen.journal)
        named = [f"{name}={value!r}" for name, value in self._kwargs.items()]
        call = ", ".join([self._workflow.definition.function.__name__, *map(repr, self._args), *named])
        raise CrashSafetyError.of(self._workflow.name, call, violation, trial.schedule, causes)


async def _call_each(calls: Sequence[Callable[..., Awaitable[None] | None]], *args: Any) -> None:
    for call in calls:
        outcome = call(*args)
        if inspect.isawaitable(outcome):
            await outcome


def _points(reference: Trial) -> list[CrashPoint]:
    """Every point at which the process of this run could have died, in the order of its life."""
    points: list[CrashPoint] = []
    for trace, event in reference.life:
        run_id = trace.run_id if trace.parent else ""
        if event.what in CARRIED_OUT:
            # Where a step begins is not an event of its own; its place in the order does not matter.
            points += [CrashPoint.at(moment, event, run_id) for moment in ("before", "during", "after")]
        elif event.what == "intent":
            points.append(CrashPoint.at("before", event, run_id))
        elif event.what == "start" and run_id:
            # Before its start there is a point already, in the life of the run that starts it.
            points.append(CrashPoint.at("after", event, run_id))
        else:
            points += [CrashPoint.at(moment, event, run_id) for moment in ("before", "after")]
    return points


def _pairs(points: Sequence[CrashPoint], most: int) -> list[tuple[CrashPoint, CrashPoint]]:
    """Pairs of crashes: the same point twice and one after the next first, then others, evenly over all there are."""
    # What was recorded before a crash is not recorded again after it, nor does a process die after it once more.
    first = [(point, point) for point in points if point.moment != "after"] + list(pairwise(points))
    others = [(one, points[at]) for i, one in enumerate(points) for at in range(i + 2, len(points))]
    chosen = first[:: max(1, len(first) // max(1, most))][:most]
    room = most - len(chosen)
    if room > 0 and others:
        chosen += others[:: max(1, len(others) // room)][:room]
    return chosen


def _in_short(points: Iterable[CrashPoint]) -> str:
    return "; ".join(map(str, points))
