"""Questions that a held run asks people.

Asking costs one write, an answer one more: the record. The question stands in the store under an id that follows from
the command's position and from what is asked, so that whoever takes the run over and asks the same again finds it
there: people are asked once. Whoever asks something else there, because the code has changed, asks anew. The answer
comes through the mailbox, like the end of a run that this one waits for, and names the question that it was given to.

A command that the workflow withdraws takes the question back. That is a courtesy to people: an answer that comes at the
same moment finds nobody. Whoever must not miss it withdraws the question in a step first (see ``withdraw``), and looks
what the store says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.core.commands import Command
from holdfast.core.records import Kind, Signal
from holdfast.stores.approvals import AskApproval, Question, RemindApproval, WithdrawApproval
from holdfast.stores.operations import Answer, Verdict

if TYPE_CHECKING:
    from holdfast.engine.driver import Driver
    from holdfast.engine.step_run import StepRun

APPROVAL = "approval"
"""What the journal calls the command."""


@dataclass(frozen=True, slots=True)
class ApprovalCall:
    """A question that workflow code asks."""

    id: str
    question: Question
    time: float | None = None
    """Seconds that people have to answer."""


class Questions:
    """What a driver does for the questions of its run."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def ask(self, command: Command) -> None:
        """Put the question into the store. It may be there already: then nothing changes."""
        driver, call = self._driver, command.call
        assert isinstance(call, ApprovalCall)
        run, host = driver.run, driver.host
        driver.journal.expect()
        now = host.clock.now()
        expires_at = None if call.time is None else now + call.time
        op = AskApproval(run.key, run.epoch, command.position, call.id, call.question, now, expires_at)
        host.writer.submit(op, self._asked)

    def _asked(self, answer: Answer | BaseException) -> None:
        driver = self._driver
        driver.journal.answered()
        if driver.gone:
            return
        if isinstance(answer, BaseException):
            driver.fail(answer)
        elif answer is not Verdict.DONE:
            driver.lose()
        else:
            driver.rest()

    def answered(self, command: Command, signal: Signal) -> None:
        """The answer is in the mailbox: record it."""
        self._driver.journal.record(
            Kind.APPROVAL,
            command.position,
            command.name,
            payload=signal.payload,
            started_at=signal.sent_at,
            preview=command.call.id,
            consume=signal.id,
        )

    def withdrawn(self, command: Command) -> None:
        """The workflow no longer waits."""
        run, host = self._driver.run, self._driver.host
        host.writer.submit(WithdrawApproval(run.key, run.epoch, command.call.id, host.clock.now()), lambda _: None)


async def remind(step: StepRun, id: str, reminders: int, asked_of: str, expires_at: float | None) -> bool:
    """Note, for a step, that people are told of a question again; false when it is open no more."""
    run, now = step.run, step.host.clock.now()
    op = RemindApproval(run.key, run.epoch, id, reminders, asked_of, now, expires_at)
    return await _verdict(step, op) is Verdict.DONE


async def withdraw(step: StepRun, id: str) -> bool:
    """Take a question back, for a step; false when it has been answered: then the answer counts."""
    op = WithdrawApproval(step.run.key, step.run.epoch, id, step.host.clock.now())
    return await _verdict(step, op) is not Verdict.REFUSED


async def _verdict(step: StepRun, op: RemindApproval | WithdrawApproval) -> Answer:
    answer = await step.host.writer.perform(op)
    if answer is Verdict.FENCED:
        step.lose()
    return answer
