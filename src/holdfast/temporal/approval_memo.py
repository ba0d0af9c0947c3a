"""Questions of a run, as people see them: all that are open are one entry of its memo."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from holdfast.codec import validate_size
from holdfast.stores.approvals import RequestApproval
from holdfast.stores.temporal.payloads import MAX_INLINE_SIZE


def approval_to_memo(approval: RequestApproval) -> dict[str, Any]:
    """A question, as it stands in the memo."""
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
    """Raises ``ValueTooLarge`` if a question does not fit beside those that are open."""
    if max_value > MAX_INLINE_SIZE:
        return  # there is another place for what is large
    together = json.dumps([approval_to_memo(one) for one in (*open_approvals, new)]).encode()
    validate_size(together, f"what the run asks people, with question {new.id},", MAX_INLINE_SIZE)
