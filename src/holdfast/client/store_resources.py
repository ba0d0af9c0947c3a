"""Memory, schedules, queues, addresses, policies and keys in a store, as the backend of a client has them."""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import datetime
from typing import Any, Protocol

from holdfast.admission.queue_limits import validate_queue_name
from holdfast.client.backend import (
    AddressBackend,
    KeyBackend,
    MemoryBackend,
    PolicyBackend,
    QueueBackend,
    ScheduleBackend,
)
from holdfast.codec import DEFAULT_MAX_VALUE_BYTES
from holdfast.services.addresses import AddressInfo, delete_address, list_addresses, put_address
from holdfast.services.api_keys import ApiKey, CreatedApiKey, create_key, list_keys, revoke_key
from holdfast.services.memories import MemoryEntry, build_delete, build_put, list_values, read_value, search_values
from holdfast.services.policies import Policy, PolicyInfo, delete_policy, list_policy_infos, put_policy
from holdfast.services.queues import QueueInfo, find_queue, list_queue_names, list_queues, set_limits
from holdfast.services.schedules import (
    ScheduleInfo,
    ScheduleRequest,
    build_schedule_info,
    create_schedule,
    find_schedule,
    list_schedules,
    trigger_schedule,
)
from holdfast.stores.contract import Store, WorkflowSpec
from holdfast.stores.memories import MemoryChange


class StoreProvider(Protocol):
    """A way to the store."""

    async def store(self) -> Store:
        """The store, open."""
        ...


class MemoryAccess(StoreProvider, Protocol):
    """What it takes to read and change memory."""

    async def change_memory(self, change: MemoryChange) -> None:
        """Carry out a change."""
        ...


class StoreMemory(MemoryBackend):
    """Memory in a store."""

    def __init__(self, access: MemoryAccess, max_value: int = DEFAULT_MAX_VALUE_BYTES) -> None:
        self._access = access
        self._max_value = max_value

    async def put(self, namespace: str, key: str, value: Any, text: str | None) -> None:
        """Keep a value."""
        store = await self._access.store()
        await self._access.change_memory(build_put(namespace, key, value, text, store.now(), self._max_value))

    async def get(self, namespace: str, key: str, default: Any, type: Any) -> Any:
        """One value, as ``type``."""
        return await read_value(await self._access.store(), namespace, key, default, type)

    async def search(self, namespace: str, query: str, limit: int) -> builtins.list[MemoryEntry]:
        """Values that have some of these words in them."""
        return await search_values(await self._access.store(), namespace, query, limit)

    async def list(self, namespace: str, after: str, limit: int) -> builtins.list[MemoryEntry]:
        """Values in the order of their keys."""
        return await list_values(await self._access.store(), namespace, after, limit)

    async def delete(self, namespace: str, key: str) -> None:
        """Forget a value."""
        await self._access.change_memory(build_delete(namespace, key))


class StoreSchedules(ScheduleBackend):
    """Schedules in a store.

    Args:
        provider: the way to it.
        find_spec: finds a workflow by its name. Raises ``UnknownWorkflow``.
    """

    def __init__(self, provider: StoreProvider, find_spec: Callable[[Store, str], Awaitable[WorkflowSpec]]) -> None:
        self._provider = provider
        self._find_spec = find_spec

    async def create(self, request: ScheduleRequest) -> ScheduleInfo:
        """Make one, or find that it is there."""
        store = await self._provider.store()
        return await create_schedule(store, request, await self._find_spec(store, request.workflow))

    async def list(self) -> builtins.list[ScheduleInfo]:
        """All of them."""
        return await list_schedules(await self._provider.store())

    async def get(self, name: str) -> ScheduleInfo:
        """One of them."""
        store = await self._provider.store()
        found = await find_schedule(store, name)
        return await build_schedule_info(found, await store.get_run(found.last_run) if found.last_run else None)

    async def pause(self, name: str) -> bool:
        """Keep it from firing."""
        store = await self._provider.store()
        await find_schedule(store, name)
        return await store.schedules.pause(name)

    async def resume(self, name: str) -> bool:
        """Let it fire again."""
        store = await self._provider.store()
        await find_schedule(store, name)
        return await store.schedules.resume(name)

    async def delete(self, name: str) -> bool:
        """Forget it."""
        return await (await self._provider.store()).schedules.delete(name)

    async def trigger(self, name: str, id: str | None) -> str:
        """Start a run of it now."""
        store = await self._provider.store()
        schedule = await find_schedule(store, name)
        return await trigger_schedule(store, schedule, await self._find_spec(store, schedule.definition.workflow), id)


