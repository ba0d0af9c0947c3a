"""Memories of workflows on Temporal: another store keeps them, because Temporal has no place for them."""

from __future__ import annotations

import asyncio
import builtins

from holdfast.codec import Encryption
from holdfast.errors import UsageError
from holdfast.stores.contract import Store
from holdfast.stores.memories import Memories, Memory
from holdfast.stores.temporal.targets import Target


class TemporalMemories(Memories):
    """The memories in the store that the URL names for them."""

    def __init__(self, target: Target, encryption: Encryption | None) -> None:
        self._target = target
        self._encryption = encryption
        self._store: Store | None = None
        self.reset()

    def reset(self) -> None:
        """Prepare for use on another event loop."""
        self._lock = asyncio.Lock()

    async def close(self) -> None:
        """Close the memory store."""
        if self._store is not None:
            store, self._store = self._store, None
            await store.close()

    async def get_store(self) -> Store:
        """The memory store, opened. Raises ``UsageError`` if the URL names none."""
        from holdfast.stores.urls import create_store, is_temporal

        if not self._target.memory_url or is_temporal(self._target.memory_url):
            raise UsageError(
                f"memory: Temporal has no place for what outlives runs. Say in the URL which store keeps it, for "
                f"workers and clients alike: {self._target.url}?memory=postgresql://… (or sqlite:///…). See "
                f"docs/temporal.md."
            )
        async with self._lock:
            if self._store is None:
                store = create_store(self._target.memory_url, encryption=self._encryption)
                await store.open()
                self._store = store
        return self._store

    async def get(self, namespace: str, key: str) -> Memory | None:
        return await (await self.get_store()).memories.get(namespace, key)

    async def search(self, namespace: str, words: str, *, limit: int = 10) -> list[Memory]:
        return await (await self.get_store()).memories.search(namespace, words, limit=limit)

    async def list(self, namespace: str, *, after: str = "", limit: int = 100) -> list[Memory]:
        return await (await self.get_store()).memories.list(namespace, after=after, limit=limit)

    async def namespaces(self, prefix: str = "", *, after: str = "", limit: int = 100) -> builtins.list[str]:
        return await (await self.get_store()).memories.namespaces(prefix, after=after, limit=limit)
