"""The audit log: what was asked for is noted before it is carried out, and what was refused as well.

Requests that come in at the same time share a commit, so that the log costs a busy server little. What cannot be noted
is not carried out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from holdfast.stores.auditing import NewAudit
from holdfast.stores.contract import Store

LONGEST_TARGET = 400
_SAYING = ("workflow", "name", "id")
"""What in a body says what a request is about."""


class Auditor:
    """Writes the log of one namespace."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[NewAudit] = []
        self._next: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        """All that are under way, also if whoever waited for them is gone."""

    async def note(self, entry: NewAudit) -> None:
        """Note it; durable when this returns. Raises what the store raises."""
        self._waiting.append(entry)
        if self._next is None:
            self._next = asyncio.create_task(self._write())
            self._tasks.add(self._next)
            self._next.add_done_callback(self._is_done)
        await asyncio.shield(self._next)

    async def _write(self) -> None:
        async with self._writing:  # whatever comes in while the one before is written goes together
            self._next = None
            entries, self._waiting = self._waiting, []
            await self._store.note_audit(entries)

    def _is_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited has heard of it; nobody else needs to


def target_of(path: Mapping[str, str], body: Any) -> str:
    """What a request is about: the names in its path, and those in its body that say it."""
    said = [getattr(body, word, None) for word in _SAYING]
    target = "/".join([*path.values(), *(word for word in said if isinstance(word, str))])
    return target[:LONGEST_TARGET].replace("\0", "\N{SYMBOL FOR NULL}")  # which PostgreSQL would not take
