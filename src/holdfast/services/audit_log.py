"""The audit log of servers, as clients read it."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.services.json_form import UtcDatetime
from holdfast.services.timestamps import to_datetime
from holdfast.stores.audit_log import AuditRow
from holdfast.stores.contract import Store

PAGE_SIZE = 1000
"""Entries per read."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A request to change something, allowed or denied."""

    id: int
    at: UtcDatetime
    key_id: str | None
    """The id of the key; ``None`` if none was needed."""
    key_name: str
    """The name of that key."""
    action: str
    """The name of the operation in the OpenAPI document."""
    target: str
    """What was to be changed."""
    outcome: str
    """``allowed`` or ``denied``."""
    remote_address: str
    """The network address of the caller."""

    @classmethod
    def from_row(cls, row: AuditRow) -> AuditEntry:
        """The entry in a row."""
        event = row.event
        return cls(
            id=row.id,
            at=to_datetime(event.at),
            key_id=event.key_id or None,
            key_name=event.key_name,
            action=event.action,
            target=event.target,
            outcome=event.outcome,
            remote_address=event.remote_address,
        )


async def read_audit_log(store: Store, limit: int) -> list[AuditEntry]:
    """The ``limit`` newest entries, newest first."""
    found: list[AuditRow] = []
    while len(found) < limit:
        before = found[-1].id if found else None
        page = await store.audit_log.list(before_id=before, limit=min(PAGE_SIZE, limit - len(found)))
        found += page
        if not page:
            break
    return [AuditEntry.from_row(one) for one in found]
