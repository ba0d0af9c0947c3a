# pyright: reportPrivateUsage=false
"""Questions to people, notices and memories, in memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from holdfast.stores import rules
from holdfast.stores.approvals import (
    AnswerApproval,
    Approval,
    ApprovalFilter,
    ApprovalState,
    RemindApproval,
    RequestApproval,
    WithdrawApproval,
    make_answer_name,
    select_approvals,
)
from holdfast.stores.memories import Memories, Memory, MemoryChange, PutMemory
from holdfast.stores.memory.queue_operations import MemoryCapability
from holdfast.stores.memory.tables import Tables
from holdfast.stores.operations import AppendLiveEvents, OpStatus
from holdfast.stores.text_search import rank_bm25, tokenize, tokenize_query
from holdfast.stores.utf8 import replace_surrogates


class ApprovalOperations(Tables):
    """What runs ask people and tell those who follow them, and what outlives them."""

    def _request_approval(self, op: RequestApproval) -> OpStatus:
        run = self._get_claimed(op.key, op.epoch)
        if run is None:
            return OpStatus.FENCED
        present = self._approvals.get(op.id)
        if present is not None and present.run_id != run.id:
            return OpStatus.REFUSED
        if present is not None and not rules.should_request_again(
            present.state, self._withdrawn_epochs.get(op.id, 0), op.epoch
        ):
            return OpStatus.DONE
        self._withdraw_others(run.id, op)
        self._approvals[op.id] = Approval(
            op.id, run.id, run.workflow, op.position, op.request, ApprovalState.OPEN, op.at, op.expires_at,
            replace_surrogates(op.request.assignee), 0, None,
        )  # fmt: skip
        self._add_lasting_event(op.key, op.position, op.at, *rules.make_requested_event(op))
        return OpStatus.DONE

    def _withdraw_others(self, run_id: str, op: RequestApproval) -> None:
        """Withdraw what was asked at this place before; nobody waits for its answer any more."""
        for other in [*self._approvals.values()]:
            if (other.run_id, other.position) != (run_id, op.position) or other.id == op.id:
                continue
            if other.state is not ApprovalState.WITHDRAWN:
                self._approvals[other.id] = replace(other, state=ApprovalState.WITHDRAWN)
                self._withdrawn_epochs[other.id] = op.epoch
                self._add_lasting_event(op.key, op.position, op.at, *rules.make_withdrawn_event(other.id))
        self._delete_answer_signals(op.key, lambda position: position == op.position)

    def _remind_approval(self, op: RemindApproval) -> OpStatus:
        run = self._get_claimed(op.key, op.epoch)
        if run is None:
            return OpStatus.FENCED
        present = self._approvals.get(op.id)
        if present is None or present.run_id != run.id:
            return OpStatus.UNKNOWN_APPROVAL
        answer, is_new = rules.decide_reminder(present.state, present.reminder_count, op)
        if is_new:
            self._approvals[op.id] = replace(
                present, reminder_count=op.reminder_count, assignee=replace_surrogates(op.assignee), reminded_at=op.at,
                expires_at=op.expires_at,
            )  # fmt: skip
            self._add_lasting_event(op.key, present.position, op.at, *rules.make_reminded_event(op))
        return answer

    def _withdraw_approval(self, op: WithdrawApproval) -> OpStatus:
        run = self._get_claimed(op.key, op.epoch)
        if run is None:
            return OpStatus.FENCED
        present = self._approvals.get(op.id)
        if present is None or present.run_id != run.id:
            return OpStatus.UNKNOWN_APPROVAL
        answer, is_new = rules.decide_withdrawal(present.state)
        if is_new:
            self._approvals[op.id] = replace(present, state=ApprovalState.WITHDRAWN)
            self._withdrawn_epochs[op.id] = op.epoch
            self._add_lasting_event(op.key, present.position, op.at, *rules.make_withdrawn_event(op.id))
        return answer

    def _answer_approval(self, op: AnswerApproval) -> OpStatus:
        present = self._approvals.get(op.id)
        if present is None:
            return OpStatus.UNKNOWN_APPROVAL
        run = self._runs[self._keys_by_id[present.run_id]]
        answer = rules.decide_answer(present.state, run.state)
        if answer is OpStatus.DONE:
            self._approvals[op.id] = replace(
                present,
                state=ApprovalState.ANSWERED,
                answer=op.payload,
                answered_by=replace_surrogates(op.answered_by),
                answered_at=op.at,
            )
            self._add_signal(run.key, make_answer_name(op.id), op.payload, op.at, present.position)
            self._wake(run)
        return answer

    async def list_approvals(self, where: ApprovalFilter, limit: int = 1000) -> list[Approval]:
        """Approvals that match, the longest open first."""
        with self._lock:
            known = list(self._approvals.values())
        return select_approvals(known, where, limit)

    # Notices

    def _append_live_events(self, op: AppendLiveEvents) -> OpStatus:
        if self._get_claimed(op.key, op.epoch) is None:
            return OpStatus.FENCED
        told = {(n.position, n.stream, n.number) for n in self._live_events.get(op.key, {}).values()}
        for notice in op.events:
            place = (notice.position, notice.stream, notice.number)
            if place not in told:
                told.add(place)
                self._add_live_event(op.key, notice)
        return OpStatus.DONE

    # Memories

    def _change_memory(self, op: MemoryChange) -> OpStatus:
        place = (op.namespace, op.key)
        if isinstance(op, PutMemory):
            known = self._memories.get(place)
            created_at = op.at if known is None else known.created_at
            self._memories[place] = Memory(op.namespace, op.key, op.value, op.text, created_at, op.at)
            self._word_counts[place] = Counter([*tokenize(op.key), *tokenize(op.text)])
        else:
            self._memories.pop(place, None)
            self._word_counts.pop(place, None)
        return OpStatus.DONE


class MemoryMemories(MemoryCapability, Memories):
    """The values that outlive runs, as long as the process lives."""

    async def get(self, namespace: str, key: str) -> Memory | None:
        with self._tables._lock:
            return self._tables._memories.get((namespace, key))

    async def search(self, namespace: str, words: str, *, limit: int = 10) -> list[Memory]:
        tables = self._tables
        with tables._lock:
            among = [place for place in tables._memories if place[0] == namespace]
            found = sorted(rank_bm25(tables._word_counts, tokenize_query(words), among))
            return [tables._memories[place] for _, place in found[:limit]]

    async def list(self, namespace: str, *, after: str = "", limit: int = 100) -> list[Memory]:
        tables = self._tables
        with tables._lock:
            keys = sorted(key for space, key in tables._memories if space == namespace and key > after)
            return [tables._memories[namespace, key] for key in keys[:limit]]
