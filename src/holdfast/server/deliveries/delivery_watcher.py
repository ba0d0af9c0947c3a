"""Which listener holds which delivery through this server: a stream reports when a delivery ends, for any reason.

When a delivery ends through this server, the watcher knows at once. Everything else that ends a delivery (a cancel, a
deadline, an expired lease, another server) is found by one query for all deliveries, about once a second, and whenever
the store reports a change. So the number of listeners does not matter.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from holdfast.background_tasks import keep_running
from holdfast.core.states import RunState
from holdfast.errors import HoldfastError, UsageError
from holdfast.server.deliveries.delivery import ClaimedDelivery, get_delivery_id
from holdfast.server.http.server_sent_events import ServerSentEvent
from holdfast.services.json_form import to_json_bytes
from holdfast.services.problems import Problem
from holdfast.stores.operations import Run

if TYPE_CHECKING:
    from holdfast.server.deliveries.listener_session import ListenerSession
    from holdfast.server.tenants import Tenant

log = logging.getLogger("holdfast.server")

POLL_INTERVAL_S = 1.0
MIN_POLL_GAP_S = 0.1
"""Minimum seconds between two polls, however much changes in the store."""
RUN_BATCH_SIZE = 500


@dataclass(slots=True, eq=False)
class ConnectedListener:
    """A listener with an open stream, and the deliveries that it holds."""

    session: ListenerSession
    max_active: int
    """Maximum number of deliveries that it holds at once."""
    delivery_ids: set[str] = field(default_factory=set[str])
    unacknowledged: deque[ClaimedDelivery] = field(default_factory=deque[ClaimedDelivery])
    """Deliveries that it holds without knowing it, which the stream has yet to send."""
    ended_ids: list[str] = field(default_factory=list[str])
    """Deliveries that have ended, which the stream has yet to report."""
    is_end_unexpected: bool = False
    """The listener may not know yet that one of them has ended."""
    is_open: bool = True
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def mark_ended(self, id: str, *, is_expected: bool) -> None:
        """The listener no longer holds this delivery."""
        self.delivery_ids.discard(id)
        self.ended_ids.append(id)
        self.is_end_unexpected = self.is_end_unexpected or not is_expected
        self.changed.set()

    def take_ended_events(self) -> bytes:
        """The events that report ended deliveries. They count as reported."""
        events = [ServerSentEvent(to_json_bytes({"id": id}), event="ended").encode() for id in self.ended_ids]
        self.ended_ids.clear()
        self.is_end_unexpected = False
        return b"".join(events)


class _WatchedDelivery(NamedTuple):
    run_id: str
    epoch: int
    listener: ConnectedListener


@dataclass(slots=True)
class EndingDelivery:
    """A delivery that a call ends."""

    next_delivery: ClaimedDelivery | None = None
    """What its listener holds in its place."""


class DeliveryWatcher:
    """Watches the deliveries of one namespace whose listeners have open streams."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant
        self._watched: dict[str, _WatchedDelivery] = {}
        """By delivery id."""
        self._task: asyncio.Task[None] | None = None

    def watch(self, id: str, run: Run, listener: ConnectedListener) -> None:
        """Watch a delivery that a listener was handed."""
        if not listener.is_open:
            return  # when it reconnects, its new stream watches the delivery
        listener.delivery_ids.add(id)
        self._watched[id] = _WatchedDelivery(run.id, run.epoch, listener)
        if self._task is None or self._task.done():
            description = "looking which deliveries are over"
            self._task = asyncio.create_task(
                keep_running(self._poll_while_watched, description, log, stop_on=UsageError)
            )

    def get_listener(self, id: str) -> ConnectedListener | None:
        """The listener that holds a delivery and has an open stream."""
        watched = self._watched.get(id)
        return None if watched is None else watched.listener

    @contextmanager
    def ending(self, id: str) -> Generator[EndingDelivery]:
        """End a watched delivery inside of the block, which may put another one in its place."""
        watched, ending = self._watched.pop(id), EndingDelivery()
        listener = watched.listener  # it counts the delivery as held until the block ends
        try:
            yield ending
        except BaseException as error:
            if isinstance(error, Problem) and error.status == 409:  # it is lost
                listener.mark_ended(id, is_expected=True)
            elif listener.is_open:
                self._watched[id] = watched
            raise
        if ending.next_delivery is None:
            listener.mark_ended(id, is_expected=True)
        else:
            listener.delivery_ids.discard(id)
            run = ending.next_delivery.run
            self.watch(get_delivery_id(run), run, listener)

    def mark_ended(self, id: str, *, is_expected: bool) -> None:
        """A delivery has ended; ``is_expected``: by a call on it, so its listener most likely knows."""
        watched = self._watched.pop(id, None)
        if watched is not None:
            watched.listener.mark_ended(id, is_expected=is_expected)

    def remove_listener(self, listener: ConnectedListener) -> None:
        """A listener's stream is closed."""
        listener.is_open = False
        for id in listener.delivery_ids:
            watched = self._watched.get(id)
            # If the listener has reconnected, its new stream watches the delivery.
            if watched is not None and watched.listener is listener:
                del self._watched[id]

    async def close(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _poll_while_watched(self) -> None:
        with self._tenant.connections.subscribe("deliveries") as subscription:
            while self._watched:
                subscription.clear()
                try:
                    await self._poll()
                except HoldfastError as error:
                    log.warning("it could not be looked which deliveries are over: %s", error)
                await subscription.wait(POLL_INTERVAL_S)
                await asyncio.sleep(MIN_POLL_GAP_S)

    async def _poll(self) -> None:
        watched = list(self._watched.items())
        for start in range(0, len(watched), RUN_BATCH_SIZE):
            batch = watched[start : start + RUN_BATCH_SIZE]
            found = await self._tenant.store.get_runs([delivery.run_id for _, delivery in batch])
            runs = {run.id: run for run in found}
            for id, delivery in batch:
                run = runs.get(delivery.run_id)
                is_held = run is not None and run.state is RunState.RUNNING and run.epoch == delivery.epoch
                if not is_held:
                    self.mark_ended(id, is_expected=False)
