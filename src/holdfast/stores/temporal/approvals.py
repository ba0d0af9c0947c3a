"""Approvals of runs in Temporal: all open ones are one entry of the run's memo."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from holdfast.codec import validate_size
from holdfast.stores.approvals import Approval, ApprovalRequest, ApprovalState, RequestApproval
from holdfast.stores.temporal.history_cache import HistoryCache
from holdfast.stores.temporal.outcomes import ApprovalEntry
from holdfast.stores.temporal.payloads import MAX_INLINE_SIZE
from holdfast.stores.temporal.rows import ExecutionDescription


def approval_to_memo(approval: RequestApproval) -> dict[str, Any]:
    """The memo's entry of an open approval."""
    request = approval.request
    return {
        "id": approval.id,
        "position": approval.position,
        "question": request.question,
        "assignee": request.assignee,
        "choices": request.choices,
        "form_schema": request.form_schema.decode(),
        "tool": request.tool,
        "arguments": request.arguments.decode(),
        "reason": request.reason,
        "requested_at": approval.at,
        "expires_at": approval.expires_at,
    }


def check_memo_size(open_approvals: Iterable[RequestApproval], new: RequestApproval, max_value: int) -> None:
    """Raises ``ValueTooLarge`` if the memo has no room for a new approval."""
    if max_value > MAX_INLINE_SIZE:
        return  # large payloads go to external storage
    entries = json.dumps([approval_to_memo(approval) for approval in (*open_approvals, new)]).encode()
    validate_size(entries, f"what the run asks people, with question {new.id},", MAX_INLINE_SIZE)


def list_open_approvals(execution: ExecutionDescription) -> list[Approval]:
    """The open approvals of a run, from its memo."""
    if not execution.is_open:
        return []
    return [
        _make_approval(execution, str(entry["id"]), ApprovalEntry(entry), is_open=True)
        for entry in execution.open_approvals
    ]


async def read_approvals(histories: HistoryCache, execution: ExecutionDescription) -> list[Approval]:
    """All approvals of a run, from its history."""
    outcomes = await histories.get_outcomes(execution)
    return [
        _make_approval(execution, id, entry, is_open=entry.is_open and execution.is_open)
        for id, entry in outcomes.approvals.items()
    ]


def _make_approval(execution: ExecutionDescription, id: str, entry: ApprovalEntry, *, is_open: bool) -> Approval:
    memo_entry = entry.memo_entry
    state = ApprovalState.OPEN if is_open else ApprovalState.WITHDRAWN
    if entry.answer is not None:
        state = ApprovalState.ANSWERED
    answer: dict[str, Any] = {} if entry.answer is None else json.loads(entry.answer)
    request = ApprovalRequest(
        question=memo_entry["question"],
        assignee=memo_entry.get("assignee") or "",
        choices=tuple(memo_entry.get("choices") or ()),
        form_schema=str(memo_entry.get("form_schema") or "").encode(),
        tool=memo_entry.get("tool") or "",
        arguments=str(memo_entry.get("arguments") or "").encode(),
        reason=memo_entry.get("reason") or "",
    )
    return Approval(
        id=id,
        run_id=execution.id,
        workflow=execution.workflow,
        position=entry.position,
        request=request,
        state=state,
        requested_at=float(memo_entry["requested_at"]),
        expires_at=memo_entry.get("expires_at"),
        assignee=request.assignee,
        reminder_count=int(memo_entry.get("reminder_count") or 0),
        reminded_at=memo_entry.get("reminded_at"),
        answer=entry.answer,
        answered_by=str(answer.get("answered_by") or ""),
        answered_at=entry.answered_at,
    )
