"""Checks of approvals: each is answered once, and no answer is lost.

An approval is *open* until a user has answered it or the run has given up waiting. The rules are implemented here a
second time, from the store contract and not from the store.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.core.records import Record, RecordKind, Rewind, Signal
from holdfast.core.states import RunState
from holdfast.stores.approvals import (
    AnswerApproval,
    RemindApproval,
    RequestApproval,
    WithdrawApproval,
    is_answer,
    make_answer_name,
)
from holdfast.stores.operations import AppendRecord, OpStatus, ParkRun, Run
from simulation import user_actions
from simulation.workloads import CHANGING_PREFIX

if TYPE_CHECKING:
    from simulation.invariants import InvariantChecker, RunModel

TIMEOUT_STEP = "approval timeout"
"""The step by which a run gives up waiting."""


@dataclass
class ApprovalModel:
    """An approval and its state."""

    key: int
    position: int
    question: str
    state: str = "open"
    payload: bytes = b""
    withdrawn_epoch: int = -1
    """The epoch under which its run has given up waiting."""


class ApprovalChecker:
    """Questions, and the answers that come to them."""

    def __init__(self, checker: InvariantChecker) -> None:
        self._checker = checker
        self.approvals: dict[str, ApprovalModel] = {}

    def _fail(self, invariant: str, details: str) -> None:
        self._checker.fail(invariant, details)

    # Written by the holder of a run

    def check_claimed_operation(
        self, op: RequestApproval | RemindApproval | WithdrawApproval, answer: OpStatus, context: str
    ) -> None:
        """The holder has requested, reminded, or given up. If it was fenced, it has done nothing."""
        if answer is OpStatus.FENCED:
            return
        known = self.approvals.get(op.id)
        if isinstance(op, RequestApproval):
            self._check_ask(op, known, answer, context)
        elif known is None:
            # The workflow may have cancelled it before it was requested.
            if answer is not OpStatus.UNKNOWN_APPROVAL or isinstance(op, RemindApproval):
                self._fail("a question is there before anything is done about it", context)
            return
        else:
            closed = known.state == "answered" or (isinstance(op, RemindApproval) and known.state == "withdrawn")
            if answer is not (OpStatus.REFUSED if closed else OpStatus.DONE):
                self._fail("an answer that was accepted counts", f"{context}: it is {known.state}")
            if isinstance(op, WithdrawApproval) and known.state == "open":
                known.state, known.withdrawn_epoch = "withdrawn", op.epoch
        if self._checker.database._approvals[op.id].state != self.approvals[op.id].state:
            self._fail("a question is what has been made of it", context)

    def _check_ask(self, op: RequestApproval, known: ApprovalModel | None, answer: OpStatus, context: str) -> None:
        if answer is not OpStatus.DONE:
            self._fail("a question can be asked", context)
        if known is not None and (known.key, known.position, known.question) != (
            op.key,
            op.position,
            op.request.question,
        ):
            self._fail("whoever asks again asks the same", f"{context}: {known}, now {op}")
        if known is not None and (known.state != "withdrawn" or known.withdrawn_epoch == op.epoch):
            return  # in the second case it comes late
        self._check_replaced(op, context)
        self.approvals[op.id] = ApprovalModel(op.key, op.position, op.request.question)
        world = self._checker.world
        world.counts["questions"] += 1
        for _ in range(world.rng.choice([0, 1, 1, 2])):  # no user, one, or two at once
            seconds = world.rng.choice([0.0, 0.001, 0.05, 0.5, 2.0])
            world.schedule(world.time + seconds, user_actions.answer_approval, world, op.id)
        if op.request.question.startswith(CHANGING_PREFIX):
            world.schedule(world.time + world.rng.choice([0.0, 0.001, 0.05, 0.5, 2.0]), user_actions.deploy_code, world)

    def _check_replaced(self, op: RequestApproval, context: str) -> None:
        """Other code requested another approval at this position before: its answer is no longer awaited."""
        database, model = self._checker.database, self._checker.runs[op.key]
        for name, other in self.approvals.items():
            if (other.key, other.position) != (op.key, op.position) or name == op.id:
                continue
            if other.state != "withdrawn":
                self._checker.world.counts[f"questions replaced: {other.state}"] += 1
                other.state, other.withdrawn_epoch = "withdrawn", op.epoch
            if database._approvals[name].state != "withdrawn":
                self._fail("a run asks one question at a time at each place", f"{context}: {other}")
        model.mailbox = {
            at: one for at, one in model.mailbox.items() if one.position != op.position or not is_answer(one.name)
        }
        if database._mailboxes.get(op.key, {}) != model.mailbox:
            self._fail("whoever asks something else removes the former answer, and nothing else", context)

    # What people answer

    def check_answer(self, op: AnswerApproval, answer: OpStatus) -> None:
        """``AnswerApproval`` has been carried out."""
        known, checker = self.approvals[op.id], self._checker
        model = checker.runs[known.key]
        told = f"an answer to {known.question} of {model.row.id} ({known.state}) was answered {answer.value}"
        expected = {"open": OpStatus.DONE, "answered": OpStatus.DUPLICATE, "withdrawn": OpStatus.ENDED}[known.state]
        if answer is not expected:
            self._fail("a question is answered once, while it is open", told)
        mailbox = checker.database._mailboxes.get(known.key, {})
        new = [one for one in mailbox.values() if one.id not in model.mailbox]
        wanted = [(make_answer_name(op.id), op.payload, known.position)] if answer is OpStatus.DONE else []
        if [(one.name, one.payload, one.position) for one in new] != wanted:
            self._fail("an accepted answer is in the mailbox, once", f"{told}: {new}")
        if answer is not OpStatus.DONE:
            return
        known.state, known.payload = "answered", op.payload
        checker.world.counts["answers"] += 1
        model.mailbox = dict(mailbox)
        before, after = model.row, checker.database._runs[known.key]
        asleep = before.state is RunState.WAITING and before.paused_at is None
        if asleep and after != replace(before, wake_at=checker.database.now()):
            self._fail("an answer wakes whoever is parked for it", told)
        checker.update_row(model, after, told)
        checker.world.reach_action_point("told", None, model.row.id)

    def check_park(self, model: RunModel, op: ParkRun, context: str) -> None:
        """A park has taken effect."""
        sent = {signal.name for signal in model.mailbox.values() if signal.position is not None}
        if any(make_answer_name(one) in sent for one in op.approval_ids):
            self._fail("no answer falls between a question and its park", context)
        known = [self.approvals.get(one) for one in op.approval_ids]
        if any(one is None or one.state == "answered" for one in known):
            self._fail("a run waits for answers that can still come", f"{context}: {known}")

    # Outcomes

    def check_record(self, model: RunModel, op: AppendRecord, mailbox: dict[int, Signal], context: str) -> None:
        """A record of kind ``APPROVAL`` was appended."""
        record = op.record
        signal = None if op.consumed_signal_id is None else model.mailbox.get(op.consumed_signal_id)
        if signal is None or (signal.name, signal.position) != (make_answer_name(record.preview), record.position):
            self._fail("an answer is consumed once, by the command that asked for it", f"{context}: {signal}")
            return
        if signal.id in mailbox:
            self._fail("an answer is consumed by its record", context)
        known = self.approvals.get(record.preview)
        if known is None or (known.key, known.position, known.state) != (op.key, record.position, "answered"):
            self._fail("an answer is recorded for the question that it was given to", f"{context}: {known}")
        elif not record.payload == signal.payload == known.payload:
            self._fail("an answer is recorded as it was given", context)

    def check_step_record(self, record: Record, context: str) -> None:
        """A step was recorded. It may be the one that records that there was no answer."""
        if record.name != TIMEOUT_STEP or not record.ok:
            return
        said = json.loads(record.payload or b"null")
        if said["withdrawn"] and self.approvals[said["id"]].state == "answered":
            self._fail("nobody who was told that an answer is accepted is ignored", context)

    def check_run_end(self, row: Run) -> None:
        """A run has ended: its answers are no longer awaited."""
        for name, known in self.approvals.items():
            if known.key != row.key:
                continue
            if known.state == "open":
                known.state = "withdrawn"
            if self._checker.database._approvals[name].state != known.state:
                self._fail("a question of a run that has ended is open no more", f"{row.id}: {known}")
            left = [one for one in self._checker.runs[row.key].mailbox.values() if one.name == make_answer_name(name)]
            plain = not known.question.startswith("maybe")
            if row.state is RunState.COMPLETED and plain and known.state == "answered" and left:
                self._fail("no run completes without the answer that it has asked for", f"{row.id}: {known}")

    def check_rewind(self, model: RunModel, rewind: Rewind | None, rewound_records: list[Record]) -> None:
        """A run was reopened: the answers that the retry takes back are gone, and the run asks again."""
        if rewind is None or not rewind.failed_seqs:
            return
        gone = {record.position for record in rewound_records if record.kind is RecordKind.APPROVAL}
        model.mailbox = {
            at: one
            for at, one in model.mailbox.items()
            if one.position is None or not is_answer(one.name) or one.position < rewind.command_count
        }
        for name, known in self.approvals.items():
            if known.key == model.row.key and (known.position >= rewind.command_count or known.position in gone):
                known.state = "withdrawn"
                if self._checker.database._approvals[name].state != "withdrawn":
                    self._fail("what a retry takes back is asked anew", f"{model.row.id}: {known}")
