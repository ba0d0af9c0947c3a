"""Taking deliveries: by long poll, one at a time, or over a stream, as they come.

Whoever takes says what it holds. What it holds by the store's account and does not name, it was handed in an answer
that never arrived: it is handed that again, at once, and nothing is counted. So an answer that is lost on the way, with
a server or a connection, costs no delivery.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Collection
from contextlib import suppress
from functools import partial

from holdfast.core.states import RunState
from holdfast.server.calls import Call
from holdfast.server.deliveries.delivery import ClaimedDelivery, Delivery, build_delivery, get_delivery_id
from holdfast.server.deliveries.delivery_operations import release
from holdfast.server.deliveries.delivery_watcher import ConnectedListener
from holdfast.server.deliveries.dispatcher import PendingListener
from holdfast.server.http.bounded_wait import wait_at_most
from holdfast.server.http.problems import Problem
from holdfast.server.http.server_sent_events import ServerSentEvent
from holdfast.services.addresses import AddressInfo, declare_address
from holdfast.services.json_form import to_json_bytes
from holdfast.stores import worker_deaths
from holdfast.stores.contract import RunFilter, Store
from holdfast.stores.operations import Run

POLL_INTERVAL_S = 0.25
"""Seconds that a look may take of whoever does not want to wait."""


class ListenerSession:
    """A process elsewhere, on one address, as this request knows it."""

    def __init__(self, call: Call, store: Store, address: AddressInfo, name: str) -> None:
        self.call = call
        self.store = store
        self.address = address
        self.display_name = name
        self.worker_id: int | None = None
        self.listener_id = ""
        """What it is called."""

    @classmethod
    async def open(cls, call: Call, address: str, listener_id: str | None, name: str) -> ListenerSession:
        """The listener that asks: one that is known, or one that is not registered yet."""
        store = await call.store()
        listener = cls(call, store, await declare_address(store, address), name)
        listeners = call.platform.listeners
        worker = await listeners.parse_listener_id(call.tenant, address, listener_id)
        if worker is not None and await listeners.renew_lease(call.tenant, store, worker, listener.address.lease):
            listener.worker_id, listener.listener_id = worker, listener_id or ""
        return listener

    async def ensure_registered(self) -> int:
        """Its number in the store: it is registered if it is not."""
        if self.worker_id is None:
            self.worker_id = await self.call.platform.listeners.register(
                self.call, self.store, self.address, self.display_name
            )
            self.listener_id = await self.call.platform.listeners.make_listener_id(
                self.call.tenant, self.address.name, self.worker_id
            )
        return self.worker_id

    async def list_claimed(self) -> list[Run]:
        """The runs that it holds by the store's account, the oldest first."""
        if self.worker_id is None:
            return []
        where = RunFilter(states=[RunState.RUNNING], workflow=self.address.name, owner=self.worker_id)
        return (await self.store.list_runs(where, limit=1000))[::-1]

    async def list_unacknowledged(self, active_deliveries: Collection[str], limit: int) -> list[ClaimedDelivery]:
        """Runs that it holds, and does not know of."""
        known = frozenset(
            active_deliveries
        )  # what is settled while this looks was known, and may still look as if it were held
        found: list[ClaimedDelivery] = []
        for run in await self.list_claimed():
            if len(found) < limit and get_delivery_id(run) not in known:
                whole = await self.store.get_run(run.id)
                if whole is not None and whole.state is RunState.RUNNING and whole.epoch == run.epoch:
                    [history] = await self.store.get_histories([run.key])
                    found.append(ClaimedDelivery(whole, history))
        return found

    async def next_delivery(self, active_deliveries: Collection[str] = ()) -> ClaimedDelivery:
        """The next run that is handed to it, whenever there is one; ``active_deliveries`` are those it holds."""
        while self.is_isolated(active_deliveries):  # noqa: ASYNC110 - it may end by the clock as well
            await asyncio.sleep(POLL_INTERVAL_S)
        desk = self.call.platform.dispatchers.get(self.call.tenant)
        caller = self.call.caller
        wait = worker_deaths.ISOLATED_WAIT_LEASES * self.address.lease
        waiting = PendingListener(
            self.ensure_registered,
            self.display_name or caller.name,
            caller.remote_address,
            check_key=None if self.call.is_internal else self.call.check_key,
            get_suspects_after=lambda: wait if active_deliveries else 0.0,
        )
        return await desk.next_delivery(self.address.name, waiting)

    def is_isolated(self, active_deliveries: Collection[str]) -> bool:
        """Whether it holds a run that others died of, and is handed nothing else meanwhile."""
        held = (self.call.platform.delivery_cache.get(self.call.tenant.namespace, id) for id in active_deliveries)
        now, lease = self.store.now(), self.address.lease
        return any(one is not None and one.is_isolated(now, lease) for one in held)

    async def next_or_unacknowledged(self, active_deliveries: Collection[str]) -> ClaimedDelivery:
        """The same, but first what it was handed in answers that never arrived."""
        for again in await self.list_unacknowledged(active_deliveries, limit=1):
            return again
        return await self.next_delivery(active_deliveries)

    async def build_delivery(self, claimed: ClaimedDelivery) -> Delivery:
        """The delivery as the listener gets it; and this server remembers it."""
        self.call.platform.delivery_cache.put(self.call.tenant.namespace, get_delivery_id(claimed.run), claimed)
        return await build_delivery(self.call, claimed, self.listener_id, self.address.lease)


