"""Questions that runs ask people, and the answers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call
from holdfast.server.http.models import Changed, Cursor, Limit, Name, Page, Text, bad_cursor, from_cursor, to_cursor
from holdfast.server.http.router import Api, Body
from holdfast.services.approvals import ApprovalInfo, find_approval, readable
from holdfast.services.wire_values import VALUES
from holdfast.stores.approvals import ApprovalFilter

api = Api()


class ApprovalsQuery(Body):
    """Which questions."""

    run_id: Annotated[Name | None, Field(description="Of this run.")] = None
    workflow: Annotated[Name | None, Field(description="Of runs of this workflow.")] = None
    asked_of: Annotated[Text | None, Field(description="That this person is asked now.")] = None
    all: Annotated[bool, Field(description="Also those that are closed.")] = False
    closed: Annotated[bool, Field(description="Only those that are closed, the newest first.")] = False
    limit: Limit = 100
    cursor: Cursor | None = None


@api("GET", "/v1/approvals", scope=Scope.READ, headers=(VALUES,))
async def list_approvals(call: Call, query: ApprovalsQuery) -> Page[ApprovalInfo]:
    """Questions that wait for a person's answer, the longest open first."""
    where = ApprovalFilter(
        query.run_id,
        only_open=not query.all,
        workflow=query.workflow,
        asked_of=query.asked_of,
        only_closed=query.closed,
        after=None if query.cursor is None else _place_in(query.cursor),
    )
    found = await (await call.store()).approvals(where, query.limit + 1)
    page = found[: query.limit]
    infos = readable(page) if query.run_id is None else [ApprovalInfo.of(row) for row in page]
    return Page[ApprovalInfo](
        items=[_told(call, one) for one in infos],
        next=to_cursor("approvals", f"{page[-1].asked_at!r}/{page[-1].id}") if len(found) > query.limit else None,
    )


def _place_in(cursor: str) -> tuple[float, str]:
    at, _, id = from_cursor("approvals", cursor).partition("/")
    try:
        return _finite(float(at)), id
    except ValueError:
        raise bad_cursor(cursor) from None


def _finite(at: float) -> float:
    if not math.isfinite(at):
        raise ValueError(at)
    return at


@api("GET", "/v1/approvals/{id}", scope=Scope.READ, headers=(VALUES,))
async def get_approval(call: Call, id: str) -> ApprovalInfo:
    """One question, and what has become of it. The beginning of its id will do, as long as it names one."""
    return _told(call, ApprovalInfo.of(await find_approval(call.tenant.connection, id)))


class ApproveBody(Body):
    """A yes."""

    value: Annotated[Any, Field(description="The choice, or what is filled into the form.")] = None
    arguments: Annotated[
        dict[Name, Any] | None, Field(description="For the call of a tool: in place of those that it was called with.")
    ] = None
    by: Annotated[Text | None, Field(description="Who answers; the name of the key unless given.")] = None
    reason: Text = ""

    model_config = ConfigDict(json_schema_extra={"examples": [{"by": "Ada", "reason": "within the budget"}]})

    def taken(self, call: Call) -> tuple[Any, dict[str, Any] | None]:
        """The value and the arguments themselves."""
        value = call.taken(self.value, "the answer")
        if self.arguments is None:
            return value, None
        return value, {name: call.taken(one, f"argument {name!r}") for name, one in self.arguments.items()}


class DenyBody(Body):
    """A no."""

    by: Annotated[Text | None, Field(description="Who answers; the name of the key unless given.")] = None
    reason: Text = ""


@api("POST", "/v1/approvals/{id}/approve", scope=Scope.OPERATE, headers=(VALUES,))
async def approve(call: Call, id: str, body: ApproveBody) -> Changed:
    """Say yes to a question; 409 `approval-closed` if it was answered before, or nobody waits for it any more.

    `changed` is false when the same person has said the very same before. An answer that does not fit is a 422, and the
    question stays open.
    """
    value, arguments = await call.off_loop(0, lambda: body.taken(call))
    changed = await call.client.approve(id, value, arguments=arguments, by=call.said_by(body.by), reason=body.reason)
    return Changed(changed=changed)


@api("POST", "/v1/approvals/{id}/deny", scope=Scope.OPERATE)
async def deny(call: Call, id: str, body: DenyBody) -> Changed:
    """Say no to a question. Answers as for a yes."""
    return Changed(changed=await call.client.deny(id, by=call.said_by(body.by), reason=body.reason))


def _told(call: Call, info: ApprovalInfo) -> ApprovalInfo:
    answer = info.answer
    return info if answer is None else replace(info, answer=replace(answer, value=call.out(answer.value)))
