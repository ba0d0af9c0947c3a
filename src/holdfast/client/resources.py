"""What a client manages besides runs: memory, schedules, queues, addresses, policies, and API keys.

Here they are in a store; ``http.resources`` overrides every operation with a request to a Holdfast server.
"""

from __future__ import annotations

import builtins
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, Final, TypeVar, overload

from typing_extensions import override

from holdfast.admission.calendars import CatchUp, Overlap
from holdfast.admission.durations import Duration
from holdfast.admission.queue_limits import Queue, RateInput, validate_queue_name
from holdfast.admission.usage import Budget
from holdfast.codec import DEFAULT_MAX_VALUE_BYTES
from holdfast.errors import UsageError
from holdfast.services import addresses, api_keys, memories, policies, queues, schedules
from holdfast.services.addresses import AddressInfo, parse_settings, validate_address
from holdfast.services.api_keys import ApiKey, CreatedApiKey
from holdfast.services.memories import AsyncMemory, MemoryEntry
from holdfast.services.policies import Policy, PolicyInfo, validate_policy
from holdfast.services.queues import QueueInfo
from holdfast.services.run_start import find_spec
from holdfast.services.schedules import ScheduleInfo, ScheduleRequest
from holdfast.services.store_provider import StoreProvider
from holdfast.sync_methods import SyncRunner, sync_method

T = TypeVar("T")


