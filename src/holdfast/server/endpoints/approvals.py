"""Questions that runs ask people, and the answers."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call
from holdfast.server.http.models import (
    Changed,
    Cursor,
    Name,
    Page,
    PageSize,
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


class ApprovalsQuery(RequestModel):
    """Which questions."""

    run_id: Annotated[Name | None, Field(description="Of this run.")] = None
    workflow: Annotated[Name | None, Field(description="Of runs of this workflow.")] = None
    assignee: Annotated[Text | None, Field(description="That this person is asked now.")] = None
    include_closed: Annotated[bool, Field(description="Also those that are closed.")] = False
    only_closed: Annotated[bool, Field(description="Only those that are closed, the newest first.")] = False
    limit: PageSize = 100
    cursor: Cursor | None = None


@router("GET", "/v1/approvals", scope=Scope.READ, headers=(VALUES_HEADER,))
async def list_approvals(call: Call, query: ApprovalsQuery) -> Page[ApprovalInfo]:
    """Questions that wait for a person's answer, the longest open first."""
    where = ApprovalFilter(
        query.run_id,
        only_open=not query.include_closed,
        workflow=query.workflow,
        assignee=query.assignee,
        only_closed=query.only_closed,
        after=None if query.cursor is None else _parse_position(query.cursor),
    )
    found = await (await call.store()).list_approvals(where, query.limit + 1)
    page = found[: query.limit]
    infos = decode_readable_rows(page) if query.run_id is None else [ApprovalInfo.from_row(row) for row in page]
    return Page[ApprovalInfo](
        items=infos,
        next=to_cursor("approvals", f"{page[-1].requested_at!r}/{page[-1].id}") if len(found) > query.limit else None,
    )


def _parse_position(cursor: str) -> tuple[float, str]:
    at, _, id = parse_cursor("approvals", cursor).partition("/")
    try:
        return _validate_finite(float(at)), id
    except ValueError:
        raise bad_cursor_problem(cursor) from None


def _validate_finite(timestamp: float) -> float:
    if not math.isfinite(timestamp):
        raise ValueError(timestamp)
    return timestamp


@router("GET", "/v1/approvals/{id}", scope=Scope.READ, headers=(VALUES_HEADER,))
async def get_approval(call: Call, id: str) -> ApprovalInfo:
    """One question, and what has become of it. The beginning of its id will do, as long as it names one."""
    return ApprovalInfo.from_row(await find_approval(call.tenant.connection, id))


class ApproveBody(RequestModel):
    """A yes."""

    value: Annotated[Any, Field(description="The choice, or what is filled into the form.")] = None
    arguments: Annotated[
        dict[Name, Any] | None, Field(description="For the call of a tool: in place of those that it was called with.")
    ] = None
    by: Annotated[Text | None, Field(description="Who answers; the name of the key unless given.")] = None
    reason: Text = ""

    model_config = ConfigDict(json_schema_extra={"examples": [{"by": "Ada", "reason": "within the budget"}]})

    def decode_answer(self, call: Call) -> tuple[Any, dict[str, Any] | None]:
        """The value and the arguments themselves."""
        value = call.decode_value(self.value, "the answer")
        if self.arguments is None:
            return value, None
        return value, {name: call.decode_value(one, f"argument {name!r}") for name, one in self.arguments.items()}


class DenyBody(RequestModel):
    """A no."""

    by: Annotated[Text | None, Field(description="Who answers; the name of the key unless given.")] = None
    reason: Text = ""


@router("POST", "/v1/approvals/{id}/approve", scope=Scope.OPERATE, headers=(VALUES_HEADER,))
async def approve(call: Call, id: str, body: ApproveBody) -> Changed:
    """Say yes to a question; 409 `approval-closed` if it was answered before, or nobody waits for it any more.

    `changed` is false when the same person has said the very same before. An answer that does not fit is a 422, and the
    question stays open.
    """
    value, arguments = await call.run_body_work(0, lambda: body.decode_answer(call))
    changed = await call.client.approve(id, value, arguments=arguments, by=call.actor(body.by), reason=body.reason)
    return Changed(changed=changed)


@router("POST", "/v1/approvals/{id}/deny", scope=Scope.OPERATE)
async def deny(call: Call, id: str, body: DenyBody) -> Changed:
    """Say no to a question. Answers as for a yes."""
    return Changed(changed=await call.client.deny(id, by=call.actor(body.by), reason=body.reason))
