"""Memory, schedules, queues, addresses, policies and keys in a store, as the backend of a client has them."""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import datetime
from typing import Any, Protocol

from holdfast.admission.queue_limits import checked_queue_name
from holdfast.client.backend import (
    AddressBackend,
    KeyBackend,
    MemoryBackend,
    PolicyBackend,
    QueueBackend,
    ScheduleBackend,
)
from holdfast.codec import LARGEST
from holdfast.services.addresses import AddressInfo, delete_address, list_addresses, put_address
from holdfast.services.api_keys import Key, MadeKey, create_key, read_keys, revoke_key
from holdfast.services.memories import Remembered, list_values, read_value, search, to_delete, to_put
from holdfast.services.policies import Policy, PolicyInfo, delete_policy, put_policy, read_policies
from holdfast.services.queues import QueueInfo, find_queue, names_in_use, read_queues, set_limits
from holdfast.services.schedules import (
    ScheduleInfo,
    WantedSchedule,
    create_schedule,
    find,
    read_schedules,
    schedule_info,
    trigger_schedule,
)
from holdfast.stores.contract import Store, WorkflowSpec
from holdfast.stores.memories import MemoryChange


class Way(Protocol):
    """A way to the store."""

    async def store(self) -> Store:
        """The store, open."""
        ...


class Shelf(Way, Protocol):
    """What it takes to read and change memory."""

    async def remember(self, change: MemoryChange) -> None:
        """Carry out a change."""
        ...


class StoreMemory(MemoryBackend):
    """Memory in a store."""

    def __init__(self, shelf: Shelf, max_value: int = LARGEST) -> None:
        self._shelf = shelf
        self._max_value = max_value

    async def put(self, namespace: str, key: str, value: Any, text: str | None) -> None:
        """Keep a value."""
        store = await self._shelf.store()
        await self._shelf.remember(to_put(namespace, key, value, text, store.now(), self._max_value))

    async def get(self, namespace: str, key: str, default: Any, type: Any) -> Any:
        """One value, as ``type``."""
        return await read_value(await self._shelf.store(), namespace, key, default, type)

    async def search(self, namespace: str, words: str, limit: int) -> builtins.list[Remembered]:
        """Values that have some of these words in them."""
        return await search(await self._shelf.store(), namespace, words, limit)

    async def list(self, namespace: str, after: str, limit: int) -> builtins.list[Remembered]:
        """Values in the order of their keys."""
        return await list_values(await self._shelf.store(), namespace, after, limit)

    async def delete(self, namespace: str, key: str) -> None:
        """Forget a value."""
        await self._shelf.remember(to_delete(namespace, key))


class StoreSchedules(ScheduleBackend):
    """Schedules in a store.

    Args:
        way: the way to it.
        spec_of: finds a workflow by its name. Raises ``UnknownWorkflow``.
    """

    def __init__(self, way: Way, spec_of: Callable[[Store, str], Awaitable[WorkflowSpec]]) -> None:
        self._way = way
        self._spec_of = spec_of

    async def create(self, wanted: WantedSchedule) -> ScheduleInfo:
        """Make one, or find that it is there."""
        store = await self._way.store()
        return await create_schedule(store, wanted, await self._spec_of(store, wanted.workflow))

    async def list(self) -> builtins.list[ScheduleInfo]:
        """All of them."""
        return await read_schedules(await self._way.store())

    async def get(self, name: str) -> ScheduleInfo:
        """One of them."""
        store = await self._way.store()
        found = await find(store, name)
        return await schedule_info(found, await store.get(found.last_run) if found.last_run else None)

    async def pause(self, name: str) -> bool:
        """Keep it from firing."""
        store = await self._way.store()
        await find(store, name)
        return await store.pause_schedule(name)

    async def resume(self, name: str) -> bool:
        """Let it fire again."""
        store = await self._way.store()
        await find(store, name)
        return await store.resume_schedule(name)

    async def delete(self, name: str) -> bool:
        """Forget it."""
        return await (await self._way.store()).delete_schedule(name)

    async def trigger(self, name: str, id: str | None) -> str:
        """Start a run of it now."""
        store = await self._way.store()
        schedule = await find(store, name)
        return await trigger_schedule(store, schedule, await self._spec_of(store, schedule.what.workflow), id)


class StoreQueues(QueueBackend):
    """Queues with limits in a store."""

    def __init__(self, way: Way) -> None:
        self._way = way

    async def list(self) -> builtins.list[QueueInfo]:
        """All of them."""
        return await read_queues(await self._way.store())

    async def get(self, name: str) -> QueueInfo:
        """One of them."""
        store = await self._way.store()
        return QueueInfo.of(await find_queue(store, name), store.now())

    async def set(self, name: str, limits: Mapping[str, Any]) -> bool:
        """Set those of its limits that are given."""
        return await set_limits(await self._way.store(), name, limits)

    async def names(self) -> builtins.list[str]:
        """All that something is known of."""
        return sorted(await names_in_use(await self._way.store()))

    async def reset(self, name: str) -> bool:
        """Let it have the limits that code says."""
        store = await self._way.store()
        await find_queue(store, name)
        return await store.set_queue(name, None)

    async def pause(self, name: str) -> bool:
        """Let nothing of it begin or go on."""
        return await (await self._way.store()).pause_queue(checked_queue_name(name))

    async def resume(self, name: str) -> bool:
        """Let its runs begin again."""
        store = await self._way.store()
        await find_queue(store, name)
        return await store.resume_queue(name)


class StoreAddresses(AddressBackend):
    """Addresses in a store."""

    def __init__(self, way: Way) -> None:
        self._way = way

    async def list(self) -> builtins.list[AddressInfo]:
        """All of them."""
        return await list_addresses(await self._way.store())

    async def set(self, name: str, settings: Mapping[str, Any]) -> AddressInfo:
        """Change those of its settings that are given."""
        return await put_address(await self._way.store(), name, **settings)

    async def delete(self, name: str) -> bool:
        """Forget its settings."""
        return await delete_address(await self._way.store(), name)


class StorePolicies(PolicyBackend):
    """Policies in a store."""

    def __init__(self, way: Way) -> None:
        self._way = way

    async def list(self) -> builtins.list[PolicyInfo]:
        """All of them."""
        return await read_policies(await self._way.store())

    async def set(self, name: str, policy: Policy) -> None:
        """Give somebody a policy."""
        await put_policy(await self._way.store(), name, policy)

    async def delete(self, name: str) -> bool:
        """Take it away."""
        return await delete_policy(await self._way.store(), name)


class StoreKeys(KeyBackend):
    """API keys of a database.

    Args:
        home: the way to its default namespace, where they are kept.
        namespace: the one that new keys are bound to.
    """

    def __init__(self, home: Way, namespace: str) -> None:
        self._home = home
        self._namespace = namespace

    async def create(self, name: str, scopes: Collection[str], expires_at: datetime | None) -> MadeKey:
        """Make one."""
        store = await self._home.store()
        made = await create_key(store, name, scopes, self._namespace, expires_at=expires_at, now=store.now())
        return MadeKey.of(*made)

    async def list(self, namespace: str | None) -> builtins.list[Key]:
        """All of them, or those of a namespace."""
        return await read_keys(await self._home.store(), namespace)

    async def revoke(self, id: str) -> bool:
        """Let one open nothing any more."""
        store = await self._home.store()
        return await revoke_key(store, id, store.now())
