"""Invariants that must hold at every write.

``InvariantChecker`` keeps its own model of the database: every row, journal, and mailbox as of the last atomic
operation. After each operation it compares the two, and checks for every change that this operation, by this worker,
was allowed to make it. So it finds a broken promise where it is broken, and not where the consequence shows.

The promises are those of ``docs/simulation.md``, by number: recorded outcomes never change (P1), one ending written
by the holder (P2), nothing recorded runs again (P3), only what was in flight runs again (P4), live is as replay (P5).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.core.records import Record, RecordKind, Signal
from holdfast.core.states import RunState
from holdfast.stores.approvals import AnswerApproval, RemindApproval, RequestApproval, WithdrawApproval
from holdfast.stores.memory import MemoryStore
from holdfast.stores.operations import (
    AppendRecord,
    AwaitRun,
    CancelRun,
    CancelState,
    FinishRun,
    ForkRun,
    OpStatus,
    ParkRun,
    PauseRun,
    ReleaseRun,
    ReopenRun,
    ResumeRun,
    Run,
    SaveAttempt,
    SendSignal,
    StartResult,
    StartRun,
)
from holdfast.stores.worker_deaths import get_isolation_leases
from holdfast.stores.workers import ReapResult
from simulation.approval_checks import ApprovalChecker
from simulation.compensation_checks import CompensationChecker
from simulation.execution_checks import ExecutionChecker, describe_row
from simulation.expectations import can_swallow
from simulation.link_checks import LinkChecker
from simulation.request_checks import RequestChecker

if TYPE_CHECKING:
    from simulation.process import Process
    from simulation.world import World


class RunModel:
    """The checker's model of one run."""

    def __init__(self, row: Run) -> None:
        self.row = row
        self.journal: list[Record] = []
        self.outcomes: set[tuple[bool, int]] = set()
        self.mailbox: dict[int, Signal] = {}
        self.attempts: dict[int, Any] = {}
        self.accepted_signal_count = 0
        self.consumed_signal_count = 0
        self.last_consumed_ids: dict[str, int] = {}
        self.payloads_by_dedup_key: dict[str, bytes] = {}
        self.death_count = 0
        """Deaths of workers that held nothing but this run, without a record in between."""
        self.is_cancel_accepted = False
        """Whether a caller got the answer that the run will be cancelled."""
        self.is_cancel_recorded = False
        self.cancel_sources: set[str] = set()
        self.reopened_epoch = -1
        """The epoch under which it had ended when it was last reopened."""
        self.parked_by_worker: int | None = None
        """The worker that parked it while there were signals in its mailbox."""
        self.inherited_count = 0
        """Number of records shared with the run that it was forked from."""

    @property
    def program(self) -> Any:
        """Its program."""
        return json.loads(self.row.inputs)["program"]


