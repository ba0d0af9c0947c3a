"""Queues with limits from outside: looking at them, and setting their limits by hand.

What the limits mean is told in ``admission.queue_limits``; a client needs no worker for any of this. A queue that
nobody has given limits is only a name: the store knows nothing of it, and it cannot be looked at.
"""

from __future__ import annotations

import builtins
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from holdfast.admission.queue_limits import QueueLimits, RateInput, parse_limits, validate_queue_name
from holdfast.errors import UnknownQueue, UsageError
from holdfast.services.lookup import suggest_name
from holdfast.services.stalls import explain_blocked_keys, explain_blocked_queue
from holdfast.services.timestamps import to_datetime
from holdfast.stores.contract import Store
from holdfast.stores.queues import QueueStatus
from holdfast.sync_methods import SyncRunner, sync_method

if TYPE_CHECKING:
    from holdfast.client.backend import QueueBackend


class _Unchanged(Enum):
    """The type of ``UNCHANGED``."""

    UNCHANGED = "as it is"


UNCHANGED: Final = _Unchanged.UNCHANGED
"""A limit that ``set`` leaves alone; ``None`` takes one away."""


# What is told


@dataclass(frozen=True, slots=True)
class QueueKeyInfo:
    """How many runs of one key there are in a queue."""

    key: str
    """Empty: those without a key."""
    running_count: int
    waiting_count: int


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """What can be told of a queue with limits."""

    name: str
    limits_text: str
    """The limits that hold, in words."""
    concurrency: int | None
    """How many of its runs are executed at once; ``None``: any number. As for the next ones."""
    rate: tuple[str, ...]
    """How many of its runs begin, or how many tokens they use, in which time."""
    key_concurrency: int | None
    """Of each key."""
    key_rate: tuple[str, ...]
    is_overridden: bool
    """These limits were set by somebody, whatever the code says."""
    declared_limits: str | None
    """The limits that code has announced, in words; ``None``: none has."""
    paused_at: datetime | None
    running_count: int
    waiting_count: int
    """Runs that would be taken if it were not for limits and room: neither parked nor delayed nor paused."""
    next_start_at: datetime | None
    """When its rate lets the next run begin; ``None``: now."""
    blocked_reason: str | None
    """Why nothing begins now, in words: it is paused, full, or its rate is used up; or all that wait are of keys
    without a place. ``None``: it lets runs begin."""
    keys: tuple[QueueKeyInfo, ...]
    """Those with most waiting, twenty at most."""

    @classmethod
    def from_row(cls, row: QueueStatus, now: float) -> QueueInfo:
        """What a row tells."""
        limits = row.limits
        return cls(
            name=row.name,
            limits_text=limits.describe(),
            concurrency=limits.concurrency,
            rate=tuple(map(str, limits.rates)),
            key_concurrency=limits.key_concurrency,
            key_rate=tuple(map(str, limits.key_rates)),
            is_overridden=row.is_overridden,
            declared_limits=None if row.declared_limits is None else row.declared_limits.describe(),
            paused_at=to_datetime(row.paused_at),
            running_count=row.running_count,
            waiting_count=row.waiting_count,
            next_start_at=to_datetime(row.next_start_at) if row.next_start_at > now else None,
            blocked_reason=explain_blocked_queue(row, now) or explain_blocked_keys(row),
            keys=tuple(QueueKeyInfo(one.key, one.running_count, one.waiting_count) for one in row.keys),
        )


async def list_queues(store: Store, names: Collection[str] | None = None) -> list[QueueInfo]:
    """All queues with limits, or those of these names."""
    found = await store.queues.list(names)
    now = store.now()
    return [QueueInfo.from_row(one, now) for one in found]


async def find_queue(store: Store, name: str) -> QueueStatus:
    """The queue of this name. Raises ``UnknownQueue``, which names one like it."""
    found = await store.queues.list([name])
    if found:
        return found[0]
    known = [one.name for one in await store.queues.list()]
    raise UnknownQueue(
        f"there is no queue {name!r} with limits in {store.url}: {suggest_name(name, known)} A queue gets limits by "
        "code, as "
        f"in @workflow(queue=Queue({name!r}, concurrency=10)), or by hand: `holdfast queues set`"
    )


