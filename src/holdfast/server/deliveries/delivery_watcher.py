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

POLL_INTERVAL_S = 1.0
"""Seconds between two looks."""
MIN_POLL_GAP_S = 0.1
"""At least so many seconds between two looks, however much is new in the store."""
RUN_BATCH_SIZE = 500
"""Runs that are read together."""


@dataclass(slots=True, eq=False)
class ConnectedListener:
    """A listener that is connected, and what it holds."""

    delivery_ids: set[str] = field(default_factory=set[str])
    """The ids of its deliveries."""
    ended_ids: list[str] = field(default_factory=list[str])
    """Those that are over, and that it has not been told of."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def mark_ended(self, id: str) -> None:
        """It holds this no more."""
        self.delivery_ids.discard(id)
        self.ended_ids.append(id)
        self.changed.set()


class _WatchedDelivery(NamedTuple):
    run_id: str
    epoch: int
    listener: ConnectedListener


class DeliveryWatcher:
    """The holders of one namespace."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant
        self._watched: dict[str, _WatchedDelivery] = {}
        """By the id of the delivery."""
        self._task: asyncio.Task[None] | None = None

    def watch(self, id: str, run: Run, listener: ConnectedListener) -> None:
        """A holder has been handed this."""
        listener.delivery_ids.add(id)
        self._watched[id] = _WatchedDelivery(run.id, run.epoch, listener)
        if self._task is None or self._task.done():
            watching = keep_running(
                self._poll_while_watched, "looking which deliveries are over", log, stop_on=UsageError
            )
            self._task = asyncio.create_task(watching)

    def mark_ended(self, id: str) -> None:
        """Somebody has said that this is over: its holder itself, most likely, or another process for it."""
        held = self._watched.pop(id, None)
        if held is not None:
            held.listener.mark_ended(id)

    def remove_listener(self, listener: ConnectedListener) -> None:
        """A holder is connected no more."""
        for id in listener.delivery_ids:
            held = self._watched.get(id)
            if (
                held is not None and held.listener is listener
            ):  # else it is back over another stream, which holds it now
                del self._watched[id]

    async def close(self) -> None:
        """Nobody is connected any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _poll_while_watched(self) -> None:
        """Look as long as there are holders."""
        with self._tenant.connection.subscribe("deliveries") as subscription:
            while self._watched:
                subscription.clear()
                try:
                    await self._poll()
                except HoldfastError as error:
                    log.warning("it could not be looked which deliveries are over: %s", error)
                await subscription.wait(POLL_INTERVAL_S)
                await asyncio.sleep(MIN_POLL_GAP_S)

    async def _poll(self) -> None:
        store, asked = await self._tenant.store(), list(self._watched.items())
        for at in range(0, len(asked), RUN_BATCH_SIZE):
            some = asked[at : at + RUN_BATCH_SIZE]
            runs = {run.id: run for run in await store.get_runs([held.run_id for _, held in some])}
            for id, held in some:
                run = runs.get(held.run_id)
                is_held = run is not None and run.state is RunState.RUNNING and run.epoch == held.epoch
                if not is_held and self._watched.pop(id, None) is not None:
                    held.listener.mark_ended(id)