class InvariantChecker:
    """The model of the database, and the checks of every change."""

    def __init__(self, world: World, database: MemoryStore) -> None:
        self.world = world
        self.database = database
        self.link_checker = LinkChecker(self)
        self.request_checker = RequestChecker(self)
        self.approval_checker = ApprovalChecker(self)
        self.compensation_checker = CompensationChecker(self)
        self.execution_checker = ExecutionChecker(self)
        self.runs: dict[int, RunModel] = {}
        self.runs_by_id: dict[str, RunModel] = {}
        self.step_start_counts: dict[tuple[int, int, str], int] = {}
        self.commands: dict[tuple[str, int], tuple[RecordKind, str, str]] = {}
        self.idempotency_keys: dict[tuple[str, str], str] = {}
        self.heartbeats: dict[str, list[Any]] = {}
        """Progress that attempts handed in, by the idempotency key of the call."""
        self.attempt_counts: Counter[str] = Counter()
        """By the idempotency key of the call."""
        self.key_owners: dict[str, str] = {}
        """Which run an idempotency key belongs to."""
        self.rewound_run_ids: set[str] = set()
        """Runs of which a retry has taken records away."""
        self.isolated_claims: dict[int, tuple[float, set[int]]] = {}
        """By worker: until when it claims only isolated runs, and the keys of those it has claimed."""
        self.check_count = 0
        """Atomic operations that changed, or could have changed, something."""

    def fail(self, invariant: str, details: str) -> None:
        """A promise is broken."""
        self.world.fail(invariant, details)

    # Operations of a commit

    def check_operation(self, process: Process | None, op: Any, answer: Any) -> None:
        """One operation of a commit has been carried out."""
        self.check_count += 1
        match op:
            case StartRun():
                self._check_start(op, answer)
            case AwaitRun():
                if isinstance(answer, StartResult):
                    self.link_checker.check_link(op.link, answer)
            case SendSignal():
                self._check_signal_sent(op, answer)
            case CancelRun():
                self.request_checker.check_cancel(op, answer)
            case PauseRun() | ResumeRun():
                self.request_checker.check_pause(op, answer)
            case ReopenRun():
                self.request_checker.check_reopen(op, answer)
            case ForkRun():
                self.request_checker.check_fork(op, answer)
            case AnswerApproval():
                self.approval_checker.check_answer(op, answer)
            case _:
                self._check_claimed_operation(process, op, answer)
        self._check_nothing_else_changed()

    def _check_claimed_operation(self, process: Process | None, op: Any, answer: OpStatus) -> None:
        model = self.runs.get(op.key)
        if model is None:
            self.fail("P2", f"{op!r} names a run that does not exist")
            return
        before, after = model.row, self.database._runs[op.key]
        epoch = op.record.epoch if isinstance(op, AppendRecord) else op.epoch
        mine = process is not None and before.owner in process.worker_ids
        holder = before.state is RunState.RUNNING and before.epoch == epoch and mine
        told = (
            f"{_describe_op(op)} by {process} under epoch {epoch} ({describe_row(before)}) was answered {answer.value}"
        )
        last = model.journal[-1].seq if model.journal else -1
        delayed = isinstance(op, ParkRun) and op.next_seq is not None and op.next_seq <= last
        delayed |= isinstance(op, FinishRun) and op.respect_cancel and before.cancel_state is CancelState.RECORDED
        if holder and answer is OpStatus.FENCED and not delayed:
            self.fail("P2 the holder is not fenced", told)
        if delayed and self._has_changed(model):
            self.fail("a park or an end that comes too late does nothing", told)
        if not holder and self._has_changed(model):
            self.fail("P2 only the holder changes a run", told)
        if isinstance(op, AppendRecord):
            self._check_append(process, model, op, answer, told)
        elif isinstance(op, SaveAttempt):
            model.attempts = dict(self.database._attempts.get(op.key, {}))
        elif isinstance(op, FinishRun):
            self._check_finish(model, op, answer, after, told)
        elif isinstance(op, ParkRun):
            self._check_park(process, model, op, answer, after, told)
        elif isinstance(op, RequestApproval | RemindApproval | WithdrawApproval):
            self.approval_checker.check_claimed_operation(op, answer, told)
        elif isinstance(op, ReleaseRun) and holder and after.state is not RunState.PENDING:
            self.fail("a released run can be claimed", told)
        self.update_row(model, after, told)

    def _check_finish(self, model: RunModel, op: FinishRun, answer: OpStatus, after: Run, context: str) -> None:
        if answer not in (OpStatus.DONE, OpStatus.DONE_NOTIFIED):
            return
        if (after.state, after.output) != (op.state, op.output):
            self.fail("P2 an ending that was answered as done is there", context)
        if after is model.row:
            return  # it was there before
        if model.row.cancel_state is CancelState.REQUESTED and op.respect_cancel:
            self.fail("a run does not end before its cancellation is recorded", context)
        if op.state is RunState.COMPLETED and model.is_cancel_accepted and not can_swallow(model.program):
            self.fail("a run whose cancellation was accepted does not complete", context)
        if answer is OpStatus.DONE and self.link_checker.is_awaited(op.key):
            self.fail("whoever ends a run hears that somebody waited for it", context)
        self.compensation_checker.check_run_end(model, after)
        self.link_checker.check_abandoned_children(model, context)

    def _check_append(
        self, process: Process | None, model: RunModel, op: AppendRecord, answer: OpStatus, context: str
    ) -> None:
        journal = self.database._records.get(op.key, [])
        record = op.record
        if journal[: len(model.journal)] != model.journal:
            self.fail("P1 records never change", context)
        new = journal[len(model.journal) :]
        if answer is OpStatus.DONE and record not in (new or model.journal):
            self.fail("P1 a record that was answered as written is there as it was handed in", context)
        if new:
            self._check_new_record(process, model, op, new, context)
        elif op.clear_attempt and model.row.state is RunState.RUNNING and model.row.epoch == record.epoch:
            # A repeated record deletes the row of its attempt again, because that row may have been written again.
            model.attempts = {at: one for at, one in model.attempts.items() if at != record.position}
        if answer is not OpStatus.DONE and new:
            self.fail("P1 a refused record changes nothing", context)

    def _check_new_record(
        self, process: Process | None, model: RunModel, op: AppendRecord, new: Sequence[Record], context: str
    ) -> None:
        record = op.record
        if new != [record]:
            self.fail("P1 journals grow by what is appended", context)
        if record.seq != (model.journal[-1].seq + 1 if model.journal else 0):
            self.fail("P1 a journal has no gaps", context)
        if len(model.journal) > model.inherited_count and record.epoch < model.journal[-1].epoch:
            self.fail("P1 epochs in a journal never fall", context)
        outcome = (record.kind is RecordKind.TIMER, record.position)
        if record.kind is RecordKind.CANCEL:
            if model.is_cancel_recorded:
                self.fail("a cancellation is recorded once", context)
            if not model.is_cancel_accepted:
                self.fail("only what somebody asked for is cancelled", context)
            model.is_cancel_recorded = True
            self.world.reach_action_point("cancelling", process, model.row.id)
            if self.database._runs[op.key].cancel_state is not CancelState.RECORDED:
                self.fail("the row tells that a cancellation is recorded", context)
        elif record.kind is not RecordKind.DEADLINE:
            if outcome in model.outcomes:
                self.fail("P1 no command has two outcomes", context)
            model.outcomes.add(outcome)
        if process is not None and record.at > process.clock.get_max_now():
            self.fail(
                "timers never fire early",
                f"{context}: its time is {record.at - process.clock.get_max_now():.3f} s ahead",
            )
        mailbox = self.database._mailboxes.get(op.key, {})
        if record.kind is RecordKind.SIGNAL:
            self._check_signal_consumed(model, op, mailbox, context)
        elif record.kind is RecordKind.CHILD:
            self.link_checker.check_record(model, op, mailbox, context)
        elif record.kind is RecordKind.APPROVAL:
            self.approval_checker.check_record(model, op, mailbox, context)
        elif record.kind is RecordKind.STEP:
            self.approval_checker.check_step_record(record, context)
        model.mailbox = dict(mailbox)
        model.attempts = dict(self.database._attempts.get(op.key, {}))
        model.journal = [*model.journal, record]
        model.death_count = 0
        if self.database._runs[op.key].suspicion:
            self.fail("a run that has recorded something is not suspected", context)

    def _check_signal_consumed(
        self, model: RunModel, op: AppendRecord, mailbox: dict[int, Signal], context: str
    ) -> None:
        signal = None if op.consumed_signal_id is None else model.mailbox.get(op.consumed_signal_id)
        if signal is None:
            self.fail("a signal is consumed at most once", context)
            return
        if (signal.name, signal.payload) != (op.record.name, op.record.payload):
            self.fail("a signal is recorded as it was sent", context)
        if signal.id in mailbox:
            self.fail("a signal is consumed by its record", context)
        if signal.id < model.last_consumed_ids.get(signal.name, 0) or any(
            other.name == signal.name and other.id < signal.id and other.position is None
            for other in model.mailbox.values()
        ):
            self.fail("signals come in the order they were sent", context)
        model.last_consumed_ids[signal.name] = signal.id
        model.consumed_signal_count += 1

    def _check_park(
        self, process: Process | None, model: RunModel, op: ParkRun, answer: OpStatus, after: Run, context: str
    ) -> None:
        self.world.reach_fault_point("parked", process, model.row.id)
        if answer is not OpStatus.DONE or after is model.row:
            return
        if model.row.cancel_state is CancelState.REQUESTED:
            self.fail("a run does not park before its cancellation is recorded", context)
        if op.is_pause != (model.row.paused_at is not None) and op.is_pause:
            self.fail("a run that was resumed does not park as paused", context)
        if after.wake_at != op.wake_at:
            self.fail("a parked run wakes when its next timer is due", context)
        model.parked_by_worker = model.row.owner if model.mailbox and not op.is_pause else None
        if op.is_pause:
            return  # `waits_for` does not matter
        if any(signal.name in op.signal_names for signal in model.mailbox.values() if signal.position is None):
            self.fail("no signal falls between a wait and its park", context)
        self.link_checker.check_park(model, op, context)
        self.approval_checker.check_park(model, op, context)

    def add_model(self, row: Run) -> RunModel:
        """Check a run that was just created."""
        model = self.runs[row.key] = self.runs_by_id[row.id] = RunModel(row)
        return model

    def _check_start(self, op: StartRun, answer: StartResult | OpStatus) -> None:
        known = self.runs_by_id.get(op.run.id)
        link = op.link
        if not isinstance(answer, StartResult):
            self._check_start_refused(op, answer)
            return
        if link is not None:
            parent = self.runs[link.parent_key].row
            if parent.state is not RunState.RUNNING or parent.epoch != link.epoch:
                self.fail("P2 only the holder of a run starts others for it", f"{op.run.id} for {parent.id}")
        if known is None:
            if op.run.workflow in self.request_checker.disabled_since:
                self.fail("no run of a workflow starts that is switched off", op.run.id)
            model = self.add_model(answer.run)
            if not answer.is_new or answer.run.digest != op.run.digest:
                self.fail("starting is creating", f"the first start of {op.run.id} was answered {answer}")
            self.update_row(model, answer.run, "start")
            self.world.on_run_created(answer.run)
        elif answer.is_new and known.row.seed != op.run.seed:
            self.fail("a run is started once", f"{op.run.id} was started again")
        elif link is not None and op.run.id.startswith(f"{self.runs[link.parent_key].row.id}:") and not answer.is_new:
            self.fail("a run that is started again is the same run", f"{op.run.id} has another seed")
        if link is not None:
            self.link_checker.check_link(link, answer)

    def _check_start_refused(self, op: StartRun, answer: OpStatus) -> None:
        if answer is OpStatus.WORKFLOW_DISABLED and op.run.workflow in self.request_checker.disabled_since:
            return
        parent = None if op.link is None else self.runs[op.link.parent_key].row
        if parent is None or (parent.state is RunState.RUNNING and op.link and parent.epoch == op.link.epoch):
            self.fail("a run can be started", f"{op.run.id} was answered {answer}")

    def _check_signal_sent(self, op: SendSignal, answer: OpStatus) -> None:
        model = self.runs_by_id.get(op.run_id)
        if model is None:
            if answer is not OpStatus.UNKNOWN_RUN:
                self.fail("signals go to runs", f"a signal to {op.run_id}, which is not there, was answered {answer}")
            return
        mailbox = self.database._mailboxes.get(model.row.key, {})
        added = [signal for signal in mailbox.values() if signal.id not in model.mailbox]
        told = f"signal {op.name} to {op.run_id} with key {op.dedup_key} was answered {answer.value}"
        if len(added) != (answer is OpStatus.DONE):
            self.fail("an accepted signal is in the mailbox, once", told)
        if op.dedup_key is not None and (op.dedup_key in model.payloads_by_dedup_key) != (answer is OpStatus.DUPLICATE):
            self.fail("a signal with a known key counts once", told)
        if answer is OpStatus.DONE:
            model.accepted_signal_count += 1
            if op.dedup_key is not None:
                model.payloads_by_dedup_key[op.dedup_key] = op.payload
            model.mailbox = dict(mailbox)
            after = self.database._runs[model.row.key]
            asleep = after.state is RunState.WAITING and after.paused_at is None
            if asleep and (after.wake_at is None or after.wake_at > self.database.now()):
                self.fail("a signal wakes a parked run", told)
            self.update_row(model, after, told)

    # Everything else that a store does

    def check_claim(self, process: Process, worker: int, runs: Sequence[Run]) -> None:
        """``claim`` has been carried out."""
        self.check_count += 1
        now = self.database.now()
        for run in runs:
            model = self.runs[run.key]
            before = model.row
            told = f"{process} claimed {run.id} as worker {worker} ({describe_row(before)})"
            if before.state not in (RunState.PENDING, RunState.WAITING) or run.epoch != before.epoch + 1:
                self.fail("P2 a claim takes what nobody holds, under the next epoch", told)
            if before.wake_at is None or before.wake_at > now:
                self.fail("a claim takes what is due", told)
            if before.paused_at is not None or before.workflow in self.request_checker.disabled_since:
                self.fail("nobody claims what is paused or switched off", told)
            self.world.reach_action_point("claimed", process, run.id)
            self.update_row(model, run, told)
        self._check_isolation(process, worker, runs)
        self._check_queue_limit(process)
        self._check_nothing_else_changed()

    def _check_isolation(self, process: Process, worker: int, claimed: Sequence[Run]) -> None:
        new = {run.key for run in claimed}
        held = {model.row.key for model in self.runs.values() if model.row.owner == worker} - new
        until, tried = self.isolated_claims.get(worker, (0.0, set[int]()))
        plan = self.world.plan
        if plan.has_killer and not plan.late_ratio and not plan.lost_answer_ratio and held and held <= tried:
            unclear = [self.runs[key].row.id for key in held if self.runs[key].row.suspicion > 1]
            if unclear and self.world.time < until:
                told = f"{process} claimed {[run.id for run in claimed]} beside {unclear}"
                self.fail("a worker takes nothing beside a run that it tries alone", told)
        levels = {run.suspicion for run in claimed if run.suspicion > 1}
        if not levels:
            return
        if not held:
            self.isolated_claims[worker] = (self.world.time + get_isolation_leases(0) * plan.lease_s, new)
        tried.update(new)
        self.world.counts["isolated claims"] += 1
        told = f"{process} claimed {[(run.id, run.suspicion) for run in claimed]}"
        if len(levels) > 1 or any(run.suspicion < 2 for run in claimed):
            self.fail("isolated runs are claimed with none but their like", told)
        if len(claimed) > {2: 50, 3: 10}.get(claimed[0].suspicion, 1):
            self.fail("isolated runs are claimed few at a time, then alone", told)

    def _check_queue_limit(self, process: Process) -> None:
        # Runs with a cancel request always pass.
        rows = [model.row for model in self.runs.values()]
        executed = [row.id for row in rows if row.state is RunState.RUNNING and row.cancel_state is CancelState.NONE]
        places = self.world.plan.max_running
        if places is not None:
            self.world.counts["places taken"] += 1
            if len(executed) > places:
                self.fail("no more are executed than there are places", f"after {process}: {executed} of {places}")

    def check_reap(self, process: Process, answer: ReapResult) -> None:
        """``reap`` has been carried out."""
        self.check_count += 1
        for worker in answer.worker_ids:
            owner = self.world.get_process(worker)
            if not owner.can_be_declared_dead:
                self.fail("only a worker that died, stood still or was cut off is declared dead", f"{owner} was")
            held = [
                model
                for model in self.runs.values()
                if model.row.owner == worker and model.row.state is RunState.RUNNING
            ]
            for model in held:
                self._check_worker_death(model, len(held), f"reap by {process}")
            self._check_parker_gone(worker, f"reap by {process}")
        self._check_nothing_else_changed()

    def _check_worker_death(self, model: RunModel, claimed_count: int, context: str) -> None:
        """Check a run whose worker was declared dead while it held ``claimed_count`` runs."""
        after = self.database._runs[model.row.key]
        model.death_count += claimed_count == 1
        spent = claimed_count == 1 and model.death_count >= model.row.max_deliveries
        if after.state is not (RunState.DEAD if spent else RunState.PENDING):
            self.fail(
                "P2 dead after so many deaths alone without a record, and only then",
                f"{after.id} is {after.state} after {model.death_count} deaths of {after.max_deliveries}, held with "
                f"{claimed_count}",
            )
        if not spent and after.suspicion <= model.row.suspicion:
            self.fail("a run whose worker died is suspected", f"{context}: {after.id} has suspicion {after.suspicion}")
        self.update_row(model, after, context, is_death=True)

    def check_retire(self, process: Process, worker: int) -> None:
        """``Workers.retire`` has been carried out."""
        self.check_count += 1
        for model in self.runs.values():
            after = self.database._runs[model.row.key]
            if model.row.owner == worker and after is not model.row:
                self.update_row(model, after, f"{process} retired")
        self._check_parker_gone(worker, f"{process} retired")
        self._check_nothing_else_changed()

    def _check_parker_gone(self, worker: int, context: str) -> None:
        """Check that a worker is gone: other code may wait for signals that were there when it parked runs."""
        for model in self.runs.values():
            before, after = model.row, self.database._runs[model.row.key]
            if model.parked_by_worker != worker or before.state is not RunState.WAITING or before.paused_at is not None:
                continue
            model.parked_by_worker = None
            self.world.counts["looked at again"] += 1
            if after != replace(before, wake_at=self.database._clock()):
                self.fail(
                    "a run with unread signals is looked at again when the worker that parked it is gone", context
                )
            self.update_row(model, after, context)

    def update_row(
        self, model: RunModel, after: Run, context: str, *, is_death: bool = False, is_request: bool = False
    ) -> None:
        """A row is another one than before: see whether it may be, and take it into the model."""
        before = model.row
        if after is before and after.epoch:
            return
        if after.paused_at != before.paused_at and not (is_request or after.state.is_terminal):
            self.fail("a run is paused until somebody resumes or cancels it", context)
        if after.cancel_state is CancelState.NONE and before.cancel_state is not CancelState.NONE:
            self.fail("a cancel that was accepted stands", context)
        if before.state.is_terminal and after is not before:
            self.fail(
                "P2 a run that has ended has ended", f"{context}: {describe_row(before)} became {describe_row(after)}"
            )
        if after.epoch < before.epoch:
            self.fail("P2 epochs never fall", context)
        if after.delivery_count != model.death_count:
            self.fail(
                "the delivery counter counts deaths alone since the last record",
                f"{context}: it is {after.delivery_count} after {model.death_count} deaths",
            )
        if after.suspicion > before.suspicion and not is_death:
            self.fail("only a death makes a run suspicious", context)
        if after.state is RunState.DEAD and not is_death:
            self.fail("P2 dead comes from deaths alone", context)
        model.row = after
        if after.state.is_terminal and after is not before:
            self.request_checker.paused_since.pop(after.key, None)
            self.world.on_run_ended(after)
            self.link_checker.check_end(after)
            self.approval_checker.check_run_end(after)

    def _has_changed(self, model: RunModel) -> bool:
        key, database = model.row.key, self.database
        return (
            database._runs[key] is not model.row
            or len(database._records.get(key, ())) != len(model.journal)
            or database._attempts.get(key, {}) != model.attempts
            or database._mailboxes.get(key, {}).keys() != model.mailbox.keys()
        )

    def _check_nothing_else_changed(self) -> None:
        for model in self.runs.values():
            if self._has_changed(model):
                after = self.database._runs[model.row.key]
                self.fail(
                    "P1 nothing changes but what was asked for",
                    f"{model.row.id}: {describe_row(model.row)} became {describe_row(after)}, "
                    f"its mailbox {list(model.mailbox)} became {list(self.database._mailboxes.get(model.row.key, {}))}",
                )


def _describe_op(op: Any) -> str:
    if isinstance(op, AppendRecord):
        record = op.record
        return f"append {record.seq} ({record.kind.label} {record.name} #{record.position + 1})"
    return type(op).__name__
