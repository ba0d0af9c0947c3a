"""The audit log of servers, as clients read it."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.services.json_form import UtcDatetime
from holdfast.services.timestamps import to_datetime
from holdfast.stores.audit_log import AuditRow
from holdfast.stores.contract import Store

PAGE_SIZE = 1000
"""As many entries as are read at once."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Somebody asked for something."""

    id: int
    at: UtcDatetime
    key_id: str | None
    """The id of the key; none where none was needed."""
    key_name: str
    """What that key is called."""
    action: str
    """The operation, as it is called in the OpenAPI document."""
    target: str
    """What it was about."""
    outcome: str
    """``allowed`` or ``denied``."""
    remote_address: str
    """The network address that it came from."""

    @classmethod
    def from_row(cls, row: AuditRow) -> AuditEntry:
        """An entry as it is told."""
        what = row.event
        return cls(
            id=row.id,
            at=to_datetime(what.at),
            key_id=what.key_id or None,
            key_name=what.key_name,
            action=what.action,
            target=what.target,
            outcome=what.outcome,
            remote_address=what.remote_address,
        )


async def read_audit_log(store: Store, limit: int) -> list[AuditEntry]:
    """The newest entries, the newest first."""
    found: list[AuditRow] = []
    while len(found) < limit:
        before = found[-1].id if found else None
        page = await store.audit_log.list(before_id=before, limit=min(PAGE_SIZE, limit - len(found)))
        found += page
        if not page:
            break
    return [AuditEntry.from_row(one) for one in found]
