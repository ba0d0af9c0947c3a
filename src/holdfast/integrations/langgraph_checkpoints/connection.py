"""The client of a checkpointer or a store, for code with and without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Coroutine, Iterator
from typing import Any, TypeVar

from holdfast.client.client import Client
from holdfast.client.loop_thread import SyncLoop
from holdfast.errors import StoreNotFound, UnrecordableValue
from holdfast.services.memories import MAX_LIMIT, MemoryEntry

T = TypeVar("T")

PAGE_SIZE = 20
"""Entries that are read at once: a value may have several megabytes."""
BATCH_SIZE = 50
"""Changes that are made at once."""


class Connection:
    """A client, the caller's or its own, and the event loop for methods without ``await``.

    Reading a database that does not exist yet finds nothing; the first write creates it.

    Args:
        target: a client, the URL of a store or a server, or ``None`` for the default store.
    """

    def __init__(self, target: str | Client | None) -> None:
        self.client = target if isinstance(target, Client) else Client(target)
        self._is_own = not isinstance(target, Client)
        self._sync_loop = SyncLoop(self.client.close)  # closes what the client has opened on that loop

    def run(self, coroutine: Coroutine[Any, Any, T], /) -> T:
        """Run a coroutine to its end.

        An event loop that is running in the caller's thread is blocked meanwhile, as it is by the ``graph.invoke`` that
        makes this call. What the coroutine waits for is on another thread.
        """
        return self._sync_loop.run_blocking(coroutine)

    def iterate_sync(self, items: AsyncGenerator[T]) -> Iterator[T]:
        """The items of an async generator, for a plain ``for``."""

        async def read_next() -> list[T]:
            async for item in items:
                return [item]
            return []

        try:
            while found := self.run(read_next()):
                yield found[0]
        finally:
            self._sync_loop.submit(items.aclose())

    async def aclose(self) -> None:
        """Disconnect this event loop, unless the client is the caller's, and what was used without ``await``."""
        if self._is_own:
            await self.client.close()
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Disconnect what was used without ``await``."""
        self._sync_loop.close()

    async def put(self, namespace: str, key: str, value: Any, *, text: str | None = "", subject: str) -> None:
        """Write an entry.

        Args:
            namespace: of memory.
            key: of the entry.
            value: of the entry.
            text: what it is found by; ``None``: the words in its value.
            subject: what the entry is for those who read an error.
        """
        try:
            await self.client.memory.put(namespace, key, value, text=text)
        except UnrecordableValue as error:
            raise type(error)(f"{subject} cannot be kept: {error}") from error

    async def get(self, namespace: str, key: str) -> Any:
        """The value of an entry, or ``None``."""
        try:
            return await self.client.memory.get(namespace, key)
        except StoreNotFound:
            return None

    async def find(self, namespace: str, key: str) -> MemoryEntry | None:
        """An entry, if it exists."""
        try:
            return await self.client.memory.get_entry(namespace, key)
        except StoreNotFound:
            return None

    async def search(self, namespace: str, words: str, limit: int) -> list[MemoryEntry]:
        """Entries with some of these words, the best match first."""
        return await self.client.memory.search(namespace, words, limit=limit)

    async def iterate(self, namespace: str, after: str = "", page_size: int = PAGE_SIZE) -> AsyncGenerator[MemoryEntry]:
        """The entries of a namespace, in the order of their keys."""
        while True:
            try:
                page = await self.client.memory.list(namespace, after=after, limit=page_size)
            except StoreNotFound:
                return
            for entry in page:
                yield entry
            if len(page) < page_size:
                return
            after = page[-1].key

    async def list_namespaces(self, prefix: str) -> list[str]:
        """The namespaces with entries that begin with ``prefix``."""
        found: list[str] = []
        while True:
            after = found[-1] if found else ""
            try:
                page = await self.client.memory.namespaces(prefix, after=after, limit=MAX_LIMIT)
            except StoreNotFound:
                return []
            found += page
            if len(page) < MAX_LIMIT:
                return found

    async def delete(self, namespace: str, keys: Collection[str]) -> None:
        """Delete entries, if they exist."""
        remaining = [*keys]
        while remaining:
            batch, remaining = remaining[:BATCH_SIZE], remaining[BATCH_SIZE:]
            await asyncio.gather(*(self.client.memory.delete(namespace, key) for key in batch))

    async def delete_all(self, namespace: str) -> None:
        """Delete all entries of a namespace."""
        await self.delete(namespace, [entry.key async for entry in self.iterate(namespace)])

    async def copy_all(self, namespace: str, target: str) -> None:
        """Copy all entries of a namespace to another one."""
        async for entry in self.iterate(namespace):
            await self.put(target, entry.key, entry.value, subject=f"the copy of {namespace}")
