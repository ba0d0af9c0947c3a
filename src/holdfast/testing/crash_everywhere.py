"""``crash_everywhere``: runs a workflow once for every point where its process can crash, and checks the promises.

The first run has no crash. This *reference* shows which events there are and what the result should be. Then the
workflow runs once for each *schedule*, each time to its end on a new store: one crash at each point, then pairs of
crashes. In a long run, many points share a schedule (see ``crash_schedules``). Child runs count: their events are crash
points, too, and they must keep the same rules. Every such *trial* must keep these rules (see ``crash_rules``):

- A recorded step never runs again, and a ``once`` step runs at most once. The same holds for compensations.
- Every process issues the same commands as the reference, with the same encoded arguments, as long as both have seen
  the same records. So no call of a workflow starts two runs.
- The journal can be replayed, and the replay ends the same way.
- The result equals the reference's, unless a crash left the outcome of a ``once`` step unknown. A run that fails, or is
  cancelled and compensated, also has a result; but a cancelled run may have failed before.
- No workflow code catches the exception with which a run leaves memory.

Finally, the reference's journals are replayed in new Python processes, where string hashes, object addresses, and the
contents of modules differ.

A *program* makes its calls in any order, and its code between them may do anything. So only the calls themselves are
compared, and its journal is not replayed: its code has run again in the trials.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.authoring.registry import get_definition
from holdfast.authoring.workflow import Workflow
from holdfast.core.states import RunState
from holdfast.errors import UsageError
from holdfast.services.journal_files import export_run
from holdfast.testing import crash_rules
from holdfast.testing.crash_points import CrashPoint
from holdfast.testing.crash_rules import ObservedRun, Trial
from holdfast.testing.crash_schedules import (
    CrashPlan,
    Schedule,
    choose_pairs,
    format_schedule,
    get_sample_size,
    list_crash_points,
    make_crash_plan,
)
from holdfast.testing.heap_shuffle import shuffle_heap
from holdfast.testing.journal_replay import replay
from holdfast.testing.nondeterminism_causes import CauseFinder
from holdfast.testing.results import RunResult
from holdfast.testing.simulated_process import World
from holdfast.testing.subprocess_replay import replay_in_subprocesses
from holdfast.testing.violations import CrashSafetyError, Violation

if TYPE_CHECKING:
    from holdfast.testing.runner import Runner

MAX_PAIRS = 100
"""Default for the number of pairs of crashes; see ``get_sample_size`` for a long run."""
MAX_EXTRA_PROCESSES = 20
"""A trial that crashes this many times more than scheduled has no end."""
MAX_REPLAYS_PER_JOURNAL = 5
"""Most trials leave the same journal, and each of them has already replayed a part of it."""

MAX_SUBPROCESS_JOURNALS = 50
"""Maximum number of journals of one trial that are replayed in new processes."""

BeforeEach = Callable[[], Awaitable[None] | None]
AfterEach = Callable[[RunResult], Awaitable[None] | None]


@dataclass
class CrashCheckSettings:
    """The runner's settings for ``crash_everywhere``."""

    max_pairs: int | None
    replay_processes: int
    compare_results: bool
    only: Sequence[CrashPoint] | None
    before_each: list[BeforeEach] = field(default_factory=list[BeforeEach])
    after_each: list[AfterEach] = field(default_factory=list[AfterEach])


class Difference(NamedTuple):
    """A difference between a run of a trial and the reference."""

    violation: Violation
    observed: ObservedRun


class Comparison(NamedTuple):
    """A trial next to the reference. It keeps as little of the trial as possible, because there are many of them."""

    schedule: Schedule
    is_control: bool
    command_difference: Difference | None
    journals_to_replay: list[ObservedRun]
    result_difference: Difference | None


class FreshRunner(NamedTuple):
    """A runner with an empty store, and its world."""

    runner: Runner
    world: World


