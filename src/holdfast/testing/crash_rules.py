"""The rules that ``crash_everywhere`` checks for every trial.

Some rules look at one run, and some compare a run with the same run of the reference, the trial without a crash. Each
returns the first ``Violation`` it finds. A trial is a run with its descendants, and every rule applies to each of them,
except that results are compared only where they must be equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import Any

from holdfast.codec import read_error_info
from holdfast.codec.tags import TAGGED_PREFIX
from holdfast.core.program_calls import CallIdentity
from holdfast.core.records import Record, RecordKind
from holdfast.core.states import Effect, RunState
from holdfast.errors import ForbiddenInWorkflow, WorkflowNeverYields, WorkflowStuck
from holdfast.services.journal_files import Journal
from holdfast.stores.operations import CancelState, Run
from holdfast.testing.crash_points import CrashPoint, RunEvent
from holdfast.testing.crashable import get_event_kind
from holdfast.testing.results import RunResult
from holdfast.testing.simulated_process import RunTrace
from holdfast.testing.traced_execution import IssuedCommand, TracedExecution, TracedProgramExecution
from holdfast.testing.violations import Violation

_FORBIDDEN_ERRORS = {
    f"{error.__module__}.{error.__qualname__}" for error in (ForbiddenInWorkflow, WorkflowNeverYields, WorkflowStuck)
}
_STEP_KINDS = (RecordKind.STEP, RecordKind.COMPENSATION)


@dataclass(frozen=True)
class ObservedRun:
    """One run of a trial: its journal and its trace."""

    journal: Journal
    trace: RunTrace

    @property
    def last_execution(self) -> TracedExecution:
        """The run in its last process."""
        return self.trace.traced_executions[-1]

    @property
    def is_program(self) -> bool:
        """Whether its code is a program, whose calls are matched by content and may come in any order."""
        return isinstance(self.last_execution, TracedProgramExecution)

    @property
    def content(self) -> tuple[Any, ...]:
        """Everything in the journal that a replay depends on, and how it must end."""
        run = self.journal.run
        return run.id, *map(get_visible_fields, self.journal.records), run.output, run.error

    @property
    def run_suffix(self) -> str:
        """Names the run in a message; empty for the run that the test started."""
        return f" of run {self.trace.run_id!r}" if self.trace.parent else ""


@dataclass(frozen=True)
class Trial:
    """A run under one schedule, with its descendants."""

    schedule: tuple[CrashPoint, ...]
    result: RunResult
    runs: Mapping[str, ObservedRun]
    """By id, in the order of creation: the first is the run that the test started."""
    event_log: Sequence[tuple[RunTrace, RunEvent]]
    """The events of all these runs, in order."""
    unreached: tuple[CrashPoint, ...] = ()
    """The points of the schedule that it did not reach: after the first crash, the run may take another path."""
    is_control: bool = False
    """Whether this is the second run without a crash."""

    @property
    def is_complete(self) -> bool:
        """Whether it reached all points of the schedule."""
        return not self.unreached

    @property
    def root(self) -> ObservedRun:
        """The run that the test started."""
        return self.runs[self.result.run_id]

    @property
    def started_runs(self) -> list[ObservedRun]:
        """The runs that some process executed; one that is cancelled before that has done nothing."""
        return [seen for seen in self.runs.values() if seen.trace.traced_executions]


# Rules for one run


def find_forbidden_code(observed: ObservedRun) -> Violation | None:
    """A run must not fail because its code does something forbidden in workflows, or waits for something impossible."""
    error = _summarize_error(observed.journal.run.error)
    if error is None or error[0] not in _FORBIDDEN_ERRORS:
        return None
    return Violation("unfit", f"{error[0].rpartition('.')[2]}: {error[1]}")


def find_repeated_step(observed: ObservedRun) -> Violation | None:
    """A recorded step must not run again."""
    for event in observed.trace.repeated_events:
        return Violation("ran-again", f"{event}{observed.run_suffix} was recorded, and ran again")
    for position, step in observed.trace.steps.items():
        times = observed.trace.execution_counts[position]
        if step.effect is Effect.ONCE and times > 1:
            label = f"step {position + 1} ({step.name}){observed.run_suffix}"
            return Violation("once", f"{label} has effect='once', and ran {times} times")
    return None


def find_process_difference(observed: ObservedRun) -> Violation | None:
    """Each process must begin with the commands of the one before it, because it sees the same records first."""
    for before, after in () if observed.is_program else pairwise(observed.trace.traced_executions):
        for one, other in zip(before.issued, after.issued, strict=False):
            if one != other:
                return _build_command_violation(observed, one, other, "before the crash", "after it")
    error = observed.journal.run.error
    if error is not None and read_error_info(error).type.startswith("holdfast.errors.NonDeterminismError"):
        return Violation("drift", read_error_info(error).message)
    return None


def find_swallowed_park(observed: ObservedRun) -> Violation | None:
    """Workflow code must not catch the exception with which a run leaves memory."""
    for execution in observed.trace.traced_executions:
        for waited_at, continued_at in execution.swallowed_parks:
            return Violation(
                "swallowed",
                f"the run left memory while workflow code waited{f' at {waited_at}' if waited_at else ''}, and the "
                f"code caught the exception that ends it (RunParked, a BaseException) and continued"
                f"{f' at {continued_at}' if continued_at else ''}",
            )
    return None


def find_replay_difference(
    observed: ObservedRun, commands: Sequence[IssuedCommand], output: bytes | None, replay_error: str, difference: str
) -> Violation | None:
    """A replay of the run's journal, which had this outcome, must not differ from the run."""
    first, second = "in the run", "in a replay of its journal"
    for one, other in zip(observed.last_execution.issued, commands, strict=False):
        if one != other:
            return _build_command_violation(observed, one, other, first, second)
    if replay_error:  # the replay stopped there, so there is nothing more to compare
        return Violation("drift", replay_error)
    for one, other in zip_longest(observed.last_execution.issued, commands):
        if one != other:
            return _build_command_violation(observed, one, other, first, second)
    run = observed.journal.run
    if run.output is not None and output is not None and output != run.output:
        return Violation(
            "result",
            f"the run returned {_format_payload(run.output)}, and a replay of its journal {_format_payload(output)}",
        )
    return Violation("result", f"a replay of its journal ends differently: {difference}") if difference else None


