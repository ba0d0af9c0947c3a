"""The audit log of the caller's namespace."""

from __future__ import annotations

from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call
from holdfast.server.http.models import Cursor, Page, PageSize, parse_number_cursor, to_cursor
from holdfast.server.http.router import RequestModel, Router
from holdfast.services.audit_log import AuditEntry

router = Router()


class AuditQuery(RequestModel):
    """Which part of it."""

    limit: PageSize = 100
    cursor: Cursor | None = None


@router("GET", "/v1/audit", scope=Scope.ADMIN)
async def list_audit_entries(call: Call, query: AuditQuery) -> Page[AuditEntry]:
    """Who asked for what in the caller's namespace, the newest first."""
    before = None if query.cursor is None else parse_number_cursor("audit", query.cursor)
    found = await (await call.store()).audit_log.list(before_id=before, limit=query.limit + 1)
    page = found[: query.limit]
    more = len(found) > query.limit
    return Page[AuditEntry](
        items=[AuditEntry.from_row(one) for one in page], next=to_cursor("audit", page[-1].id) if more else None
    )
