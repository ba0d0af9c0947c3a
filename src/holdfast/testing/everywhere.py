"""``crash_everywhere``: a workflow is run once for every point at which its process can die, and held to the promises.

First it runs without a crash: this *reference* tells which events there are, and what the result should be. Then it
runs once for each *schedule* (one crash at each point, then pairs of them), each time on a store of its own, until it
has ended. Every such *trial* must keep these rules:

- a recorded step never ran again, and a ``once`` step ran at most once;
- each process asked for the same commands, with the same encoded arguments, as long as it had seen the same records,
  and so did the reference;
- the journal can be replayed, and replaying it comes to the same end;
- the result is that of the reference (unless a crash has left the outcome of a ``once`` step unknown);
- no workflow code caught the exception with which a run leaves memory.

Last, the reference's journal is replayed in new Python processes, in which the hashes of strings, the addresses of
objects and the contents of modules are others.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.authoring.workflow import Workflow
from holdfast.codec import describe_error
from holdfast.core.records import Kind, Record
from holdfast.core.states import Effect
from holdfast.errors import ForbiddenInWorkflow, UsageError, WorkflowNeverYields, WorkflowStuck
from holdfast.testing.children import ChildReplay, replay_in_children
from holdfast.testing.crashes import CrashPoint, Event
from holdfast.testing.journals import Journal, export_run
from holdfast.testing.memory import shake
from holdfast.testing.process import RunTrace, World
from holdfast.testing.replaying import replay
from holdfast.testing.results import RunResult
from holdfast.testing.suspects import Suspects
from holdfast.testing.tracing import Issued, TracedExecution
from holdfast.testing.violations import CrashSafetyError, Violation

if TYPE_CHECKING:
    from holdfast.testing.runner import Runner

MOST_LIVES = 20
OFTEN_ENOUGH = 5
"""How often the same journal is replayed. Most trials leave the same, and each of them has replayed a part of it."""

_UNFIT = {
    f"{error.__module__}.{error.__qualname__}" for error in (ForbiddenInWorkflow, WorkflowNeverYields, WorkflowStuck)
}


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


class Fork(NamedTuple):
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


@dataclass(frozen=True)
class Trial:
    """One run under one schedule, and all that is known of it."""

    schedule: tuple[CrashPoint, ...]
    result: RunResult
    journal: Journal
    trace: RunTrace
    is_whole: bool = True
    """Whether the run came to all the points of the schedule: after the first crash it may go another way."""
    is_control: bool = False
    """The second run without a crash."""

    @property
    def last(self) -> TracedExecution:
        """The run as its last process had it."""
        return self.trace.lives[-1]


class Everywhere:
    """All the trials of one workflow with one set of inputs."""

    def __init__(
        self,
        fork: Callable[[], Fork],
        settings: Settings,
        workflow: Workflow[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._fork = fork
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
        self._report_first(reference, _unfit)
        points = [tuple(only)] if only is not None else [(point,) for point in _points(reference)]
        # First whatever a crash alone brings out, in the order of the run's life: the first schedule that fails is then
        # the shortest. A run that differs from the reference may do so without any crash, which is told as such.
        trials = [reference]
        for schedule in points:
            trials.append(trial := await self._try(schedule))
            self._report_first(trial, _ran_again, _lives_differ, _swallowed)
        self._report_first(reference, self._replay_differs)
        control = replace(await self._try(()), is_control=True)
        for trial in [control, *trials[1:]]:
            self._hold_against(reference, trial)
        doubles = [] if only is not None else _pairs([point for (point,) in points], self._settings.pairs)
        whole = 0
        for schedule in doubles:
            trial = await self._try(schedule)
            whole += trial.is_whole
            self._report_first(trial, _ran_again, _lives_differ, _swallowed)
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
        runner, world = self._fork()
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
        trial = await self._look_at(world, result, tuple(schedule))
        if result.status == "waiting":
            raise UsageError(
                f"run {result.run_id!r} waits for {result.waits_for}, and nobody sends it: say what to send with "
                f"`runner.answer(name, value)`"
            )
        await _call_each(self._settings.after_each, result)
        return trial

    async def _look_at(self, world: World, result: RunResult, schedule: tuple[CrashPoint, ...]) -> Trial:
        journal = await export_run(world.store, result.run_id)
        return Trial(schedule, result, journal, world.traces[result.run_id], not (world.armed or world.then))

    # Judging

    def _report_first(self, trial: Trial, *rules: Callable[[Trial], Violation | None]) -> None:
        __tracebackhide__ = True
        for rule in rules:
            if (violation := rule(trial)) is not None:
                self._report(violation, trial)

    def _hold_against(self, reference: Trial, trial: Trial) -> None:
        __tracebackhide__ = True
        self._report_first(trial, partial(_commands_differ, reference), self._replay_differs)
        if self._settings.same_result:
            self._report_first(trial, partial(_result_differs, reference))

    def _replay_differs(self, trial: Trial) -> Violation | None:
        """The journal that the trial has left, once more from the beginning."""
        left = (*map(_essence, trial.journal.records), trial.journal.run.output, trial.journal.run.error)
        self._replayed[left] += 1
        if self._replayed[left] > OFTEN_ENOUGH:
            return None
        shake(self._replayed[left])
        seen = replay(trial.journal, self._workflow)
        return _compare_replay(trial, seen.issued, seen.output_bytes, str(seen.fault or ""), seen.differs)

    async def _replay_elsewhere(self, reference: Trial) -> int:
        __tracebackhide__ = True
        count = self._settings.processes
        seen = await asyncio.to_thread(replay_in_children, reference.journal, self._workflow.definition, count)
        for child in seen:
            if (violation := _child_differs(child, reference)) is not None:
                self._report(replace(violation, elsewhere=child.description), reference)
        return len(seen)

    def _report(self, violation: Violation, trial: Trial) -> None:
        __tracebackhide__ = True
        violation = replace(violation, twice=trial.is_control)
        causes = self._suspects.name(violation, self._workflow, trial.journal)
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
    for event in reference.trace.events:
        if event.what == "step":
            # Where a step begins is not an event of its own; its place in the order does not matter.
            points += [CrashPoint.at(moment, event) for moment in ("before", "during", "after")]
        elif event.what == "intent":
            points.append(CrashPoint.at("before", event))
        else:
            points += [CrashPoint.at(moment, event) for moment in ("before", "after")]
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


# The rules


def _unfit(trial: Trial) -> Violation | None:
    """The run failed because its code does what no workflow may, or waits for what never comes."""
    error = _error_of(trial.journal.run.error)
    if error is None or error[0] not in _UNFIT:
        return None
    return Violation("unfit", f"{error[0].rpartition('.')[2]}: {error[1]}")


def _ran_again(trial: Trial) -> Violation | None:
    for event in trial.trace.ran_again:
        return Violation("ran-again", f"{event} was recorded, and ran again")
    for position, step in trial.trace.steps.items():
        times = trial.trace.executions[position]
        if step.effect is Effect.ONCE and times > 1:
            return Violation("once", f"step {position + 1} ({step.name}) has effect='once', and ran {times} times")
    return None


def _lives_differ(trial: Trial) -> Violation | None:
    """Each process begins with the same commands as the one before: it has seen all that that one saw."""
    for before, after in pairwise(trial.trace.lives):
        for one, other in zip(before.issued, after.issued, strict=False):
            if one != other:
                return _two_commands(one, other, "before the crash", "after it")
    error = trial.journal.run.error
    if error is not None and describe_error(error).type.startswith("holdfast.errors.NonDeterminismError"):
        return Violation("drift", describe_error(error).message)
    return None


def _swallowed(trial: Trial) -> Violation | None:
    for life in trial.trace.lives:
        for waited_at, went_on_at in life.swallowed:
            return Violation(
                "swallowed",
                f"the run left memory while workflow code waited{f' at {waited_at}' if waited_at else ''}, and the "
                f"code caught the exception that ends it (RunParked, a BaseException) and went on"
                f"{f' at {went_on_at}' if went_on_at else ''}",
            )
    return None


def _compare_replay(
    trial: Trial, issued: Sequence[Issued], output: bytes | None, fault: str, differs: str
) -> Violation | None:
    first, second = "in the run", "in a replay of its journal"
    for one, other in zip(trial.last.issued, issued, strict=False):
        if one != other:
            return _two_commands(one, other, first, second)
    if fault:  # it broke off there, so that nothing after it can be compared
        return Violation("drift", fault)
    for one, other in zip_longest(trial.last.issued, issued):
        if one != other:
            return _two_commands(one, other, first, second)
    run = trial.journal.run
    if run.output is not None and output is not None and output != run.output:
        return Violation("result", f"the run returned {_text(run.output)}, and a replay of its journal {_text(output)}")
    return Violation("result", f"a replay of its journal ends otherwise: {differs}") if differs else None


def _commands_differ(reference: Trial, trial: Trial) -> Violation | None:
    """As long as both have seen the same records, they ask for the same things."""
    same = 0
    for one, other in zip(trial.last.delivered, reference.last.delivered, strict=False):
        if _essence(one) != _essence(other):
            break
        same += 1
    mine = [command for command, after in zip(trial.last.issued, trial.last.issued_after, strict=True) if after <= same]
    theirs = [c for c, after in zip(reference.last.issued, reference.last.issued_after, strict=True) if after <= same]
    for at in range(max(len(mine), len(theirs))):
        one = theirs[at] if at < len(theirs) else None
        other = mine[at] if at < len(mine) else None
        if one != other:
            return _two_commands(one, other, "in the first run", _this_one(trial))
    return None


def _result_differs(reference: Trial, trial: Trial) -> Violation | None:
    one, other = reference.journal.run, trial.journal.run
    if (one.state, one.output, _error_of(one.error)) == (other.state, other.output, _error_of(other.error)):
        return None
    if any(b"StepOutcomeUnknown" in (record.payload or b"") for record in trial.journal.records if not record.ok):
        return None
    first, this = "the first run" if trial.is_control else "the first run, without a crash,", _this_one(trial)
    message = f"{first} {_ending(reference)}; {this.removeprefix('in ')} {_ending(trial)}"
    steps = {record.position: record for record in reference.journal.records if record.kind is Kind.STEP}
    for record in trial.journal.records:
        before = steps.get(record.position) if record.kind is Kind.STEP else None
        if before is not None and before.payload != record.payload:
            event = Event("step", record.position + 1, record.name)
            times = trial.trace.executions[record.position]
            return Violation(
                "step-result",
                f"{message}. {str(event).capitalize()} returned {_text(before.payload)} in the first run, and "
                f"{_text(record.payload)} {this}, where it ran {'once' if times == 1 else f'{times} times'}",
                step=record.name,
                executions=times,
            )
    if [_order(record) for record in trial.journal.records] != [_order(r) for r in reference.journal.records]:
        return Violation("order", f"{message}. Outcomes came in another order")
    return Violation("result", message)


def _child_differs(child: ChildReplay, reference: Trial) -> Violation | None:
    return _compare_replay(reference, child.issued, child.output, child.fault, child.differs)


def _this_one(trial: Trial) -> str:
    return "in the second" if trial.is_control else "in this one"


def _essence(record: Record) -> tuple[Any, ...]:
    return record.kind, record.position, record.name, record.ok, record.payload, record.at


def _order(record: Record) -> tuple[Any, ...]:
    return record.kind, record.position


def _error_of(error: bytes | None) -> tuple[str, str] | None:
    if error is None:
        return None
    info = describe_error(error)
    return info.type, info.message


def _ending(trial: Trial) -> str:
    run = trial.journal.run
    if run.output is not None:
        return f"returned {_text(run.output)}"
    error = _error_of(run.error)
    return f"is {run.state}" if error is None else f"is {run.state} ({error[0].rpartition('.')[2]}: {error[1]})"


def _two_commands(one: Issued | None, other: Issued | None, first: str, second: str) -> Violation:
    if one is not None and other is not None and (one.kind, one.name) == (other.kind, other.name):
        return Violation(
            "arguments",
            f"step {one.position + 1} ({one.name}) was called with {_text(one.arguments)} {first}, and with "
            f"{_text(other.arguments)} {second}",
        )
    return Violation("commands", f"workflow code asked for {_command(one)} {first}, and for {_command(other)} {second}")


def _command(command: Issued | None) -> str:
    return "nothing more" if command is None else f"{command.kind.label} {command.position + 1} ({command.name})"


def _in_short(points: Iterable[CrashPoint]) -> str:
    return "; ".join(map(str, points))


def _text(data: bytes | None) -> str:
    if data is None:
        return "nothing"
    text = data.removeprefix(b"\x01").decode("utf-8", "backslashreplace")
    return text if len(text) <= 200 else f"{text[:197]}..."
