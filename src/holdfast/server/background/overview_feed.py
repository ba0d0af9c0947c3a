"""Whoever shows how everything is, and wants to know when to look again.

There may be many such readers, and what they are told is not cheap: it is found out once for all that read of the same
namespace, at most once a second, and only if something may have changed. A store does not tell of what was written
through it, so whoever writes here says so (``notify``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Annotated

from pydantic import BaseModel, Field

from holdfast.background_tasks import keep_running
from holdfast.core.states import RunState
from holdfast.errors import StoreUnavailable, UsageError
from holdfast.server.tenants import Tenant
from holdfast.services.health import MAX_COUNTED_RUNS
from holdfast.services.stalls import is_alive
from holdfast.stores.approvals import ApprovalFilter
from holdfast.stores.change_feed import ALL_RUNS, Subscription
from holdfast.stores.contract import Store

log = logging.getLogger("holdfast.server")

MIN_INTERVAL_S = 1.0
"""Seconds between two words of a change."""
POLL_INTERVAL_S = 5.0
"""Seconds after which it is looked although no store has told of a change: workers die without a word."""
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
    """How everything is now."""
    runs: Counter[RunState] = Counter()
    more: set[RunState] = set()
    for (_, state), number in (await store.count_runs(MAX_COUNTED_RUNS)).items():
        runs[state] += number
        if state.is_terminal and number >= MAX_COUNTED_RUNS:
            more.add(state)
    workers = await store.list_workers()
    return Overview(
        runs={state: CappedCount(count=runs[state], has_more=state in more) for state in RunState},
        approvals=len(await store.list_approvals(ApprovalFilter(), MAX_COUNTED_APPROVALS)),
        dead=runs[RunState.DEAD],
        workers=sum(is_alive(one, store.now()) for one in workers),
        disabled=sorted(await store.disabled_workflows.get_all()),
    )


class OverviewFeeds:
    """The readers of all namespaces."""

    def __init__(self) -> None:
        self._feeds: dict[str, _NamespaceFeed] = {}

    def notify(self, tenant: Tenant) -> None:
        """Something was written here."""
        if (watched := self._feeds.get(tenant.namespace)) is not None:
            watched.notify()

    async def follow(self, tenant: Tenant) -> AsyncGenerator[Overview]:
        """How everything is, at once and whenever something has changed."""
        watched = self._feeds.get(tenant.namespace)
        if watched is None or watched.has_ended:
            watched = self._feeds[tenant.namespace] = _NamespaceFeed(tenant)
        watched.reader_count += 1
        try:
            async for overview in watched.follow():
                yield overview
        finally:
            watched.reader_count -= 1
            if not watched.reader_count:
                watched.stop()
                if self._feeds.get(tenant.namespace) is watched:
                    del self._feeds[tenant.namespace]


class _NamespaceFeed:
    """One namespace, as long as somebody reads."""

    def __init__(self, tenant: Tenant) -> None:
        self.reader_count = 0
        self._tenant = tenant
        self._subscription: Subscription | None = None
        self._latest: tuple[int, Overview] | None = None
        """How often it was told, and what last."""
        loop = asyncio.get_running_loop()
        self._next_update: asyncio.Future[None] = loop.create_future()
        """Done when there is something to tell, or never will be again."""
        what = f"namespace {tenant.namespace!r}: looking for changes"
        self._task = loop.create_task(keep_running(self._watch, what, log, stop_on=UsageError))
        self._task.add_done_callback(self._on_task_done)

    @property
    def has_ended(self) -> bool:
        return self._task.done()

    def notify(self) -> None:
        if self._subscription is not None:
            self._subscription.notify()

    def stop(self) -> None:
        self._task.cancel()

    async def follow(self) -> AsyncGenerator[Overview]:
        """As it is told; ends when nothing can be told any more."""
        seen = 0
        while True:
            while self._latest is None or self._latest[0] == seen:
                if self.has_ended:
                    return
                await asyncio.shield(self._next_update)  # others wait for it, too
            seen, overview = self._latest
            yield overview

    async def _watch(self) -> None:
        with self._tenant.connection.subscribe(ALL_RUNS) as self._subscription:
            has_changed = True
            while True:
                self._subscription.clear()
                await self._refresh(has_changed)
                await asyncio.sleep(MIN_INTERVAL_S)
                has_changed = await self._subscription.wait(POLL_INTERVAL_S)

    async def _refresh(self, has_changed: bool) -> None:
        try:
            overview = await read_overview(await self._tenant.store())
        except StoreUnavailable:
            return  # it may be back in a moment, and readers are told then
        if self._latest is None or has_changed or overview != self._latest[1]:
            self._latest = (1 if self._latest is None else self._latest[0] + 1, overview)
            told, self._next_update = self._next_update, asyncio.get_running_loop().create_future()
            told.set_result(None)

    def _on_task_done(self, _: asyncio.Task[None]) -> None:
        self._next_update.set_result(None)
