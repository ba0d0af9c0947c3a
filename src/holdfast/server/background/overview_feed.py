"""Whoever shows how everything is, and wants to know when to look again.

There may be many such readers, and what they are told is not cheap: it is found out once for all that read of the same
namespace, at most once a second, and only if something may have changed. A store does not tell of what was written
through it, so whoever writes here says so (``stir``).
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
from holdfast.services.health import MOST_ENDED
from holdfast.services.stalls import is_alive
from holdfast.stores.approvals import ApprovalFilter
from holdfast.stores.change_feed import EVERYTHING, Bell
from holdfast.stores.contract import Store

log = logging.getLogger("holdfast.server")

AT_MOST_EVERY = 1.0
"""Seconds between two words of a change."""
LOOK_EVERY = 5.0
"""Seconds after which it is looked although no store has told of a change: workers die without a word."""
MOST_APPROVALS = 1000


class Count(BaseModel):
    """How many there are."""

    count: int
    more: Annotated[bool, Field(description="There may be more: not all of them were counted.")] = False


class Overview(BaseModel):
    """How everything is, in a few numbers."""

    runs: Annotated[
        dict[RunState, Count],
        Field(description=f"By state; those that have ended are counted up to {MOST_ENDED:,} for each workflow."),
    ]
    approvals: Annotated[int, Field(description=f"Questions that wait for an answer; counted up to {MOST_APPROVALS}.")]
    dead: Annotated[int, Field(description="Runs whose workers died too often.")]
    workers: Annotated[int, Field(description="Live ones.")]
    off: Annotated[list[str], Field(description="Agents and workflows that were switched off.")]


async def read_overview(store: Store) -> Overview:
    """How everything is now."""
    runs: Counter[RunState] = Counter()
    more: set[RunState] = set()
    for (_, state), number in (await store.count_runs(MOST_ENDED)).items():
        runs[state] += number
        if state.is_terminal and number >= MOST_ENDED:
            more.add(state)
    workers = await store.workers()
    return Overview(
        runs={state: Count(count=runs[state], more=state in more) for state in RunState},
        approvals=len(await store.approvals(ApprovalFilter(), MOST_APPROVALS)),
        dead=runs[RunState.DEAD],
        workers=sum(is_alive(one, store.now()) for one in workers),
        off=sorted(await store.switched_off()),
    )


class Changes:
    """The readers of all namespaces."""

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}

    def stir(self, tenant: Tenant) -> None:
        """Something was written here."""
        if (watched := self._watched.get(tenant.namespace)) is not None:
            watched.stir()

    async def follow(self, tenant: Tenant) -> AsyncGenerator[Overview]:
        """How everything is, at once and whenever something has changed."""
        watched = self._watched.get(tenant.namespace)
        if watched is None or watched.is_over:
            watched = self._watched[tenant.namespace] = _Watched(tenant)
        watched.readers += 1
        try:
            async for overview in watched.follow():
                yield overview
        finally:
            watched.readers -= 1
            if not watched.readers:
                watched.stop()
                if self._watched.get(tenant.namespace) is watched:
                    del self._watched[tenant.namespace]


class _Watched:
    """One namespace, as long as somebody reads."""

    def __init__(self, tenant: Tenant) -> None:
        self.readers = 0
        self._tenant = tenant
        self._bell: Bell | None = None
        self._told: tuple[int, Overview] | None = None
        """How often it was told, and what last."""
        loop = asyncio.get_running_loop()
        self._next: asyncio.Future[None] = loop.create_future()
        """Done when there is something to tell, or never will be again."""
        what = f"namespace {tenant.namespace!r}: looking for changes"
        self._task = loop.create_task(keep_running(self._watch, what, log, ends_with=UsageError))
        self._task.add_done_callback(self._ended)

    @property
    def is_over(self) -> bool:
        return self._task.done()

    def stir(self) -> None:
        if self._bell is not None:
            self._bell.ring()

    def stop(self) -> None:
        self._task.cancel()

    async def follow(self) -> AsyncGenerator[Overview]:
        """As it is told; ends when nothing can be told any more."""
        seen = 0
        while True:
            while self._told is None or self._told[0] == seen:
                if self.is_over:
                    return
                await asyncio.shield(self._next)  # others wait for it, too
            seen, overview = self._told
            yield overview

    async def _watch(self) -> None:
        with self._tenant.connection.listen(EVERYTHING) as self._bell:
            has_changed = True
            while True:
                self._bell.clear()
                await self._look(has_changed)
                await asyncio.sleep(AT_MOST_EVERY)
                has_changed = await self._bell.wait(LOOK_EVERY)

    async def _look(self, has_changed: bool) -> None:
        try:
            overview = await read_overview(await self._tenant.store())
        except StoreUnavailable:
            return  # it may be back in a moment, and readers are told then
        if self._told is None or has_changed or overview != self._told[1]:
            self._told = (1 if self._told is None else self._told[0] + 1, overview)
            told, self._next = self._next, asyncio.get_running_loop().create_future()
            told.set_result(None)

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._next.set_result(None)
