"""The audit log of the caller's namespace."""

from __future__ import annotations

from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call
from holdfast.server.http.models import Page, PageQuery, parse_number_cursor, to_cursor
from holdfast.server.http.router import Router
from holdfast.services.audit_log import AuditEntry

router = Router()


@router("GET", "/v1/audit", scope=Scope.ADMIN)
async def list_audit_entries(call: Call, query: PageQuery) -> Page[AuditEntry]:
    """The audit log of the caller's namespace, newest entries first."""
    before = None if query.cursor is None else parse_number_cursor("audit", query.cursor)
    page, has_more = query.split(await call.store.audit_log.list(before_id=before, limit=query.limit + 1))
    return Page[AuditEntry](
        items=[AuditEntry.from_row(row) for row in page], next=to_cursor("audit", page[-1].id) if has_more else None
    )