async def list_queue_names(store: Store) -> set[str]:
    """The queues that something is known of: they have limits, or a workflow that was announced has them."""
    specs = await store.get_workflow_specs()
    return {spec.queue for spec in specs.values()} | {one.name for one in await store.queues.list()}


async def set_limits(store: Store, name: str, changes: Mapping[str, Any]) -> bool:
    """Set those limits of a queue that are given; false when they were set to the same before."""
    found = await store.queues.list([validate_queue_name(name)])
    held = found[0].limits if found else QueueLimits()
    limits = parse_limits(
        concurrency=changes.get("concurrency", held.concurrency),
        rate=changes.get("rate", held.rates or None),
        key_concurrency=changes.get("key_concurrency", held.key_concurrency),
        key_rate=changes.get("key_rate", held.key_rates or None),
        error_prefix=f"queue {name!r}: ",
    )
    return await store.queues.set_limits(name, limits)


class ClientQueues:
    """Queues with limits as a client sees them."""

    def __init__(self, backend: QueueBackend, run_sync: SyncRunner) -> None:
        self._backend = backend
        self._run_sync = run_sync

    async def list(self) -> builtins.list[QueueInfo]:
        """All queues with limits, in the order of their names."""
        return await self._backend.list()

    async def names(self) -> builtins.list[str]:
        """All queues that something is known of: they have limits, or a workflow that was announced has them."""
        return await self._backend.names()

    async def get(self, name: str) -> QueueInfo:
        """One queue. Raises ``UnknownQueue`` if it has no limits."""
        return await self._backend.get(name)

    async def set(
        self,
        name: str,
        *,
        concurrency: int | _Unchanged | None = UNCHANGED,
        rate: RateInput | _Unchanged | None = UNCHANGED,
        key_concurrency: int | _Unchanged | None = UNCHANGED,
        key_rate: RateInput | _Unchanged | None = UNCHANGED,
    ) -> bool:
        """Set limits of a queue by hand, for all workers and at once. They stay until ``reset``, whatever code says.

        Only what is given changes; ``None`` takes a limit away. A queue that has no limits yet gets some. False when
        they were set to the same before.

        Args:
            name: the queue.
            concurrency: how many of its runs are executed at once.
            rate: how many begin, or how many tokens they use: ``"100/min"``, ``"50000 tokens/min"``, or a list.
            key_concurrency: how many of each key are executed at once.
            key_rate: a rate for each key.
        """
        all_four = {
            "concurrency": concurrency,
            "rate": rate,
            "key_concurrency": key_concurrency,
            "key_rate": key_rate,
        }
        given = {word: limit for word, limit in all_four.items() if limit is not UNCHANGED}
        if not given:
            raise UsageError(
                f"queue {name!r}: what is to be set? Give concurrency=, rate=, key_concurrency= or key_rate=; None "
                f"takes a limit away"
            )
        return await self._backend.set(name, given)

    async def reset(self, name: str) -> bool:
        """Let a queue have the limits that code says, or none if it says nothing; false when none were set by hand."""
        return await self._backend.reset(name)

    async def pause(self, name: str) -> bool:
        """Let no run of a queue begin or go on until it is resumed; those that are being executed are left alone.

        It stays paused over restarts and deploys. False when it was paused before.
        """
        return await self._backend.pause(name)

    async def resume(self, name: str) -> bool:
        """Let its runs begin again; false when it was not paused."""
        return await self._backend.resume(name)

    # The same, for code without an event loop

    list_sync = sync_method(list)
    names_sync = sync_method(names)
    get_sync = sync_method(get)
    set_sync = sync_method(set)
    reset_sync = sync_method(reset)
    pause_sync = sync_method(pause)
    resume_sync = sync_method(resume)
