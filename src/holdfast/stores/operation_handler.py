"""Which method of a store carries out which operation."""

from __future__ import annotations

from abc import ABC, abstractmethod

from holdfast.stores import operations as ops
from holdfast.stores.approvals import AnswerApproval, AskApproval, RemindApproval, WithdrawApproval
from holdfast.stores.memories import DeleteMemory, MemoryChange, PutMemory


class Carrier(ABC):
    """Something that has a method for every operation."""

    def _carry_out(self, op: ops.Op) -> ops.Answer:
        match op:
            case ops.AppendRecord():
                return self._append(op)
            case ops.NoteAttempt():
                return self._note_attempt(op)
            case ops.ReserveUsage():
                return self._reserve(op)
            case ops.FinishRun():
                return self._finish(op)
            case ops.ParkRun():
                return self._park(op)
            case ops.ReleaseRun():
                return self._release(op)
            case ops.SendSignal():
                return self._send(op)
            case ops.StartRun():
                return self._start(op)
            case ops.AwaitRun():
                return self._await(op)
            case ops.CancelRun():
                return self._cancel(op)
            case ops.PauseRun():
                return self._pause(op)
            case ops.ResumeRun():
                return self._resume(op)
            case ops.ReopenRun():
                return self._reopen(op)
            case ops.SetBudget():
                return self._set_budget(op)
            case ops.ForkRun():
                return self._fork(op)
            case ops.TellNotices():
                return self._tell(op)
            case AskApproval():
                return self._ask(op)
            case RemindApproval():
                return self._remind(op)
            case WithdrawApproval():
                return self._withdraw(op)
            case AnswerApproval():
                return self._answer(op)
            case PutMemory() | DeleteMemory():
                return self._remember(op)

    @abstractmethod
    def _append(self, op: ops.AppendRecord) -> ops.Verdict: ...
    @abstractmethod
    def _note_attempt(self, op: ops.NoteAttempt) -> ops.Verdict: ...
    @abstractmethod
    def _reserve(self, op: ops.ReserveUsage) -> ops.Answer: ...
    @abstractmethod
    def _finish(self, op: ops.FinishRun) -> ops.Verdict: ...
    @abstractmethod
    def _park(self, op: ops.ParkRun) -> ops.Verdict: ...
    @abstractmethod
    def _release(self, op: ops.ReleaseRun) -> ops.Verdict: ...
    @abstractmethod
    def _send(self, op: ops.SendSignal) -> ops.Verdict: ...
    @abstractmethod
    def _start(self, op: ops.StartRun) -> ops.Answer: ...
    @abstractmethod
    def _await(self, op: ops.AwaitRun) -> ops.Answer: ...
    @abstractmethod
    def _cancel(self, op: ops.CancelRun) -> ops.Verdict: ...
    @abstractmethod
    def _pause(self, op: ops.PauseRun) -> ops.Verdict: ...
    @abstractmethod
    def _resume(self, op: ops.ResumeRun) -> ops.Verdict: ...
    @abstractmethod
    def _reopen(self, op: ops.ReopenRun) -> ops.Verdict: ...
    @abstractmethod
    def _set_budget(self, op: ops.SetBudget) -> ops.Verdict: ...
    @abstractmethod
    def _fork(self, op: ops.ForkRun) -> ops.Answer: ...
    @abstractmethod
    def _tell(self, op: ops.TellNotices) -> ops.Verdict: ...
    @abstractmethod
    def _ask(self, op: AskApproval) -> ops.Verdict: ...
    @abstractmethod
    def _remind(self, op: RemindApproval) -> ops.Verdict: ...
    @abstractmethod
    def _withdraw(self, op: WithdrawApproval) -> ops.Verdict: ...
    @abstractmethod
    def _answer(self, op: AnswerApproval) -> ops.Verdict: ...
    @abstractmethod
    def _remember(self, op: MemoryChange) -> ops.Verdict: ...
