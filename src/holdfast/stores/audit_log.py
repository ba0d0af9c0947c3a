"""The audit log: who asked a server for what. Entries are only ever added, and go when they are old.

They belong to the server and to no run: they go into no archive, and stay when a run is pruned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.stores.utf8 import is_encodable, replace_surrogates


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """Something that somebody asked for.

    Halves of characters in its texts, which anybody may send, become question marks: nothing is left out of the log
    because of how it was spelt.
    """

    at: float
    key_id: str
    """The id of the API key; ``""``: nobody was asked for one."""
    key_name: str
    """What that key is called."""
    action: str
    """The operation, as the OpenAPI document calls it."""
    target: str
    """What it is about: a run, a schedule, an address."""
    outcome: str
    """``allowed`` or ``denied``."""
    remote_address: str
    """The network address that it came from."""

    def __post_init__(self) -> None:
        for field in ("key_id", "key_name", "action", "target", "outcome", "remote_address"):
            if not is_encodable(text := getattr(self, field)):
                object.__setattr__(self, field, replace_surrogates(text))


@dataclass(frozen=True, slots=True)
class AuditRow:
    """The same, with its place in the log."""

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
        """Delete entries that are older than this time, at most ``limit``, and tell how many."""

    @abstractmethod
    async def list(self, *, before_id: int | None = None, limit: int = 100) -> list[AuditRow]:
        """Entries of the audit log, the newest first; those with an id below ``before_id``."""