class _Unchanged(Enum):
    """The type of ``UNCHANGED``."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = _Unchanged.UNCHANGED
"""A limit that ``ClientQueues.set`` leaves alone; ``None`` removes one."""


class ClientResource:
    """A part of a client, with methods for code without an event loop.

    Args:
        provider: gives access to the store.
        run_sync: runs methods without an event loop.
    """

    def __init__(self, provider: StoreProvider, run_sync: SyncRunner) -> None:
        self._provider = provider
        self._run_sync = run_sync


class ClientMemory(ClientResource, AsyncMemory):
    """Values that outlive runs."""

    def __init__(self, provider: StoreProvider, run_sync: SyncRunner, max_value: int = DEFAULT_MAX_VALUE_BYTES) -> None:
        super().__init__(provider, run_sync)
        self._max_value = max_value

    @override
    async def put(self, namespace: str, key: str, value: Any, *, text: str | None = None) -> None:
        now = (await self._provider.created_store()).now()
        await self._provider.change_memory(memories.build_put(namespace, key, value, text, now, self._max_value))

    @overload
    async def get(self, namespace: str, key: str, default: Any = None) -> Any: ...
    @overload
    async def get(self, namespace: str, key: str, default: T | None = None, *, type: type[T]) -> T | None: ...
    @override
    async def get(self, namespace: str, key: str, default: Any = None, *, type: Any = Any) -> Any:
        return await memories.read_value(await self._provider.store(), namespace, key, default, type)

    async def get_entry(self, namespace: str, key: str) -> MemoryEntry | None:
        """The value under a key, with the times at which it was created and last changed."""
        return await memories.find_entry(await self._provider.store(), namespace, key)

    @override
    async def search(self, namespace: str, query: str, *, limit: int = 10) -> builtins.list[MemoryEntry]:
        return await memories.search_values(await self._provider.store(), namespace, query, limit)

    @override
    async def list(self, namespace: str, *, after: str = "", limit: int = 100) -> builtins.list[MemoryEntry]:
        return await memories.list_values(await self._provider.store(), namespace, after, limit)

    @override
    async def delete(self, namespace: str, key: str) -> None:
        await self._provider.change_memory(memories.build_delete(namespace, key))

    async def namespaces(self, prefix: str = "", *, after: str = "", limit: int = 100) -> builtins.list[str]:
        """Namespaces that have values and begin with ``prefix``, in order, starting after ``after``."""
        return await memories.list_namespaces(await self._provider.store(), prefix, after, limit)

    put_sync = sync_method(put)
    get_sync = sync_method(get)
    get_entry_sync = sync_method(get_entry)
    search_sync = sync_method(search)
    list_sync = sync_method(list)
    delete_sync = sync_method(delete)
    namespaces_sync = sync_method(namespaces)


class ClientSchedules(ClientResource):
    """Workflows that start at set times."""

    async def create(
        self,
        name: str,
        workflow: str,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        zone: str | None = None,
        start: datetime | float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        catch_up: CatchUp = "last",
        max_catch_up: int = 100,
        overlap: Overlap = "allow",
        queue: str | Queue | None = None,
        key: str | int | None = None,
        priority: int = 0,
        tags: Collection[str] = (),
        budget: Budget | None = None,
        max_deliveries: int | None = None,
        replace: bool = False,
    ) -> ScheduleInfo:
        """Start a workflow again and again. Nothing changes if the same schedule exists.

        Args:
            name: the schedule's name; the ids of its runs begin with it.
            workflow: the workflow's name. A worker must have announced it.
            cron: when, as a cron expression of five fields (or six, with seconds first).
            every: when, as an interval: seconds, a ``timedelta``, or words such as ``15 min``.
            zone: the time zone of a cron expression; default: UTC.
            start: when an interval begins to count.
            args: the inputs of each run.
            kwargs: the inputs of each run, by name.
            catch_up: what happens to ticks that were missed because no worker was running or the schedule was paused:
                ``skip`` fires none of them, ``last`` the newest, ``all`` each.
            max_catch_up: maximum number of missed ticks that fire at once; the newest do.
            overlap: ``skip`` starts nothing while the previous run is unfinished.
            queue: the queue of its runs, by name or as a ``Queue`` with limits; default: the workflow's.
            key: the key of its runs in their queue; default: what the queue's template says.
            priority: of its runs.
            tags: of its runs, in addition to ``schedule:NAME``.
            budget: what each run may use; default: the workflow's budget.
            max_deliveries: see ``Client.options``.
            replace: change the schedule that has this name; if it is paused, it stays paused.
        """
        request = ScheduleRequest(
            name,
            workflow,
            cron=cron,
            every=every,
            zone=zone,
            start=start,
            args=args,
            kwargs=kwargs,
            catch_up=catch_up,
            max_catch_up=max_catch_up,
            overlap=overlap,
            queue=queue,
            key=key,
            priority=priority,
            tags=tags,
            budget=budget,
            max_deliveries=max_deliveries,
            replace=replace,
        )
        schedules.check_request(request)
        return await self._create(request)

    async def _create(self, request: ScheduleRequest) -> ScheduleInfo:
        store = await self._provider.created_store()
        return await schedules.create_schedule(store, request, await find_spec(store, request.workflow))

    async def list(self) -> builtins.list[ScheduleInfo]:
        """All schedules, ordered by name."""
        return await schedules.list_schedules(await self._provider.store())

    async def get(self, name: str) -> ScheduleInfo:
        """One schedule. Raises ``UnknownSchedule``."""
        store = await self._provider.store()
        found = await schedules.find_schedule(store, name)
        last_run = await store.get_run(found.last_run) if found.last_run else None
        return await schedules.build_schedule_info(found, last_run)

    async def pause(self, name: str) -> bool:
        """Stop a schedule from firing, across restarts and deploys. False when it was already paused."""
        store = await self._provider.store()
        await schedules.find_schedule(store, name)
        return await store.schedules.pause(name)

    async def resume(self, name: str) -> bool:
        """Let it fire again; ``catch_up`` decides about missed ticks. False when it was not paused."""
        store = await self._provider.store()
        await schedules.find_schedule(store, name)
        return await store.schedules.resume(name)

    async def delete(self, name: str) -> bool:
        """Delete a schedule and keep its runs. False when there is none.

        A schedule that is declared in code returns when a worker with that code starts.
        """
        return await (await self._provider.store()).schedules.delete(name)

    async def trigger(self, name: str, *, id: str | None = None) -> str:
        """Start a run of it now, paused or not, in addition to its ticks. Returns the run's id.

        If a run with this ``id`` exists, nothing starts, whatever its state.
        """
        store = await self._provider.store()
        schedule = await schedules.find_schedule(store, name)
        spec = await find_spec(store, schedule.definition.workflow)
        return await schedules.trigger_schedule(store, schedule, spec, id)

    create_sync = sync_method(create)
    list_sync = sync_method(list)
    get_sync = sync_method(get)
    pause_sync = sync_method(pause)
    resume_sync = sync_method(resume)
    delete_sync = sync_method(delete)
    trigger_sync = sync_method(trigger)


class ClientQueues(ClientResource):
    """Queues with limits."""

    async def list(self) -> builtins.list[QueueInfo]:
        """All queues with limits, ordered by name."""
        return await queues.list_queues(await self._provider.store())

    async def names(self) -> builtins.list[str]:
        """All known queues: those with limits, and those of announced workflows."""
        return sorted(await queues.list_queue_names(await self._provider.store()))

    async def get(self, name: str) -> QueueInfo:
        """One queue. Raises ``UnknownQueue`` if it has no limits."""
        store = await self._provider.store()
        return QueueInfo.from_row(await queues.find_queue(store, name), store.now())

    async def set(
        self,
        name: str,
        *,
        concurrency: int | _Unchanged | None = UNCHANGED,
        rate: RateInput | _Unchanged | None = UNCHANGED,
        key_concurrency: int | _Unchanged | None = UNCHANGED,
        key_rate: RateInput | _Unchanged | None = UNCHANGED,
    ) -> bool:
        """Override limits of a queue for all workers, at once and until ``reset``, whatever code declares.

        Only the given limits change; ``None`` removes one. False when they were already overridden like this.

        Args:
            name: the queue.
            concurrency: how many of its runs execute at once.
            rate: how many runs begin, or how many tokens they use: ``"100/min"``, ``"50000 tokens/min"``, or a list.
            key_concurrency: how many runs of each key execute at once.
            key_rate: a rate for each key.
        """
        limits = {"concurrency": concurrency, "rate": rate, "key_concurrency": key_concurrency, "key_rate": key_rate}
        given = {name: limit for name, limit in limits.items() if limit is not UNCHANGED}
        if not given:
            raise UsageError(
                f"queue {name!r}: what is to be set? Give concurrency=, rate=, key_concurrency= or key_rate=; None "
                f"takes a limit away"
            )
        queues.check_limits(name, given)
        return await self._set(name, given)

    async def _set(self, name: str, limits: Mapping[str, Any]) -> bool:
        return await queues.set_limits(await self._provider.created_store(), name, limits)

    async def reset(self, name: str) -> bool:
        """Return to the limits that code declares, if any. False when none were overridden."""
        store = await self._provider.store()
        await queues.find_queue(store, name)
        return await store.queues.set_limits(name, None)

    async def pause(self, name: str, *, allow_unknown: bool = False) -> bool:
        """Let no run of a queue begin or continue until it is resumed; runs that are executing are not affected.

        It stays paused across restarts and deploys. False when it was already paused. Raises ``UnknownQueue``, unless
        you ``allow_unknown`` names: for a queue that no worker has announced yet.
        """
        validate_queue_name(name)
        store = await (self._provider.created_store() if allow_unknown else self._provider.store())
        return await queues.pause_queue(store, name, allow_unknown=allow_unknown)

    async def resume(self, name: str) -> bool:
        """Let its runs begin again. False when it was not paused."""
        store = await self._provider.store()
        await queues.find_queue(store, name)
        return await store.queues.resume(name)

    list_sync = sync_method(list)
    names_sync = sync_method(names)
    get_sync = sync_method(get)
    set_sync = sync_method(set)
    reset_sync = sync_method(reset)
    pause_sync = sync_method(pause)
    resume_sync = sync_method(resume)


class ClientAddresses(ClientResource):
    """The addresses that work is sent to."""

    async def list(self) -> builtins.list[AddressInfo]:
        """All addresses with their settings, ordered by name."""
        return await addresses.list_addresses(await self._provider.store())

    async def set(self, name: str, **settings: Any) -> AddressInfo:
        """Change settings of an address, or declare it with them. Other settings stay as they are.

        Args:
            name: the address.
            settings: ``max_deliveries``, ``deadline`` (a duration or ``None``), ``lease``, and ``webhook_timeout``
                (durations): see ``AddressInfo``.
        """
        changes = parse_settings(name, settings)
        validate_address(AddressInfo(name, **changes))  # the same error over a server
        return await self._set(name, changes)

    async def _set(self, name: str, settings: Mapping[str, Any]) -> AddressInfo:
        return await addresses.put_address(await self._provider.created_store(), name, **settings)

    async def delete(self, name: str) -> bool:
        """Delete its settings and its webhook. Its runs stay, and it returns when it is used again."""
        return await addresses.delete_address(await self._provider.store(), name)

    list_sync = sync_method(list)
    set_sync = sync_method(set)
    delete_sync = sync_method(delete)


class ClientPolicies(ClientResource):
    """Daily limits of agents, workflows, and addresses. A day is a day of UTC."""

    async def list(self) -> builtins.list[PolicyInfo]:
        """All policies with today's figures, ordered by name."""
        return await policies.list_policy_infos(await self._provider.store())

    async def set(self, name: str, policy: Policy) -> None:
        """Set the policy of an agent, a workflow, or an address."""
        await self._set(name, validate_policy(name, policy))

    async def _set(self, name: str, policy: Policy) -> None:
        await policies.put_policy(await self._provider.created_store(), name, policy)

    async def delete(self, name: str) -> bool:
        """Delete a policy and enable what it disabled for the day. False when there was none."""
        return await policies.delete_policy(await self._provider.store(), name)

    list_sync = sync_method(list)
    set_sync = sync_method(set)
    delete_sync = sync_method(delete)


