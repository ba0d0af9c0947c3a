"""The audit log: what was asked for is noted before it is carried out, and what was refused as well.

Requests that come in at the same time share a commit, so that the log costs a busy server little. What cannot be noted
is not carried out. A key can send denied requests as often as its rate allows, so these are counted once there are many
(``Denials``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from holdfast.server.background.tasks import tried
from holdfast.stores.audit_log import NewAudit
from holdfast.stores.contract import Store

LONGEST_TARGET = 400
WINDOW = 60.0
IN_FULL = 10
"""Denied requests of one caller in a window that get an entry each."""
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


class Denials:
    """Notes denied requests, without letting one caller fill the log.

    In every window of ``WINDOW`` seconds, the first ``IN_FULL`` denied requests of a caller get an entry each. The
    others are counted, and get one entry for each action when the window ends.
    """

    def __init__(self, auditor: Callable[[str], Awaitable[Auditor]]) -> None:
        self._auditor = auditor
        self._windows: dict[tuple[str, str], _Window] = {}
        """By namespace, and key or network address."""

    async def note(self, namespace: str, entry: NewAudit) -> None:
        """Note a denied request, or count it. Raises what the store raises."""
        whose = (namespace, entry.who or entry.remote)
        window = self._windows.get(whose)
        if window is None or not 0 <= entry.at - window.since < WINDOW:
            await self._end(whose)
            window = self._windows.setdefault(whose, _Window(entry.at))
        if window.noted < IN_FULL:
            window.noted += 1
            await (await self._auditor(namespace)).note(entry)
            return
        _, count = window.more.get(entry.action, (entry, 0))
        window.more[entry.action] = (entry, count + 1)

    async def flush(self) -> None:
        """Note what was counted. Failures are logged."""
        for whose in list(self._windows):
            await tried(self._end(whose), "denied requests could not be noted")

    async def flush_regularly(self) -> NoReturn:
        """Note what was counted at the end of every window."""
        while True:
            await asyncio.sleep(WINDOW)
            await self.flush()

    async def _end(self, whose: tuple[str, str]) -> None:
        window = self._windows.pop(whose, None)
        if window is None or not window.more:
            return
        auditor = await self._auditor(whose[0])
        for last, count in window.more.values():
            target = f"{count} more requests, the last for {last.target}"[:LONGEST_TARGET]
            await auditor.note(replace(last, target=target))


@dataclass(slots=True)
class _Window:
    since: float
    noted: int = 0
    more: dict[str, tuple[NewAudit, int]] = field(default_factory=dict[str, tuple[NewAudit, int]])
    """By action: the last request, and the count."""


def target_of(path: Mapping[str, str], body: Any) -> str:
    """What a request is about: the names in its path, and those in its body that say it."""
    said = [getattr(body, word, None) for word in _SAYING]
    target = "/".join([*path.values(), *(word for word in said if isinstance(word, str))])
    return target[:LONGEST_TARGET].replace("\0", "\N{SYMBOL FOR NULL}")  # which PostgreSQL would not take