# Rules for a run and the same run of the reference


def find_command_difference(reference_run: ObservedRun, observed: ObservedRun, *, is_control: bool) -> Violation | None:
    """Both runs must issue the same commands as long as they have seen the same records; programs, the same calls."""
    if observed.is_program:
        return _find_call_difference(reference_run, observed, is_control=is_control)
    before, now = reference_run.last_execution, observed.last_execution
    equal_count = 0
    for one, other in zip(now.delivered, before.delivered, strict=False):
        if get_visible_fields(one) != get_visible_fields(other):
            break
        equal_count += 1
    for one, other in zip_longest(_list_commands(before, equal_count), _list_commands(now, equal_count)):
        if one != other:
            return _build_command_violation(observed, one, other, "in the first run", _name_trial(is_control))
    return None


def _find_call_difference(reference_run: ObservedRun, observed: ObservedRun, *, is_control: bool) -> Violation | None:
    """A program must make the same calls with the same content, unless it has failed or an outcome is unknown."""
    runs = (reference_run, observed)
    if any(seen.journal.run.state is not RunState.COMPLETED or _has_unknown_outcome(seen) for seen in runs):
        return None
    before, now = map(_count_calls, runs)
    for one, other in zip_longest((before - now).elements(), (now - before).elements()):
        made = [call.describe() if call is not None else "nothing more" for call in (one, other)]
        return Violation(
            "arguments" if one is not None and other is not None and one.name == other.name else "commands",
            f"the program{observed.run_suffix} called {made[0]} in the first run, and {made[1]} "
            f"{_name_trial(is_control)}",
        )
    return None


@dataclass(frozen=True)
class _Call:
    """What identifies a call of a program."""

    kind: RecordKind
    name: str
    digest: str
    content: str = field(compare=False)
    """For people."""

    def describe(self) -> str:
        return f"{self.name!r} with {self.content}"


def _count_calls(observed: ObservedRun) -> Counter[_Call]:
    arguments = {command.position: command.arguments for command in observed.last_execution.issued}
    calls: Counter[_Call] = Counter()
    for record in observed.journal.records:
        if record.kind is RecordKind.CALL:
            identity = CallIdentity.decode(record.payload or b"")
            content = identity.details.encode() or arguments.get(record.position)
            calls[_Call(identity.kind, record.name, identity.digest, _format_payload(content))] += 1
    return calls


def _list_commands(execution: TracedExecution, delivered_count: int) -> list[IssuedCommand]:
    """The commands that were issued before more than ``delivered_count`` records were delivered."""
    commands = zip(execution.issued, execution.delivered_counts, strict=True)
    return [command for command, count in commands if count <= delivered_count]


# Rules for a trial


def find_result_difference(reference: Trial, trial: Trial) -> tuple[Violation, ObservedRun] | None:
    """The results of the run, and of the children that it does not wait for, must equal those of the reference.

    The results of awaited children are not compared: if they matter, they show in the result of their parent, and one
    that was cancelled because another was faster may or may not have ended before.
    """
    if any(map(_has_unknown_outcome, trial.runs.values())):
        return None  # a process cannot know what an unknown outcome was
    for before, seen in _pair_runs(reference, trial):
        one, other = before.journal.run, seen.journal.run
        if _are_cancelled(one, other):
            continue
        if (one.state, one.output, _summarize_error(one.error)) != (
            other.state,
            other.output,
            _summarize_error(other.error),
        ):
            return _explain_result_difference(reference, trial, before, seen), seen
    return None


def _has_unknown_outcome(observed: ObservedRun) -> bool:
    return any(b"StepOutcomeUnknown" in (record.payload or b"") for record in observed.journal.records if not record.ok)


