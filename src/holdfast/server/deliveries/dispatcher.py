"""The desk: where listeners wait, and are handed runs.

All who wait on an address through this server stand in one line, and one task looks for work for them: however many
listen, a change in the store costs one look per address. A look asks first whether anything is due, and claims only
then, for one listener at a time. A listener that has gone meanwhile gives the run back, and that counts for nothing.

The store tells when somebody else has written; what goes through this server is told by a nudge; and now and then the
desk looks for itself, since runs become due by the clock as well.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from holdfast.background_tasks import keep_running
from holdfast.errors import StoreError, UsageError
from holdfast.server.deliveries.delivery import ClaimedDelivery
from holdfast.server.deliveries.delivery_watcher import DeliveryWatcher
from holdfast.server.http.problems import Problem
from holdfast.server.tenants import Tenant
from holdfast.stores.change_feed import Subscription
from holdfast.stores.contract import Store
from holdfast.stores.live_events import DELIVERED
from holdfast.stores.operations import AppendLiveEvents, LiveEvent, ReleaseRun, Run
from holdfast.stores.served_versions import make_served_name

log = logging.getLogger("holdfast.server")

POLL_INTERVAL_S = 1.0
"""Seconds after which the desk looks for itself."""
MIN_POLL_GAP_S = 0.01
"""Seconds between two looks: on a busy store something is new all the time."""
FULL_QUEUE_RETRY_S = 0.1
"""Seconds until the next look when something is due, and yet nothing could be claimed: its queue is full."""


@dataclass(slots=True, eq=False)
class PendingListener:
    """A listener that waits."""

    get_worker_id: Callable[[], Awaitable[int]]
    """Its number in the store, registered when there is something for it."""
    display_name: str
    remote_address: str
    check_key: Callable[[], Awaitable[None]] | None = None
    """Raises ``Problem`` if it may take nothing any more: it may have waited for long."""
    get_suspects_after: Callable[[], float | None] = lambda: 0.0
    """Seconds for which isolated runs must have been due for it to be handed one: see ``Claims.claim``."""
    delivery: asyncio.Future[ClaimedDelivery] = field(default_factory=asyncio.Future[ClaimedDelivery])


class Dispatcher:
    """Where listeners of one namespace wait."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant
        self._pending: dict[str, deque[PendingListener]] = {}
        self._dispatch_tasks: dict[str, asyncio.Task[None]] = {}
        self._subscriptions: dict[str, set[Subscription]] = {}
        self._handover_tasks: set[asyncio.Task[None]] = set()
        """What is on its way to listeners."""
        self.watcher = DeliveryWatcher(tenant)

    def notify(self, address: str | None = None) -> None:
        """There may be something to take, or a delivery may be over; ``None``: on any address."""
        for name, subscriptions in self._subscriptions.items():
            if address in (None, name):
                for subscription in subscriptions:
                    subscription.notify()

    @contextmanager
    def subscribe(self, address: str) -> Generator[Subscription]:
        """A subscription that is notified for this address, and whenever something is new in the store."""
        with self._tenant.connection.subscribe(f"address {address}") as subscription:
            self._subscriptions.setdefault(address, set()).add(subscription)
            try:
                yield subscription
            finally:
                self._subscriptions[address].discard(subscription)
                if not self._subscriptions[address]:
                    del self._subscriptions[address]

    async def next_delivery(self, address: str, listener: PendingListener) -> ClaimedDelivery:
        """The next run for this listener, whenever there is one."""
        line = self._pending.setdefault(address, deque())
        line.append(listener)
        task = self._dispatch_tasks.get(address)
        if task is None or task.done():
            what = f"address {address!r}: looking for work"
            serving = keep_running(partial(self._dispatch, address), what, log, stop_on=UsageError)
            self._dispatch_tasks[address] = asyncio.create_task(serving)
        else:
            self.notify(address)
        try:
            return await listener.delivery
        except asyncio.CancelledError:
            if listener.delivery.done() and not (listener.delivery.cancelled() or listener.delivery.exception()):
                # It was handed something, and cannot take it.
                await self._release(listener.delivery.result().run)
            raise
        finally:
            if listener in line:
                line.remove(listener)

    async def close(self) -> None:
        """Nobody waits any more."""
        for task in self._dispatch_tasks.values():
            task.cancel()
        await asyncio.gather(*self._dispatch_tasks.values(), *self._handover_tasks, return_exceptions=True)
        self._dispatch_tasks.clear()
        await self.watcher.close()

    async def _dispatch(self, address: str) -> None:
        """Look for work as long as somebody waits for it."""
        loop = asyncio.get_running_loop()
        with self.subscribe(address) as subscription:
            while line := self._pending.get(address):
                subscription.clear()
                looked = loop.time()
                try:
                    wait = await self._dispatch_due(address, line)
                except StoreError as error:
                    log.warning("address %r: the store cannot be asked for work: %s", address, error)
                    wait = POLL_INTERVAL_S
                await subscription.wait(min(wait, POLL_INTERVAL_S))
                await asyncio.sleep(max(0.0, MIN_POLL_GAP_S - (loop.time() - looked)))
            self._pending.pop(address, None)
            self._dispatch_tasks.pop(address, None)

    async def _dispatch_due(self, address: str, pending: deque[PendingListener]) -> float:
        """Hand out what there is; seconds until the next look makes sense."""
        store, served = await self._tenant.store(), [make_served_name(address, "")]
        while pending:
            if pending[0].delivery.done():
                pending.popleft()
                continue
            due = await store.claims.get_next_wake_at(workflows=served, queues=None)
            if due is None:
                return POLL_INTERVAL_S
            if due > store.now():
                return min(POLL_INTERVAL_S, due - store.now())
            waiting = pending[0]
            if not await _has_valid_key(waiting):
                _remove_pending(pending, waiting)
                continue
            claimed = await _claim(store, served, waiting)
            if (
                not claimed
                and (free := _find_idle_listener(pending, waiting)) is not None
                and await _has_valid_key(free)
            ):
                # What is due may be isolated, and is for a listener that holds nothing.
                waiting = free
                claimed = await _claim(store, served, waiting)
            if not claimed:
                return FULL_QUEUE_RETRY_S
            _remove_pending(pending, waiting)
            handing = asyncio.create_task(self._deliver(store, waiting, claimed[0]))
            self._handover_tasks.add(handing)  # the next in line need not wait for it
            handing.add_done_callback(self._handover_tasks.discard)
        return POLL_INTERVAL_S

    async def _deliver(self, store: Store, listener: PendingListener, run: Run) -> None:
        try:
            [history] = await store.get_histories([run.key])
            data = json.dumps(
                {"listener": listener.display_name, "remote_address": listener.remote_address, "number": run.epoch}
            )
            notice = LiveEvent(-1, "delivered", run.epoch, DELIVERED, data.encode(), store.now())
            await store.commit([AppendLiveEvents(run.key, run.epoch, (notice,))])
        except Exception as error:
            is_known = isinstance(error, StoreError)
            log.warning(
                "run %r was claimed, and could not be handed over: %s", run.id, error,
                exc_info=None if is_known else error,
            )  # fmt: skip
            listener.delivery.cancel()
            await self._release(run)
            return
        if listener.delivery.done():
            await self._release(run)
        else:
            listener.delivery.set_result(ClaimedDelivery(run, history))

    async def _release(self, run: Run) -> None:
        """Nobody is there to take it after all."""
        try:
            await (await self._tenant.store()).commit([ReleaseRun(run.key, run.epoch)])
        except Exception as error:
            log.warning("run %r is delivered again only when its lease is over: %r", run.id, error)
        self.notify(run.workflow)


