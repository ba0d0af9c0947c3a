"""Who holds what through this server: streams are told when a delivery is over, however that came about.

What is settled through this server is known at once. Whatever else ends a delivery (a cancel, a deadline, a lease that
was not renewed, another server) is found by one look at all of them together, about once a second, and whenever the
store tells of something new: the number of listeners does not matter.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.background_tasks import keep_running
from holdfast.core.states import RunState
from holdfast.errors import HoldfastError, UsageError
from holdfast.server.tenants import Tenant
from holdfast.stores.operations import Run

log = logging.getLogger("holdfast.server")

LOOK = 1.0
"""Seconds between two looks."""
GATHER = 0.1
"""At least so many seconds between two looks, however much is new in the store."""
AT_ONCE = 500
"""Runs that are read together."""


@dataclass(slots=True, eq=False)
class Holder:
    """A listener that is connected, and what it holds."""

    known: set[str] = field(default_factory=set[str])
    """The ids of its deliveries."""
    over: list[str] = field(default_factory=list[str])
    """Those that are over, and that it has not been told of."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def is_over(self, id: str) -> None:
        """It holds this no more."""
        self.known.discard(id)
        self.over.append(id)
        self.changed.set()


class _Held(NamedTuple):
    run_id: str
    epoch: int
    holder: Holder


class Holders:
    """The holders of one namespace."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant
        self._held: dict[str, _Held] = {}
        """By the id of the delivery."""
        self._task: asyncio.Task[None] | None = None

    def hold(self, id: str, run: Run, holder: Holder) -> None:
        """A holder has been handed this."""
        holder.known.add(id)
        self._held[id] = _Held(run.id, run.epoch, holder)
        if self._task is None or self._task.done():
            watching = keep_running(self._watch, "looking which deliveries are over", log, ends_with=UsageError)
            self._task = asyncio.create_task(watching)

    def settled(self, id: str) -> None:
        """Somebody has said that this is over: its holder itself, most likely, or another process for it."""
        held = self._held.pop(id, None)
        if held is not None:
            held.holder.is_over(id)

    def leaves(self, holder: Holder) -> None:
        """A holder is connected no more."""
        for id in holder.known:
            held = self._held.get(id)
            if held is not None and held.holder is holder:  # else it is back over another stream, which holds it now
                del self._held[id]

    async def close(self) -> None:
        """Nobody is connected any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        """Look as long as there are holders."""
        with self._tenant.connection.listen("deliveries") as bell:
            while self._held:
                bell.clear()
                try:
                    await self._look()
                except HoldfastError as error:
                    log.warning("it could not be looked which deliveries are over: %s", error)
                await bell.wait(LOOK)
                await asyncio.sleep(GATHER)

    async def _look(self) -> None:
        store, asked = await self._tenant.store(), list(self._held.items())
        for at in range(0, len(asked), AT_ONCE):
            some = asked[at : at + AT_ONCE]
            runs = {run.id: run for run in await store.get_many([held.run_id for _, held in some])}
            for id, held in some:
                run = runs.get(held.run_id)
                is_held = run is not None and run.state is RunState.RUNNING and run.epoch == held.epoch
                if not is_held and self._held.pop(id, None) is not None:
                    held.holder.is_over(id)
