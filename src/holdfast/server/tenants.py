"""The namespaces that a server serves, each with its own connection, opened when a request first needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from holdfast.client.client import Client
from holdfast.client.store_connections import LoopConnections
from holdfast.server.auth.audit_log import AuditWriter
from holdfast.server.background.overview_feed import OverviewFeed
from holdfast.server.caches.environment_cache import EnvironmentCache
from holdfast.server.caches.name_cache import NameCache
from holdfast.server.deliveries.dispatcher import Dispatcher
from holdfast.server.deliveries.listener_registry import ListenerRegistry
from holdfast.services.policies import list_policies
from holdfast.stores.contract import DEFAULT_NAMESPACE, Store
from holdfast.stores.grouped_calls import TurnCalls
from holdfast.stores.urls import create_store, redact_url, resolve_store_url, split_namespace, with_namespace


class Tenant:
    """A namespace: its open store, a client over it, and this server's in-memory state for it."""

    def __init__(
        self,
        namespace: str,
        connections: LoopConnections,
        store: Store,
        get_default_store: Callable[[], Awaitable[Store]],
    ) -> None:
        self.namespace = namespace
        self.connections = connections
        self.store = store
        self.client = Client.from_connections(connections)
        self.commits = TurnCalls(store.commit_and_claim)
        """Requests that are handled at the same time share transactions."""
        self.audit_writer = AuditWriter(store)
        self.dispatcher = Dispatcher(self)
        self.listeners = ListenerRegistry(namespace, store, get_default_store)
        self.overview_feed = OverviewFeed(self)
        self.environment = EnvironmentCache(store)
        self.disabled_workflows = NameCache(store, lambda store: store.disabled_workflows.get_all())
        self.limited_workflows = NameCache(store, list_policies)
        """Workflows and addresses with a policy."""

    async def close(self) -> None:
        """Disconnect the listeners, and then the store."""
        await self.dispatcher.close()
        await self.connections.close()


class Tenants:
    """All namespaces of one database."""

    def __init__(
        self, url: str | None = None, namespace: str | None = None, store_factory: Callable[[str], Store] = create_store
    ) -> None:
        self._store_factory = store_factory
        self._url, own_namespace = split_namespace(resolve_store_url(url, namespace))
        self.namespace = own_namespace or DEFAULT_NAMESPACE
        """The namespace of callers that need no key."""
        self.display_url = redact_url(self._url)
        self._tenants: dict[str, Tenant] = {}
        self._open_lock = asyncio.Lock()

    async def get_tenant(self, namespace: str) -> Tenant:
        """The tenant of a namespace, connected on first use."""
        found = self._tenants.get(namespace)
        if found is None:
            async with self._open_lock:
                found = self._tenants.get(namespace)
                if found is None:
                    connections = LoopConnections(with_namespace(self._url, namespace), self._store_factory)
                    found = Tenant(namespace, connections, await connections.created_store(), self.get_default_store)
                    self._tenants[namespace] = found
        return found

    async def get_default_store(self) -> Store:
        """The store that has the API keys."""
        return (await self.get_tenant(DEFAULT_NAMESPACE)).store

    def list_open(self) -> list[Tenant]:
        """The namespaces that are connected."""
        return list(self._tenants.values())

    async def close(self) -> None:
        """Disconnect all namespaces."""
        while self._tenants:
            _, tenant = self._tenants.popitem()
            await tenant.close()
