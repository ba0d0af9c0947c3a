"""What a client manages besides runs: memory, schedules, queues, addresses, policies, and API keys.

Each class here is what users see. ``store_resources`` and ``http.resources`` implement it.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, Final

from holdfast.admission.calendars import CatchUp, Overlap
from holdfast.admission.durations import Duration
from holdfast.admission.queue_limits import Queue, RateInput
from holdfast.admission.usage import Budget
from holdfast.errors import UsageError
from holdfast.services.addresses import AddressInfo, parse_settings, validate_address_name
from holdfast.services.api_keys import ApiKey, CreatedApiKey
from holdfast.services.memories import AsyncMemory
from holdfast.services.policies import Policy, PolicyInfo, validate_policy
from holdfast.services.queues import QueueInfo
from holdfast.services.schedules import ScheduleInfo, ScheduleRequest
from holdfast.sync_methods import SyncRunner, sync_method


class _Unchanged(Enum):
    """The type of ``UNCHANGED``."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = _Unchanged.UNCHANGED
"""A limit that ``ClientQueues.set`` leaves alone; ``None`` removes one."""


class ClientResource(ABC):  # noqa: B024 - the abstract methods are in the subclasses
    """A part of a client, with methods for code without an event loop."""

    def __init__(self, run_sync: SyncRunner) -> None:
        self._run_sync = run_sync


class ClientMemory(AsyncMemory, ClientResource):
    """Values that outlive runs."""

    put_sync = sync_method(AsyncMemory.put)
    get_sync = sync_method(AsyncMemory.get)
    search_sync = sync_method(AsyncMemory.search)
    list_sync = sync_method(AsyncMemory.list)
    delete_sync = sync_method(AsyncMemory.delete)


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
        return await self._create(request)

    @abstractmethod
    async def _create(self, request: ScheduleRequest) -> ScheduleInfo: ...

    @abstractmethod
    async def list(self) -> builtins.list[ScheduleInfo]:
        """All schedules, ordered by name."""

    @abstractmethod
    async def get(self, name: str) -> ScheduleInfo:
        """One schedule. Raises ``UnknownSchedule``."""

    @abstractmethod
    async def pause(self, name: str) -> bool:
        """Stop a schedule from firing, across restarts and deploys. False when it was already paused."""

    @abstractmethod
    async def resume(self, name: str) -> bool:
        """Let it fire again; ``catch_up`` decides about missed ticks. False when it was not paused."""

    @abstractmethod
    async def delete(self, name: str) -> bool:
        """Delete a schedule and keep its runs. False when there is none.

        A schedule that is declared in code returns when a worker with that code starts.
        """

    @abstractmethod
    async def trigger(self, name: str, *, id: str | None = None) -> str:
        """Start a run of it now, paused or not, in addition to its ticks. Returns the run's id.

        If a run with this ``id`` exists, nothing starts, whatever its state.
        """

    create_sync = sync_method(create)
    list_sync = sync_method(list)
    get_sync = sync_method(get)
    pause_sync = sync_method(pause)
    resume_sync = sync_method(resume)
    delete_sync = sync_method(delete)
    trigger_sync = sync_method(trigger)


class ClientQueues(ClientResource):
    """Queues with limits."""

    @abstractmethod
    async def list(self) -> builtins.list[QueueInfo]:
        """All queues with limits, ordered by name."""

    @abstractmethod
    async def names(self) -> builtins.list[str]:
        """All known queues: those with limits, and those of announced workflows."""

    @abstractmethod
    async def get(self, name: str) -> QueueInfo:
        """One queue. Raises ``UnknownQueue`` if it has no limits."""

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
        return await self._set(name, given)

    @abstractmethod
    async def _set(self, name: str, limits: Mapping[str, Any]) -> bool: ...

    @abstractmethod
    async def reset(self, name: str) -> bool:
        """Return to the limits that code declares, if any. False when none were overridden."""

    @abstractmethod
    async def pause(self, name: str) -> bool:
        """Let no run of a queue begin or continue until it is resumed; runs that are executing are not affected.

        It stays paused across restarts and deploys. False when it was already paused.
        """

    @abstractmethod
    async def resume(self, name: str) -> bool:
        """Let its runs begin again. False when it was not paused."""

    list_sync = sync_method(list)
    names_sync = sync_method(names)
    get_sync = sync_method(get)
    set_sync = sync_method(set)
    reset_sync = sync_method(reset)
    pause_sync = sync_method(pause)
    resume_sync = sync_method(resume)


class ClientAddresses(ClientResource):
    """The addresses that work is sent to."""

    @abstractmethod
    async def list(self) -> builtins.list[AddressInfo]:
        """All addresses with their settings, ordered by name."""

    async def set(self, name: str, **settings: Any) -> AddressInfo:
        """Change settings of an address, or declare it with them. Other settings stay as they are.

        Args:
            name: the address.
            settings: ``max_deliveries``, ``deadline`` (a duration or ``None``), ``lease``, and ``webhook_timeout``
                (durations): see ``AddressInfo``.
        """
        return await self._set(validate_address_name(name), parse_settings(name, settings))

    @abstractmethod
    async def _set(self, name: str, settings: Mapping[str, Any]) -> AddressInfo: ...

    @abstractmethod
    async def delete(self, name: str) -> bool:
        """Delete its settings and its webhook. Its runs stay, and it returns when it is used again."""

    list_sync = sync_method(list)
    set_sync = sync_method(set)
    delete_sync = sync_method(delete)


class ClientPolicies(ClientResource):
    """Daily limits of agents, workflows, and addresses. A day is a day of UTC."""

    @abstractmethod
    async def list(self) -> builtins.list[PolicyInfo]:
        """All policies with today's figures, ordered by name."""

    async def set(self, name: str, policy: Policy) -> None:
        """Set the policy of an agent, a workflow, or an address."""
        await self._set(name, validate_policy(name, policy))

    @abstractmethod
    async def _set(self, name: str, policy: Policy) -> None: ...

    @abstractmethod
    async def delete(self, name: str) -> bool:
        """Delete a policy and enable what it disabled for the day. False when there was none."""

    list_sync = sync_method(list)
    set_sync = sync_method(set)
    delete_sync = sync_method(delete)


class ClientKeys(ClientResource):
    """API keys of a database; over a server, those of the caller's namespace."""

    @abstractmethod
    async def create(self, name: str, scopes: Collection[str], *, expires_at: datetime | None = None) -> CreatedApiKey:
        """Create a key for the client's namespace. Its ``token`` is returned only here: the store keeps a hash.

        Args:
            name: a name for people.
            scopes: of ``read``, ``submit``, ``operate``, ``admin``, ``listen:<address>``, and ``listen:*``.
            expires_at: when it stops working (a time with a time zone); default: never.
        """

    @abstractmethod
    async def list(self, namespace: str | None = None) -> builtins.list[ApiKey]:
        """All keys, or those of a namespace, oldest first, including revoked and expired ones."""

    @abstractmethod
    async def revoke(self, id: str) -> bool:
        """Revoke a key. False when it was already revoked. Raises ``UnknownApiKey``."""

    create_sync = sync_method(create)
    list_sync = sync_method(list)
    revoke_sync = sync_method(revoke)
