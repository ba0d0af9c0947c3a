"""The audit log of the caller's namespace."""

from __future__ import annotations

from pydantic import BaseModel, Field

from holdfast.client.auditing import AT_ONCE, AuditEntry
from holdfast.server.api import Api, Body
from holdfast.server.calls import Call
from holdfast.server.scopes import Scope

api = Api()


class AuditQuery(Body):
    """Which part of it."""

    limit: int = Field(default=100, ge=1, le=AT_ONCE)
    cursor: str | None = Field(default=None, pattern=r"^[0-9]{1,18}$")
    """What the page before it said was next."""


class AuditPage(BaseModel):
    """Some entries, the newest first."""

    items: list[AuditEntry]
    next: str | None
    """The cursor of the page behind it; none: there is no more."""


@api("GET", "/v1/audit", scope=Scope.ADMIN)
async def list_audit(call: Call, query: AuditQuery) -> AuditPage:
    """Who asked for what in the caller's namespace, the newest first."""
    before = None if query.cursor is None else int(query.cursor)
    found = await (await call.store()).audit(before=before, limit=query.limit + 1)
    page = found[: query.limit]
    return AuditPage(
        items=[AuditEntry.of(one) for one in page], next=str(page[-1].id) if len(found) > query.limit else None
    )
