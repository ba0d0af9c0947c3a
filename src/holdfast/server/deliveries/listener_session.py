"""How listeners take deliveries: by long poll, one at a time, or over a stream, as they come.

A listener names the deliveries that it holds. If the store says that it holds another one, the response with that
delivery was lost. The listener gets it again, at once, and the repeat does not count. So a response that is lost with a
server or a connection costs no delivery.
"""

from __future__ import annotations

import asyncio
import json
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
from holdfast.server.http.server_sent_events import ServerSentEvent
from holdfast.services.addresses import AddressInfo
from holdfast.services.json_form import to_json_bytes
from holdfast.services.problems import Problem
from holdfast.stores.contract import RunFilter
from holdfast.stores.live_events import DELIVERED
from holdfast.stores.operations import AppendLiveEvents, LiveEvent, Run

MIN_WAIT_S = 0.25
"""Seconds that the search for a delivery may take if the listener does not want to wait."""
ISOLATION_POLL_INTERVAL_S = 0.25
EXPECTED_END_DELAY_S = 0.05
"""Seconds for which a stream does not report the end of a delivery that its listener has ended itself: usually the next
delivery comes within that time, and both are sent together."""


class ListenerSession:
    """A listener on one address, as one request sees it."""

    def __init__(self, call: Call, address: AddressInfo, name: str) -> None:
        self.call = call
        self.address = address
        self.display_name = name
        self.worker_id: int | None = None
        """Its number in the store; ``None``: it is not registered yet."""
        self.listener_id = ""

    @classmethod
    async def open(cls, call: Call, address: str, listener_id: str | None, name: str) -> ListenerSession:
        """The listener that sends this request: a known one, or one that is not registered yet."""
        session = cls(call, await call.tenant.listeners.declare_address(address), name)
        listeners = call.tenant.listeners
        worker_id = await listeners.parse_listener_id(address, listener_id)
        if worker_id is not None and await listeners.keep_alive(worker_id, session.address.lease):
            session.worker_id, session.listener_id = worker_id, listener_id or ""
        return session

    async def ensure_registered(self) -> int:
        """The listener's number in the store, registered if it is not."""
        if self.worker_id is None:
            listeners = self.call.tenant.listeners
            self.worker_id = await listeners.register(self.call.caller, self.address, self.display_name)
            self.listener_id = await listeners.make_listener_id(self.address.name, self.worker_id)
        return self.worker_id

    async def list_claimed(self) -> list[Run]:
        """The runs that the listener holds according to the store, the oldest first."""
        if self.worker_id is None:
            return []
        owned = RunFilter(states=[RunState.RUNNING], workflow=self.address.name, owner=self.worker_id)
        return (await self.call.store.list_runs(owned, limit=1000))[::-1]

    async def list_unacknowledged(self, active_deliveries: Collection[str], limit: int) -> list[ClaimedDelivery]:
        """Runs that the listener holds without knowing it."""
        # A copy: a delivery that ends during this search was known, and may still look held.
        known = frozenset(active_deliveries)
        store, dispatcher = self.call.store, self.call.tenant.dispatcher
        found: list[ClaimedDelivery] = []
        for run in await self.list_claimed():
            if len(found) < limit and get_delivery_id(run) not in known:
                current = await store.get_run(run.id)
                is_held = current is not None and current.state is RunState.RUNNING and current.epoch == run.epoch
                if current is not None and is_held and dispatcher.may_send_again(get_delivery_id(run)):
                    [history] = await store.get_histories([run.key])
                    # Its server may have died between the claim and this event; a repeat changes nothing.
                    event = self.make_delivered_event(current.epoch)
                    await store.commit([AppendLiveEvents(current.key, current.epoch, (event,))])
                    found.append(ClaimedDelivery(current, history))
        return found

    def make_delivered_event(self, epoch: int) -> LiveEvent:
        """The event that a run is delivered to this listener under an epoch."""
        caller = self.call.caller
        name = self.display_name or caller.name
        data = json.dumps({"listener": name, "remote_address": caller.remote_address, "number": epoch})
        return LiveEvent(-1, "delivered", epoch, DELIVERED, data.encode(), self.call.store.now())

    async def next_delivery(self, active_deliveries: Collection[str] = ()) -> ClaimedDelivery:
        """The next run for the listener, as soon as there is one; ``active_deliveries`` are those that it holds."""
        while self.is_isolated(active_deliveries):  # noqa: ASYNC110 - it may end by the clock as well
            await asyncio.sleep(ISOLATION_POLL_INTERVAL_S)
        return await self.call.tenant.dispatcher.next_delivery(self, active_deliveries)

    def is_isolated(self, active_deliveries: Collection[str]) -> bool:
        """Whether the listener holds a run that killed other listeners, and so gets nothing else meanwhile."""
        cache, namespace = self.call.platform.delivery_cache, self.call.tenant.namespace
        held = (cache.get((namespace, id)) for id in active_deliveries)
        now, lease = self.call.store.now(), self.address.lease
        return any(delivery is not None and delivery.is_isolated(now, lease) for delivery in held)

    async def build_delivery(self, claimed: ClaimedDelivery) -> Delivery:
        """The delivery as the listener gets it. The server remembers it."""
        self.call.platform.delivery_cache[self.call.tenant.namespace, get_delivery_id(claimed.run)] = claimed
        return await build_delivery(self.call, claimed, self.listener_id, self.address.lease)

    async def poll(self, active_deliveries: Collection[str], wait_s: float) -> Delivery | None:
        """The next delivery; ``None`` if there is none within ``wait_s`` seconds."""
        found = await wait_at_most(
            self.call,
            max(wait_s, MIN_WAIT_S),
            self._next_or_unacknowledged(active_deliveries),
            _wait_for_disconnect(self.call),
        )
        return None if found is None else await self.build_delivery(found)

    async def _next_or_unacknowledged(self, active_deliveries: Collection[str]) -> ClaimedDelivery:
        for unacknowledged in await self.list_unacknowledged(active_deliveries, limit=1):
            return unacknowledged
        return await self.next_delivery(active_deliveries)

    async def retire(self, active_deliveries: Collection[str]) -> None:
        """The listener leaves. Deliveries that it does not know about go to others at once."""
        if self.worker_id is None:
            return
        held = {get_delivery_id(run) for run in await self.list_claimed()}
        for id in held.difference(active_deliveries):
            with suppress(Problem):  # it ended at this moment
                await release(self.call, id, "the listener has left", 0.0)
        if held.isdisjoint(active_deliveries):
            await self.call.tenant.listeners.retire(self.worker_id)


