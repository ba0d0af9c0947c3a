"""The overview of a namespace, for readers that show it and refresh it when something changes.

There may be many readers, and the overview is not cheap. So it is read once for all readers of a namespace, at most
once a second, and only if something may have changed. A store does not report what was written through itself, so the
server calls ``notify`` after each request that changes something.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, Field

from holdfast.background_tasks import keep_running
from holdfast.core.states import RunState
from holdfast.errors import StoreUnavailable, UsageError
from holdfast.services.health import MAX_COUNTED_RUNS
from holdfast.services.stalls import is_alive
from holdfast.stores.approvals import ApprovalFilter
from holdfast.stores.change_feed import ALL_RUNS, Subscription
from holdfast.stores.contract import Store

if TYPE_CHECKING:
    from holdfast.server.tenants import Tenant

log = logging.getLogger("holdfast.server")

MIN_INTERVAL_S = 1.0
"""Minimum seconds between two overviews."""
POLL_INTERVAL_S = 5.0
"""Seconds after which the overview is read even if the store reports no change: a dying worker writes nothing."""
MAX_COUNTED_APPROVALS = 1000


class CappedCount(BaseModel):
    """How many there are."""

    count: int
    has_more: Annotated[bool, Field(description="There may be more: not all of them were counted.")] = False


class Overview(BaseModel):
    """How everything is, in a few numbers."""

    runs: Annotated[
        dict[RunState, CappedCount],
        Field(description=f"By state; those that have ended are counted up to {MAX_COUNTED_RUNS:,} for each workflow."),
    ]
    approvals: Annotated[
        int, Field(description=f"Questions that wait for an answer; counted up to {MAX_COUNTED_APPROVALS}.")
    ]
    dead: Annotated[int, Field(description="Runs whose workers died too often.")]
    workers: Annotated[int, Field(description="Live ones.")]
    disabled: Annotated[list[str], Field(description="Disabled agents and workflows.")]


async def read_overview(store: Store) -> Overview:
    """The overview of a namespace now."""
    runs: Counter[RunState] = Counter()
    capped: set[RunState] = set()
    for (_, state), count in (await store.count_runs(MAX_COUNTED_RUNS)).items():
        runs[state] += count
        if state.is_terminal and count >= MAX_COUNTED_RUNS:
            capped.add(state)
    workers = await store.list_workers()
    return Overview(
        runs={state: CappedCount(count=runs[state], has_more=state in capped) for state in RunState},
        approvals=len(await store.list_approvals(ApprovalFilter(), MAX_COUNTED_APPROVALS)),
        dead=runs[RunState.DEAD],
        workers=sum(is_alive(worker, store.now()) for worker in workers),
        disabled=sorted(await store.disabled_workflows.get_all()),
    )


class OverviewFeed:
    """The overview of one namespace, read for as long as it has readers."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant
        self._reader: _OverviewReader | None = None

    def notify(self) -> None:
        """Something was written through this server."""
        if self._reader is not None:
            self._reader.notify()

    async def follow(self) -> AsyncGenerator[Overview]:
        """The overview, at once and whenever something has changed."""
        if self._reader is None or self._reader.has_ended:
            self._reader = _OverviewReader(self._tenant)
        reader = self._reader
        reader.follower_count += 1
        try:
            async for overview in reader.follow():
                yield overview
        finally:
            reader.follower_count -= 1
            if not reader.follower_count:
                reader.stop()
                if self._reader is reader:
                    self._reader = None


class _OverviewReader:
    """Reads the overview for its followers, from the first one's arrival until the last one leaves."""

    def __init__(self, tenant: Tenant) -> None:
        self.follower_count = 0
        self._tenant = tenant
        self._subscription: Subscription | None = None
        self._latest: tuple[int, Overview] | None = None
        """The number of the latest overview, and the overview."""
        loop = asyncio.get_running_loop()
        self._next_update: asyncio.Future[None] = loop.create_future()
        """Done when there is a new overview, or there will be none."""
        description = f"namespace {tenant.namespace!r}: looking for changes"
        self._task = loop.create_task(keep_running(self._watch, description, log, stop_on=UsageError))
        self._task.add_done_callback(lambda _: self._next_update.set_result(None))

    @property
    def has_ended(self) -> bool:
        return self._task.done()

    def notify(self) -> None:
        if self._subscription is not None:
            self._subscription.notify()

    def stop(self) -> None:
        self._task.cancel()

    async def follow(self) -> AsyncGenerator[Overview]:
        """The overviews, until there will be no more."""
        seen = 0
        while True:
            while self._latest is None or self._latest[0] == seen:
                if self.has_ended:
                    return
                await asyncio.shield(self._next_update)  # other followers wait for it, too
            seen, overview = self._latest
            yield overview

    async def _watch(self) -> None:
        with self._tenant.connections.subscribe(ALL_RUNS) as self._subscription:
            has_changed = True
            while True:
                self._subscription.clear()
                await self._refresh(has_changed)
                await asyncio.sleep(MIN_INTERVAL_S)
                has_changed = await self._subscription.wait(POLL_INTERVAL_S)

    async def _refresh(self, has_changed: bool) -> None:
        try:
            overview = await read_overview(self._tenant.store)
        except StoreUnavailable:
            return  # the next poll may find it back
        if self._latest is None or has_changed or overview != self._latest[1]:
            self._latest = (1 if self._latest is None else self._latest[0] + 1, overview)
            update, self._next_update = self._next_update, asyncio.get_running_loop().create_future()
            update.set_result(None)
