"""Questions that a held run asks people.

Asking costs one write, an answer one more: the record. The question stands in the store under an id that follows from
the command's position and from what is asked, so that whoever takes the run over and asks the same again finds it
there: people are asked once. Whoever asks something else there, because the code has changed, asks anew. The answer
comes through the mailbox, like the end of a run that this one waits for, and names the question that it was given to.

A command that the workflow withdraws takes the question back. That is a courtesy to people: an answer that comes at the
same moment finds nobody. Whoever must not miss it withdraws the question in a step first (see ``withdraw_approval``),
and looks what the store says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.core.commands import Command
from holdfast.core.records import RecordKind, Signal
from holdfast.stores.approvals import ApprovalRequest, RemindApproval, RequestApproval, WithdrawApproval
from holdfast.stores.operations import OpResult, OpStatus

if TYPE_CHECKING:
    from holdfast.engine.driver import Driver
    from holdfast.engine.step_run import StepRun

APPROVAL_COMMAND = "approval"
"""What the journal calls the command."""


@dataclass(frozen=True, slots=True)
class ApprovalCall:
    """A question that workflow code asks."""

    id: str
    request: ApprovalRequest
    timeout_s: float | None = None
    """Seconds that people have to answer."""


class RunApprovals:
    """What a driver does for the questions of its run."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def request(self, command: Command) -> None:
        """Put the question into the store. It may be there already: then nothing changes."""
        driver, call = self._driver, command.call
        assert isinstance(call, ApprovalCall)
        run, host = driver.run, driver.host
        driver.recorder.add_pending()
        now = host.clock.now()
        expires_at = None if call.timeout_s is None else now + call.timeout_s
        op = RequestApproval(run.key, run.epoch, command.position, call.id, call.request, now, expires_at)
        host.writer.submit(op, self._on_requested)

    def _on_requested(self, answer: OpResult | BaseException) -> None:
        driver = self._driver
        driver.recorder.remove_answered()
        if driver.is_closed:
            return
        if isinstance(answer, BaseException):
            driver.fail(answer)
        elif answer is not OpStatus.DONE:
            driver.handle_claim_lost()
        else:
            driver.finish_turn()

    def record_answer(self, command: Command, signal: Signal) -> None:
        """The answer is in the mailbox: record it."""
        self._driver.recorder.record(
            RecordKind.APPROVAL,
            command.position,
            command.name,
            payload=signal.payload,
            started_at=signal.sent_at,
            preview=command.call.id,
            consumed_signal_id=signal.id,
        )

    def withdraw(self, command: Command) -> None:
        """The workflow no longer waits."""
        run, host = self._driver.run, self._driver.host
        host.writer.submit(WithdrawApproval(run.key, run.epoch, command.call.id, host.clock.now()), lambda _: None)


async def remind_approval(
    step: StepRun, approval_id: str, reminder_count: int, assignee: str, expires_at: float | None
) -> bool:
    """Note, for a step, that people are told of a question again; false when it is open no more."""
    run, now = step.run, step.host.clock.now()
    op = RemindApproval(run.key, run.epoch, approval_id, reminder_count, assignee, now, expires_at)
    return await _perform_fenced(step, op) is OpStatus.DONE


async def withdraw_approval(step: StepRun, approval_id: str) -> bool:
    """Take a question back, for a step; false when it has been answered: then the answer counts."""
    op = WithdrawApproval(step.run.key, step.run.epoch, approval_id, step.host.clock.now())
    return await _perform_fenced(step, op) is not OpStatus.REFUSED


async def _perform_fenced(step: StepRun, op: RemindApproval | WithdrawApproval) -> OpResult:
    answer = await step.host.writer.perform(op)
    if answer is OpStatus.FENCED:
        step.raise_claim_lost()
    return answer
