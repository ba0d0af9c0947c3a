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

from holdfast.admission.queue_limits import AnyRate, QueueLimits, checked_queue_name, read_limits
from holdfast.errors import UnknownQueue, UsageError
from holdfast.services.lookup import alike
from holdfast.services.stalls import why_keys_wait, why_nothing_begins
from holdfast.services.timestamps import moment
from holdfast.stores.contract import Store
from holdfast.stores.queues import KeptQueue

if TYPE_CHECKING:
    from holdfast.client.backend import QueueBackend
    from holdfast.client.sync_methods import InSync


class _Unchanged(Enum):
    """The type of ``AS_IT_IS``."""

    AS_IT_IS = "as it is"


AS_IT_IS: Final = _Unchanged.AS_IT_IS
"""A limit that ``set`` leaves alone; ``None`` takes one away."""


# What is told


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """How many runs of one key there are in a queue."""

    key: str
    """Empty: those without a key."""
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """What can be told of a queue with limits."""

    name: str
    limits: str
    """The limits that hold, in words."""
    concurrency: int | None
    """How many of its runs are executed at once; ``None``: any number. As for the next ones."""
    rate: tuple[str, ...]
    """How many of its runs begin, or how many tokens they use, in which time."""
    key_concurrency: int | None
    """Of each key."""
    key_rate: tuple[str, ...]
    by_hand: bool
    """These limits were set by somebody, whatever the code says."""
    declared: str | None
    """The limits that code has announced, in words; ``None``: none has."""
    paused_at: datetime | None
    running: int
    waiting: int
    """Runs that would be taken if it were not for limits and room: neither parked nor delayed nor paused."""
    next_at: datetime | None
    """When its rate lets the next run begin; ``None``: now."""
    held_up: str | None
    """Why nothing begins now, in words: it is paused, full, or its rate is used up; or all that wait are of keys
    without a place. ``None``: it lets runs begin."""
    keys: tuple[KeyInfo, ...]
    """Those with most waiting, twenty at most."""

    @classmethod
    def of(cls, kept: KeptQueue, now: float) -> QueueInfo:
        """What a row tells."""
        limits = kept.limits
        return cls(
            name=kept.name,
            limits=limits.in_words(),
            concurrency=limits.concurrency,
            rate=tuple(map(str, limits.rates)),
            key_concurrency=limits.key_concurrency,
            key_rate=tuple(map(str, limits.key_rates)),
            by_hand=kept.by_hand,
            declared=None if kept.declared is None else kept.declared.in_words(),
            paused_at=moment(kept.paused_at),
            running=kept.running,
            waiting=kept.waiting,
            next_at=moment(kept.next_at) if kept.next_at > now else None,
            held_up=why_nothing_begins(kept, now) or why_keys_wait(kept),
            keys=tuple(KeyInfo(one.key, one.running, one.waiting) for one in kept.keys),
        )


async def read_queues(store: Store, names: Collection[str] | None = None) -> list[QueueInfo]:
    """All queues with limits, or those of these names."""
    found = await store.queues(names)
    now = store.now()
    return [QueueInfo.of(one, now) for one in found]


async def find_queue(store: Store, name: str) -> KeptQueue:
    """The queue of this name. Raises ``UnknownQueue``, which names one like it."""
    found = await store.queues([name])
    if found:
        return found[0]
    known = [one.name for one in await store.queues()]
    raise UnknownQueue(
        f"there is no queue {name!r} with limits in {store.url}: {alike(name, known)} A queue gets limits by code, as "
        f"in @workflow(queue=Queue({name!r}, concurrency=10)), or by hand: `holdfast queues set`"
    )


async def names_in_use(store: Store) -> set[str]:
    """The queues that something is known of: they have limits, or a workflow that was announced has them."""
    specs = await store.specs()
    return {spec.queue for spec in specs.values()} | {one.name for one in await store.queues()}


async def set_limits(store: Store, name: str, given: Mapping[str, Any]) -> bool:
    """Set those limits of a queue that are given; false when they were set to the same before."""
    found = await store.queues([checked_queue_name(name)])
    held = found[0].limits if found else QueueLimits()
    limits = read_limits(
        concurrency=given.get("concurrency", held.concurrency),
        rate=given.get("rate", held.rates or None),
        key_concurrency=given.get("key_concurrency", held.key_concurrency),
        key_rate=given.get("key_rate", held.key_rates or None),
        where=f"queue {name!r}: ",
    )
    return await store.set_queue(name, limits)


class ClientQueues:
    """Queues with limits as a client sees them."""

    def __init__(self, backend: QueueBackend, in_sync: InSync) -> None:
        self._backend = backend
        self._sync = in_sync

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
        concurrency: int | _Unchanged | None = AS_IT_IS,
        rate: AnyRate | _Unchanged | None = AS_IT_IS,
        key_concurrency: int | _Unchanged | None = AS_IT_IS,
        key_rate: AnyRate | _Unchanged | None = AS_IT_IS,
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
        given = {word: limit for word, limit in all_four.items() if limit is not AS_IT_IS}
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

    def list_sync(self) -> builtins.list[QueueInfo]:
        """``list`` without an event loop."""
        return self._sync(self.list())

    def names_sync(self) -> builtins.list[str]:
        """``names`` without an event loop."""
        return self._sync(self.names())

    def get_sync(self, name: str) -> QueueInfo:
        """``get`` without an event loop."""
        return self._sync(self.get(name))

    def set_sync(self, name: str, **limits: Any) -> bool:
        """``set`` without an event loop."""
        return self._sync(self.set(name, **limits))

    def reset_sync(self, name: str) -> bool:
        """``reset`` without an event loop."""
        return self._sync(self.reset(name))

    def pause_sync(self, name: str) -> bool:
        """``pause`` without an event loop."""
        return self._sync(self.pause(name))

    def resume_sync(self, name: str) -> bool:
        """``resume`` without an event loop."""
        return self._sync(self.resume(name))
