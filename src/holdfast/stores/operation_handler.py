"""Which method of a store applies which operation."""

from __future__ import annotations

from abc import ABC, abstractmethod

from holdfast.stores import operations as ops
from holdfast.stores.approvals import AnswerApproval, RemindApproval, RequestApproval, WithdrawApproval
from holdfast.stores.memories import DeleteMemory, MemoryChange, PutMemory


class OperationHandler(ABC):
    """Has a method for every operation."""

    def _apply_op(self, op: ops.Op) -> ops.OpResult:
        match op:
            case ops.AppendRecord():
                return self._append(op)
            case ops.SaveAttempt():
                return self._save_attempt(op)
            case ops.ReserveUsage():
                return self._reserve(op)
            case ops.FinishRun():
                return self._finish(op)
            case ops.ParkRun():
                return self._park(op)
            case ops.ReleaseRun():
                return self._release(op)
            case ops.SendSignal():
                return self._send_signal(op)
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
            case ops.AppendLiveEvents():
                return self._append_live_events(op)
            case RequestApproval():
                return self._request_approval(op)
            case RemindApproval():
                return self._remind_approval(op)
            case WithdrawApproval():
                return self._withdraw_approval(op)
            case AnswerApproval():
                return self._answer_approval(op)
            case PutMemory() | DeleteMemory():
                return self._change_memory(op)

    @abstractmethod
    def _append(self, op: ops.AppendRecord) -> ops.OpStatus: ...
    @abstractmethod
    def _save_attempt(self, op: ops.SaveAttempt) -> ops.OpStatus: ...
    @abstractmethod
    def _reserve(self, op: ops.ReserveUsage) -> ops.OpResult: ...
    @abstractmethod
    def _finish(self, op: ops.FinishRun) -> ops.OpStatus: ...
    @abstractmethod
    def _park(self, op: ops.ParkRun) -> ops.OpStatus: ...
    @abstractmethod
    def _release(self, op: ops.ReleaseRun) -> ops.OpStatus: ...
    @abstractmethod
    def _send_signal(self, op: ops.SendSignal) -> ops.OpStatus: ...
    @abstractmethod
    def _start(self, op: ops.StartRun) -> ops.OpResult: ...
    @abstractmethod
    def _await(self, op: ops.AwaitRun) -> ops.OpResult: ...
    @abstractmethod
    def _cancel(self, op: ops.CancelRun) -> ops.OpStatus: ...
    @abstractmethod
    def _pause(self, op: ops.PauseRun) -> ops.OpStatus: ...
    @abstractmethod
    def _resume(self, op: ops.ResumeRun) -> ops.OpStatus: ...
    @abstractmethod
    def _reopen(self, op: ops.ReopenRun) -> ops.OpStatus: ...
    @abstractmethod
    def _set_budget(self, op: ops.SetBudget) -> ops.OpStatus: ...
    @abstractmethod
    def _fork(self, op: ops.ForkRun) -> ops.OpResult: ...
    @abstractmethod
    def _append_live_events(self, op: ops.AppendLiveEvents) -> ops.OpStatus: ...
    @abstractmethod
    def _request_approval(self, op: RequestApproval) -> ops.OpStatus: ...
    @abstractmethod
    def _remind_approval(self, op: RemindApproval) -> ops.OpStatus: ...
    @abstractmethod
    def _withdraw_approval(self, op: WithdrawApproval) -> ops.OpStatus: ...
    @abstractmethod
    def _answer_approval(self, op: AnswerApproval) -> ops.OpStatus: ...
    @abstractmethod
    def _change_memory(self, op: MemoryChange) -> ops.OpStatus: ...
