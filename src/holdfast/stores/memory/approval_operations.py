# pyright: reportPrivateUsage=false
"""Approvals, live events, and memories, in memory."""

from __future__ import annotations

import builtins
from collections import Counter
from dataclasses import replace

from holdfast.stores.approvals import (
    AnswerApproval,
    Approval,
    ApprovalFilter,
    ApprovalState,
    RemindApproval,
    RequestApproval,
    select_approvals,
)
from holdfast.stores.audit_log import AuditEvent
from holdfast.stores.memories import Memories, Memory, MemoryChange, PutMemory
from holdfast.stores.memory.queue_operations import MemoryCapability
from holdfast.stores.memory.tables import Tables
from holdfast.stores.operations import AppendLiveEvents, OpStatus
from holdfast.stores.row_access import ApprovalRow
from holdfast.stores.text_search import rank_bm25, tokenize, tokenize_query
from holdfast.stores.utf8 import replace_surrogates


class ApprovalOperations(Tables):
    """Approvals, live events, and memories."""

    def _get_approval(self, approval_id: str) -> ApprovalRow | None:
        known = self._approvals.get(approval_id)
        if known is None:
            return None
        withdrawn_epoch = self._withdrawn_epochs.get(approval_id, 0)
        run_key = self._keys_by_id[known.run_id]
        return ApprovalRow(run_key, known.position, known.state, known.reminder_count, withdrawn_epoch)

    def _put_approval(self, op: RequestApproval) -> None:
        run = self._runs[op.key]
        self._approvals[op.id] = Approval(
            op.id, run.id, run.workflow, op.position, op.request, ApprovalState.OPEN, op.at, op.expires_at,
            replace_surrogates(op.request.assignee), 0, None,
        )  # fmt: skip

    def _list_other_approvals(self, op: RequestApproval) -> list[str]:
        place = (self._runs[op.key].id, op.position)
        return [
            other.id
            for other in self._approvals.values()
            if (other.run_id, other.position) == place
            and other.id != op.id
            and other.state is not ApprovalState.WITHDRAWN
        ]

    def _set_withdrawn(self, approval_id: str, epoch: int) -> None:
        self._approvals[approval_id] = replace(self._approvals[approval_id], state=ApprovalState.WITHDRAWN)
        self._withdrawn_epochs[approval_id] = epoch

    def _save_reminder(self, op: RemindApproval) -> None:
        self._approvals[op.id] = replace(
            self._approvals[op.id],
            reminder_count=op.reminder_count,
            assignee=replace_surrogates(op.assignee),
            reminded_at=op.at,
            expires_at=op.expires_at,
        )

    def _save_answer(self, op: AnswerApproval, payload: bytes) -> None:
        self._approvals[op.id] = replace(
            self._approvals[op.id],
            state=ApprovalState.ANSWERED,
            answer=payload,
            answered_by=replace_surrogates(op.answered_by),
            answered_at=op.at,
        )

    def _delete_answers_at(self, key: int, position: int) -> None:
        self._delete_answer_signals(key, lambda other: other == position)

    async def list_approvals(self, where: ApprovalFilter, limit: int = 1000) -> list[Approval]:
        with self._lock:
            known = list(self._approvals.values())
        return select_approvals(known, where, limit)

    # Live events

    def _append_live_events(self, op: AppendLiveEvents) -> OpStatus:
        if self._get_claimed(op.key, op.epoch) is None:
            return OpStatus.FENCED
        known = {(event.position, event.stream, event.number) for event in self._live_events.get(op.key, {}).values()}
        for event in op.events:
            event_key = (event.position, event.stream, event.number)
            if event_key not in known:
                known.add(event_key)
                self._add_live_event(op.key, event)
        return OpStatus.DONE

    # Memories

    def _log_request(self, op: AuditEvent) -> OpStatus:
        self._last_audit_id += 1
        self._audit_events[self._last_audit_id] = op
        return OpStatus.DONE

    def _change_memory(self, op: MemoryChange) -> OpStatus:
        memory_key = (op.namespace, op.key)
        if isinstance(op, PutMemory):
            known = self._memories.get(memory_key)
            created_at = op.at if known is None else known.created_at
            self._memories[memory_key] = Memory(op.namespace, op.key, op.value, op.text, created_at, op.at)
            self._word_counts[memory_key] = Counter([*tokenize(op.key), *tokenize(op.text)])
        else:
            self._memories.pop(memory_key, None)
            self._word_counts.pop(memory_key, None)
        return OpStatus.DONE


class MemoryMemories(MemoryCapability, Memories):
    """Memories, for as long as the process lives."""

    async def get(self, namespace: str, key: str) -> Memory | None:
        with self._tables._lock:
            return self._tables._memories.get((namespace, key))

    async def search(self, namespace: str, words: str, *, limit: int = 10) -> list[Memory]:
        tables = self._tables
        with tables._lock:
            candidates = [memory_key for memory_key in tables._memories if memory_key[0] == namespace]
            ranked = sorted(rank_bm25(tables._word_counts, tokenize_query(words), candidates))
            return [tables._memories[memory_key] for _, memory_key in ranked[:limit]]

    async def list(self, namespace: str, *, after: str = "", limit: int = 100) -> list[Memory]:
        tables = self._tables
        with tables._lock:
            keys = sorted(key for space, key in tables._memories if space == namespace and key > after)
            return [tables._memories[namespace, key] for key in keys[:limit]]

    async def namespaces(self, prefix: str = "", *, after: str = "", limit: int = 100) -> builtins.list[str]:
        with self._tables._lock:
            known = {space for space, _ in self._tables._memories if space.startswith(prefix) and space > after}
        return sorted(known)[:limit]
