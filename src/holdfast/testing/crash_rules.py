"""The rules that ``crash_everywhere`` holds every trial to.

Some look at one run alone, some compare a run with the same run of the reference, the trial without a crash. Each
returns the first ``Violation`` it finds. A trial is a run with all those that it has started, and every rule goes for
each of them; only results are compared where it is certain that they must be the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any

from holdfast.codec import describe_error
from holdfast.codec.tags import TAGGED
from holdfast.core.records import Kind, Record
from holdfast.core.states import Effect, RunState
from holdfast.errors import ForbiddenInWorkflow, WorkflowNeverYields, WorkflowStuck
from holdfast.services.journal_files import Journal
from holdfast.stores.operations import Cancel, Run
from holdfast.testing.crash_points import CrashPoint, Event
from holdfast.testing.crashable import what_is
from holdfast.testing.results import RunResult
from holdfast.testing.simulated_process import RunTrace
from holdfast.testing.traced_execution import Issued, TracedExecution
from holdfast.testing.violations import Violation

_UNFIT = {
    f"{error.__module__}.{error.__qualname__}" for error in (ForbiddenInWorkflow, WorkflowNeverYields, WorkflowStuck)
}
_STEPS = (Kind.STEP, Kind.COMPENSATION)


@dataclass(frozen=True)
class Seen:
    """One run of a trial, and all that is known of it."""

    journal: Journal
    trace: RunTrace

    @property
    def last(self) -> TracedExecution:
        """The run as its last process had it."""
        return self.trace.lives[-1]

    @property
    def of_run(self) -> str:
        """Words that say which run is meant; none for the one that the test has started."""
        return f" of run {self.trace.run_id!r}" if self.trace.parent else ""


@dataclass(frozen=True)
class Trial:
    """A run under one schedule, with the runs that it has started."""

    schedule: tuple[CrashPoint, ...]
    result: RunResult
    runs: Mapping[str, Seen]
    """By id, in the order in which they were created: the first is the one that the test has started."""
    life: Sequence[tuple[RunTrace, Event]]
    """What was written of all of them, in order."""
    is_whole: bool = True
    """Whether it came to all the points of the schedule: after the first crash it may go another way."""
    is_control: bool = False
    """The second run without a crash."""

    @property
    def first(self) -> Seen:
        """The run that the test has started."""
        return self.runs[self.result.run_id]

    @property
    def begun(self) -> list[Seen]:
        """The runs that some process has had in memory: what is cancelled before that has done nothing."""
        return [seen for seen in self.runs.values() if seen.trace.lives]


# One run alone


def unfit(seen: Seen) -> Violation | None:
    """The run failed because its code does what no workflow may, or waits for what never comes."""
    error = _error_of(seen.journal.run.error)
    if error is None or error[0] not in _UNFIT:
        return None
    return Violation("unfit", f"{error[0].rpartition('.')[2]}: {error[1]}")


def ran_again(seen: Seen) -> Violation | None:
    """What is recorded was carried out again."""
    for event in seen.trace.ran_again:
        return Violation("ran-again", f"{event}{seen.of_run} was recorded, and ran again")
    for position, step in seen.trace.steps.items():
        times = seen.trace.executions[position]
        if step.effect is Effect.ONCE and times > 1:
            named = f"step {position + 1} ({step.name}){seen.of_run}"
            return Violation("once", f"{named} has effect='once', and ran {times} times")
    return None


def lives_differ(seen: Seen) -> Violation | None:
    """Each process begins with the same commands as the one before: it has seen all that that one saw."""
    for before, after in pairwise(seen.trace.lives):
        for one, other in zip(before.issued, after.issued, strict=False):
            if one != other:
                return _two_commands(seen, one, other, "before the crash", "after it")
    error = seen.journal.run.error
    if error is not None and describe_error(error).type.startswith("holdfast.errors.NonDeterminismError"):
        return Violation("drift", describe_error(error).message)
    return None


def swallowed(seen: Seen) -> Violation | None:
    """Code has caught the exception with which a run leaves memory."""
    for life in seen.trace.lives:
        for waited_at, went_on_at in life.swallowed:
            return Violation(
                "swallowed",
                f"the run left memory while workflow code waited{f' at {waited_at}' if waited_at else ''}, and the "
                f"code caught the exception that ends it (RunParked, a BaseException) and went on"
                f"{f' at {went_on_at}' if went_on_at else ''}",
            )
    return None


def replay_differs(
    seen: Seen, issued: Sequence[Issued], output: bytes | None, fault: str, differs: str
) -> Violation | None:
    """The journal that a run has left was replayed, with this outcome."""
    first, second = "in the run", "in a replay of its journal"
    for one, other in zip(seen.last.issued, issued, strict=False):
        if one != other:
            return _two_commands(seen, one, other, first, second)
    if fault:  # it broke off there, so that nothing after it can be compared
        return Violation("drift", fault)
    for one, other in zip_longest(seen.last.issued, issued):
        if one != other:
            return _two_commands(seen, one, other, first, second)
    run = seen.journal.run
    if run.output is not None and output is not None and output != run.output:
        return Violation("result", f"the run returned {_text(run.output)}, and a replay of its journal {_text(output)}")
    return Violation("result", f"a replay of its journal ends otherwise: {differs}") if differs else None


# A run, and the same run of the reference


def commands_differ(before: Seen, seen: Seen, *, is_control: bool) -> Violation | None:
    """As long as both have seen the same records, they ask for the same things."""
    same = 0
    for one, other in zip(seen.last.delivered, before.last.delivered, strict=False):
        if essence(one) != essence(other):
            break
        same += 1
    mine = [command for command, after in zip(seen.last.issued, seen.last.issued_after, strict=True) if after <= same]
    theirs = [c for c, after in zip(before.last.issued, before.last.issued_after, strict=True) if after <= same]
    for at in range(max(len(mine), len(theirs))):
        one = theirs[at] if at < len(theirs) else None
        other = mine[at] if at < len(mine) else None
        if one != other:
            return _two_commands(seen, one, other, "in the first run", _this_one(is_control))
    return None


# The whole


def results_differ(reference: Trial, trial: Trial) -> tuple[Violation, Seen] | None:
    """The results, and those of the runs that were left to themselves, are the same.

    Not those of runs that somebody waits for: if they matter, they show in that one; and one that was cancelled because
    another was faster may or may not have ended before.
    """
    if any(
        b"StepOutcomeUnknown" in (record.payload or b"")
        for seen in trial.runs.values()
        for record in seen.journal.records
        if not record.ok
    ):
        return None  # what a process has left in doubt, another one cannot know
    for before, seen in _comparable(reference, trial):
        one, other = before.journal.run, seen.journal.run
        if _were_cancelled(one, other):
            continue
        if (one.state, one.output, _error_of(one.error)) != (other.state, other.output, _error_of(other.error)):
            return _why_results_differ(reference, trial, before, seen), seen
    return None


def _were_cancelled(*runs: Run) -> bool:
    """Whether all were asked to, and none was successful: a failure of its own may come before the cancel or after."""
    return all(run.cancel is not Cancel.NO and run.state is not RunState.COMPLETED for run in runs)


def _comparable(reference: Trial, trial: Trial) -> Iterator[tuple[Seen, Seen]]:
    yield reference.first, trial.first
    for seen in trial.begun:
        for command in seen.last.issued:
            before, now = reference.runs.get(command.run_id), trial.runs.get(command.run_id)
            if command.kind is not Kind.START or before is None or now is None:
                continue
            if before.journal.run.state.is_terminal and now.journal.run.state.is_terminal:
                yield before, now


def _why_results_differ(reference: Trial, trial: Trial, before: Seen, seen: Seen) -> Violation:
    first = "the first run" if trial.is_control else "the first run, without a crash,"
    this = _this_one(trial.is_control)
    message = f"{first} {_ending(before)}; {this.removeprefix('in ')} {_ending(seen)}"
    if seen.trace.parent:
        message = f"run {seen.trace.run_id!r} {_ending(before)} in {first} and {_ending(seen)} {this}"
    for run_id, now in trial.runs.items():
        if run_id not in reference.runs:
            continue
        steps = {record.position: record for record in reference.runs[run_id].journal.records if record.kind in _STEPS}
        for record in now.journal.records:
            old = steps.get(record.position) if record.kind in _STEPS else None
            if old is None or (old.kind, old.name) != (record.kind, record.name) or old.payload == record.payload:
                continue
            event = Event(what_is(record.kind), record.position + 1, record.name)
            times = now.trace.executions[record.position]
            return Violation(
                "step-result",
                f"{message}. {str(event).capitalize()}{now.of_run} {_outcome(old)} in the first run, and "
                f"{_text(record.payload) if old.ok and record.ok else _outcome(record)} {this}, where it ran "
                f"{'once' if times == 1 else f'{times} times'}",
                step=record.name,
                executions=times,
            )
    if [_order(record) for record in seen.journal.records] != [_order(r) for r in before.journal.records]:
        return Violation("order", f"{message}. Outcomes came in another order")
    return Violation("result", message)


# Words


def _this_one(is_control: bool) -> str:
    return "in the second" if is_control else "in this one"


def essence(record: Record) -> tuple[Any, ...]:
    """What the workflow sees of a record."""
    return record.kind, record.position, record.name, record.ok, record.payload, record.at


def _order(record: Record) -> tuple[Any, ...]:
    return record.kind, record.position


def _error_of(error: bytes | None) -> tuple[str, str] | None:
    if error is None:
        return None
    info = describe_error(error)
    return info.type, info.message


def _outcome(record: Record) -> str:
    if record.ok:
        return f"returned {_text(record.payload)}"
    info = describe_error(record.payload or b"null")
    return f"raised {info.type.rpartition('.')[2]}: {info.message}"


def _ending(seen: Seen) -> str:
    run = seen.journal.run
    if run.output is not None:
        return f"returned {_text(run.output)}"
    error = _error_of(run.error)
    return f"is {run.state}" if error is None else f"is {run.state} ({error[0].rpartition('.')[2]}: {error[1]})"


def _two_commands(seen: Seen, one: Issued | None, other: Issued | None, first: str, second: str) -> Violation:
    if one is not None and other is not None and (one.kind, one.name) == (other.kind, other.name):
        named = f"{_command(one)}{seen.of_run}"
        if one.run_id != other.run_id:
            started = f"was started as run {one.run_id!r} {first}, and as run {other.run_id!r} {second}"
            return Violation("started-twice", f"{named} {started}")
        called = f"was called with {_text(one.arguments)} {first}, and with {_text(other.arguments)} {second}"
        return Violation("arguments", f"{named} {called}")
    code = f"workflow code{seen.of_run}"
    return Violation("commands", f"{code} asked for {_command(one)} {first}, and for {_command(other)} {second}")


def _command(command: Issued | None) -> str:
    return "nothing more" if command is None else str(Event(what_is(command.kind), command.position + 1, command.name))


def _text(data: bytes | None) -> str:
    if data is None:
        return "nothing"
    text = data.removeprefix(TAGGED).decode("utf-8", "backslashreplace")
    return text if len(text) <= 200 else f"{text[:197]}..."
