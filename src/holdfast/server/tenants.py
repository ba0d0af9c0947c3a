"""The namespaces that a server speaks for, each with a connection of its own, opened when it is first asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.client.client import Client
from holdfast.client.store_connections import LoopConnections
from holdfast.stores.contract import DEFAULT_NAMESPACE, Store
from holdfast.stores.urls import create_store, redact_url, resolve_store_url, split_namespace, with_namespace


class Tenant:
    """A namespace: its store, and a client over it."""

    def __init__(self, url: str, namespace: str, store_factory: Callable[[str], Store] = create_store) -> None:
        self.namespace = namespace
        self.connection = LoopConnections(url, store_factory)
        self.client = Client.from_connections(self.connection)

    async def store(self) -> Store:
        """The store, open."""
        return await self.connection.created_store()


class Tenants:
    """All of them, over one database."""

    def __init__(
        self, url: str | None = None, namespace: str | None = None, store_factory: Callable[[str], Store] = create_store
    ) -> None:
        self._store_factory = store_factory
        plain, own = split_namespace(resolve_store_url(url, namespace))
        self._url = plain
        self.namespace = own or DEFAULT_NAMESPACE
        """The namespace of whoever needs no key."""
        self.display_url = redact_url(plain)
        self._tenants: dict[str, Tenant] = {}
        self._open_lock = asyncio.Lock()

    async def get_tenant(self, namespace: str) -> Tenant:
        """A namespace, connected."""
        found = self._tenants.get(namespace)
        if found is None:
            async with self._open_lock:
                found = self._tenants.get(namespace)
                if found is None:
                    found = Tenant(with_namespace(self._url, namespace), namespace, self._store_factory)
                    await found.store()
                    self._tenants[namespace] = found
        return found

    async def get_home_store(self) -> Store:
        """The store that keys are kept in."""
        return await (await self.get_tenant(DEFAULT_NAMESPACE)).store()

    def list_open(self) -> list[Tenant]:
        """Those that have been asked for."""
        return list(self._tenants.values())

    async def close(self) -> None:
        """Disconnect them all."""
        while self._tenants:
            _, tenant = self._tenants.popitem()
            await tenant.connection.close()
