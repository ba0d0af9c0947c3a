"""The audit log of servers, as clients read it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from holdfast.services.timestamps import moment
from holdfast.stores.audit_log import Audit
from holdfast.stores.contract import Store

AT_ONCE = 1000
"""As many entries as are read at once."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Somebody asked for something."""

    id: int
    at: datetime
    key: str | None
    """The id of the key; none where none was needed."""
    name: str
    """What that key is called."""
    action: str
    """The operation, as it is called in the OpenAPI document."""
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
            at=moment(what.at),
            key=what.who or None,
            name=what.name,
            action=what.action,
            target=what.target,
            outcome=what.outcome,
            remote=what.remote,
        )


async def read_audit(store: Store, limit: int) -> list[AuditEntry]:
    """The newest entries, the newest first."""
    found: list[Audit] = []
    while len(found) < limit:
        before = found[-1].id if found else None
        page = await store.audit(before=before, limit=min(AT_ONCE, limit - len(found)))
        found += page
        if not page:
            break
    return [AuditEntry.of(one) for one in found]
