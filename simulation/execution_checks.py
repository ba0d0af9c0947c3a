"""What must hold when workflow code asks for something or is told something, and when an attempt at a step begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.core.commands import UNREAD, Command
from holdfast.core.records import Kind, Record
from holdfast.core.states import Effect, RunState
from holdfast.engine.step_run import StepRun
from holdfast.stores.operations import Run

if TYPE_CHECKING:
    from simulation.invariants import Checker
    from simulation.process import ObservedExecution, Process

HEARD = 1.5
"""Seconds after which a worker that nothing disturbs has heard what was asked of its runs, at the latest."""


class Attempts:
    """The attempts at one step of one run under one epoch."""

    def __init__(self) -> None:
        self.made = 0
        self.running = False
        self.ended_well = False


class Doing:
    """What workers do, and whether they may."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self._attempts: dict[tuple[int, int, int], Attempts] = {}

    def issued(self, execution: ObservedExecution, kind: Kind, position: int, name: str, arguments: str) -> None:
        """Workflow code has issued a command: the same one as ever at this position."""
        checker = self._checker
        if execution.epoch <= checker.by_id[execution.run_id].reopened_at:
            return  # it does not know yet that the run had ended, and somebody has reopened it
        command = (kind, name, arguments)
        known = checker.commands.setdefault((execution.run_id, position), command)
        if known != command:
            checker.fail(
                "P5 replay issues the same commands",
                f"{execution.run_id} #{position + 1} was {known} and is {command}",
            )
        if kind is Kind.COMPENSATION:
            checker.sagas.issued(execution.run_id, execution.last_seq, arguments)

    def delivered(self, process: Process, execution: Any, record: Record, value: Any, command: Command | None) -> None:
        """A record is about to be handed to workflow code."""
        checker = self._checker
        model = checker.by_id[execution.run_id]
        told = f"{execution.run_id}, record {record.seq} ({record.kind.label} {record.name}) at {process}"
        journal = checker.database._records.get(model.row.key, [])
        # A zombie may still see the record that a person's retry has taken away since it was told that it is there.
        taken_away = execution.epoch <= model.reopened_at
        if record not in journal and not taken_away:
            checker.fail("P1 what a workflow sees is in the store", told)
        missed = [one.seq for one in journal if execution.last_seq < one.seq < record.seq]
        if record.seq <= execution.last_seq or (missed and not taken_away):
            checker.fail(
                "P1 records are delivered in the journal's order", f"{told}: after {execution.last_seq}, {missed}"
            )
        if value is not UNREAD and command is not None:
            decoded = command.call.step.output.decode(record.payload, "a step's output")
            if decoded != value:
                checker.fail("P5 a value is what its recorded bytes say", told)
        if record.kind is Kind.TIMER:
            self._fired(execution, record, told)

    def _fired(self, execution: Any, record: Record, told: str) -> None:
        checker = self._checker
        timer = execution.loop.timers.get(record.position)
        if timer is None:
            return  # the workflow has called it off meanwhile
        if timer.when() > record.at:
            checker.fail("timers never fire early", f"{told}: {timer.when() - record.at:.6f} s too early")
        # Only those that were taken together: one that is set later may be due earlier, when a clock was behind.
        taken = execution.taken_at.get(record.position)
        last = execution.last_fired
        if taken is not None and last is not None and last[0] == taken and last[1] > timer.when():
            checker.fail("timers fire in the order they are due", told)
        execution.last_fired = (taken, timer.when())

    def attempt_begins(self, process: Process, step: StepRun) -> Attempts:
        """A step's function is about to be called."""
        checker = self._checker
        run, position, epoch = step.driver.run, step.command.position, step.driver.run.epoch
        model = checker.runs[run.key]
        which = f"{step.call.step.name} #{position + 1} of {run.id}"
        told = f"step {which} under epoch {epoch} ({row_in_words(model.row)}) on {process}"
        if (False, position) in model.outcomes:
            checker.fail("P3 a recorded step never begins again", told)
        holder = model.row.state is RunState.RUNNING and model.row.epoch == epoch and model.row.owner in process.workers
        if not holder:
            checker.fail("P4 only the holder begins a step", told)
        key = (run.key, position, label_of(step))
        begun = checker.begun[key] = checker.begun.get(key, 0) + 1
        if step.call.step.effect is Effect.ONCE and begun > 1:
            checker.fail("a `once` step begins once", told)
        execution: Any = step.driver.execution
        if any(at in execution.loop.timers for at in execution.due_on_resume):
            checker.fail("P4 what is due comes before what was in flight", told)
        attempts = self._attempts.setdefault((run.key, epoch, position), Attempts())
        attempts.made += 1
        if attempts.running or attempts.ended_well or attempts.made > step.call.step.retry.retries + 1:
            checker.fail("P4 under one epoch a step is attempted again only after a failed attempt", told)
        attempts.running = True
        if (run.key, epoch) in process.to_stand_still:
            checker.fail("nothing begins in a workflow that was switched off", told)
        if checker.world.plan.is_calm:
            self._check_stands_still(run, attempts, told)
        if step.command.kind is Kind.COMPENSATION:
            checker.world.occasion("undoing", process, run.id)
        return attempts

    def _check_stands_still(self, run: Run, attempts: Attempts, told: str) -> None:
        """Nothing has gone wrong: whoever holds a run has heard by now what people want."""
        checker = self._checker
        off = checker.asking.switched_since.get(run.workflow)
        if off is not None and checker.world.time - off > HEARD:
            checker.fail("nothing begins in a workflow that was switched off", told)
        paused = checker.asking.paused_since.get(run.key)
        if paused is not None and checker.world.time - paused > HEARD and attempts.made == 1:
            checker.fail("no step begins in a run that was paused", told)


def row_in_words(run: Run) -> str:
    """What a row says of who holds it."""
    return f"{run.state.value}, epoch {run.epoch}, owner {run.owner}, deliveries {run.deliveries}"


def label_of(step: StepRun) -> str:
    """The label of a step, or of the step that a compensation undoes; those that belong to a question have none."""
    return str(step.call.args[0] if step.call.args else step.call.kwargs.get("label", step.call.step.name))
