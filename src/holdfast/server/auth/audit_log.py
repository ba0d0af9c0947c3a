"""The audit log: a request is logged before it is carried out, and so is one that was denied.

Concurrent requests share a commit, so that the log costs a busy server little. A request that cannot be logged is not
carried out. A key can send denied requests as often as its rate allows, so once there are many, they are only counted
(``DenialLog``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.server.background.tasks import log_errors
from holdfast.stores.audit_log import AuditEvent
from holdfast.stores.contract import Store

if TYPE_CHECKING:
    from holdfast.server.tenants import Tenant

MAX_TARGET_CHARS = 400
WINDOW_S = 60.0
MAX_ENTRIES_PER_WINDOW = 10
"""Denied requests of one caller in a window that get an entry each."""
_TARGET_FIELDS = ("workflow", "name", "id")
"""Fields of a body that name the target of a request."""


class AuditWriter:
    """Writes the log of one namespace."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pending: list[AuditEvent] = []
        self._next_flush: asyncio.Task[None] | None = None
        self._write_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        """Flushes in progress, including those whose requests were cancelled."""

    async def append(self, entry: AuditEvent) -> None:
        """Append an entry; it is durable when this returns. Raises what the store raises."""
        self._pending.append(entry)
        if self._next_flush is None:
            self._next_flush = asyncio.create_task(self._flush())
            self._tasks.add(self._next_flush)
            self._next_flush.add_done_callback(self._on_flush_done)
        await asyncio.shield(self._next_flush)

    async def _flush(self) -> None:
        async with self._write_lock:  # entries that arrive during one write share the next one
            self._next_flush = None
            entries, self._pending = self._pending, []
            await self._store.audit_log.append(entries)

    def _on_flush_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the waiting requests got it; asyncio need not log it as well


class DenialLog:
    """Logs denied requests, without letting one caller fill the log.

    In every window of ``WINDOW_S`` seconds, the first ``MAX_ENTRIES_PER_WINDOW`` denied requests of a caller get an
    entry each. The others are counted, and get one entry for each action when the window ends.
    """

    def __init__(self) -> None:
        self._windows: dict[tuple[str, str], _Window] = {}
        """By namespace, and key or network address."""

    async def record(self, tenant: Tenant, entry: AuditEvent) -> None:
        """Log a denied request, or count it. Raises what the store raises."""
        caller = (tenant.namespace, entry.key_id or entry.remote_address)
        window = self._windows.get(caller)
        if window is None or not 0 <= entry.at - window.started_at < WINDOW_S:
            await self._close_window(caller)
            window = self._windows.setdefault(caller, _Window(tenant.audit_writer, entry.at))
        if window.entry_count < MAX_ENTRIES_PER_WINDOW:
            window.entry_count += 1
            await window.audit_writer.append(entry)
            return
        _, count = window.suppressed.get(entry.action, (entry, 0))
        window.suppressed[entry.action] = (entry, count + 1)

    async def flush(self) -> None:
        """Write the counts to the audit log. If that fails, the server's log says so."""
        for caller in list(self._windows):
            await log_errors(self._close_window(caller), "denied requests could not be noted")

    async def flush_periodically(self) -> NoReturn:
        """Write the counts at the end of every window."""
        while True:
            await asyncio.sleep(WINDOW_S)
            await self.flush()

    async def _close_window(self, caller: tuple[str, str]) -> None:
        window = self._windows.pop(caller, None)
        if window is None:
            return
        for last, count in window.suppressed.values():
            target = f"{count} more requests, the last for {last.target}"[:MAX_TARGET_CHARS]
            await window.audit_writer.append(replace(last, target=target))


@dataclass(slots=True)
class _Window:
    audit_writer: AuditWriter
    started_at: float
    entry_count: int = 0
    suppressed: dict[str, tuple[AuditEvent, int]] = field(default_factory=dict[str, tuple[AuditEvent, int]])
    """By action: the last request, and the count."""


def format_target(path_params: Mapping[str, str], body: Any) -> str:
    """The target of a request: the names in its path and in its body."""
    names = [getattr(body, field, None) for field in _TARGET_FIELDS]
    target = "/".join([*path_params.values(), *(name for name in names if isinstance(name, str))])
    return target[:MAX_TARGET_CHARS].replace("\0", "\N{SYMBOL FOR NULL}")  # PostgreSQL refuses NUL characters
