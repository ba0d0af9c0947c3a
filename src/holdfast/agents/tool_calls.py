"""The calls that a model's answer asks for, carried out.

Each call is one command, at the positions behind the answer and in the order of the calls. A call that a person must
approve of first is up to two more: its step has recorded that an approval is required (``ApprovalRequired``), then
comes the question, and then, if the person says yes, the step once more, under the same name, with the arguments that
were approved. These get their positions as the records come in, so the rule by which they are found
(``reports.tool_calls``) follows the records in their order. All that is decided is read from records, live as in
replay, whatever the code says today.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.agents.tool_approvals import DENY, policy_of
from holdfast.authoring.approval_requests import ApprovalPolicy, put_question
from holdfast.codec import decode_error, describe_error
from holdfast.core.commands import Outcome
from holdfast.core.compensations import mark_origin
from holdfast.core.execution import Execution
from holdfast.core.records import Kind, Record
from holdfast.errors import ApprovalRequired, DepsMissing
from holdfast.reports.tool_calls import Called, Decision, is_cleared, question_name, required_by
from holdfast.stores.approvals import Question

if TYPE_CHECKING:
    from pydantic_ai.messages import ToolCallPart

    from holdfast.agents.tool_catalog import Offered


_DEPS_MISSING = f"{DepsMissing.__module__}.{DepsMissing.__qualname__}"


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
    decided = await put_question(execution, question, decided_then, name=question_name(record), about=about)
    return Decision.of(decided.record)


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
