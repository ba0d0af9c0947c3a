"""Memory, schedules, queues, addresses, policies and keys in a store, of a client."""

from __future__ import annotations

import builtins
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from typing_extensions import override

from holdfast.admission.queue_limits import validate_queue_name
from holdfast.client.resources import (
    ClientAddresses,
    ClientKeys,
    ClientMemory,
    ClientPolicies,
    ClientQueues,
    ClientSchedules,
)
from holdfast.codec import DEFAULT_MAX_VALUE_BYTES
from holdfast.services.addresses import AddressInfo, delete_address, list_addresses, put_address
from holdfast.services.api_keys import ApiKey, CreatedApiKey, create_key, list_keys, revoke_key
from holdfast.services.memories import MemoryEntry, build_delete, build_put, list_values, read_value, search_values
from holdfast.services.policies import Policy, PolicyInfo, delete_policy, list_policy_infos, put_policy
from holdfast.services.queues import QueueInfo, find_queue, list_queue_names, list_queues, set_limits
from holdfast.services.run_start import find_spec
from holdfast.services.schedules import (
    ScheduleInfo,
    ScheduleRequest,
    build_schedule_info,
    create_schedule,
    find_schedule,
    list_schedules,
    trigger_schedule,
)
from holdfast.services.store_provider import StoreProvider
from holdfast.sync_methods import SyncRunner


class StoreMemory(ClientMemory):
    """Memory in a store."""

    def __init__(self, provider: StoreProvider, run_sync: SyncRunner, max_value: int = DEFAULT_MAX_VALUE_BYTES) -> None:
        super().__init__(run_sync)
        self._provider = provider
        self._max_value = max_value

    @override
    async def put(self, namespace: str, key: str, value: Any, *, text: str | None = None) -> None:
        store = await self._provider.store()
        await self._provider.change_memory(build_put(namespace, key, value, text, store.now(), self._max_value))

    @override
    async def get(self, namespace: str, key: str, default: Any = None, *, type: Any = Any) -> Any:
        return await read_value(await self._provider.store(), namespace, key, default, type)

    @override
    async def search(self, namespace: str, query: str, *, limit: int = 10) -> builtins.list[MemoryEntry]:
        return await search_values(await self._provider.store(), namespace, query, limit)

    @override
    async def list(self, namespace: str, *, after: str = "", limit: int = 100) -> builtins.list[MemoryEntry]:
        return await list_values(await self._provider.store(), namespace, after, limit)

    @override
    async def delete(self, namespace: str, key: str) -> None:
        await self._provider.change_memory(build_delete(namespace, key))


class StoreSchedules(ClientSchedules):
    """Schedules in a store."""

    def __init__(self, provider: StoreProvider, run_sync: SyncRunner) -> None:
        super().__init__(run_sync)
        self._provider = provider

    @override
    async def _create(self, request: ScheduleRequest) -> ScheduleInfo:
        store = await self._provider.store()
        return await create_schedule(store, request, await find_spec(store, request.workflow))

    @override
    async def list(self) -> builtins.list[ScheduleInfo]:
        return await list_schedules(await self._provider.store())

    @override
    async def get(self, name: str) -> ScheduleInfo:
        store = await self._provider.store()
        found = await find_schedule(store, name)
        return await build_schedule_info(found, await store.get_run(found.last_run) if found.last_run else None)

    @override
    async def pause(self, name: str) -> bool:
        store = await self._provider.store()
        await find_schedule(store, name)
        return await store.schedules.pause(name)

    @override
    async def resume(self, name: str) -> bool:
        store = await self._provider.store()
        await find_schedule(store, name)
        return await store.schedules.resume(name)

    @override
    async def delete(self, name: str) -> bool:
        return await (await self._provider.store()).schedules.delete(name)

    @override
    async def trigger(self, name: str, *, id: str | None = None) -> str:
        store = await self._provider.store()
        schedule = await find_schedule(store, name)
        return await trigger_schedule(store, schedule, await find_spec(store, schedule.definition.workflow), id)


class StoreQueues(ClientQueues):
    """Queues with limits in a store."""

    def __init__(self, provider: StoreProvider, run_sync: SyncRunner) -> None:
        super().__init__(run_sync)
        self._provider = provider

    @override
    async def list(self) -> builtins.list[QueueInfo]:
        return await list_queues(await self._provider.store())

    @override
    async def get(self, name: str) -> QueueInfo:
        store = await self._provider.store()
        return QueueInfo.from_row(await find_queue(store, name), store.now())

    @override
    async def _set(self, name: str, limits: Mapping[str, Any]) -> bool:
        return await set_limits(await self._provider.store(), name, limits)

    @override
    async def names(self) -> builtins.list[str]:
        return sorted(await list_queue_names(await self._provider.store()))

    @override
    async def reset(self, name: str) -> bool:
        store = await self._provider.store()
        await find_queue(store, name)
        return await store.queues.set_limits(name, None)

    @override
    async def pause(self, name: str) -> bool:
        return await (await self._provider.store()).queues.pause(validate_queue_name(name))

    @override
    async def resume(self, name: str) -> bool:
        store = await self._provider.store()
        await find_queue(store, name)
        return await store.queues.resume(name)


class StoreAddresses(ClientAddresses):
    """Addresses in a store."""

    def __init__(self, provider: StoreProvider, run_sync: SyncRunner) -> None:
        super().__init__(run_sync)
        self._provider = provider

    @override
    async def list(self) -> builtins.list[AddressInfo]:
        return await list_addresses(await self._provider.store())

    @override
    async def _set(self, name: str, settings: Mapping[str, Any]) -> AddressInfo:
        return await put_address(await self._provider.store(), name, **settings)

    @override
    async def delete(self, name: str) -> bool:
        return await delete_address(await self._provider.store(), name)


class StorePolicies(ClientPolicies):
    """Policies in a store."""

    def __init__(self, provider: StoreProvider, run_sync: SyncRunner) -> None:
        super().__init__(run_sync)
        self._provider = provider

    @override
    async def list(self) -> builtins.list[PolicyInfo]:
        return await list_policy_infos(await self._provider.store())

    @override
    async def _set(self, name: str, policy: Policy) -> None:
        await put_policy(await self._provider.store(), name, policy)

    @override
    async def delete(self, name: str) -> bool:
        return await delete_policy(await self._provider.store(), name)


class StoreKeys(ClientKeys):
    """API keys of a database.

    Args:
        provider: the way to its default namespace, which holds them.
        run_sync: runs methods without an event loop.
        namespace: the namespace of new keys.
    """

    def __init__(self, provider: StoreProvider, run_sync: SyncRunner, namespace: str) -> None:
        super().__init__(run_sync)
        self._provider = provider
        self._namespace = namespace

    @override
    async def create(self, name: str, scopes: Collection[str], *, expires_at: datetime | None = None) -> CreatedApiKey:
        store = await self._provider.store()
        made = await create_key(store, name, scopes, self._namespace, expires_at=expires_at, now=store.now())
        return CreatedApiKey.from_key(*made)

    @override
    async def list(self, namespace: str | None = None) -> builtins.list[ApiKey]:
        return await list_keys(await self._provider.store(), namespace)

    @override
    async def revoke(self, id: str) -> bool:
        store = await self._provider.store()
        return await revoke_key(store, id, store.now())
