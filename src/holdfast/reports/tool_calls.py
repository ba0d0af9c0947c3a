"""The status of the tool calls in a model's answer, from the records after it.

Each call is one command. The commands have the positions after the answer, in the order of the calls. A call that needs
an approval has up to two more: see ``agents.tool_calls``, which issues them. Readers of a conversation match the same
records by the same rule (``match_tool_calls``), without the agent's code.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.codec import decode_error, read_error_info
from holdfast.core.failure_origin import FailureOrigin
from holdfast.core.records import Record, RecordKind
from holdfast.errors import ApprovalRequired, CodecError
from holdfast.services.approvals import APPROVAL_TIMEOUT_STEP, Answer

APPROVE_ON_TIMEOUT = "approve"
"""Recorded for an approval that was not answered in time, if the call is made then."""

_REQUIRED_TYPE = f"{ApprovalRequired.__module__}.{ApprovalRequired.__qualname__}"
_CLEARED_TYPE = "holdfast.agents.tool_approvals.ApprovalNotRequired"
"""The recorded names of the exceptions."""


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """The recorded decision whether a call may be made."""

    record: Record
    approved: bool
    answer: Answer | None = None
    """``None``: there was no answer in time."""
    timeout_s: float = 0.0
    """The time limit for the answer, if there was none."""

    @classmethod
    def from_record(cls, record: Record) -> ApprovalDecision:
        """From a person's answer, or the timeout."""
        payload = record.payload or b"null"
        if record.kind is RecordKind.APPROVAL:
            answer = Answer.from_payload(payload)
            return cls(record, answer.approved, answer)
        details = json.loads(payload)["details"]
        return cls(record, details["then"] == APPROVE_ON_TIMEOUT, timeout_s=details["within"])


@dataclass(frozen=True, slots=True)
class ToolCallStatus:
    """The status of a call."""

    record: Record
    """The newest record of the call: what the tool returned or raised; or that an approval is required."""
    approval_required: ApprovalRequired | None = None
    """Why a person was asked, and for which arguments."""
    decision: ApprovalDecision | None = None
    has_ended: bool = True
    """Whether there is a result for the model."""
    origin: FailureOrigin | None = None
    """The origin of the outcome, in a run that continues."""

    @property
    def at(self) -> float:
        """When the outcome was known."""
        return self.record.at if self.decision is None else max(self.record.at, self.decision.record.at)

    @property
    def was_denied(self) -> bool:
        """Whether the tool was not called because a person denied it, or did not answer."""
        return self.decision is not None and not self.decision.approved

    @property
    def edited_arguments(self) -> dict[str, Any] | None:
        """The arguments with which a person replaced those of the call."""
        if self.approval_required is None or self.decision is None or self.decision.answer is None:
            return None
        arguments = self.decision.answer.arguments
        return None if arguments is None or arguments == json.loads(self.approval_required.arguments) else arguments


def match_tool_calls(call_count: int, position: int, records: Sequence[Record]) -> list[ToolCallStatus | None]:
    """The status of each call in an answer, from the records after it; ``None`` for a call without a record.

    ``position`` is that of the first call; ``records`` are those up to the next model call, by position. The records
    of an approved call are found by their order: the tool's step follows its approval at once, so the first recorded
    approval for a tool belongs to the first step of that name after the calls, and so on.
    """
    firsts = {record.position: record for record in records if position <= record.position < position + call_count}
    statuses: dict[int, ToolCallStatus] = {}
    # By tool: the `seq` of the approval, and the status of the call.
    approved: dict[str, list[tuple[int, ToolCallStatus]]] = {}
    for call_position, record in firsts.items():
        required = get_required_approval(record)
        if required is None and not is_cleared(record):
            statuses[call_position] = ToolCallStatus(record)
            continue
        decision = None if required is None else _find_decision(record, records)
        has_ended = decision is not None and not decision.approved
        statuses[call_position] = status = ToolCallStatus(record, required, decision, has_ended)
        if required is None or (decision is not None and decision.approved):
            approved_seq = record.seq if decision is None else decision.record.seq
            approved.setdefault(record.name, []).append((approved_seq, status))
    for name, calls in approved.items():
        calls.sort(key=lambda call: call[0])
        steps = [
            record
            for record in records
            if record.position >= position + call_count and record.name == name and record.kind is RecordKind.STEP
        ]
        if len(steps) == len(calls):  # else one of the steps is in flight, and it is unknown which
            for step, (_, status) in zip(steps, calls, strict=True):
                statuses[status.record.position] = ToolCallStatus(step, status.approval_required, status.decision)
    return [statuses.get(position + index) for index in range(call_count)]


def get_required_approval(record: Record) -> ApprovalRequired | None:
    """Why a call was not made yet, if a person must approve it first."""
    if record.ok or record.kind is not RecordKind.STEP or _get_error_type(record) != _REQUIRED_TYPE:
        return None
    error = decode_error(record.payload or b"null", ())
    # Without arguments, the tool's own code raised it.
    return error if isinstance(error, ApprovalRequired) and error.arguments else None


def is_cleared(record: Record) -> bool:
    """Whether a step only found that a call needs no approval: the call itself is another step."""
    return not record.ok and record.kind is RecordKind.STEP and _get_error_type(record) == _CLEARED_TYPE


def _get_error_type(record: Record) -> str:
    try:
        return read_error_info(record.payload or b"null").type
    except CodecError:  # the reader of its value reports that
        return ""


def approval_name_for(record: Record) -> str:
    """The name of the approval for the call of this record."""
    return f"approval of #{record.position + 1}"


def _find_decision(call: Record, records: Sequence[Record]) -> ApprovalDecision | None:
    """The recorded decision about a call that needs an approval."""
    name = approval_name_for(call)
    found = [
        record
        for record in records
        if (record.kind is RecordKind.APPROVAL and record.name == name) or _is_answer_timeout(record, call.position)
    ]
    return ApprovalDecision.from_record(min(found, key=lambda record: record.seq)) if found else None


def _is_answer_timeout(record: Record, position: int) -> bool:
    """Whether this is the timeout of the approval for the call at this position."""
    if record.kind is not RecordKind.STEP or record.name != APPROVAL_TIMEOUT_STEP or not record.ok:
        return False
    timeout: dict[str, Any] = json.loads(record.payload or b"null")
    details: dict[str, Any] = timeout["details"] or {}
    return timeout["withdrawn"] is True and details.get("call") == position
