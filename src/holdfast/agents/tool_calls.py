"""Executes the tool calls in a model's answer.

Each call is one command, at the positions after the answer and in the order of the calls, whatever its outcome: a child
run for a sub-agent, otherwise a step with the name of the tool. If there is no such tool, or the arguments do not fit,
the record is a failure. A call that a person must approve first takes up to two more commands. Its step only checks the
arguments and records that an approval is required (``ApprovalRequired``). Then comes the approval, and, if the person
approves, the step again, under the same name, with the approved arguments. These commands get their positions as the
records arrive, so the rule that finds them (``reports.tool_calls``) follows the records in their order. Every decision
is read from records, live and in replay alike, whatever the code says today.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.agents.tool_approvals import DENY, policy_from_record
from holdfast.authoring.approval_requests import ApprovalPolicy, request_approval
from holdfast.codec import decode_error, read_error_info
from holdfast.core.commands import Outcome
from holdfast.core.execution import Execution
from holdfast.core.failure_origin import mark_origin
from holdfast.core.records import Record, RecordKind
from holdfast.errors import ApprovalRequired, DepsMissing
from holdfast.reports.tool_calls import (
    ApprovalDecision,
    ToolCallStatus,
    approval_name_for,
    get_required_approval,
    is_cleared,
)
from holdfast.stores.approvals import ApprovalRequest

if TYPE_CHECKING:
    from pydantic_ai.messages import ToolCallPart

    from holdfast.agents.tool_catalog import ToolCatalog


_DEPS_MISSING = f"{DepsMissing.__module__}.{DepsMissing.__qualname__}"


async def execute_calls(
    execution: Execution, catalog: ToolCatalog, calls: Sequence[ToolCallPart], policy: ApprovalPolicy
) -> list[ToolCallStatus]:
    """Execute all calls of an answer at once, in workflow code, and return their outcomes."""
    issued = [execution.issue(*catalog.make_command(execution, call)) for call in calls]
    waits = [_await_outcome(execution, catalog, *pair, policy) for pair in zip(calls, issued, strict=True)]
    outcomes = await asyncio.gather(*waits) if len(waits) > 1 else [await waits[0]]  # most answers have one call
    _raise_deps_missing(outcomes)
    return outcomes


async def _await_outcome(
    execution: Execution,
    catalog: ToolCatalog,
    call: ToolCallPart,
    started: asyncio.Future[Outcome],
    policy: ApprovalPolicy,
) -> ToolCallStatus:
    """Wait for the outcome of a call. If a person must approve, request the approval, and then make the call."""
    outcome = await started
    record = outcome.record
    required = get_required_approval(record)
    if required is None and not is_cleared(record):
        return ToolCallStatus(record, origin=outcome.origin)
    decision, arguments = None, call.args
    if required is not None:
        decision = await _request_approval(execution, catalog, record, required, policy)
        if not decision.approved:
            return ToolCallStatus(record, required, decision)
        answer = decision.answer
        arguments = required.arguments if answer is None or answer.arguments is None else answer.arguments
    outcome = await execution.issue(*catalog.make_approved_command(record.name, call, arguments))
    return ToolCallStatus(outcome.record, required, decision, origin=outcome.origin)


async def _request_approval(
    execution: Execution, catalog: ToolCatalog, record: Record, required: ApprovalRequired, policy: ApprovalPolicy
) -> ApprovalDecision:
    request = ApprovalRequest(
        question=required.question,
        form_schema=catalog.get_argument_schema(record.name),
        tool=required.tool,
        arguments=required.arguments.encode(),
        reason=required.reason,
    )
    recorded_policy = policy_from_record(required.policy, policy)
    timeout: Any = recorded_policy.timeout or 0.0
    details = {
        "call": record.position,
        "then": required.policy.get("on_timeout", DENY),
        "within": timeout * len(recorded_policy.assignees),
    }
    name = approval_name_for(record)
    outcome = await request_approval(execution, request, recorded_policy, name=name, details=details)
    return ApprovalDecision.from_record(outcome.record)


def _raise_deps_missing(results: Sequence[ToolCallStatus]) -> None:
    """Fail the run for a call that was not made because this process has no deps: the model cannot correct that."""
    for called in results:
        if called.record.ok:
            continue
        payload = called.record.payload or b"null"
        if called.record.kind is RecordKind.CHILD:  # a sub-agent that failed for the same reason
            payload = (json.loads(payload).get("error") or "null").encode()
        if payload != b"null" and read_error_info(payload).type == _DEPS_MISSING:
            error = decode_error(payload, [])
            if called.origin is not None:
                mark_origin(error, called.origin)
            raise error