def _are_cancelled(*runs: Run) -> bool:
    """Whether all were requested to cancel, and none completed: a failure may come before the cancel or after it."""
    return all(run.cancel_state is not CancelState.NONE and run.state is not RunState.COMPLETED for run in runs)


def _pair_runs(reference: Trial, trial: Trial) -> Iterator[tuple[ObservedRun, ObservedRun]]:
    yield reference.root, trial.root
    for seen in trial.started_runs:
        for command in seen.last_execution.issued:
            before, now = reference.runs.get(command.run_id), trial.runs.get(command.run_id)
            if command.kind is not RecordKind.START or before is None or now is None:
                continue
            if before.journal.run.state.is_terminal and now.journal.run.state.is_terminal:
                yield before, now


def _explain_result_difference(
    reference: Trial, trial: Trial, reference_run: ObservedRun, observed: ObservedRun
) -> Violation:
    first = "the first run" if trial.is_control else "the first run, without a crash,"
    this = _name_trial(trial.is_control)
    message = f"{first} {_describe_ending(reference_run)}; {this.removeprefix('in ')} {_describe_ending(observed)}"
    if observed.trace.parent:
        message = (
            f"run {observed.trace.run_id!r} {_describe_ending(reference_run)} in {first} and "
            f"{_describe_ending(observed)} {this}"
        )
    for run_id, now in trial.runs.items():
        if run_id not in reference.runs:
            continue
        steps = {
            record.position: record for record in reference.runs[run_id].journal.records if record.kind in _STEP_KINDS
        }
        for record in now.journal.records:
            old = steps.get(record.position) if record.kind in _STEP_KINDS else None
            if old is None or (old.kind, old.name) != (record.kind, record.name) or old.payload == record.payload:
                continue
            event = RunEvent(get_event_kind(record.kind), record.position + 1, record.name)
            times = now.trace.execution_counts[record.position]
            return Violation(
                "step-result",
                f"{message}. {str(event).capitalize()}{now.run_suffix} {_describe_outcome(old)} in the first run, and "
                f"{_format_payload(record.payload) if old.ok and record.ok else _describe_outcome(record)} {this}, "
                f"where it ran {'once' if times == 1 else f'{times} times'}",
                step=record.name,
                execution_count=times,
            )
    if _list_positions(observed) != _list_positions(reference_run):
        return Violation("order", f"{message}. Outcomes came in another order")
    return Violation("result", message)


# Messages


def _name_trial(is_control: bool) -> str:
    return "in the second" if is_control else "in this one"


def get_visible_fields(record: Record) -> tuple[Any, ...]:
    """The fields of a record that the workflow can observe."""
    return record.kind, record.position, record.name, record.ok, record.payload, record.at


def _list_positions(observed: ObservedRun) -> list[tuple[RecordKind, int]]:
    return [(record.kind, record.position) for record in observed.journal.records if record.kind is not RecordKind.CALL]


def _summarize_error(error: bytes | None) -> tuple[str, str] | None:
    if error is None:
        return None
    info = read_error_info(error)
    return info.type, info.message


def _describe_outcome(record: Record) -> str:
    if record.ok:
        return f"returned {_format_payload(record.payload)}"
    info = read_error_info(record.payload or b"null")
    return f"raised {info.type.rpartition('.')[2]}: {info.message}"


def _describe_ending(observed: ObservedRun) -> str:
    run = observed.journal.run
    if run.output is not None:
        return f"returned {_format_payload(run.output)}"
    error = _summarize_error(run.error)
    return f"is {run.state}" if error is None else f"is {run.state} ({error[0].rpartition('.')[2]}: {error[1]})"


def _build_command_violation(
    observed: ObservedRun,
    one: IssuedCommand | None,
    other: IssuedCommand | None,
    first_context: str,
    second_context: str,
) -> Violation:
    if one is not None and other is not None and (one.kind, one.name) == (other.kind, other.name):
        label = f"{_describe_command(one)}{observed.run_suffix}"
        if one.run_id != other.run_id:
            started = f"was started as run {one.run_id!r} {first_context}, and as run {other.run_id!r} {second_context}"
            return Violation("started-twice", f"{label} {started}")
        called = (
            f"was called with {_format_payload(one.arguments)} {first_context}, and with "
            f"{_format_payload(other.arguments)} {second_context}"
        )
        return Violation("arguments", f"{label} {called}")
    code = f"workflow code{observed.run_suffix}"
    return Violation(
        "commands",
        f"{code} asked for {_describe_command(one)} {first_context}, and for {_describe_command(other)} "
        f"{second_context}",
    )


def _describe_command(command: IssuedCommand | None) -> str:
    if command is None:
        return "nothing more"
    return str(RunEvent(get_event_kind(command.kind), command.position + 1, command.name))


def _format_payload(data: bytes | None) -> str:
    if data is None:
        return "nothing"
    text = data.removeprefix(TAGGED_PREFIX).decode("utf-8", "backslashreplace")
    return text if len(text) <= 200 else f"{text[:197]}..."