async def poll_delivery(
    call: Call, address: str, *, listener_id: str | None, name: str, active_deliveries: Collection[str], wait_s: float
) -> Delivery | None:
    """The next delivery of an address; ``None`` if there is none for so long."""
    asking = await ListenerSession.open(call, address, listener_id, name)
    found = await wait_at_most(
        call, max(wait_s, POLL_INTERVAL_S), asking.next_or_unacknowledged(active_deliveries), _wait_for_disconnect(call)
    )
    return None if found is None else await asking.build_delivery(found)


async def _wait_for_disconnect(call: Call) -> None:
    while (await call.request.receive())["type"] != "http.disconnect":
        pass


async def stream_deliveries(
    call: Call, address: str, *, listener_id: str | None, name: str, active_deliveries: Collection[str], max_active: int
) -> AsyncGenerator[ServerSentEvent]:
    """Deliveries as they come, as many as the listener can hold at once."""
    asking = await ListenerSession.open(call, address, listener_id, name)
    worker = await asking.ensure_registered()
    yield ServerSentEvent(
        to_json_bytes({"listener_id": asking.listener_id, "lease": asking.address.lease}), event="listener"
    )
    holders, holder = call.platform.dispatchers.get(call.tenant).watcher, ConnectedListener()
    call.platform.listeners.open_stream(call.tenant, worker)
    try:
        held = {get_delivery_id(run): run for run in await asking.list_claimed()}
        for id in sorted(set(active_deliveries) - set(held)):
            yield ServerSentEvent(to_json_bytes({"id": id}), event="ended")
        for id in set(active_deliveries) & set(held):
            holders.watch(id, held[id], holder)
        waiting = deque(await asking.list_unacknowledged(holder.delivery_ids, limit=max_active))
        suspects: set[str] = set()
        seconds = asking.address.lease / 3
        while not call.platform.closing.is_set():
            # Who holds something must be heard of itself: a stream is open also to a process that stands still.
            if not holder.delivery_ids:
                lives = await call.platform.listeners.keep_alive(
                    call.tenant, asking.store, worker, asking.address.lease
                )
                if not lives:
                    return  # it was taken for dead: whoever comes back is a new listener
            holder.changed.clear()
            while holder.ended_ids:
                yield ServerSentEvent(to_json_bytes({"id": holder.ended_ids.pop()}), event="ended")
            if len(holder.delivery_ids) >= max_active:
                await wait_at_most(call, seconds, holder.changed.wait())
                continue
            if waiting:
                found = waiting.popleft()
            else:
                found = await wait_at_most(
                    call, seconds, asking.next_delivery(holder.delivery_ids), holder.changed.wait()
                )
            if found is not None:
                delivery = await asking.build_delivery(found)
                holders.watch(delivery.id, found.run, holder)
                data = await call.run_body_work(0, partial(to_json_bytes, delivery))
                yield ServerSentEvent(data, event="delivery", id=delivery.id)
                call.value_bytes = 0  # the next delivery is another one
            elif not holder.changed.is_set():
                # Another stream of this very listener, which nobody reads any more, may have been handed something.
                # What was seen only once may be on its way back at this moment.
                again = {
                    get_delivery_id(one.run): one
                    for one in await asking.list_unacknowledged(holder.delivery_ids, limit=max_active)
                }
                waiting.extend(one for id, one in again.items() if id in suspects)
                suspects = set(again)
    finally:
        holders.remove_listener(holder)
        is_last = call.platform.listeners.close_stream(call.tenant, worker)
        if is_last and not call.platform.closing.is_set():
            await asyncio.shield(_handle_disconnect(asking, worker))


async def retire_listener(
    call: Call, address: str, *, listener_id: str | None, active_deliveries: Collection[str]
) -> None:
    """The listener takes nothing more. What it was handed and does not know of goes to others at once."""
    asking = await ListenerSession.open(call, address, listener_id, "")
    if asking.worker_id is None:
        return
    held = {get_delivery_id(run) for run in await asking.list_claimed()}
    for id in held.difference(active_deliveries):
        with suppress(Problem):  # it is over at this very moment
            await release(call, id, "the listener has left", 0.0)
    if held.isdisjoint(active_deliveries):
        await asking.store.workers.retire(asking.worker_id)


async def _handle_disconnect(session: ListenerSession, worker_id: int) -> None:
    """The connection is broken: whoever held something has a moment to come back; others are gone."""
    if await session.list_claimed():
        await session.call.platform.listeners.shorten_lease(session.call.tenant, session.store, worker_id)
    else:
        await session.store.workers.retire(worker_id)
