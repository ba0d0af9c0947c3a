"""The audit log of the caller's namespace."""

from __future__ import annotations

from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call
from holdfast.server.http.models import Cursor, Limit, Page, number_from_cursor, to_cursor
from holdfast.server.http.router import Api, Body
from holdfast.services.audit_log import AuditEntry

api = Api()


class AuditQuery(Body):
    """Which part of it."""

    limit: Limit = 100
    cursor: Cursor | None = None


@api("GET", "/v1/audit", scope=Scope.ADMIN)
async def list_audit(call: Call, query: AuditQuery) -> Page[AuditEntry]:
    """Who asked for what in the caller's namespace, the newest first."""
    before = None if query.cursor is None else number_from_cursor("audit", query.cursor)
    found = await (await call.store()).audit(before=before, limit=query.limit + 1)
    page = found[: query.limit]
    more = len(found) > query.limit
    return Page[AuditEntry](
        items=[AuditEntry.of(one) for one in page], next=to_cursor("audit", page[-1].id) if more else None
    )
