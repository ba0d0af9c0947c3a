"""The audit log: who asked a server for what. Entries are only ever added, and go when they are old."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NewAudit:
    """Something that somebody asked for."""

    at: float
    who: str
    """The id of the API key; ``""``: nobody was asked for one."""
    name: str
    """What that key is called."""
    action: str
    """The operation, as the OpenAPI document calls it."""
    target: str
    """What it is about: a run, a schedule, an address."""
    outcome: str
    """``allowed`` or ``denied``."""
    remote: str
    """The network address that it came from."""


@dataclass(frozen=True, slots=True)
class Audit:
    """The same, with its place in the log."""

    id: int
    """Rises with every entry."""
    what: NewAudit
