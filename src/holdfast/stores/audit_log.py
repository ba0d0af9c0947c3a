"""The audit log: who asked a server for what. Entries are only added, and deleted when they are old.

They belong to the server, not to runs: archives do not contain them, and they stay when a run is pruned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.stores.utf8 import is_encodable, replace_surrogates


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One request.

    Half characters (lone surrogates) in its texts, which any caller may send, become question marks: no spelling keeps
    a request out of the log.
    """

    at: float
    key_id: str
    """The id of the API key; ``""``: none was required."""
    key_name: str
    """The name of that key."""
    action: str
    """The operation id in the OpenAPI document."""
    target: str
    """The object of the request: a run, a schedule, an address."""
    outcome: str
    """``allowed`` or ``denied``."""
    remote_address: str
    """The network address of the caller."""

    def __post_init__(self) -> None:
        for field in ("key_id", "key_name", "action", "target", "outcome", "remote_address"):
            if not is_encodable(text := getattr(self, field)):
                object.__setattr__(self, field, replace_surrogates(text))


@dataclass(frozen=True, slots=True)
class AuditRow:
    """An entry of the log."""

    id: int
    """Rises with every entry."""
    event: AuditEvent


class AuditLog(ABC):
    """The audit log of a store's servers."""

    @abstractmethod
    async def append(self, events: Sequence[AuditEvent]) -> None:
        """Add entries to the audit log, durably."""

    @abstractmethod
    async def trim(self, before: float, limit: int = 10_000) -> int:
        """Delete entries from before this time, at most ``limit``. Returns how many."""

    @abstractmethod
    async def list(self, *, before_id: int | None = None, limit: int = 100) -> list[AuditRow]:
        """Entries with an id below ``before_id``, newest first."""
