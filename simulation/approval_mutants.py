"""Mistakes that could be made with questions to people: each patches the database, or the engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import patch

from holdfast.core.commands import Command
from holdfast.core.records import RecordKind, Signal
from holdfast.engine.mailbox import Mailbox
from holdfast.stores import rules
from holdfast.stores.approvals import AnswerApproval, ApprovalState, RequestApproval, is_answer
from holdfast.stores.memory import MemoryStore
from holdfast.stores.operations import OpStatus
from simulation.mutant_registry import register_mutant


@register_mutant("an answer does not wake a parked run")
def answer_does_not_wake() -> Iterator[None]:
    """It is stored, and that is all."""
    real = MemoryStore._answer_approval

    def answer(self: MemoryStore, op: AnswerApproval) -> OpStatus:
        before = self._runs[self._keys_by_id[self._approvals[op.id].run_id]]
        verdict = real(self, op)
        self._save_run(before)
        return verdict

    with patch.object(MemoryStore, "_answer_approval", answer):
        yield


@register_mutant("a park does not look for answers")
def park_ignores_answers() -> Iterator[None]:
    """An answer that came meanwhile waits for a run that waits for it."""
    real = MemoryStore._park
    with patch.object(MemoryStore, "_park", lambda self, op: real(self, op._replace(approval_ids=()))):
        yield


@register_mutant("two people can answer the same question")
def answered_twice() -> Iterator[None]:
    """The second answer takes the place of the first."""
    with patch.object(rules, "decide_answer", lambda state, run_state: OpStatus.DONE):
        yield


@register_mutant("whoever gives up waiting does not look whether somebody has answered")
def withdrawn_after_answer() -> Iterator[None]:
    """The answer was accepted, and is ignored."""
    with patch.object(rules, "decide_withdrawal", lambda state: (OpStatus.DONE, True)):
        yield


@register_mutant("a question that is asked again is open again, although it was answered")
def reopened_after_answer() -> Iterator[None]:
    """The worker that takes over the run asks people again."""
    with patch.object(rules, "should_request_again", lambda *_: True):
        yield


@register_mutant("an answer is taken by whatever is asked at its place now")
def answer_matched_by_position() -> Iterator[None]:
    """A deploy has changed the question, but people approved the old one."""

    def is_for(sent: Signal, command: Command) -> bool:
        return (command.kind is RecordKind.APPROVAL) is is_answer(sent.name)

    with patch.object(Mailbox, "_is_addressed_to", staticmethod(is_for)):
        yield


@register_mutant("whoever asks something else leaves the former question as it is")
def replaced_approval_stays_open() -> Iterator[None]:
    """People keep answering what no run waits for, and a rolled-back deploy cannot ask again."""
    with patch.object(MemoryStore, "_withdraw_others", lambda self, op: None):
        yield


@register_mutant("a former question is closed, but its answer stays in the mailbox")
def replaced_answer_stays() -> Iterator[None]:
    """A rolled-back deploy finds it there."""
    real = MemoryStore._withdraw_others

    def make_way(self: MemoryStore, op: RequestApproval) -> None:
        with patch.object(MemoryStore, "_delete_answer_signals", lambda *_: None):
            real(self, op)

    with patch.object(MemoryStore, "_withdraw_others", make_way):
        yield


@register_mutant("a retry leaves the answers that it takes back")
def answers_survive_retry() -> Iterator[None]:
    """Another question at the same position finds an answer."""
    with patch.object(MemoryStore, "_rewind_approvals", lambda self, run, taken: None):
        yield


@register_mutant("the questions of a run that has ended stay open")
def approvals_survive_run() -> Iterator[None]:
    """People keep answering what no run waits for."""
    real = MemoryStore._end_run

    def end(self: MemoryStore, run: object) -> None:
        before = {name: one for name, one in self._approvals.items() if one.state is ApprovalState.OPEN}
        real(self, run)  # type: ignore[arg-type]
        self._approvals.update((name, replace(one)) for name, one in before.items())

    with patch.object(MemoryStore, "_end_run", end):
        yield