class ClientKeys(ClientResource):
    """API keys of a database; over a server, those of the caller's namespace.

    Args:
        provider: gives access to the default namespace of the database, which holds the keys.
        run_sync: runs methods without an event loop.
        namespace: the namespace of new keys.
    """

    def __init__(self, provider: StoreProvider, run_sync: SyncRunner, namespace: str) -> None:
        super().__init__(provider, run_sync)
        self._namespace = namespace

    async def create(self, name: str, scopes: Collection[str], *, expires_at: datetime | None = None) -> CreatedApiKey:
        """Create a key for the client's namespace. Its ``token`` is returned only here: the store keeps a hash.

        Args:
            name: a name for people.
            scopes: of ``read``, ``submit``, ``operate``, ``admin``, ``listen:<address>``, and ``listen:*``.
            expires_at: when it stops working (a time with a time zone); default: never.
        """
        store = await self._provider.created_store()
        created = await api_keys.create_key(
            store, name, scopes, self._namespace, expires_at=expires_at, now=store.now()
        )
        return CreatedApiKey.from_key(*created)

    async def list(self, namespace: str | None = None) -> builtins.list[ApiKey]:
        """All keys, or those of a namespace, oldest first, including revoked and expired ones."""
        return await api_keys.list_keys(await self._provider.store(), namespace)

    async def revoke(self, id: str) -> bool:
        """Revoke a key. False when it was already revoked. Raises ``UnknownApiKey``."""
        store = await self._provider.store()
        return await api_keys.revoke_key(store, id, store.now())

    create_sync = sync_method(create)
    list_sync = sync_method(list)
    revoke_sync = sync_method(revoke)
