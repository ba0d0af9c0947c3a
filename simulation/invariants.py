"""What must hold at every write.

``Checker`` keeps a model of its own beside the database: every row, journal and mailbox as it was after the last
atomic operation. After each operation it compares, and asks of everything that changed whether this operation, by this
worker, was entitled to change it. So a broken promise is found where it is broken, not when its consequence shows.

The promises are those of ``docs/architecture.md``, by number: recorded outcomes never change (P1), one ending written
by the holder (P2), nothing recorded runs again (P3), only what was in flight runs again (P4), live is as replay (P5).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.core.records import Kind, Record, Signal
from holdfast.core.states import RunState
from holdfast.stores.approvals import AnswerApproval, AskApproval, RemindApproval, WithdrawApproval
from holdfast.stores.contract import Reaped
from holdfast.stores.memory import MemoryStore
from holdfast.stores.operations import (
    AppendRecord,
    AwaitRun,
    Cancel,
    CancelRun,
    FinishRun,
    ForkRun,
    NoteAttempt,
    ParkRun,
    PauseRun,
    ReleaseRun,
    ReopenRun,
    ResumeRun,
    Run,
    SendSignal,
    Started,
    StartRun,
    Verdict,
)
from holdfast.stores.rules import isolation_leases
from simulation.approval_checks import Questions
from simulation.compensation_checks import Sagas
from simulation.execution_checks import Doing, row_in_words
from simulation.expectations import can_swallow
from simulation.link_checks import Family
from simulation.request_checks import Asking

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
        """Deaths of workers that held nothing but this run, without a record in between."""
        self.cancel_accepted = False
        """Somebody was told that the run will be cancelled."""
        self.cancel_recorded = False
        self.cancelled_by: set[str] = set()
        self.reopened_at = -1
        """The epoch under which it had ended when it was last reopened."""
        self.parked_by: int | None = None
        """The worker that parked it while there were signals in its mailbox."""
        self.inherited = 0
        """How many records it shares with the run that it was forked from."""

    @property
    def program(self) -> Any:
        """What it does."""
        return json.loads(self.row.inputs)["program"]


class Checker:
    """The model, and the questions asked of every change."""

    def __init__(self, world: World, database: MemoryStore) -> None:
        self.world = world
        self.database = database
        self.family = Family(self)
        self.asking = Asking(self)
        self.questions = Questions(self)
        self.sagas = Sagas(self)
        self.doing = Doing(self)
        self.runs: dict[int, RunModel] = {}
        self.by_id: dict[str, RunModel] = {}
        self.begun: dict[tuple[int, int, str], int] = {}
        self.commands: dict[tuple[str, int], tuple[Kind, str, str]] = {}
        self.keys: dict[tuple[str, str], str] = {}
        self.beats: dict[str, list[Any]] = {}
        """Progress that attempts handed in, by the idempotency key of the call."""
        self.attempts_begun: Counter[str] = Counter()
        """By the idempotency key of the call."""
        self.key_owners: dict[str, str] = {}
        """Which run an idempotency key belongs to."""
        self.rewound: set[str] = set()
        """Runs of which a retry has taken records away."""
        self.tried_alone: dict[int, tuple[float, set[int]]] = {}
        """By worker: until when it takes nothing but isolated runs, and the keys of those that it has taken."""
        self.checked = 0
        """Atomic operations that changed, or could have changed, something."""

    def fail(self, invariant: str, what: str) -> None:
        """A promise is broken."""
        self.world.fail(invariant, what)

    # Operations of a commit

    def operation(self, process: Process | None, op: Any, answer: Any) -> None:
        """One operation of a commit has been carried out."""
        self.checked += 1
        match op:
            case StartRun():
                self._started(op, answer)
            case AwaitRun():
                if isinstance(answer, Started):
                    self.family.asked(op.link, answer)
            case SendSignal():
                self._sent(op, answer)
            case CancelRun():
                self.asking.cancelled(op, answer)
            case PauseRun() | ResumeRun():
                self.asking.paused(op, answer)
            case ReopenRun():
                self.asking.reopened(op, answer)
            case ForkRun():
                self.asking.forked(op, answer)
            case AnswerApproval():
                self.questions.answered(op, answer)
            case _:
                self._held_operation(process, op, answer)
        self._nothing_else_changed()

    def _held_operation(self, process: Process | None, op: Any, answer: Verdict) -> None:
        model = self.runs.get(op.key)
        if model is None:
            self.fail("P2", f"{op!r} names a run that does not exist")
            return
        before, after = model.row, self.database._runs[op.key]
        epoch = op.record.epoch if isinstance(op, AppendRecord) else op.epoch
        mine = process is not None and before.owner in process.workers
        holder = before.state is RunState.RUNNING and before.epoch == epoch and mine
        told = f"{_words(op)} by {process} under epoch {epoch} ({row_in_words(before)}) was answered {answer.value}"
        last = model.journal[-1].seq if model.journal else -1
        delayed = isinstance(op, ParkRun) and op.next_seq is not None and op.next_seq <= last
        delayed |= isinstance(op, FinishRun) and op.heed_cancel and before.cancel is Cancel.RECORDED
        if holder and answer is Verdict.FENCED and not delayed:
            self.fail("P2 the holder is not fenced", told)
        if delayed and self._changed(model):
            self.fail("a park or an end that comes too late does nothing", told)
        if not holder and self._changed(model):
            self.fail("P2 only the holder changes a run", told)
        if isinstance(op, AppendRecord):
            self._appended(process, model, op, answer, told)
        elif isinstance(op, NoteAttempt):
            model.attempts = dict(self.database._attempts.get(op.key, {}))
        elif isinstance(op, FinishRun):
            self._finished(model, op, answer, after, told)
        elif isinstance(op, ParkRun):
            self._parked(process, model, op, answer, after, told)
        elif isinstance(op, AskApproval | RemindApproval | WithdrawApproval):
            self.questions.held(op, answer, told)
        elif isinstance(op, ReleaseRun) and holder and after.state is not RunState.PENDING:
            self.fail("a released run can be claimed", told)
        self.row_changed(model, after, told)

    def _finished(self, model: RunModel, op: FinishRun, answer: Verdict, after: Run, told: str) -> None:
        if answer not in (Verdict.DONE, Verdict.TOLD):
            return
        if (after.state, after.output) != (op.state, op.output):
            self.fail("P2 an ending that was answered as done is there", told)
        if after is model.row:
            return  # it was there before
        if model.row.cancel is Cancel.ASKED and op.heed_cancel:
            self.fail("a run does not end before its cancellation is recorded", told)
        if op.state is RunState.COMPLETED and model.cancel_accepted and not can_swallow(model.program):
            self.fail("a run whose cancellation was accepted does not complete", told)
        if answer is Verdict.DONE and self.family.is_awaited(op.key):
            self.fail("whoever ends a run hears that somebody waited for it", told)
        self.sagas.ended(model, after)
        self.family.left_alone(model, told)

    def _appended(self, process: Process | None, model: RunModel, op: AppendRecord, answer: Verdict, told: str) -> None:
        journal = self.database._records.get(op.key, [])
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
        if len(model.journal) > model.inherited and record.epoch < model.journal[-1].epoch:
            self.fail("P1 epochs in a journal never fall", told)
        outcome = (record.kind is Kind.TIMER, record.position)
        if record.kind is Kind.CANCEL:
            if model.cancel_recorded:
                self.fail("a cancellation is recorded once", told)
            if not model.cancel_accepted:
                self.fail("only what somebody asked for is cancelled", told)
            model.cancel_recorded = True
            self.world.occasion("cancelling", process, model.row.id)
            if self.database._runs[op.key].cancel is not Cancel.RECORDED:
                self.fail("the row tells that a cancellation is recorded", told)
        elif record.kind is not Kind.DEADLINE:
            if outcome in model.outcomes:
                self.fail("P1 no command has two outcomes", told)
            model.outcomes.add(outcome)
        if process is not None and record.at > process.clock.latest():
            self.fail(
                "timers never fire early", f"{told}: its time is {record.at - process.clock.latest():.3f} s ahead"
            )
        mailbox = self.database._mailboxes.get(op.key, {})
        if record.kind is Kind.SIGNAL:
            self._consumed(model, op, mailbox, told)
        elif record.kind is Kind.CHILD:
            self.family.recorded(model, op, mailbox, told)
        elif record.kind is Kind.APPROVAL:
            self.questions.recorded(model, op, mailbox, told)
        elif record.kind is Kind.STEP:
            self.questions.step_recorded(record, told)
        model.mailbox = dict(mailbox)
        model.attempts = dict(self.database._attempts.get(op.key, {}))
        model.journal = [*model.journal, record]
        model.deaths = 0
        if self.database._runs[op.key].suspicion:
            self.fail("a run that has recorded something is not suspected", told)

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
            other.name == signal.name and other.id < signal.id and other.position is None
            for other in model.mailbox.values()
        ):
            self.fail("signals come in the order they were sent", told)
        model.last_consumed[signal.name] = signal.id
        model.consumed += 1

    def _parked(
        self, process: Process | None, model: RunModel, op: ParkRun, answer: Verdict, after: Run, told: str
    ) -> None:
        self.world.moment("parked", process, model.row.id)
        if answer is not Verdict.DONE or after is model.row:
            return
        if model.row.cancel is Cancel.ASKED:
            self.fail("a run does not park before its cancellation is recorded", told)
        if op.paused != (model.row.paused_at is not None) and op.paused:
            self.fail("a run that was resumed does not park as paused", told)
        if after.wake_at != op.wake_at:
            self.fail("a parked run wakes when its next timer is due", told)
        model.parked_by = model.row.owner if model.mailbox and not op.paused else None
        if op.paused:
            return  # what it waits for does not matter
        if any(signal.name in op.signals for signal in model.mailbox.values() if signal.position is None):
            self.fail("no signal falls between a wait and its park", told)
        self.family.parked(model, op, told)
        self.questions.parked(model, op, told)

    def new_model(self, row: Run) -> RunModel:
        """A run is there for the first time."""
        model = self.runs[row.key] = self.by_id[row.id] = RunModel(row)
        return model

    def _started(self, op: StartRun, answer: Started | Verdict) -> None:
        known = self.by_id.get(op.run.id)
        link = op.link
        if not isinstance(answer, Started):
            self._not_started(op, answer)
            return
        if link is not None:
            parent = self.runs[link.parent].row
            if parent.state is not RunState.RUNNING or parent.epoch != link.epoch:
                self.fail("P2 only the holder of a run starts others for it", f"{op.run.id} for {parent.id}")
        if known is None:
            if op.run.workflow in self.asking.switched_since:
                self.fail("no run of a workflow starts that is switched off", op.run.id)
            model = self.new_model(answer.run)
            if not answer.created or answer.run.digest != op.run.digest:
                self.fail("starting is creating", f"the first start of {op.run.id} was answered {answer}")
            self.row_changed(model, answer.run, "start")
            self.world.run_created(answer.run)
        elif answer.created and known.row.seed != op.run.seed:
            self.fail("a run is started once", f"{op.run.id} was started again")
        elif link is not None and op.run.id.startswith(f"{self.runs[link.parent].row.id}:") and not answer.created:
            self.fail("a run that is started again is the same run", f"{op.run.id} has another seed")
        if link is not None:
            self.family.asked(link, answer)

    def _not_started(self, op: StartRun, answer: Verdict) -> None:
        if answer is Verdict.SWITCHED_OFF and op.run.workflow in self.asking.switched_since:
            return
        parent = None if op.link is None else self.runs[op.link.parent].row
        if parent is None or (parent.state is RunState.RUNNING and op.link and parent.epoch == op.link.epoch):
            self.fail("a run can be started", f"{op.run.id} was answered {answer}")

    def _sent(self, op: SendSignal, answer: Verdict) -> None:
        model = self.by_id.get(op.run_id)
        if model is None:
            if answer is not Verdict.UNKNOWN_RUN:
                self.fail("signals go to runs", f"a signal to {op.run_id}, which is not there, was answered {answer}")
            return
        mailbox = self.database._mailboxes.get(model.row.key, {})
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
            after = self.database._runs[model.row.key]
            asleep = after.state is RunState.WAITING and after.paused_at is None
            if asleep and (after.wake_at is None or after.wake_at > self.database.now()):
                self.fail("a signal wakes a parked run", told)
            self.row_changed(model, after, told)

    # Everything else that a store does

    def claimed(self, process: Process, worker: int, runs: Sequence[Run]) -> None:
        """``claim`` has been carried out."""
        self.checked += 1
        now = self.database.now()
        for run in runs:
            model = self.runs[run.key]
            before = model.row
            told = f"{process} claimed {run.id} as worker {worker} ({row_in_words(before)})"
            if before.state not in (RunState.PENDING, RunState.WAITING) or run.epoch != before.epoch + 1:
                self.fail("P2 a claim takes what nobody holds, under the next epoch", told)
            if before.wake_at is None or before.wake_at > now:
                self.fail("a claim takes what is due", told)
            if before.paused_at is not None or before.workflow in self.asking.switched_since:
                self.fail("nobody claims what is paused or switched off", told)
            self.world.occasion("claimed", process, run.id)
            self.row_changed(model, run, told)
        self._keeps_apart(process, worker, runs)
        self._keeps_to_places(process)
        self._nothing_else_changed()

    def _keeps_apart(self, process: Process, worker: int, claimed: Sequence[Run]) -> None:
        new = {run.key for run in claimed}
        held = {model.row.key for model in self.runs.values() if model.row.owner == worker} - new
        until, tried = self.tried_alone.get(worker, (0.0, set[int]()))
        plan = self.world.plan
        if plan.has_killer and not plan.late and not plan.unknown and held and held <= tried:
            unclear = [self.runs[key].row.id for key in held if self.runs[key].row.suspicion > 1]
            if unclear and self.world.time < until:
                told = f"{process} claimed {[run.id for run in claimed]} beside {unclear}"
                self.fail("a worker takes nothing beside a run that it tries alone", told)
        levels = {run.suspicion for run in claimed if run.suspicion > 1}
        if not levels:
            return
        if not held:
            self.tried_alone[worker] = (self.world.time + isolation_leases(0) * plan.lease, new)
        tried.update(new)
        self.world.counts["isolated claims"] += 1
        told = f"{process} claimed {[(run.id, run.suspicion) for run in claimed]}"
        if len(levels) > 1 or any(run.suspicion < 2 for run in claimed):
            self.fail("isolated runs are claimed with none but their like", told)
        if len(claimed) > {2: 50, 3: 10}.get(claimed[0].suspicion, 1):
            self.fail("isolated runs are claimed few at a time, then alone", told)

    def _keeps_to_places(self, process: Process) -> None:
        # Those that are to be cancelled are let through in any case.
        rows = [model.row for model in self.runs.values()]
        executed = [row.id for row in rows if row.state is RunState.RUNNING and row.cancel is Cancel.NO]
        places = self.world.plan.places
        if places is not None:
            self.world.counts["places taken"] += 1
            if len(executed) > places:
                self.fail("no more are executed than there are places", f"after {process}: {executed} of {places}")

    def reaped(self, process: Process, answer: Reaped) -> None:
        """``reap`` has been carried out."""
        self.checked += 1
        for worker in answer.workers:
            owner = self.world.owner_of(worker)
            if not owner.disturbed:
                self.fail("only a worker that died, stood still or was cut off is declared dead", f"{owner} was")
            held = [
                model
                for model in self.runs.values()
                if model.row.owner == worker and model.row.state is RunState.RUNNING
            ]
            for model in held:
                self._lost_its_worker(model, len(held), f"reap by {process}")
            self._lost_its_parker(worker, f"reap by {process}")
        self._nothing_else_changed()

    def _lost_its_worker(self, model: RunModel, held: int, told: str) -> None:
        """The worker of a run was declared dead, while it held so many."""
        after = self.database._runs[model.row.key]
        model.deaths += held == 1
        spent = held == 1 and model.deaths >= model.row.max_deliveries
        if after.state is not (RunState.DEAD if spent else RunState.PENDING):
            self.fail(
                "P2 dead after so many deaths alone without a record, and only then",
                f"{after.id} is {after.state} after {model.deaths} deaths of {after.max_deliveries}, held with {held}",
            )
        if not spent and after.suspicion <= model.row.suspicion:
            self.fail("a run whose worker died is suspected", f"{told}: {after.id} has suspicion {after.suspicion}")
        self.row_changed(model, after, told, by_death=True)

    def retired(self, process: Process, worker: int) -> None:
        """``retire_worker`` has been carried out."""
        self.checked += 1
        for model in self.runs.values():
            after = self.database._runs[model.row.key]
            if model.row.owner == worker and after is not model.row:
                self.row_changed(model, after, f"{process} retired")
        self._lost_its_parker(worker, f"{process} retired")
        self._nothing_else_changed()

    def _lost_its_parker(self, worker: int, told: str) -> None:
        """A worker is gone: other code may wait for the signals that were there when it parked runs."""
        for model in self.runs.values():
            before, after = model.row, self.database._runs[model.row.key]
            if model.parked_by != worker or before.state is not RunState.WAITING or before.paused_at is not None:
                continue
            model.parked_by = None
            self.world.counts["looked at again"] += 1
            if after != replace(before, wake_at=self.database._clock()):
                self.fail("a run with unread signals is looked at again when the worker that parked it is gone", told)
            self.row_changed(model, after, told)

    def row_changed(
        self, model: RunModel, after: Run, told: str, *, by_death: bool = False, by_request: bool = False
    ) -> None:
        """A row is another one than before: see whether it may be, and take it into the model."""
        before = model.row
        if after is before and after.epoch:
            return
        if after.paused_at != before.paused_at and not (by_request or after.state.is_terminal):
            self.fail("a run is paused until somebody resumes or cancels it", told)
        if after.cancel is Cancel.NO and before.cancel is not Cancel.NO:
            self.fail("a cancel that was accepted stands", told)
        if before.state.is_terminal and after is not before:
            self.fail(
                "P2 a run that has ended has ended", f"{told}: {row_in_words(before)} became {row_in_words(after)}"
            )
        if after.epoch < before.epoch:
            self.fail("P2 epochs never fall", told)
        if after.deliveries != model.deaths:
            self.fail(
                "the delivery counter counts deaths alone since the last record",
                f"{told}: it is {after.deliveries} after {model.deaths} deaths",
            )
        if after.suspicion > before.suspicion and not by_death:
            self.fail("only a death makes a run suspicious", told)
        if after.state is RunState.DEAD and not by_death:
            self.fail("P2 dead comes from deaths alone", told)
        model.row = after
        if after.state.is_terminal and after is not before:
            self.asking.paused_since.pop(after.key, None)
            self.world.run_ended(after)
            self.family.ended(after)
            self.questions.ended(after)

    def _changed(self, model: RunModel) -> bool:
        key, database = model.row.key, self.database
        return (
            database._runs[key] is not model.row
            or len(database._records.get(key, ())) != len(model.journal)
            or database._attempts.get(key, {}) != model.attempts
            or database._mailboxes.get(key, {}).keys() != model.mailbox.keys()
        )

    def _nothing_else_changed(self) -> None:
        for model in self.runs.values():
            if self._changed(model):
                after = self.database._runs[model.row.key]
                self.fail(
                    "P1 nothing changes but what was asked for",
                    f"{model.row.id}: {row_in_words(model.row)} became {row_in_words(after)}, "
                    f"its mailbox {list(model.mailbox)} became {list(self.database._mailboxes.get(model.row.key, {}))}",
                )


def _words(op: Any) -> str:
    if isinstance(op, AppendRecord):
        record = op.record
        return f"append {record.seq} ({record.kind.label} {record.name} #{record.position + 1})"
    return type(op).__name__
