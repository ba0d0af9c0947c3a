"""What tests of limited queues have in common."""

from __future__ import annotations

from typing import Any

from store_values import CLAIM_FILTER, new_worker, start_run

from holdfast.admission.queue_limits import QueueLimits
from holdfast.admission.rates import Rate
from holdfast.stores.contract import Store
from holdfast.stores.queues import NewQueue, QueueStatus

QUEUE = "llm"


def make_limits(
    concurrency: int | None = None, *rates: str, key_concurrency: int | None = None, key_rates: tuple[str, ...] = ()
) -> QueueLimits:
    return QueueLimits(concurrency, tuple(map(Rate.parse, rates)), key_concurrency, tuple(map(Rate.parse, key_rates)))


async def declare_limited_queue(
    store: Store, concurrency: int | None = None, *rates: str, name: str = QUEUE, **more: Any
) -> int:
    """Announce a queue, and register a worker that serves it."""
    await store.queues.declare([NewQueue(name, make_limits(concurrency, *rates, **more))])
    return await store.workers.register(new_worker(), 1e6)


async def start_queued_runs(store: Store, *names: str, **fields: Any) -> None:
    """Start runs. The part of a name before a slash is the run's key: ``acme/1``."""
    for name in names:
        key = name.partition("/")[0] if "/" in name else ""
        await start_run(store, name, **{"queue": QUEUE, "queue_key": key, **fields})


async def claim_ids(store: Store, worker: int, limit: int = 99, **which: Any) -> list[str]:
    """The ids of the runs that a claim takes, in order."""
    return [run.id for run in await store.claims.claim(worker, **{**CLAIM_FILTER, **which}, limit=limit)]


async def get_next_wake(store: Store, **which: Any) -> float | None:
    """When something is due; now, if that is past."""
    at = await store.claims.get_next_wake_at(**{**CLAIM_FILTER, **which})
    return None if at is None else max(at, store.now())


async def get_queue(store: Store, name: str = QUEUE) -> QueueStatus:
    [queue] = await store.queues.list([name])
    return queue
