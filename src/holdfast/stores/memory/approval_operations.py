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
    AskApproval,
    RemindApproval,
    WithdrawApproval,
    answer_name,
    listed,
)
from holdfast.stores.memories import Memory, MemoryChange, PutMemory
from holdfast.stores.memory.tables import Tables
from holdfast.stores.operations import TellNotices, Verdict
from holdfast.stores.text_search import asked, best, words
from holdfast.stores.utf8 import proper


class Asking(Tables):
    """What runs ask people and tell those who follow them, and what outlives them."""

    def _ask(self, op: AskApproval) -> Verdict:
        run = self._held(op.key, op.epoch)
        if run is None:
            return Verdict.FENCED
        present = self._approvals.get(op.id)
        if present is not None and present.run_id != run.id:
            return Verdict.REFUSED
        if present is not None and not rules.asks_anew(present.state, self._withdrawn_in.get(op.id, 0), op.epoch):
            return Verdict.DONE
        self._make_way(run.id, op)
        self._approvals[op.id] = Approval(
            op.id, run.id, run.workflow, op.position, op.question, ApprovalState.OPEN, op.at, op.expires_at,
            proper(op.question.asked_of), 0, None,
        )  # fmt: skip
        self._leave(op.key, op.position, op.at, *rules.asked_notice(op))
        return Verdict.DONE

    def _make_way(self, run_id: str, op: AskApproval) -> None:
        """Withdraw what was asked at this place before; nobody waits for its answer any more."""
        for other in [*self._approvals.values()]:
            if (other.run_id, other.position) != (run_id, op.position) or other.id == op.id:
                continue
            if other.state is not ApprovalState.WITHDRAWN:
                self._approvals[other.id] = replace(other, state=ApprovalState.WITHDRAWN)
                self._withdrawn_in[other.id] = op.epoch
                self._leave(op.key, op.position, op.at, *rules.withdrawn_notice(other.id))
        self._drop_answers(op.key, lambda position: position == op.position)

    def _remind(self, op: RemindApproval) -> Verdict:
        run = self._held(op.key, op.epoch)
        if run is None:
            return Verdict.FENCED
        present = self._approvals.get(op.id)
        if present is None or present.run_id != run.id:
            return Verdict.UNKNOWN_APPROVAL
        answer, is_new = rules.answer_to_reminder(present.state, present.reminders, op)
        if is_new:
            self._approvals[op.id] = replace(
                present, reminders=op.reminders, asked_of=proper(op.asked_of), reminded_at=op.at,
                expires_at=op.expires_at,
            )  # fmt: skip
            self._leave(op.key, present.position, op.at, *rules.reminded_notice(op))
        return answer

    def _withdraw(self, op: WithdrawApproval) -> Verdict:
        run = self._held(op.key, op.epoch)
        if run is None:
            return Verdict.FENCED
        present = self._approvals.get(op.id)
        if present is None or present.run_id != run.id:
            return Verdict.UNKNOWN_APPROVAL
        answer, is_new = rules.answer_to_withdrawal(present.state)
        if is_new:
            self._approvals[op.id] = replace(present, state=ApprovalState.WITHDRAWN)
            self._withdrawn_in[op.id] = op.epoch
            self._leave(op.key, present.position, op.at, *rules.withdrawn_notice(op.id))
        return answer

    def _answer(self, op: AnswerApproval) -> Verdict:
        present = self._approvals.get(op.id)
        if present is None:
            return Verdict.UNKNOWN_APPROVAL
        run = self._runs[self._keys[present.run_id]]
        answer = rules.answer_to_answer(present.state, run.state)
        if answer is Verdict.DONE:
            self._approvals[op.id] = replace(
                present, state=ApprovalState.ANSWERED, answer=op.payload, answered_by=proper(op.by), answered_at=op.at
            )
            self._post(run.key, answer_name(op.id), op.payload, op.at, present.position)
            self._wake(run)
        return answer

    async def approvals(self, where: ApprovalFilter, limit: int = 1000) -> list[Approval]:
        """Approvals that match, the longest open first."""
        with self._lock:
            known = list(self._approvals.values())
        return listed(known, where, limit)

    # Notices

    def _tell(self, op: TellNotices) -> Verdict:
        if self._held(op.key, op.epoch) is None:
            return Verdict.FENCED
        told = {(n.position, n.part, n.number) for n in self._notices.get(op.key, {}).values()}
        for notice in op.notices:
            place = (notice.position, notice.part, notice.number)
            if place not in told:
                told.add(place)
                self._note(op.key, notice)
        return Verdict.DONE

    # Memories

    def _remember(self, op: MemoryChange) -> Verdict:
        place = (op.namespace, op.key)
        if isinstance(op, PutMemory):
            known = self._memories.get(place)
            created_at = op.at if known is None else known.created_at
            self._memories[place] = Memory(op.namespace, op.key, op.value, op.text, created_at, op.at)
            self._words[place] = Counter([*words(op.key), *words(op.text)])
        else:
            self._memories.pop(place, None)
            self._words.pop(place, None)
        return Verdict.DONE

    async def get_memory(self, namespace: str, key: str) -> Memory | None:
        """One memory."""
        with self._lock:
            return self._memories.get((namespace, key))

    async def list_memories(self, namespace: str, *, after: str = "", limit: int = 100) -> list[Memory]:
        """The memories of a namespace behind a key."""
        with self._lock:
            keys = sorted(key for space, key in self._memories if space == namespace and key > after)
            return [self._memories[namespace, key] for key in keys[:limit]]

    async def search_memories(self, namespace: str, words: str, *, limit: int = 10) -> list[Memory]:
        """The memories of a namespace that have one of these words, the best match first."""
        with self._lock:
            among = [place for place in self._memories if place[0] == namespace]
            found = sorted(best(self._words, asked(words), among))
            return [self._memories[place] for _, place in found[:limit]]