async def _has_valid_key(listener: PendingListener) -> bool:
    """Whether its key is still valid; if not, the listener is told."""
    if listener.check_key is not None:
        try:
            await listener.check_key()
        except Problem as problem:
            if not listener.delivery.done():
                listener.delivery.set_exception(problem)
            return False
    return True


async def _claim(store: Store, workflows: list[str], listener: PendingListener) -> list[Run]:
    worker, after = await listener.get_worker_id(), listener.get_suspects_after()
    return await store.claims.claim(worker, workflows=workflows, queues=None, limit=1, suspect_delay_s=after)


def _find_idle_listener(pending: deque[PendingListener], excluded: PendingListener) -> PendingListener | None:
    """Another listener in the line that holds nothing."""
    others = (one for one in pending if one is not excluded and not one.delivery.done())
    return next((one for one in others if one.get_suspects_after() == 0.0), None)


def _remove_pending(pending: deque[PendingListener], listener: PendingListener) -> None:
    if listener in pending:
        pending.remove(listener)


class Dispatchers:
    """A desk for each namespace."""

    def __init__(self) -> None:
        self._by_namespace: dict[str, Dispatcher] = {}

    def get(self, tenant: Tenant) -> Dispatcher:
        """The desk of a namespace."""
        found = self._by_namespace.get(tenant.namespace)
        if found is None:
            found = self._by_namespace[tenant.namespace] = Dispatcher(tenant)
        return found

    async def close(self) -> None:
        """Nobody waits any more."""
        for desk in self._by_namespace.values():
            await desk.close()
