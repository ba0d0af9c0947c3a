"""Names that every request asks for, at most a second old: workflows that are disabled, and those with a policy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from holdfast.stores.contract import Store

CACHE_TTL_S = 1.0


class NameCache:
    """Remembers a set of names in one namespace. A change through this server takes effect at once: see ``clear``.

    Args:
        store: of the namespace.
        read: reads the names.
    """

    def __init__(self, store: Store, read: Callable[[Store], Awaitable[Collection[str]]]) -> None:
        self._store = store
        self._read = read
        self._names: Collection[str] = ()
        self._expires_at = float("-inf")

    async def has(self, name: str) -> bool:
        """Whether the name is among them."""
        now = self._store.now()
        if not now <= self._expires_at <= now + CACHE_TTL_S:  # or the clock was set back
            expires_at = now + CACHE_TTL_S
            self._names, self._expires_at = await self._read(self._store), expires_at
        return name in self._names

    def clear(self) -> None:
        """Read the names anew: they were changed."""
        self._expires_at = float("-inf")
