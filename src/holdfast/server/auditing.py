"""The audit log: what was asked for is noted before it is carried out, and what was refused as well.

Requests that come in at the same time share a commit, so that the log costs a busy server little.
"""

from __future__ import annotations

import asyncio

from holdfast.stores.auditing import NewAudit
from holdfast.stores.contract import Store


class Auditor:
    """Writes the log of one namespace."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[NewAudit] = []
        self._next: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    async def note(self, entry: NewAudit) -> None:
        """Note it; durable when this returns. Raises what the store raises."""
        self._waiting.append(entry)
        if self._next is None:
            self._next = asyncio.create_task(self._write())
        await asyncio.shield(self._next)

    async def _write(self) -> None:
        async with self._writing:  # whatever comes in while the one before is written goes together
            self._next = None
            entries, self._waiting = self._waiting, []
            await self._store.note_audit(entries)
