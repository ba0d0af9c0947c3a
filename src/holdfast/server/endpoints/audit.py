"""The audit log of the caller's namespace."""

from __future__ import annotations

from datetime import UTC, datetime

from pydantic import BaseModel, Field

from holdfast.server.api import Api, Body
from holdfast.server.calls import Call
from holdfast.server.scopes import Scope
from holdfast.stores.auditing import Audit

api = Api()


class AuditQuery(Body):
    """Which part of it."""

    limit: int = Field(default=100, ge=1, le=1000)
    cursor: str | None = Field(default=None, pattern=r"^[0-9]{1,18}$")
    """What the page before it said was next."""


class AuditEntry(BaseModel):
    """Somebody asked for something."""

    id: int
    at: datetime
    key: str | None
    """The id of the key; none where none was needed."""
    name: str
    """What that key is called."""
    action: str
    """The operation, as it is called here."""
    target: str
    """What it was about."""
    outcome: str
    """``allowed`` or ``denied``."""
    remote: str
    """The network address that it came from."""

    @classmethod
    def of(cls, one: Audit) -> AuditEntry:
        """An entry as it is told."""
        what = one.what
        return cls(
            id=one.id,
            at=datetime.fromtimestamp(what.at, UTC),
            key=what.who or None,
            name=what.name,
            action=what.action,
            target=what.target,
            outcome=what.outcome,
            remote=what.remote,
        )


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