class StoreQueues(QueueBackend):
    """Queues with limits in a store."""

    def __init__(self, provider: StoreProvider) -> None:
        self._provider = provider

    async def list(self) -> builtins.list[QueueInfo]:
        """All of them."""
        return await list_queues(await self._provider.store())

    async def get(self, name: str) -> QueueInfo:
        """One of them."""
        store = await self._provider.store()
        return QueueInfo.from_row(await find_queue(store, name), store.now())

    async def set(self, name: str, limits: Mapping[str, Any]) -> bool:
        """Set those of its limits that are given."""
        return await set_limits(await self._provider.store(), name, limits)

    async def names(self) -> builtins.list[str]:
        """All that something is known of."""
        return sorted(await list_queue_names(await self._provider.store()))

    async def reset(self, name: str) -> bool:
        """Let it have the limits that code says."""
        store = await self._provider.store()
        await find_queue(store, name)
        return await store.queues.set_limits(name, None)

    async def pause(self, name: str) -> bool:
        """Let nothing of it begin or go on."""
        return await (await self._provider.store()).queues.pause(validate_queue_name(name))

    async def resume(self, name: str) -> bool:
        """Let its runs begin again."""
        store = await self._provider.store()
        await find_queue(store, name)
        return await store.queues.resume(name)


class StoreAddresses(AddressBackend):
    """Addresses in a store."""

    def __init__(self, provider: StoreProvider) -> None:
        self._provider = provider

    async def list(self) -> builtins.list[AddressInfo]:
        """All of them."""
        return await list_addresses(await self._provider.store())

    async def set(self, name: str, settings: Mapping[str, Any]) -> AddressInfo:
        """Change those of its settings that are given."""
        return await put_address(await self._provider.store(), name, **settings)

    async def delete(self, name: str) -> bool:
        """Forget its settings."""
        return await delete_address(await self._provider.store(), name)


class StorePolicies(PolicyBackend):
    """Policies in a store."""

    def __init__(self, provider: StoreProvider) -> None:
        self._provider = provider

    async def list(self) -> builtins.list[PolicyInfo]:
        """All of them."""
        return await list_policy_infos(await self._provider.store())

    async def set(self, name: str, policy: Policy) -> None:
        """Give somebody a policy."""
        await put_policy(await self._provider.store(), name, policy)

    async def delete(self, name: str) -> bool:
        """Take it away."""
        return await delete_policy(await self._provider.store(), name)


class StoreKeys(KeyBackend):
    """API keys of a database.

    Args:
        provider: the way to its default namespace, where they are kept.
        namespace: the one that new keys are bound to.
    """

    def __init__(self, provider: StoreProvider, namespace: str) -> None:
        self._provider = provider
        self._namespace = namespace

    async def create(self, name: str, scopes: Collection[str], expires_at: datetime | None) -> CreatedApiKey:
        """Make one."""
        store = await self._provider.store()
        made = await create_key(store, name, scopes, self._namespace, expires_at=expires_at, now=store.now())
        return CreatedApiKey.from_key(*made)

    async def list(self, namespace: str | None) -> builtins.list[ApiKey]:
        """All of them, or those of a namespace."""
        return await list_keys(await self._provider.store(), namespace)

    async def revoke(self, id: str) -> bool:
        """Let one open nothing any more."""
        store = await self._provider.store()
        return await revoke_key(store, id, store.now())
