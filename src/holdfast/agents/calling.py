"""The calls that a model's answer asks for, carried out.

Each call is one command, at the positions behind the answer and in the order of the calls. A call that a person must
approve of first is up to two more: its step has recorded that an approval is required (``ApprovalRequired``), then
comes the question, and then, if the person says yes, the step once more, under the same name, with the arguments that
were approved. These get their positions as the records come in, so the rule by which they are found (``settle``)
follows the records in their order. All that is decided is read from records, live as in replay, whatever the code says
today.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.agents.approving import APPROVE, DENY, CallCleared, policy_of
from holdfast.authoring.asking import TIME_OUT, ApprovalPolicy, put_question
from holdfast.client.approvals import Answer
from holdfast.codec import decode_error, describe_error
from holdfast.core.execution import Execution, Outcome
from holdfast.core.records import Kind, Record
from holdfast.core.undoing import Origin, mark_origin
from holdfast.errors import ApprovalRequired, CodecError, DepsMissing
from holdfast.stores.approvals import Question

if TYPE_CHECKING:
    from pydantic_ai.messages import ToolCallPart

    from holdfast.agents.offering import Offered


def _recorded_as(kind: type[BaseException]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


_DEPS_MISSING = _recorded_as(DepsMissing)
_REQUIRED = _recorded_as(ApprovalRequired)
_CLEARED = _recorded_as(CallCleared)


@dataclass(frozen=True, slots=True)
class Decision:
    """What has come of the question whether a call may be made, from its record."""

    record: Record
    approved: bool
    answer: Answer | None = None
    """``None``: nobody answered in time."""
    within: float = 0.0
    """How many seconds there were to answer, if nobody did."""

    @classmethod
    def of(cls, record: Record) -> Decision:
        """A person's answer, or the end of waiting for one."""
        payload = record.payload or b"null"
        if record.kind is Kind.APPROVAL:
            answer = Answer.of(payload)
            return cls(record, answer.approved, answer)
        about = json.loads(payload)["about"]
        return cls(record, about["then"] == APPROVE, within=about["within"])


@dataclass(frozen=True, slots=True)
class Called:
    """How far a call has come."""

    record: Record
    """The newest of its own records: what the tool returned or raised; or that an approval is required."""
    required: ApprovalRequired | None = None
    """Why, and for which arguments, a person was asked."""
    decision: Decision | None = None
    has_ended: bool = True
    """Whether there is something to tell the model."""
    origin: Origin | None = None
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
    def changed(self) -> dict[str, Any] | None:
        """The arguments that a person has put in the place of those that were shown."""
        if self.required is None or self.decision is None or self.decision.answer is None:
            return None
        arguments = self.decision.answer.arguments
        return None if arguments is None or arguments == json.loads(self.required.arguments) else arguments


async def carry_out(
    execution: Execution, offered: Offered, calls: Sequence[ToolCallPart], policy: ApprovalPolicy
) -> list[Called]:
    """Carry out all calls of an answer at once, in workflow code, and return how each of them ended."""
    begun = [execution.issue(*offered.command_for(execution, call)) for call in calls]
    ends = [_see_through(execution, offered, *one, policy) for one in zip(calls, begun, strict=True)]
    ended = await asyncio.gather(*ends) if len(ends) > 1 else [await ends[0]]  # mostly it is one
    _raise_what_is_ours(ended)
    return ended


async def _see_through(
    execution: Execution,
    offered: Offered,
    call: ToolCallPart,
    begun: asyncio.Future[Outcome],
    policy: ApprovalPolicy,
) -> Called:
    """Wait for the outcome of a call; if a person must approve, ask, and make the call if it may be made."""
    outcome = await begun
    record = outcome.record
    required = required_by(record)
    if required is None and not is_cleared(record):
        return Called(record, origin=outcome.origin)
    decision, arguments = None, call.args
    if required is not None:
        decision = await _ask(execution, offered, record, required, policy)
        if not decision.approved:
            return Called(record, required, decision)
        answer = decision.answer
        arguments = required.arguments if answer is None or answer.arguments is None else answer.arguments
    outcome = await execution.issue(*offered.approved_command(record.name, call, arguments))
    return Called(outcome.record, required, decision, origin=outcome.origin)


