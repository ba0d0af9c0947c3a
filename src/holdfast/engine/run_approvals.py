"""Approvals that a held run requests.

A request costs one write, an answer one more: the record. The id of the approval follows from the command's position
and from the question. So a worker that takes the run over and requests the same approval finds it in the store: people
are asked once. If changed code asks another question at that position, it is another approval. The answer comes through
the mailbox, like the end of an awaited run, and names its approval.

When the workflow withdraws the command, the approval is withdrawn too. That is a courtesy to people: an answer that
comes at the same moment is lost. A workflow that must not lose it withdraws the approval in a step first (see
``withdraw_approval``), and checks the store's answer.
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
"""The name of the command in the journal."""


@dataclass(frozen=True, slots=True)
class ApprovalCall:
    """An approval that workflow code requests."""

    id: str
    request: ApprovalRequest
    timeout_s: float | None = None
    """How long people have to answer."""
    requested_at: float = 0.0
    """In the run's own time."""


class RunApprovals:
    """The approvals of a driver's run."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def request(self, command: Command) -> None:
        """Put the approval into the store. If it is there already, nothing changes."""
        run, call = self._driver.run, command.call
        assert isinstance(call, ApprovalCall)
        now = self._driver.host.clock.now()
        expires_at = None if call.timeout_s is None else now + call.timeout_s
        self._driver.recorder.submit(
            RequestApproval(run.key, run.epoch, command.position, call.id, call.request, now, expires_at)
        )

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
        if (telemetry := self._driver.telemetry) is not None:
            telemetry.end_approval(command, self._driver.host.clock.now())

    def withdraw(self, command: Command) -> None:
        """The workflow no longer waits."""
        run, host = self._driver.run, self._driver.host
        host.writer.submit(WithdrawApproval(run.key, run.epoch, command.call.id, host.clock.now()), lambda _: None)


async def remind_approval(
    step: StepRun, approval_id: str, reminder_count: int, assignee: str, expires_at: float | None
) -> bool:
    """Note, for a step, that people are reminded of an approval; false when it is closed."""
    run, now = step.run, step.host.clock.now()
    op = RemindApproval(run.key, run.epoch, approval_id, reminder_count, assignee, now, expires_at)
    return await _perform_fenced(step, op) is OpStatus.DONE


async def withdraw_approval(step: StepRun, approval_id: str) -> bool:
    """Withdraw an approval, for a step; false when it has been answered, and the answer counts."""
    op = WithdrawApproval(step.run.key, step.run.epoch, approval_id, step.host.clock.now())
    return await _perform_fenced(step, op) is not OpStatus.REFUSED


async def _perform_fenced(step: StepRun, op: RemindApproval | WithdrawApproval) -> OpResult:
    answer = await step.host.writer.perform(op)
    if answer is OpStatus.FENCED:
        step.raise_claim_lost()
    return answer
