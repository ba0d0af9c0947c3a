"""Approvals: questions that runs ask people, and the answers."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call
from holdfast.server.http.models import (
    Changed,
    Name,
    Page,
    PageQuery,
    Text,
    bad_cursor_problem,
    parse_cursor,
    to_cursor,
)
from holdfast.server.http.router import RequestModel, Router
from holdfast.services.approvals import ApprovalInfo, decode_readable_rows, find_approval
from holdfast.services.wire_values import VALUES_HEADER
from holdfast.stores.approvals import ApprovalFilter

router = Router()


class ApprovalsQuery(PageQuery):
    """Which approvals."""

    run_id: Annotated[Name | None, Field(description="Of this run.")] = None
    workflow: Annotated[Name | None, Field(description="Of runs of this workflow.")] = None
    assignee: Annotated[Text | None, Field(description="Now assigned to this person.")] = None
    include_closed: Annotated[bool, Field(description="Also those that are closed.")] = False
    only_closed: Annotated[bool, Field(description="Only those that are closed, the newest first.")] = False


@router("GET", "/v1/approvals", scope=Scope.READ, headers=(VALUES_HEADER,))
async def list_approvals(call: Call, query: ApprovalsQuery) -> Page[ApprovalInfo]:
    """Approvals that wait for a person's answer, the longest open first."""
    matching = ApprovalFilter(
        query.run_id,
        only_open=not query.include_closed,
        workflow=query.workflow,
        assignee=query.assignee,
        only_closed=query.only_closed,
        after=None if query.cursor is None else _parse_position(query.cursor),
    )
    page, has_more = query.split(await call.store.list_approvals(matching, query.limit + 1))
    return Page[ApprovalInfo](
        items=decode_readable_rows(page) if query.run_id is None else [ApprovalInfo.from_row(row) for row in page],
        next=to_cursor("approvals", f"{page[-1].requested_at!r}/{page[-1].id}") if has_more else None,
    )


def _parse_position(cursor: str) -> tuple[float, str]:
    timestamp, _, id = parse_cursor("approvals", cursor).partition("/")
    try:
        at = float(timestamp)
    except ValueError:
        at = math.nan
    if not math.isfinite(at):
        raise bad_cursor_problem(cursor)
    return at, id


@router("GET", "/v1/approvals/{id}", scope=Scope.READ, headers=(VALUES_HEADER,))
async def get_approval(call: Call, id: str) -> ApprovalInfo:
    """One approval, and its answer. The beginning of its id is enough, as long as no other id begins with it."""
    return ApprovalInfo.from_row(await find_approval(call.tenant.connections, id))


class ApproveBody(RequestModel):
    """A yes."""

    value: Annotated[Any, Field(description="The choice, or the contents of the form.")] = None
    arguments: Annotated[
        dict[Name, Any] | None, Field(description="For the call of a tool: in place of the original arguments.")
    ] = None
    by: Annotated[Text | None, Field(description="Who answers; default: the name of the key.")] = None
    reason: Text = ""

    model_config = ConfigDict(json_schema_extra={"examples": [{"by": "Ada", "reason": "within the budget"}]})

    def decode_answer(self, call: Call) -> tuple[Any, dict[str, Any] | None]:
        """The decoded value and arguments."""
        value = call.decode_value(self.value, "the answer")
        if self.arguments is None:
            return value, None
        return value, {name: call.decode_value(data, f"argument {name!r}") for name, data in self.arguments.items()}


class DenyBody(RequestModel):
    """A no."""

    by: Annotated[Text | None, Field(description="Who answers; default: the name of the key.")] = None
    reason: Text = ""


@router("POST", "/v1/approvals/{id}/approve", scope=Scope.OPERATE, headers=(VALUES_HEADER,))
async def approve(call: Call, id: str, body: ApproveBody) -> Changed:
    """Approve; 409 `approval-closed` if the approval was answered before, or its run no longer waits for it.

    `changed` is false if the same person gave the same answer before. An answer that does not match is a 422, and the
    approval stays open.
    """
    value, arguments = await call.run_body_work(0, lambda: body.decode_answer(call))
    changed = await call.client.approve(id, value, arguments=arguments, by=call.actor(body.by), reason=body.reason)
    return Changed(changed=changed)


@router("POST", "/v1/approvals/{id}/deny", scope=Scope.OPERATE)
async def deny(call: Call, id: str, body: DenyBody) -> Changed:
    """Deny. Responses are those of `approve`."""
    return Changed(changed=await call.client.deny(id, by=call.actor(body.by), reason=body.reason))
