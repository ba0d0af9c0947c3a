"""What must hold at every write, at every delivery and at the beginning of every attempt.

``Checker`` keeps a model of its own beside the database: every row, journal and mailbox as it was after the last
atomic operation. After each operation it compares, and asks of everything that changed whether this operation, by this
worker, was entitled to change it. So a broken promise is found where it is broken, not when its consequence shows.

The promises are those of ``docs/architecture.md``, by number: recorded outcomes never change (P1), one ending written
by the holder (P2), nothing recorded runs again (P3), only what was in flight runs again (P4), live is as replay (P5).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.core.execution import UNREAD, Command, Execution
from holdfast.core.records import Kind, Record, Signal
from holdfast.core.states import Effect, RunState
from holdfast.engine.steps import StepRun
from holdfast.stores.contract import (
    AppendRecord,
    FinishRun,
    NoteAttempt,
    ParkRun,
    Reaped,
    ReleaseRun,
    ReopenRun,
    Run,
    SendSignal,
    Started,
    StartRun,
    Verdict,
)
from holdfast.stores.memory import MemoryStore

if TYPE_CHECKING:
    from simulation.process import Process
    from simulation.world import World


class RunModel:
    """What the checker knows of one run."""

    def __init__(self, row: Run) -> None:
        self.row = row
        self.journal: list[Record] = []
        self.outcomes: set[tuple[bool, int]] = set()
        self.mailbox: dict[int, Signal] = {}
        self.attempts: dict[int, Any] = {}
        self.accepted = 0
        self.consumed = 0
        self.last_consumed: dict[str, int] = {}
        self.dedup: dict[str, bytes] = {}
        self.deaths = 0
        """Deaths of holders in a row, without a record in between."""


class Attempts:
    """The attempts at one step of one run under one epoch."""

    def __init__(self) -> None:
        self.made = 0
        self.running = False
        self.ended_well = False


class Checker:
    """The model, and the questions asked of every change."""

    def __init__(self, world: World, database: MemoryStore) -> None:
        self._world = world
        self._database = database
        self.runs: dict[int, RunModel] = {}
        self.by_id: dict[str, RunModel] = {}
        self.begun: dict[tuple[int, int, str], int] = {}
        self.attempts: dict[tuple[int, int, int], Attempts] = {}
        self.commands: dict[tuple[str, int], tuple[Kind, str, str]] = {}
        self.keys: dict[tuple[str, str], str] = {}
        self.beats: dict[tuple[str, str], list[Any]] = {}
        self.rewound: set[str] = set()
        """Runs of which a retry has taken the last record away."""
        self.checked = 0
        """Atomic operations that changed, or could have changed, something."""

    def fail(self, invariant: str, what: str) -> None:
        """A promise is broken."""
        self._world.fail(invariant, what)

    # Operations of a commit

    def operation(self, process: Process | None, op: Any, answer: Any) -> None:
        """One operation of a commit has been carried out."""
        self.checked += 1
        if isinstance(op, StartRun):
            self._started(op, answer)
        elif isinstance(op, SendSignal):
            self._sent(op, answer)
        elif isinstance(op, ReopenRun):
            self._reopened(op, answer)
        else:
            self._held_operation(process, op, answer)
        self._nothing_else_changed()

    def _held_operation(self, process: Process | None, op: Any, answer: Verdict) -> None:
        model = self.runs.get(op.key)
        if model is None:
            self.fail("P2", f"{op!r} names a run that does not exist")
            return
        before, after = model.row, self._database._runs[op.key]
        epoch = op.record.epoch if isinstance(op, AppendRecord) else op.epoch
        mine = process is not None and before.owner in process.workers
        holder = before.state is RunState.RUNNING and before.epoch == epoch and mine
        told = f"{_words(op)} by {process} under epoch {epoch} ({_row(before)}) was answered {answer.value}"
        delayed = isinstance(op, ParkRun) and op.next_seq is not None and op.next_seq < len(model.journal)
        if holder and answer is Verdict.FENCED and not delayed:
            self.fail("P2 the holder is not fenced", told)
        if delayed and self._changed(model):
            self.fail("a park that comes too late does nothing", told)
        if not holder and self._changed(model):
            self.fail("P2 only the holder changes a run", told)
        if isinstance(op, AppendRecord):
            self._appended(process, model, op, answer, told)
        elif isinstance(op, NoteAttempt):
            model.attempts = dict(self._database._attempts.get(op.key, {}))
        elif isinstance(op, FinishRun):
            if answer is Verdict.DONE and (after.state, after.output) != (op.state, op.output):
                self.fail("P2 an ending that was answered as done is there", told)
        elif isinstance(op, ParkRun):
            self._parked(process, model, op, answer, after, told)
        elif isinstance(op, ReleaseRun) and holder and after.state is not RunState.PENDING:
            self.fail("a released run can be claimed", told)
        self._row_changed(model, after, told)

    def _appended(self, process: Process | None, model: RunModel, op: AppendRecord, answer: Verdict, told: str) -> None:
        journal = self._database._records.get(op.key, [])
        record = op.record
        if journal[: len(model.journal)] != model.journal:
            self.fail("P1 records never change", told)
        new = journal[len(model.journal) :]
        if answer is Verdict.DONE and record not in (new or model.journal):
            self.fail("P1 a record that was answered as written is there as it was handed in", told)
        if new:
            self._new_record(process, model, op, new, told)
        elif op.clear_attempt and model.row.state is RunState.RUNNING and model.row.epoch == record.epoch:
            # A repeated record takes the row of its attempt with it once more: the note of it may have been repeated.
            model.attempts = {at: one for at, one in model.attempts.items() if at != record.position}
        if answer is not Verdict.DONE and new:
            self.fail("P1 a refused record changes nothing", told)

    def _new_record(
        self, process: Process | None, model: RunModel, op: AppendRecord, new: Sequence[Record], told: str
    ) -> None:
        record = op.record
        if new != [record]:
            self.fail("P1 journals grow by what is appended", told)
        if record.seq != (model.journal[-1].seq + 1 if model.journal else 0):
            self.fail("P1 a journal has no gaps", told)
        if model.journal and record.epoch < model.journal[-1].epoch:
            self.fail("P1 epochs in a journal never fall", told)
        outcome = (record.kind is Kind.TIMER, record.position)
        if record.kind is not Kind.DEADLINE:
            if outcome in model.outcomes:
                self.fail("P1 no command has two outcomes", told)
            model.outcomes.add(outcome)
        if process is not None and record.at > process.clock.latest():
            self.fail(
                "timers never fire early", f"{told}: its time is {record.at - process.clock.latest():.3f} s ahead"
            )
        mailbox = self._database._mailboxes.get(op.key, {})
        if record.kind is Kind.SIGNAL:
            self._consumed(model, op, mailbox, told)
        model.mailbox = dict(mailbox)
        model.attempts = dict(self._database._attempts.get(op.key, {}))
        model.journal = [*model.journal, record]
        model.deaths = 0

    def _consumed(self, model: RunModel, op: AppendRecord, mailbox: dict[int, Signal], told: str) -> None:
        signal = None if op.consume is None else model.mailbox.get(op.consume)
        if signal is None:
            self.fail("a signal is consumed at most once", told)
            return
        if (signal.name, signal.payload) != (op.record.name, op.record.payload):
            self.fail("a signal is recorded as it was sent", told)
        if signal.id in mailbox:
            self.fail("a signal is consumed by its record", told)
        if signal.id < model.last_consumed.get(signal.name, 0) or any(
            other.name == signal.name and other.id < signal.id for other in model.mailbox.values()
        ):
            self.fail("signals come in the order they were sent", told)
        model.last_consumed[signal.name] = signal.id
        model.consumed += 1

    def _parked(
        self, process: Process | None, model: RunModel, op: ParkRun, answer: Verdict, after: Run, told: str
    ) -> None:
        waiting = [signal for signal in model.mailbox.values() if signal.name in op.signals]
        self._world.moment("parked", process)
        if answer is Verdict.DONE and after is not model.row and waiting:
            self.fail("no signal falls between a wait and its park", told)
        if answer is Verdict.DONE and after is not model.row and after.wake_at != op.wake_at:
            self.fail("a parked run wakes when its next timer is due", told)

    def _started(self, op: StartRun, answer: Started) -> None:
        known = self.by_id.get(op.run.id)
        if known is None:
            model = self.runs[answer.run.key] = self.by_id[op.run.id] = RunModel(answer.run)
            if not answer.created or answer.run.digest != op.run.digest:
                self.fail("starting is creating", f"the first start of {op.run.id} was answered {answer}")
            self._row_changed(model, answer.run, "start")
        elif answer.created and known.row.seed != op.run.seed:
            self.fail("a run is started once", f"{op.run.id} was started again")

    def _sent(self, op: SendSignal, answer: Verdict) -> None:
        model = self.by_id.get(op.run_id)
        if model is None:
            if answer is not Verdict.UNKNOWN_RUN:
                self.fail("signals go to runs", f"a signal to {op.run_id}, which is not there, was answered {answer}")
            return
        mailbox = self._database._mailboxes.get(model.row.key, {})
        added = [signal for signal in mailbox.values() if signal.id not in model.mailbox]
        told = f"signal {op.name} to {op.run_id} with key {op.dedup} was answered {answer.value}"
        if len(added) != (answer is Verdict.DONE):
            self.fail("an accepted signal is in the mailbox, once", told)
        if op.dedup is not None and (op.dedup in model.dedup) != (answer is Verdict.DUPLICATE):
            self.fail("a signal with a known key counts once", told)
        if answer is Verdict.DONE:
            model.accepted += 1
            if op.dedup is not None:
                model.dedup[op.dedup] = op.payload
            model.mailbox = dict(mailbox)
            after = self._database._runs[model.row.key]
            if after.state is RunState.WAITING and (after.wake_at is None or after.wake_at > self._database.now()):
                self.fail("a signal wakes a parked run", told)
            self._row_changed(model, after, told)

    def _reopened(self, op: ReopenRun, answer: Verdict) -> None:
        """A person's retry: the one thing that may reopen a run, and take its last record away."""
        model = self.by_id.get(op.run_id)
        if model is None or answer is not Verdict.DONE:
            return
        after = self._database._runs[model.row.key]
        journal = self._database._records.get(model.row.key, [])
        if model.row.state not in (RunState.FAILED, RunState.DEAD) or after.state is not RunState.PENDING:
            self.fail("a retry reopens what has failed", f"{op.run_id}: {_row(model.row)} became {_row(after)}")
        if journal != model.journal[: len(journal)] or len(model.journal) - len(journal) > 1:
            self.fail("P1 a retry takes away the last record at most", op.run_id)
        if len(journal) < len(model.journal):
            self.rewound.add(op.run_id)
            gone = model.journal[-1].position
            for known in [one for one in self.begun if one[:2] == (model.row.key, gone)]:
                del self.begun[known]  # a person has said that it may run again
            # What the code did after the record that is gone, it may do differently now.
            self.commands = {at: one for at, one in self.commands.items() if at[0] != op.run_id}
            self.keys = {at: one for at, one in self.keys.items() if at[0] != op.run_id}
        model.journal, model.deaths, model.row = list(journal), 0, after
        self._world.run_reopened(op.run_id)
        model.outcomes = {(r.kind is Kind.TIMER, r.position) for r in journal if r.kind is not Kind.DEADLINE}

    # Everything else that a store does

    def claimed(self, process: Process, worker: int, runs: Sequence[Run]) -> None:
        """``claim`` has been carried out."""
        self.checked += 1
        now = self._database.now()
        for run in runs:
            model = self.runs[run.key]
            before = model.row
            told = f"{process} claimed {run.id} as worker {worker} ({_row(before)})"
            if before.state not in (RunState.PENDING, RunState.WAITING) or run.epoch != before.epoch + 1:
                self.fail("P2 a claim takes what nobody holds, under the next epoch", told)
            if before.wake_at is None or before.wake_at > now:
                self.fail("a claim takes what is due", told)
            self._row_changed(model, run, told)
        self._nothing_else_changed()

    def reaped(self, process: Process, answer: Reaped) -> None:
        """``reap`` has been carried out."""
        self.checked += 1
        for worker in answer.workers:
            owner = self._world.owner_of(worker)
            if not owner.disturbed:
                self.fail("only a worker that died, stood still or was cut off is declared dead", f"{owner} was")
            for model in self.runs.values():
                after = self._database._runs[model.row.key]
                if model.row.owner == worker and model.row.state is RunState.RUNNING:
                    model.deaths += 1
                    spent = model.deaths >= model.row.max_deliveries
                    if after.state is not (RunState.DEAD if spent else RunState.PENDING):
                        self.fail(
                            "P2 dead after so many deaths in a row without a record, and only then",
                            f"{after.id} is {after.state} after {model.deaths} deaths of {after.max_deliveries}",
                        )
                    self._row_changed(model, after, f"reap by {process}", by_death=True)
        self._nothing_else_changed()

    def retired(self, process: Process, worker: int) -> None:
        """``retire_worker`` has been carried out."""
        self.checked += 1
        for model in self.runs.values():
            after = self._database._runs[model.row.key]
            if model.row.owner == worker and after is not model.row:
                self._row_changed(model, after, f"{process} retired")
        self._nothing_else_changed()

    def _row_changed(self, model: RunModel, after: Run, told: str, *, by_death: bool = False) -> None:
        before = model.row
        if after is before and after.epoch:
            return
        if before.state.is_terminal and after is not before:
            self.fail("P2 a run that has ended has ended", f"{told}: {_row(before)} became {_row(after)}")
        if after.epoch < before.epoch:
            self.fail("P2 epochs never fall", told)
        if after.deliveries != model.deaths:
            self.fail(
                "the delivery counter counts deaths since the last record",
                f"{told}: it is {after.deliveries} after {model.deaths} deaths",
            )
        if after.state is RunState.DEAD and not by_death:
            self.fail("P2 dead comes from deaths alone", told)
        model.row = after
        if after.state.is_terminal and after is not before:
            self._world.run_ended(after)

    def _changed(self, model: RunModel) -> bool:
        key, database = model.row.key, self._database
        return (
            database._runs[key] is not model.row
            or len(database._records.get(key, ())) != len(model.journal)
            or database._attempts.get(key, {}) != model.attempts
            or database._mailboxes.get(key, {}).keys() != model.mailbox.keys()
        )

    def _nothing_else_changed(self) -> None:
        for model in self.runs.values():
            if self._changed(model):
                after = self._database._runs[model.row.key]
                self.fail(
                    "P1 nothing changes but what was asked for",
                    f"{model.row.id}: {_row(model.row)} became {_row(after)}, its mailbox {list(model.mailbox)} "
                    f"became {list(self._database._mailboxes.get(model.row.key, {}))}",
                )

    # What workers do

    def issued(self, execution: Execution, kind: Kind, position: int, name: str, arguments: str) -> None:
        """Workflow code has issued a command: the same one as ever at this position."""
        command = (kind, name, arguments)
        known = self.commands.setdefault((execution.run_id, position), command)
        if known != command:
            self.fail(
                "P5 replay issues the same commands",
                f"{execution.run_id} #{position + 1} was {known} and is {command}",
            )

    def delivered(self, process: Process, execution: Any, record: Record, value: Any, command: Command | None) -> None:
        """A record is about to be handed to workflow code."""
        model = self.by_id[execution.run_id]
        told = f"{execution.run_id}, record {record.seq} ({record.kind.label} {record.name}) at {process}"
        journal = self._database._records.get(model.row.key, [])
        # A zombie may still see the record that a person's retry has taken away since it was told that it is there.
        is_held = model.row.state is RunState.RUNNING and model.row.epoch == record.epoch
        taken_away = execution.run_id in self.rewound and not is_held
        if (record.seq >= len(journal) or journal[record.seq] != record) and not taken_away:
            self.fail("P1 what a workflow sees is in the store", told)
        if record.seq != execution.next_seq:
            self.fail("P1 records are delivered in the journal's order", f"{told}: expected {execution.next_seq}")
        if value is not UNREAD and command is not None:
            decoded = command.call.step.output.decode(record.payload, "a step's output")
            if decoded != value:
                self.fail("P5 a value is what its recorded bytes say", told)
        if record.kind is Kind.TIMER:
            self._fired(execution, record, told)

    def _fired(self, execution: Any, record: Record, told: str) -> None:
        timer = execution.loop.timers.get(record.position)
        if timer is None:
            return  # the workflow has called it off meanwhile
        if timer.when() > record.at:
            self.fail("timers never fire early", f"{told}: {timer.when() - record.at:.6f} s too early")
        # Only those that were taken together: one that is set later may be due earlier, when a clock was behind.
        taken = execution.taken_at.get(record.position)
        last = execution.last_fired
        if taken is not None and last is not None and last[0] == taken and last[1] > timer.when():
            self.fail("timers fire in the order they are due", told)
        execution.last_fired = (taken, timer.when())

    def attempt_begins(self, process: Process, step: StepRun) -> Attempts:
        """A step's function is about to be called."""
        run, position, epoch = step.driver.run, step.command.position, step.driver.run.epoch
        model = self.runs[run.key]
        which = f"{step.call.step.name} #{position + 1} of {run.id}"
        told = f"step {which} under epoch {epoch} ({_row(model.row)}) on {process}"
        if (False, position) in model.outcomes:
            self.fail("P3 a recorded step never begins again", told)
        holder = model.row.state is RunState.RUNNING and model.row.epoch == epoch and model.row.owner in process.workers
        if not holder:
            self.fail("P4 only the holder begins a step", told)
        key = (run.key, position, step.call.args[0])
        begun = self.begun[key] = self.begun.get(key, 0) + 1
        if step.call.step.effect is Effect.ONCE and begun > 1:
            self.fail("a `once` step begins once", told)
        execution: Any = step.driver.execution
        if any(at in execution.loop.timers for at in execution.due_on_resume):
            self.fail("P4 what is due comes before what was in flight", told)
        attempts = self.attempts.setdefault((run.key, epoch, position), Attempts())
        attempts.made += 1
        if attempts.running or attempts.ended_well or attempts.made > step.call.step.retry.retries + 1:
            self.fail("P4 under one epoch a step is attempted again only after a failed attempt", told)
        attempts.running = True
        return attempts


def _words(op: Any) -> str:
    if isinstance(op, AppendRecord):
        record = op.record
        return f"append {record.seq} ({record.kind.label} {record.name} #{record.position + 1})"
    return type(op).__name__


def _row(run: Run) -> str:
    return f"{run.state.value}, epoch {run.epoch}, owner {run.owner}, deliveries {run.deliveries}"
