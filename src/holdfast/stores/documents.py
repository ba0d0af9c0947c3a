"""Documents: what a server keeps that belongs to no run, such as API keys, addresses and policies.

Each is a small JSON object under a kind and a name. A document has a version that rises with every change, so that two
who change the same one at the same time do not undo each other's work: whoever says which version it has read is
refused when that is not the one that is there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Document:
    """One of them."""

    kind: str
    name: str
    data: bytes
    """JSON."""
    version: int
    """1 for a new one."""
    created_at: float
    updated_at: float