@dataclass(frozen=True)
class CrashReport:
    """What ``crash_everywhere`` tried without finding a violation."""

    workflow: str
    result: RunResult
    """The result of the run without a crash."""
    point_count: int
    """Number of points where the process crashed."""
    pair_count: int
    """Number of schedules with two crashes."""
    process_count: int
    """Number of new Python processes that replayed the journal."""
    series_count: int = 0
    """Number of schedules with many crashes."""
    series_point_count: int = 0
    """Number of points that were tried in these, and not alone."""

    def __str__(self) -> str:
        single = f"{self.point_count - self.series_point_count} single crashes"
        if self.series_count:
            single += f", {self.series_point_count} crashes in {self.series_count} series"
        if not self.process_count:  # a program
            return f"{self.workflow!r} survived {single} and {self.pair_count} pairs of crashes"
        return (
            f"workflow {self.workflow!r} survived {single}, {self.pair_count} pairs of crashes, and replay in "
            f"{self.process_count} other Python processes"
        )


class CrashCheck:
    """All the trials of one workflow with one set of inputs."""

    def __init__(
        self,
        make_runner: Callable[[bool], FreshRunner],
        settings: CrashCheckSettings,
        workflow: Workflow[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._make_runner = make_runner
        self._settings = settings
        self._workflow = workflow
        self._args = args
        self._kwargs = kwargs
        self._cause_finder = CauseFinder(workflow.definition.function)
        self._kept_counts: Counter[int] = Counter()
        """How many journals with a content are kept to be replayed, by the hash of the content."""
        self._replay_counts: Counter[int] = Counter()

    async def check(self) -> CrashReport:
        """Try everything; raises ``CrashSafetyError`` at the first schedule that breaks a rule."""
        __tracebackhide__ = True
        only = self._settings.only
        reference = await self._run_trial(())
        for seen in reference.runs.values():
            self._cause_finder.add_workflow(get_definition(seen.trace.workflow, seen.trace.version).function)
        self._raise_first_violation(reference, crash_rules.find_forbidden_code)
        points = list_crash_points(reference.event_log)
        plan = make_crash_plan(points) if only is None else CrashPlan([tuple(only)], [])
        # Single crashes first, in the order of the run's events, so that the first schedule to fail is the shortest. A
        # difference from the reference is reported later: it may need no crash, and is then reported as such. Code runs
        # again only then, too: what it remembers of a replay must not show in a trial.
        comparisons: list[Comparison] = []
        is_complete = True
        for schedule in plan.alone:
            trial = await self._run_trial(schedule)
            self._raise_first_violation(trial, *_SINGLE_RUN_RULES)
            is_complete = trial.is_complete
            comparisons.append(self._compare(reference, trial))
        comparisons += await self._run_series(reference, plan.series)
        self._raise_first_violation(reference, self._find_replay_difference)
        control = replace(await self._run_trial(()), is_control=True)
        for comparison in [self._compare(reference, control), *comparisons]:
            try:
                self._raise_difference(comparison)
            except CrashSafetyError as error:
                if only is not None:
                    raise
                raise await self._shorten(error, reference) from None
        complete_count = 0
        for schedule in self._choose_pairs([located.point for located in points]):
            trial = await self._run_trial(schedule)
            complete_count += trial.is_complete
            self._raise_first_violation(trial, *_SINGLE_RUN_RULES)
            self._raise_difference(self._compare(reference, trial))
        processes = await self._replay_in_subprocesses(reference)
        if only is not None and not is_complete:
            raise UsageError(
                f"the schedule {format_schedule(only)!r} breaks nothing: the run never reached all of it. Its points "
                f"are: {format_schedule(located.point for located in points)}"
            )
        series_point_count = sum(map(len, plan.series))
        return CrashReport(
            workflow=self._workflow.name,
            result=reference.result,
            point_count=len(plan.alone) + series_point_count,
            pair_count=complete_count,
            process_count=processes,
            series_count=len(plan.series),
            series_point_count=series_point_count,
        )

    def _choose_pairs(self, points: Sequence[CrashPoint]) -> list[Schedule]:
        if self._settings.only is not None:
            return []
        max_pairs = self._settings.max_pairs
        return choose_pairs(points, min(MAX_PAIRS, get_sample_size(len(points))) if max_pairs is None else max_pairs)

    # Series

    async def _run_series(self, reference: Trial, series: Iterable[Schedule]) -> list[Comparison]:
        __tracebackhide__ = True
        comparisons: list[Comparison] = []
        pending = deque(series)
        while pending:
            trial = await self._run_trial(pending.popleft())
            try:
                self._raise_first_violation(trial, *_SINGLE_RUN_RULES)
            except CrashSafetyError as error:
                raise await self._shorten(error) from None
            comparisons.append(self._compare(reference, trial))
            if len(trial.schedule) > 1:
                # A point that is not reached holds up the ones after it. It may be reached alone.
                pending += [left for left in (trial.unreached[:1], trial.unreached[1:]) if left]
        return comparisons

    async def _shorten(self, error: CrashSafetyError, reference: Trial | None = None) -> CrashSafetyError:
        """The same failure, or another one, with as few crashes as possible.

        Without a reference, differences from it are no failures: it is not known yet whether they need a crash.
        """
        size = len(error.schedule) // 2
        while size:  # leave out parts of the schedule, the last ones first, then smaller ones
            for end in range(len(error.schedule), 0, -size):
                rest = error.schedule[: max(0, end - size)] + error.schedule[end:]
                if rest and (found := await self._find_violation(rest, reference)) is not None:
                    error = found
            size //= 2
        return error

    async def _find_violation(self, schedule: Schedule, reference: Trial | None) -> CrashSafetyError | None:
        trial = await self._run_trial(schedule)
        try:
            self._raise_first_violation(trial, *_SINGLE_RUN_RULES)
            if reference is not None:
                self._raise_difference(self._compare(reference, trial))
        except CrashSafetyError as error:
            return error
        return None

    # Trials

    async def _run_trial(self, schedule: Sequence[CrashPoint]) -> Trial:
        is_result_seen = not schedule or bool(self._settings.after_each)
        runner, world = self._make_runner(is_result_seen)
        world.crash_points, world.later_crash_points = list(schedule[:1]), deque(schedule[1:])
        await _call_each(self._settings.before_each)
        shuffle_heap(len(schedule))
        result = await runner.run(self._workflow, *self._args, **self._kwargs)
        process_count = 1
        while result.has_crashed:
            process_count += 1
            if process_count > len(schedule) + MAX_EXTRA_PROCESSES:
                raise UsageError(f"run {result.run_id!r} crashed {process_count - 1} times")
            if len(schedule) > 2:
                world.store.forget_worker_deaths()  # the crashes are not the run's fault
            shuffle_heap(process_count)
            if await world.store.get_run(result.run_id) is None:  # the process crashed before it stored the run
                result = await runner.run(self._workflow, *self._args, **self._kwargs)
            else:
                result = await runner.resume(result.run_id)
        if not schedule and world.cancel_points:
            raise UsageError(f"run {result.run_id!r} never reached the simulated cancel {world.cancel_points[0]}")
        trial = await self._collect_trial(world, result, tuple(schedule))
        if result.status == "waiting":
            # A run may wait for its child, so the newest waiting run is the one to report.
            runs = [seen.journal.run for seen in trial.runs.values()]
            waiting = next(run for run in reversed(runs) if run.state is RunState.WAITING)
            advice = "set what to send with `runner.answer_signal(name, value)`"
            if "approval " in waiting.waits_for:
                advice = "set the answer with `runner.answer_approval(question, answer)`"
            reason = f"waits for {waiting.waits_for}, which the test does not send"
            raise UsageError(f"run {waiting.id!r} {reason}: {advice}")
        try:
            await _call_each(self._settings.after_each, result)
        except Exception as error:
            if schedule:
                error.add_note(f"crash_everywhere tried this schedule: {format_schedule(schedule)}")
            raise
        return trial

    async def _collect_trial(self, world: World, result: RunResult, schedule: Schedule) -> Trial:
        runs = {
            trace.run_id: ObservedRun(await export_run(world.store, trace.run_id), trace)
            for trace in world.list_run_tree(result.run_id)
        }
        return Trial(schedule, result, runs, world.event_log, (*world.crash_points, *world.later_crash_points))

    # Rules

    def _raise_first_violation(self, trial: Trial, *checks: Callable[[ObservedRun], Violation | None]) -> None:
        __tracebackhide__ = True
        for rule in checks:
            for seen in trial.started_runs:
                if (violation := rule(seen)) is not None:
                    self._raise_violation(violation, seen, trial.schedule)

    def _compare(self, reference: Trial, trial: Trial) -> Comparison:
        """Everything about a trial that can be compared without running code, and the journals to replay."""
        command_difference = None
        for seen in trial.started_runs:
            before = reference.runs.get(seen.trace.run_id)
            if command_difference is None and before is not None and before.trace.traced_executions:
                violation = crash_rules.find_command_difference(before, seen, is_control=trial.is_control)
                command_difference = None if violation is None else Difference(violation, seen)
        result_difference = None
        if self._settings.compare_results:
            found = crash_rules.find_result_difference(reference, trial)
            result_difference = None if found is None else Difference(*found)
        journals = [seen for seen in trial.started_runs if self._is_worth_replaying(seen)]
        for seen in journals:
            del seen.trace.traced_executions[:-1]  # a replay is compared with the last one
        return Comparison(trial.schedule, trial.is_control, command_difference, journals, result_difference)

    def _is_worth_replaying(self, observed: ObservedRun) -> bool:
        content = hash(observed.content)
        self._kept_counts[content] += 1
        return self._kept_counts[content] <= MAX_REPLAYS_PER_JOURNAL

    def _raise_difference(self, comparison: Comparison) -> None:
        __tracebackhide__ = True
        schedule, is_control, command_difference, journals, result_difference = comparison
        if command_difference is not None:
            self._raise_violation(*command_difference, schedule, is_control=is_control)
        for seen in journals:
            if (violation := self._find_replay_difference(seen)) is not None:
                self._raise_violation(violation, seen, schedule, is_control=is_control)
        if result_difference is not None:
            self._raise_violation(*result_difference, schedule, is_control=is_control)

    def _find_replay_difference(self, observed: ObservedRun) -> Violation | None:
        """Replay the journal of a finished trial from the beginning. A program has run again in most trials already."""
        if observed.is_program:
            return None
        content = hash(observed.content)
        self._replay_counts[content] += 1
        if self._replay_counts[content] > MAX_REPLAYS_PER_JOURNAL:
            return None
        shuffle_heap(self._replay_counts[content])
        now = replay(observed.journal)
        return crash_rules.find_replay_difference(
            observed, now.commands, now.output_bytes, str(now.replay_error or ""), now.difference
        )

    async def _replay_in_subprocesses(self, reference: Trial) -> int:
        __tracebackhide__ = True
        runs = [seen for seen in reference.started_runs if not seen.is_program]
        if not runs:
            return 0
        journals = [seen.journal for seen in runs[:MAX_SUBPROCESS_JOURNALS]]
        processes = await asyncio.to_thread(replay_in_subprocesses, journals, self._settings.replay_processes)
        for process in processes:
            for run_id, now in process.replays.items():
                seen = reference.runs[run_id]
                violation = crash_rules.find_replay_difference(
                    seen, now.issued, now.output, now.replay_error, now.difference
                )
                if violation is not None:
                    self._raise_violation(replace(violation, other_process=process.description), seen, ())
        return len(processes)

    def _raise_violation(
        self,
        violation: Violation,
        observed: ObservedRun,
        schedule: Schedule,
        *,
        is_control: bool = False,
    ) -> None:
        __tracebackhide__ = True
        violation = replace(violation, is_without_crash=is_control)
        causes = self._cause_finder.explain(violation, observed.journal)
        named = [f"{name}={value!r}" for name, value in self._kwargs.items()]
        call = ", ".join([self._workflow.definition.function.__name__, *map(repr, self._args), *named])
        raise CrashSafetyError.from_violation(self._workflow.name, call, violation, schedule, causes)


_SINGLE_RUN_RULES = (
    crash_rules.find_repeated_step,
    crash_rules.find_process_difference,
    crash_rules.find_swallowed_park,
)


async def _call_each(calls: Sequence[Callable[..., Awaitable[None] | None]], *args: Any) -> None:
    for call in calls:
        outcome = call(*args)
        if inspect.isawaitable(outcome):
            await outcome
