"""Checks when workflow code issues a command or receives a record, and when an attempt at a step starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.core.commands import UNDECODED, Command
from holdfast.core.records import Record, RecordKind
from holdfast.core.states import Effect, RunState
from holdfast.engine.step_run import StepRun
from holdfast.stores.operations import Run

if TYPE_CHECKING:
    from simulation.invariants import InvariantChecker
    from simulation.process import ObservedExecution, Process

MAX_REACTION_S = 1.5
"""An undisturbed worker learns of a request for its runs within this time."""


class StepAttempts:
    """The attempts at one step of one run under one epoch."""

    def __init__(self) -> None:
        self.count = 0
        self.is_running = False
        self.has_succeeded = False


class ExecutionChecker:
    """What workers do, and whether they may."""

    def __init__(self, checker: InvariantChecker) -> None:
        self._checker = checker
        self._attempts: dict[tuple[int, int, int], StepAttempts] = {}

    def check_command(
        self, execution: ObservedExecution, kind: RecordKind, position: int, name: str, arguments: str
    ) -> None:
        """Workflow code issued a command: it must be the same as ever at this position."""
        checker = self._checker
        if execution.epoch <= checker.runs_by_id[execution.run_id].reopened_epoch:
            return  # it does not know yet that the run ended and was reopened
        command = (kind, name, arguments)
        known = checker.commands.setdefault((execution.run_id, position), command)
        if known != command:
            checker.fail(
                "P5 replay issues the same commands",
                f"{execution.run_id} #{position + 1} was {known} and is {command}",
            )
        if kind is RecordKind.COMPENSATION:
            checker.compensation_checker.check_compensation(execution.run_id, execution.last_seq, arguments)

    def check_delivery(
        self, process: Process, execution: Any, record: Record, value: Any, command: Command | None
    ) -> None:
        """A record is about to be handed to workflow code."""
        checker = self._checker
        model = checker.runs_by_id[execution.run_id]
        told = f"{execution.run_id}, record {record.seq} ({record.kind.label} {record.name}) at {process}"
        journal = checker.database._records.get(model.row.key, [])
        # A zombie may still deliver a record that a retry took back after the record was acknowledged.
        taken_away = execution.epoch <= model.reopened_epoch
        if record not in journal and not taken_away:
            checker.fail("P1 what a workflow sees is in the store", told)
        missed = [one.seq for one in journal if execution.last_seq < one.seq < record.seq]
        if record.seq <= execution.last_seq or (missed and not taken_away):
            checker.fail(
                "P1 records are delivered in the journal's order", f"{told}: after {execution.last_seq}, {missed}"
            )
        if value is not UNDECODED and command is not None:
            decoded = command.call.step.output_codec.decode(record.payload, "a step's output")
            if decoded != value:
                checker.fail("P5 a value is what its recorded bytes say", told)
        if record.kind is RecordKind.TIMER:
            self._check_timer(execution, record, told)

    def _check_timer(self, execution: Any, record: Record, context: str) -> None:
        checker = self._checker
        timer = execution.loop.timers.get(record.position)
        if timer is None:
            return  # the workflow has called it off meanwhile
        if timer.when() > record.at:
            checker.fail("timers never fire early", f"{context}: {timer.when() - record.at:.6f} s too early")
        # Only timers that were queued together: one that is set later may be due earlier, if a clock was behind.
        taken = execution.due_poll_numbers.get(record.position)
        last = execution.last_fired
        if taken is not None and last is not None and last[0] == taken and last[1] > timer.when():
            checker.fail("timers fire in the order they are due", context)
        execution.last_fired = (taken, timer.when())

    def check_attempt_start(self, process: Process, step: StepRun) -> StepAttempts:
        """A step's function is about to be called."""
        checker = self._checker
        run, position, epoch = step.driver.run, step.command.position, step.driver.run.epoch
        model = checker.runs[run.key]
        which = f"{step.call.step.name} #{position + 1} of {run.id}"
        told = f"step {which} under epoch {epoch} ({describe_row(model.row)}) on {process}"
        if (False, position) in model.outcomes:
            checker.fail("P3 a recorded step never begins again", told)
        holder = (
            model.row.state is RunState.RUNNING and model.row.epoch == epoch and model.row.owner in process.worker_ids
        )
        if not holder:
            checker.fail("P4 only the holder begins a step", told)
        key = (run.key, position, get_label(step))
        begun = checker.step_start_counts[key] = checker.step_start_counts.get(key, 0) + 1
        if step.call.step.effect is Effect.ONCE and begun > 1:
            checker.fail("a `once` step begins once", told)
        execution: Any = step.driver.execution
        if any(at in execution.loop.timers for at in execution.due_on_resume):
            checker.fail("P4 what is due comes before what was in flight", told)
        attempts = self._attempts.setdefault((run.key, epoch, position), StepAttempts())
        attempts.count += 1
        if attempts.is_running or attempts.has_succeeded or attempts.count > step.call.step.retry.retries + 1:
            checker.fail("P4 under one epoch a step is attempted again only after a failed attempt", told)
        attempts.is_running = True
        if (run.key, epoch) in process.disabled_claims:
            checker.fail("nothing begins in a workflow that was switched off", told)
        if checker.world.plan.is_calm:
            self._check_paused_or_disabled(run, attempts, told)
        if step.command.kind is RecordKind.COMPENSATION:
            checker.world.reach_action_point("undoing", process, run.id)
        return attempts

    def _check_paused_or_disabled(self, run: Run, attempts: StepAttempts, context: str) -> None:
        """Without faults, the holder of a run must know users' requests by now."""
        checker = self._checker
        off = checker.request_checker.disabled_since.get(run.workflow)
        if off is not None and checker.world.time - off > MAX_REACTION_S:
            checker.fail("nothing begins in a workflow that was switched off", context)
        paused = checker.request_checker.paused_since.get(run.key)
        if paused is not None and checker.world.time - paused > MAX_REACTION_S and attempts.count == 1:
            checker.fail("no step begins in a run that was paused", context)


def describe_row(run: Run) -> str:
    """The row's fields about its holder."""
    return f"{run.state.value}, epoch {run.epoch}, owner {run.owner}, deliveries {run.delivery_count}"


def get_label(step: StepRun) -> str:
    """The label of a step, or of the step that a compensation undoes; empty for steps of an approval."""
    return str(step.call.args[0] if step.call.args else step.call.kwargs.get("label", step.call.step.name))
