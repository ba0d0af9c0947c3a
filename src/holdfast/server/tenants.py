"""The namespaces that a server speaks for, each with a connection of its own, opened when it is first asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.client.client import Client
from holdfast.client.store_backend import StoreBackend
from holdfast.client.store_connections import Connections
from holdfast.stores.contract import DEFAULT_NAMESPACE, Store
from holdfast.stores.urls import in_namespace, open_store, shown_url, split_namespace, store_url


class Tenant:
    """A namespace: its store, and a client over it."""

    def __init__(self, url: str, namespace: str, opener: Callable[[str], Store] = open_store) -> None:
        self.namespace = namespace
        self.connection = Connections(url, opener)
        self.client = Client.over(StoreBackend(self.connection, url))

    async def store(self) -> Store:
        """The store, open."""
        return await self.connection.store()


class Tenants:
    """All of them, over one database."""

    def __init__(
        self, url: str | None = None, namespace: str | None = None, opener: Callable[[str], Store] = open_store
    ) -> None:
        self._opener = opener
        plain, own = split_namespace(store_url(url, namespace))
        self._url = plain
        self.namespace = own or DEFAULT_NAMESPACE
        """The namespace of whoever needs no key."""
        self.url = shown_url(plain)
        self._open: dict[str, Tenant] = {}
        self._opening = asyncio.Lock()

    async def tenant(self, namespace: str) -> Tenant:
        """A namespace, connected."""
        found = self._open.get(namespace)
        if found is None:
            async with self._opening:
                found = self._open.get(namespace)
                if found is None:
                    found = Tenant(in_namespace(self._url, namespace), namespace, self._opener)
                    await found.store()
                    self._open[namespace] = found
        return found

    async def home(self) -> Store:
        """The store that keys are kept in."""
        return await (await self.tenant(DEFAULT_NAMESPACE)).store()

    def known(self) -> list[Tenant]:
        """Those that have been asked for."""
        return list(self._open.values())

    async def close(self) -> None:
        """Disconnect them all."""
        while self._open:
            _, tenant = self._open.popitem()
            await tenant.connection.close()
