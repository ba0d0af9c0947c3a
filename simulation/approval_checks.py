"""What runs ask people, in the checker's eyes: each question is answered once, and no answer goes astray.

A question is *open* until somebody has answered it, or the run has given up waiting. Worked out here once more, from
what the store contract says and not from what the store does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.core.records import Kind, Record, Rewind, Signal
from holdfast.core.states import RunState
from holdfast.stores.approvals import (
    AnswerApproval,
    AskApproval,
    RemindApproval,
    WithdrawApproval,
    answer_name,
    is_answer,
)
from holdfast.stores.operations import AppendRecord, ParkRun, Run, Verdict
from simulation import user_actions
from simulation.workloads import CHANGING

if TYPE_CHECKING:
    from simulation.invariants import Checker, RunModel

TIME_OUT = "approval time-out"
"""The step by which a run gives up waiting."""


@dataclass
class Asked:
    """A question, and what has become of it."""

    key: int
    position: int
    text: str
    state: str = "open"
    payload: bytes = b""
    withdrawn_in: int = -1
    """The epoch under which its run has given up waiting."""


class Questions:
    """Questions, and the answers that come to them."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self.asked: dict[str, Asked] = {}

    def _fail(self, invariant: str, what: str) -> None:
        self._checker.fail(invariant, what)

    # What the holder of a run writes

    def held(self, op: AskApproval | RemindApproval | WithdrawApproval, answer: Verdict, told: str) -> None:
        """The holder has asked, reminded or given up; one that is fenced has done nothing."""
        if answer is Verdict.FENCED:
            return
        known = self.asked.get(op.id)
        if isinstance(op, AskApproval):
            self._put(op, known, answer, told)
        elif known is None:
            # The workflow may have called it off before anybody was asked.
            if answer is not Verdict.UNKNOWN_APPROVAL or isinstance(op, RemindApproval):
                self._fail("a question is there before anything is done about it", told)
            return
        else:
            closed = known.state == "answered" or (isinstance(op, RemindApproval) and known.state == "withdrawn")
            if answer is not (Verdict.REFUSED if closed else Verdict.DONE):
                self._fail("an answer that was accepted counts", f"{told}: it is {known.state}")
            if isinstance(op, WithdrawApproval) and known.state == "open":
                known.state, known.withdrawn_in = "withdrawn", op.epoch
        if self._checker.database._approvals[op.id].state != self.asked[op.id].state:
            self._fail("a question is what has been made of it", told)

    def _put(self, op: AskApproval, known: Asked | None, answer: Verdict, told: str) -> None:
        if answer is not Verdict.DONE:
            self._fail("a question can be asked", told)
        if known is not None and (known.key, known.position, known.text) != (op.key, op.position, op.question.text):
            self._fail("whoever asks again asks the same", f"{told}: {known}, now {op}")
        if known is not None and (known.state != "withdrawn" or known.withdrawn_in == op.epoch):
            return  # in the second case it comes late
        self._replace(op, told)
        self.asked[op.id] = Asked(op.key, op.position, op.question.text)
        world = self._checker.world
        world.counts["questions"] += 1
        for _ in range(world.chance.choice([0, 1, 1, 2])):  # nobody, somebody, or two who do not know of each other
            seconds = world.chance.choice([0.0, 0.001, 0.05, 0.5, 2.0])
            world.at(world.time + seconds, user_actions.answer, world, op.id)
        if op.question.text.startswith(CHANGING):
            world.at(world.time + world.chance.choice([0.0, 0.001, 0.05, 0.5, 2.0]), user_actions.deploy, world)

    def _replace(self, op: AskApproval, told: str) -> None:
        """Another question was asked at this place before, by other code: nobody waits for its answer any more."""
        database, model = self._checker.database, self._checker.runs[op.key]
        for name, other in self.asked.items():
            if (other.key, other.position) != (op.key, op.position) or name == op.id:
                continue
            if other.state != "withdrawn":
                self._checker.world.counts[f"questions replaced: {other.state}"] += 1
                other.state, other.withdrawn_in = "withdrawn", op.epoch
            if database._approvals[name].state != "withdrawn":
                self._fail("a run asks one question at a time at each place", f"{told}: {other}")
        model.mailbox = {
            at: one for at, one in model.mailbox.items() if one.position != op.position or not is_answer(one.name)
        }
        if database._mailboxes.get(op.key, {}) != model.mailbox:
            self._fail("whoever asks something else removes the former answer, and nothing else", told)

    # What people answer

    def answered(self, op: AnswerApproval, answer: Verdict) -> None:
        """``AnswerApproval`` has been carried out."""
        known, checker = self.asked[op.id], self._checker
        model = checker.runs[known.key]
        told = f"an answer to {known.text} of {model.row.id} ({known.state}) was answered {answer.value}"
        expected = {"open": Verdict.DONE, "answered": Verdict.DUPLICATE, "withdrawn": Verdict.ENDED}[known.state]
        if answer is not expected:
            self._fail("a question is answered once, while it is open", told)
        mailbox = checker.database._mailboxes.get(known.key, {})
        new = [one for one in mailbox.values() if one.id not in model.mailbox]
        wanted = [(answer_name(op.id), op.payload, known.position)] if answer is Verdict.DONE else []
        if [(one.name, one.payload, one.position) for one in new] != wanted:
            self._fail("an accepted answer is in the mailbox, once", f"{told}: {new}")
        if answer is not Verdict.DONE:
            return
        known.state, known.payload = "answered", op.payload
        checker.world.counts["answers"] += 1
        model.mailbox = dict(mailbox)
        before, after = model.row, checker.database._runs[known.key]
        asleep = before.state is RunState.WAITING and before.paused_at is None
        if asleep and after != replace(before, wake_at=checker.database.now()):
            self._fail("an answer wakes whoever is parked for it", told)
        checker.row_changed(model, after, told)
        checker.world.occasion("told", None, model.row.id)

    def parked(self, model: RunModel, op: ParkRun, told: str) -> None:
        """A park has taken effect."""
        sent = {signal.name for signal in model.mailbox.values() if signal.position is not None}
        if any(answer_name(one) in sent for one in op.answers):
            self._fail("no answer falls between a question and its park", told)
        known = [self.asked.get(one) for one in op.answers]
        if any(one is None or one.state == "answered" for one in known):
            self._fail("a run waits for answers that can still come", f"{told}: {known}")

    # What becomes of it

    def recorded(self, model: RunModel, op: AppendRecord, mailbox: dict[int, Signal], told: str) -> None:
        """A record of kind ``APPROVAL`` was appended."""
        record = op.record
        signal = None if op.consume is None else model.mailbox.get(op.consume)
        if signal is None or (signal.name, signal.position) != (answer_name(record.preview), record.position):
            self._fail("an answer is consumed once, by the command that asked for it", f"{told}: {signal}")
            return
        if signal.id in mailbox:
            self._fail("an answer is consumed by its record", told)
        known = self.asked.get(record.preview)
        if known is None or (known.key, known.position, known.state) != (op.key, record.position, "answered"):
            self._fail("an answer is recorded for the question that it was given to", f"{told}: {known}")
        elif not record.payload == signal.payload == known.payload:
            self._fail("an answer is recorded as it was given", told)

    def step_recorded(self, record: Record, told: str) -> None:
        """A step was recorded; it may be the one that says that nobody has answered."""
        if record.name != TIME_OUT or not record.ok:
            return
        said = json.loads(record.payload or b"null")
        if said["withdrawn"] and self.asked[said["id"]].state == "answered":
            self._fail("nobody who was told that an answer is accepted is ignored", told)

    def ended(self, row: Run) -> None:
        """A run has ended: nobody waits for its answers any more."""
        for name, known in self.asked.items():
            if known.key != row.key:
                continue
            if known.state == "open":
                known.state = "withdrawn"
            if self._checker.database._approvals[name].state != known.state:
                self._fail("a question of a run that has ended is open no more", f"{row.id}: {known}")
            left = [one for one in self._checker.runs[row.key].mailbox.values() if one.name == answer_name(name)]
            plain = not known.text.startswith("maybe")
            if row.state is RunState.COMPLETED and plain and known.state == "answered" and left:
                self._fail("no run completes without the answer that it has asked for", f"{row.id}: {known}")

    def rewound(self, model: RunModel, rewind: Rewind | None, taken: list[Record]) -> None:
        """A run was reopened: answers that the retry takes back are gone, and those questions are asked anew."""
        if rewind is None or not rewind.failed:
            return
        gone = {record.position for record in taken if record.kind is Kind.APPROVAL}
        model.mailbox = {
            at: one
            for at, one in model.mailbox.items()
            if one.position is None or not is_answer(one.name) or one.position < rewind.positions
        }
        for name, known in self.asked.items():
            if known.key == model.row.key and (known.position >= rewind.positions or known.position in gone):
                known.state = "withdrawn"
                if self._checker.database._approvals[name].state != "withdrawn":
                    self._fail("what a retry takes back is asked anew", f"{model.row.id}: {known}")
