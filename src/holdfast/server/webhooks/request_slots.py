"""Request slots: they limit concurrent webhook requests, and share them fairly among namespaces.

A receiver that does not respond holds its slot until the request times out. So each namespace has its own limit, and
when all slots are taken, the next free slot goes to the namespace that has the fewest.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class RequestSlots:
    """Slots for the requests of one server."""

    def __init__(self, max_total: int, max_per_namespace: int) -> None:
        self._max_total = max_total
        self._max_per_namespace = max_per_namespace
        self._used_counts: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def acquire(self, namespace: str) -> AsyncGenerator[None]:
        """Hold a slot, as soon as there is one for this namespace."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(namespace, deque()).append(granted)
        self._grant_waiting()
        try:
            await granted
            yield
        finally:
            if granted.done() and not granted.cancelled():
                self._used_counts[namespace] -= 1
            else:
                self._withdraw(namespace, granted)
            self._grant_waiting()

    def _grant_waiting(self) -> None:
        while self._used_counts.total() < self._max_total and (namespace := self._pick_namespace()) is not None:
            granted = self._waiting[namespace][0]
            self._withdraw(namespace, granted)
            if not granted.cancelled():
                self._used_counts[namespace] += 1
                granted.set_result(None)

    def _pick_namespace(self) -> str | None:
        """The namespace with the fewest slots among those that wait and are below their limit."""
        eligible = [name for name in self._waiting if self._used_counts[name] < self._max_per_namespace]
        return min(eligible, key=self._used_counts.__getitem__, default=None)

    def _withdraw(self, namespace: str, granted: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(namespace, deque())
        if granted in waiting:  # a cancelled one may have been withdrawn already
            waiting.remove(granted)
        if not waiting:
            self._waiting.pop(namespace, None)
        if not self._used_counts[namespace]:
            del self._used_counts[namespace]
