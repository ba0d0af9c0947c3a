"""Mistakes that could be made with questions to people: each patches the database, or the engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import patch

from holdfast.core.commands import Command
from holdfast.core.records import Kind, Signal
from holdfast.engine.mailbox import Mailbox
from holdfast.stores import rules
from holdfast.stores.approvals import AnswerApproval, ApprovalState, AskApproval, is_answer
from holdfast.stores.memory import MemoryStore
from holdfast.stores.operations import Verdict
from simulation.mutant_registry import mutant


@mutant("an answer does not wake a parked run")
def answer_wakes_nobody() -> Iterator[None]:
    """It is stored, and that is all."""
    real = MemoryStore._answer

    def answer(self: MemoryStore, op: AnswerApproval) -> Verdict:
        before = self._runs[self._keys[self._approvals[op.id].run_id]]
        verdict = real(self, op)
        self._put(before)
        return verdict

    with patch.object(MemoryStore, "_answer", answer):
        yield


@mutant("a park does not look for answers")
def park_ignores_answers() -> Iterator[None]:
    """An answer that came meanwhile waits for a run that waits for it."""
    real = MemoryStore._park
    with patch.object(MemoryStore, "_park", lambda self, op: real(self, op._replace(answers=()))):
        yield


@mutant("two people can answer the same question")
def answered_twice() -> Iterator[None]:
    """The second answer takes the place of the first."""
    with patch.object(rules, "answer_to_answer", lambda state, run_state: Verdict.DONE):
        yield


@mutant("whoever gives up waiting does not look whether somebody has answered")
def withdrawn_after_the_answer() -> Iterator[None]:
    """The answer was accepted, and is ignored."""
    with patch.object(rules, "answer_to_withdrawal", lambda state: (Verdict.DONE, True)):
        yield


@mutant("a question that is asked again is open again, although it was answered")
def asked_again_after_the_answer() -> Iterator[None]:
    """Whoever takes the run over asks people once more."""
    with patch.object(rules, "asks_anew", lambda *_: True):
        yield


@mutant("an answer is taken by whatever is asked at its place now")
def answers_know_no_question() -> Iterator[None]:
    """A deploy has changed the question; people have said yes to the former one."""

    def is_for(sent: Signal, command: Command) -> bool:
        return (command.kind is Kind.APPROVAL) is is_answer(sent.name)

    with patch.object(Mailbox, "_is_for", staticmethod(is_for)):
        yield


@mutant("whoever asks something else leaves the former question as it is")
def former_questions_stay() -> Iterator[None]:
    """People go on answering what nobody waits for, and nothing can be asked anew when a deploy is rolled back."""
    with patch.object(MemoryStore, "_make_way", lambda self, run_id, op: None):
        yield


@mutant("a former question is closed, but its answer stays in the mailbox")
def former_answers_stay() -> Iterator[None]:
    """Whoever rolls the deploy back finds it there."""
    real = MemoryStore._make_way

    def make_way(self: MemoryStore, run_id: str, op: AskApproval) -> None:
        with patch.object(MemoryStore, "_drop_answers", lambda *_: None):
            real(self, run_id, op)

    with patch.object(MemoryStore, "_make_way", make_way):
        yield


@mutant("a retry leaves the answers that it takes back")
def answers_outlive_a_retry() -> Iterator[None]:
    """Another question at the same place finds an answer."""
    with patch.object(MemoryStore, "_take_back_answers", lambda self, run, taken: None):
        yield


@mutant("the questions of a run that has ended stay open")
def questions_outlive_their_run() -> Iterator[None]:
    """People go on answering what nobody waits for."""
    real = MemoryStore._end

    def end(self: MemoryStore, run: object) -> None:
        before = {name: one for name, one in self._approvals.items() if one.state is ApprovalState.OPEN}
        real(self, run)  # type: ignore[arg-type]
        self._approvals.update((name, replace(one)) for name, one in before.items())

    with patch.object(MemoryStore, "_end", end):
        yield
