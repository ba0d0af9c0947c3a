"""Queues with limits as clients use them: reading them, and setting their limits. None of this needs a worker.

``admission.queue_limits`` describes what the limits mean. A queue without limits is only a name: the store does not
know it.
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
    """The number of runs with one key in a queue."""

    key: str
    """Empty for runs without a key."""
    running_count: int
    waiting_count: int


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue with limits, and what is in it."""

    name: str
    limits_text: str
    """The limits in effect, in words."""
    concurrency: int | None
    """Maximum number of its runs executed at once; ``None``: no limit."""
    rate: tuple[str, ...]
    """How many of its runs may start, or how many tokens they may use, in which time."""
    key_concurrency: int | None
    """The same for each key."""
    key_rate: tuple[str, ...]
    is_overridden: bool
    """The limits were set by hand, and override those in code."""
    declared_limits: str | None
    """The limits that code declares, in words, if it declares any."""
    paused_at: UtcDatetime | None
    running_count: int
    waiting_count: int
    """Runs that are due: neither parked, delayed, nor paused."""
    next_start_at: UtcDatetime | None
    """When its rate lets the next run start; ``None``: now."""
    blocked_reason: str | None
    """Why no run starts now: it is paused, it is full, its rate is used up, or the keys of all waiting runs are full.
    ``None``: runs can start."""
    keys: tuple[QueueKeyInfo, ...]
    """At most 20 keys, those with the most waiting runs first."""

    @classmethod
    def from_row(cls, row: QueueStatus, now: float) -> QueueInfo:
        """The queue in a row."""
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
    """All queues with limits, or those with these names."""
    found = await store.queues.list(names)
    now = store.now()
    return [QueueInfo.from_row(one, now) for one in found]


async def find_queue(store: Store, name: str) -> QueueStatus:
    """The queue with this name. Raises ``UnknownQueue``, which suggests a similar name."""
    found = await store.queues.list([name])
    if found:
        return found[0]
    known = [one.name for one in await store.queues.list()]
    raise UnknownQueue(
        f"there is no queue {name!r} with limits in {store.url}: {suggest_name(name, known)} A queue gets limits by "
        f"code, as in @workflow(queue=Queue({name!r}, concurrency=10)), or by hand: `holdfast queues set`"
    )


async def list_queue_names(store: Store) -> set[str]:
    """The names of queues that have limits or belong to an announced workflow."""
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
    """Set the given limits of a queue; false if they were set to the same before."""
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
