"""The audit log: what was asked for is noted before it is carried out, and what was refused as well.

Requests that come in at the same time share a commit, so that the log costs a busy server little. What cannot be noted
is not carried out. A key can send denied requests as often as its rate allows, so these are counted once there are many
(``DenialLog``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from holdfast.server.background.tasks import log_errors
from holdfast.stores.audit_log import AuditEvent
from holdfast.stores.contract import Store

MAX_TARGET_CHARS = 400
WINDOW_S = 60.0
MAX_ENTRIES_PER_WINDOW = 10
"""Denied requests of one caller in a window that get an entry each."""
_TARGET_FIELDS = ("workflow", "name", "id")
"""What in a body says what a request is about."""


class AuditWriter:
    """Writes the log of one namespace."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pending: list[AuditEvent] = []
        self._next_flush: asyncio.Task[None] | None = None
        self._write_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        """All that are under way, also if whoever waited for them is gone."""

    async def append(self, entry: AuditEvent) -> None:
        """Note it; durable when this returns. Raises what the store raises."""
        self._pending.append(entry)
        if self._next_flush is None:
            self._next_flush = asyncio.create_task(self._flush())
            self._tasks.add(self._next_flush)
            self._next_flush.add_done_callback(self._on_flush_done)
        await asyncio.shield(self._next_flush)

    async def _flush(self) -> None:
        async with self._write_lock:  # whatever comes in while the one before is written goes together
            self._next_flush = None
            entries, self._pending = self._pending, []
            await self._store.audit_log.append(entries)

    def _on_flush_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited has heard of it; nobody else needs to


class DenialLog:
    """Notes denied requests, without letting one caller fill the log.

    In every window of ``WINDOW_S`` seconds, the first ``MAX_ENTRIES_PER_WINDOW`` denied requests of a caller get an
    entry each. The others are counted, and get one entry for each action when the window ends.
    """

    def __init__(self, get_audit_writer: Callable[[str], Awaitable[AuditWriter]]) -> None:
        self._get_audit_writer = get_audit_writer
        self._windows: dict[tuple[str, str], _Window] = {}
        """By namespace, and key or network address."""

    async def record(self, namespace: str, entry: AuditEvent) -> None:
        """Note a denied request, or count it. Raises what the store raises."""
        whose = (namespace, entry.key_id or entry.remote_address)
        window = self._windows.get(whose)
        if window is None or not 0 <= entry.at - window.started_at < WINDOW_S:
            await self._close_window(whose)
            window = self._windows.setdefault(whose, _Window(entry.at))
        if window.entry_count < MAX_ENTRIES_PER_WINDOW:
            window.entry_count += 1
            await (await self._get_audit_writer(namespace)).append(entry)
            return
        _, count = window.suppressed.get(entry.action, (entry, 0))
        window.suppressed[entry.action] = (entry, count + 1)

    async def flush(self) -> None:
        """Note what was counted. Failures are logged."""
        for whose in list(self._windows):
            await log_errors(self._close_window(whose), "denied requests could not be noted")

    async def flush_periodically(self) -> NoReturn:
        """Note what was counted at the end of every window."""
        while True:
            await asyncio.sleep(WINDOW_S)
            await self.flush()

    async def _close_window(self, key: tuple[str, str]) -> None:
        window = self._windows.pop(key, None)
        if window is None or not window.suppressed:
            return
        auditor = await self._get_audit_writer(key[0])
        for last, count in window.suppressed.values():
            target = f"{count} more requests, the last for {last.target}"[:MAX_TARGET_CHARS]
            await auditor.append(replace(last, target=target))


@dataclass(slots=True)
class _Window:
    started_at: float
    entry_count: int = 0
    suppressed: dict[str, tuple[AuditEvent, int]] = field(default_factory=dict[str, tuple[AuditEvent, int]])
    """By action: the last request, and the count."""


def format_target(path_params: Mapping[str, str], body: Any) -> str:
    """What a request is about: the names in its path, and those in its body that say it."""
    said = [getattr(body, word, None) for word in _TARGET_FIELDS]
    target = "/".join([*path_params.values(), *(word for word in said if isinstance(word, str))])
    return target[:MAX_TARGET_CHARS].replace("\0", "\N{SYMBOL FOR NULL}")  # which PostgreSQL would not take