async def _wait_for_disconnect(call: Call) -> None:
    while (await call.request.receive())["type"] != "http.disconnect":
        pass


async def stream_deliveries(
    session: ListenerSession, active_deliveries: Collection[str], max_active: int
) -> AsyncGenerator[ServerSentEvent | bytes]:
    """Deliveries as they come, as many as the listener can hold at once."""
    call, listeners, lease = session.call, session.call.tenant.listeners, session.address.lease
    worker_id = await session.ensure_registered()
    dispatcher, listener = call.tenant.dispatcher, ConnectedListener(session, max_active)
    watcher = dispatcher.watcher
    pending: PendingListener | None = None  # its place in line, which it keeps while the stream reports other things
    listeners.open_stream(worker_id)
    try:
        if not await listeners.keep_alive(worker_id, lease):
            return  # it retired when its last stream broke: if it reconnects, it is a new listener
        yield ServerSentEvent(
            to_json_bytes({"listener_id": session.listener_id, "lease": lease, "can_take_next": True}), event="listener"
        )
        held = {get_delivery_id(run): run for run in await session.list_claimed()}
        for id in sorted(set(active_deliveries) - set(held)):
            yield ServerSentEvent(to_json_bytes({"id": id}), event="ended")
        for id in set(active_deliveries) & set(held):
            watcher.watch(id, held[id], listener)
        waiting = listener.unacknowledged
        waiting.extend(await session.list_unacknowledged(listener.delivery_ids, limit=max_active))
        seen_once: set[str] = set()
        while not call.platform.closing.is_set():
            # A listener that holds a delivery must renew its lease itself: a frozen process keeps its stream open.
            if not listener.delivery_ids and not await listeners.keep_alive(worker_id, lease):
                return  # it was declared dead: if it reconnects, it is a new listener
            listener.changed.clear()
            if listener.is_end_unexpected:
                yield listener.take_ended_events()
            wait_s = EXPECTED_END_DELAY_S if listener.ended_ids else lease / 3
            has_room, found = len(listener.delivery_ids) < max_active, None
            is_isolated = session.is_isolated(listener.delivery_ids)
            if waiting and has_room:
                found = waiting.popleft()
            elif is_isolated:
                wait_s = min(wait_s, ISOLATION_POLL_INTERVAL_S)
            elif has_room and pending is None:
                pending = dispatcher.join(session, listener.delivery_ids)
                pending.delivery.add_done_callback(lambda _: listener.changed.set())
            if found is None:
                if pending is None or not pending.delivery.done():
                    await wait_at_most(call, wait_s, listener.changed.wait())
                if pending is not None and pending.delivery.done():
                    found, pending = pending.delivery.result(), None
            if found is not None:
                delivery = await session.build_delivery(found)
                watcher.watch(delivery.id, found.run, listener)
                data = await call.run_body_work(0, partial(to_json_bytes, delivery))
                yield ServerSentEvent(data, event="delivery", id=delivery.id, preceding=listener.take_ended_events())
                call.value_bytes = 0  # the size of this delivery does not count for the next one
            elif listener.changed.is_set():
                continue
            elif listener.ended_ids:
                yield listener.take_ended_events()
            elif has_room and not is_isolated:
                # An earlier stream of this listener, which broke, may have been handed a run. A run that was seen only
                # once may just be on its way.
                unacknowledged = {
                    get_delivery_id(claimed.run): claimed
                    for claimed in await session.list_unacknowledged(listener.delivery_ids, limit=max_active)
                }
                waiting.extend(claimed for id, claimed in unacknowledged.items() if id in seen_once)
                seen_once = set(unacknowledged)
                if waiting and pending is not None:
                    await dispatcher.leave(pending)
                    pending = None
    finally:
        watcher.remove_listener(listener)
        is_last = listeners.close_stream(worker_id) and not call.platform.closing.is_set()
        await asyncio.shield(_handle_disconnect(session, worker_id, pending, is_last=is_last))


async def _handle_disconnect(
    session: ListenerSession, worker_id: int, pending: PendingListener | None, *, is_last: bool
) -> None:
    """The connection broke: the listener leaves the line, and may reconnect."""
    if pending is not None:
        await session.call.tenant.dispatcher.leave(pending)
    if is_last:
        await session.call.tenant.listeners.handle_disconnect(worker_id)
