"""Queues with limits from outside: looking at them, and setting their limits by hand.

What the limits mean is told in ``admission.queue_limits``; a client needs no worker for any of this. A queue that
nobody has given limits is only a name: the store knows nothing of it, and it cannot be looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.admission.queue_limits import QueueLimits, parse_limits, validate_queue_name
from holdfast.core.states import UNFINISHED_STATES
from holdfast.errors import UnknownQueue
from holdfast.services.json_form import UtcDatetime
from holdfast.services.lookup import suggest_name
from holdfast.services.stalls import explain_blocked_keys, explain_blocked_queue
from holdfast.services.timestamps import to_datetime
from holdfast.stores.contract import RunFilter, Store
from holdfast.stores.queues import QueueStatus

MAX_RUNS_SCANNED = 1000
"""Unfinished runs that are searched for the name of a queue that nothing else has."""


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
    paused_at: UtcDatetime | None
    running_count: int
    waiting_count: int
    """Runs that would be taken if it were not for limits and room: neither parked nor delayed nor paused."""
    next_start_at: UtcDatetime | None
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


async def pause_queue(store: Store, name: str, *, allow_unknown: bool = False) -> bool:
    """Pause a queue. False when it was paused before. Raises ``UnknownQueue`` if nothing in the store has this name.

    ``allow_unknown`` accepts a name that no worker has announced yet.
    """
    if not allow_unknown:
        await _check_known(store, name)
    return await store.queues.pause(name)


async def _check_known(store: Store, name: str) -> None:
    """Raise ``UnknownQueue`` unless a workflow, a limit, a worker, or an unfinished run has the queue."""
    known = await list_queue_names(store)
    known |= {queue for worker in await store.list_workers() for queue in worker.queues or ()}
    if name in known:
        return
    runs = await store.list_runs(RunFilter(states=UNFINISHED_STATES), limit=MAX_RUNS_SCANNED)
    known |= {run.queue for run in runs}
    if name not in known:
        raise UnknownQueue(
            f"there is no queue {name!r} in {store.url}, so nothing changed: {suggest_name(name, sorted(known))} To "
            f"pause a queue before anything uses it: queues.pause({name!r}, allow_unknown=True), or `holdfast queues "
            f"pause {name} --allow-unknown`"
        )


async def set_limits(store: Store, name: str, changes: Mapping[str, Any]) -> bool:
    """Set those limits of a queue that are given; false when they were set to the same before."""
    found = await store.queues.list([validate_queue_name(name)])
    return await store.queues.set_limits(name, check_limits(name, changes, found[0].limits if found else None))


def check_limits(name: str, changes: Mapping[str, Any], current: QueueLimits | None = None) -> QueueLimits:
    """The limits of a queue after some of them change. Raises ``UsageError``."""
    current = current or QueueLimits()
    return parse_limits(
        concurrency=changes.get("concurrency", current.concurrency),
        rate=changes.get("rate", current.rates or None),
        key_concurrency=changes.get("key_concurrency", current.key_concurrency),
        key_rate=changes.get("key_rate", current.key_rates or None),
        error_prefix=f"queue {name!r}: ",
    )