async def _ask(
    execution: Execution, offered: Offered, record: Record, required: ApprovalRequired, policy: ApprovalPolicy
) -> Decision:
    question = Question(
        text=required.question,
        form=offered.form_of(record.name),
        tool=required.tool,
        arguments=required.arguments.encode(),
        reason=required.reason,
    )
    decided_then = policy_of(required.policy, policy)
    timeout: Any = decided_then.timeout or 0.0
    about = {
        "call": record.position,
        "then": required.policy.get("on_timeout", DENY),
        "within": timeout * len(decided_then.people),
    }
    decided = await put_question(execution, question, decided_then, name=_question_name(record), about=about)
    return Decision.of(decided.record)


def settle(calls: int, position: int, records: Sequence[Record]) -> list[Called | None]:
    """How far each of so many calls has come, from the records behind the answer that asks for them.

    ``position`` is that of the first call; ``records`` are those up to the next model call, by position. The records
    of an approved call are found by their order: each approval is followed at once by the tool's step, so the first
    approval for a tool, as they were recorded, belongs to the first step of that name behind the calls, and so on.
    ``None``: nothing is recorded of a call.
    """
    firsts = {record.position: record for record in records if position <= record.position < position + calls}
    ends: dict[int, Called] = {}
    approved: dict[str, list[tuple[int, Called]]] = {}
    """By tool: when the call was approved of, and what is known of it."""
    for place, record in firsts.items():
        required = required_by(record)
        if required is None and not is_cleared(record):
            ends[place] = Called(record)
            continue
        decision = None if required is None else _decision(record, records)
        has_ended = decision is not None and not decision.approved
        ends[place] = called = Called(record, required, decision, has_ended)
        if required is None or (decision is not None and decision.approved):
            since = record.seq if decision is None else decision.record.seq
            approved.setdefault(record.name, []).append((since, called))
    for name, known in approved.items():
        known.sort(key=lambda one: one[0])
        behind = [one for one in records if one.position >= position + calls and one.name == name]
        steps = [one for one in behind if one.kind is Kind.STEP]
        if len(steps) == len(known):  # else one of them is still on its way, and it cannot be told which
            for step, (_, called) in zip(steps, known, strict=True):
                ends[called.record.position] = Called(step, called.required, called.decision)
    return [ends.get(position + index) for index in range(calls)]


def required_by(record: Record) -> ApprovalRequired | None:
    """Why a call was not made yet, if a person must approve of it first."""
    if record.ok or record.kind is not Kind.STEP or _type_of(record) != _REQUIRED:
        return None
    error = decode_error(record.payload or b"null", ())
    # One without arguments is not ours: a tool's own code has raised it.
    return error if isinstance(error, ApprovalRequired) and error.arguments else None


def is_cleared(record: Record) -> bool:
    """Whether a step has only found out that a call needs no approval: the call itself is another step."""
    return not record.ok and record.kind is Kind.STEP and _type_of(record) == _CLEARED


def _type_of(record: Record) -> str:
    try:
        return describe_error(record.payload or b"null").type
    except CodecError:  # whoever looks at what is in it will say so
        return ""


def _question_name(record: Record) -> str:
    return f"approval of #{record.position + 1}"


def _decision(call: Record, records: Sequence[Record]) -> Decision | None:
    """What was decided of a call that needs an approval, if that is recorded."""
    name = _question_name(call)
    found = [
        record
        for record in records
        if (record.kind is Kind.APPROVAL and record.name == name) or _gave_up(record, call.position)
    ]
    return Decision.of(min(found, key=lambda record: record.seq)) if found else None


def _gave_up(record: Record, position: int) -> bool:
    """Whether this is the end of the waiting for an answer about the call at this position."""
    if record.kind is not Kind.STEP or record.name != TIME_OUT or not record.ok:
        return False
    told: dict[str, Any] = json.loads(record.payload or b"null")
    about: dict[str, Any] = told["about"] or {}
    return told["withdrawn"] is True and about.get("call") == position


def _raise_what_is_ours(ended: Sequence[Called]) -> None:
    """A call that could not be made because of how this process was set up is none of the model's business."""
    for called in ended:
        if called.record.ok:
            continue
        payload = called.record.payload or b"null"
        if called.record.kind is Kind.CHILD:  # a sub-agent that has failed for the same reason
            payload = (json.loads(payload).get("error") or "null").encode()
        if payload != b"null" and describe_error(payload).type == _DEPS_MISSING:
            error = decode_error(payload, [])
            if called.origin is not None:
                mark_origin(error, called.origin)
            raise error
