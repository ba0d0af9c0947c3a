"""How far the calls have come that a model's answer asks for, read from the records behind it.

Each call is one command, at the positions behind the answer and in the order of the calls; what a person must approve
of is up to two more: see ``agents.tool_calls``, which makes them. Whoever tells a conversation reads the same records
by the same rule (``match_tool_calls``), without the agent's code.
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
"""What is recorded as the answer to a question that nobody answers, if the call is made then."""

_REQUIRED_TYPE = f"{ApprovalRequired.__module__}.{ApprovalRequired.__qualname__}"
_CLEARED_TYPE = "holdfast.agents.tool_approvals.ApprovalNotRequired"
"""As they are recorded."""


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """What has come of the question whether a call may be made, from its record."""

    record: Record
    approved: bool
    answer: Answer | None = None
    """``None``: nobody answered in time."""
    timeout_s: float = 0.0
    """How many seconds there were to answer, if nobody did."""

    @classmethod
    def from_record(cls, record: Record) -> ApprovalDecision:
        """A person's answer, or the end of waiting for one."""
        payload = record.payload or b"null"
        if record.kind is RecordKind.APPROVAL:
            answer = Answer.from_payload(payload)
            return cls(record, answer.approved, answer)
        about = json.loads(payload)["details"]
        return cls(record, about["then"] == APPROVE_ON_TIMEOUT, timeout_s=about["within"])


@dataclass(frozen=True, slots=True)
class ToolCallStatus:
    """How far a call has come."""

    record: Record
    """The newest of its own records: what the tool returned or raised; or that an approval is required."""
    approval_required: ApprovalRequired | None = None
    """Why, and for which arguments, a person was asked."""
    decision: ApprovalDecision | None = None
    has_ended: bool = True
    """Whether there is something to tell the model."""
    origin: FailureOrigin | None = None
    """Where the outcome comes from, in a run that goes on."""

    @property
    def at(self) -> float:
        """When the outcome was known."""
        return self.record.at if self.decision is None else max(self.record.at, self.decision.record.at)

    @property
    def was_denied(self) -> bool:
        """Whether the tool was not called because a person said no, or nobody answered."""
        return self.decision is not None and not self.decision.approved

    @property
    def edited_arguments(self) -> dict[str, Any] | None:
        """The arguments that a person has put in the place of those that were shown."""
        if self.approval_required is None or self.decision is None or self.decision.answer is None:
            return None
        arguments = self.decision.answer.arguments
        return None if arguments is None or arguments == json.loads(self.approval_required.arguments) else arguments


def match_tool_calls(call_count: int, position: int, records: Sequence[Record]) -> list[ToolCallStatus | None]:
    """How far each of so many calls has come, from the records behind the answer that asks for them.

    ``position`` is that of the first call; ``records`` are those up to the next model call, by position. The records
    of an approved call are found by their order: each approval is followed at once by the tool's step, so the first
    approval for a tool, as they were recorded, belongs to the first step of that name behind the calls, and so on.
    ``None``: nothing is recorded of a call.
    """
    firsts = {record.position: record for record in records if position <= record.position < position + call_count}
    ends: dict[int, ToolCallStatus] = {}
    approved: dict[str, list[tuple[int, ToolCallStatus]]] = {}
    """By tool: when the call was approved of, and what is known of it."""
    for place, record in firsts.items():
        required = get_required_approval(record)
        if required is None and not is_cleared(record):
            ends[place] = ToolCallStatus(record)
            continue
        decision = None if required is None else _find_decision(record, records)
        has_ended = decision is not None and not decision.approved
        ends[place] = called = ToolCallStatus(record, required, decision, has_ended)
        if required is None or (decision is not None and decision.approved):
            since = record.seq if decision is None else decision.record.seq
            approved.setdefault(record.name, []).append((since, called))
    for name, known in approved.items():
        known.sort(key=lambda one: one[0])
        behind = [one for one in records if one.position >= position + call_count and one.name == name]
        steps = [one for one in behind if one.kind is RecordKind.STEP]
        if len(steps) == len(known):  # else one of them is still on its way, and it cannot be told which
            for step, (_, called) in zip(steps, known, strict=True):
                ends[called.record.position] = ToolCallStatus(step, called.approval_required, called.decision)
    return [ends.get(position + index) for index in range(call_count)]


def get_required_approval(record: Record) -> ApprovalRequired | None:
    """Why a call was not made yet, if a person must approve of it first."""
    if record.ok or record.kind is not RecordKind.STEP or _get_error_type(record) != _REQUIRED_TYPE:
        return None
    error = decode_error(record.payload or b"null", ())
    # One without arguments is not ours: a tool's own code has raised it.
    return error if isinstance(error, ApprovalRequired) and error.arguments else None


def is_cleared(record: Record) -> bool:
    """Whether a step has only found out that a call needs no approval: the call itself is another step."""
    return not record.ok and record.kind is RecordKind.STEP and _get_error_type(record) == _CLEARED_TYPE


def _get_error_type(record: Record) -> str:
    try:
        return read_error_info(record.payload or b"null").type
    except CodecError:  # whoever looks at what is in it will say so
        return ""


def approval_name_for(record: Record) -> str:
    """The name of the question whether the call of this record may be made."""
    return f"approval of #{record.position + 1}"


def _find_decision(call: Record, records: Sequence[Record]) -> ApprovalDecision | None:
    """What was decided of a call that needs an approval, if that is recorded."""
    name = approval_name_for(call)
    found = [
        record
        for record in records
        if (record.kind is RecordKind.APPROVAL and record.name == name) or _is_answer_timeout(record, call.position)
    ]
    return ApprovalDecision.from_record(min(found, key=lambda record: record.seq)) if found else None


def _is_answer_timeout(record: Record, position: int) -> bool:
    """Whether this is the end of the waiting for an answer about the call at this position."""
    if record.kind is not RecordKind.STEP or record.name != APPROVAL_TIMEOUT_STEP or not record.ok:
        return False
    told: dict[str, Any] = json.loads(record.payload or b"null")
    about: dict[str, Any] = told["details"] or {}
    return told["withdrawn"] is True and about.get("call") == position
