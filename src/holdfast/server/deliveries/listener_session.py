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
from dataclasses import asdict
from functools import partial
from typing import Any

from pydantic_core import to_jsonable_python

from holdfast.core.states import RunState
from holdfast.server.calls import Call
from holdfast.server.deliveries.delivery import Delivery, Held, delivery_id, told
from holdfast.server.deliveries.delivery_operations import release
from holdfast.server.deliveries.delivery_watcher import Holder
from holdfast.server.deliveries.dispatcher import Waiting
from holdfast.server.http.bounded_wait import within
from holdfast.server.http.problems import Problem
from holdfast.server.http.server_sent_events import Sent
from holdfast.services.addresses import AddressInfo, declare_address
from holdfast.stores import rules
from holdfast.stores.contract import RunFilter, Store
from holdfast.stores.operations import Run

ONE_LOOK = 0.25
"""Seconds that a look may take of whoever does not want to wait."""


class Listener:
    """A process elsewhere, on one address, as this request knows it."""

    def __init__(self, call: Call, store: Store, address: AddressInfo, name: str) -> None:
        self.call = call
        self.store = store
        self.address = address
        self.shown = name
        self.worker: int | None = None
        self.given = ""
        """What it is called."""

    @classmethod
    async def of(cls, call: Call, address: str, given: str | None, name: str) -> Listener:
        """The listener that asks: one that is known, or one that is not registered yet."""
        store = await call.store()
        listener = cls(call, store, await declare_address(store, address), name)
        listeners = call.platform.listeners
        worker = await listeners.read(call.tenant, address, given)
        if worker is not None and await listeners.renew(call.tenant, store, worker, listener.address.lease):
            listener.worker, listener.given = worker, given or ""
        return listener

    async def number(self) -> int:
        """Its number in the store: it is registered if it is not."""
        if self.worker is None:
            self.worker = await self.call.platform.listeners.register(self.call, self.store, self.address, self.shown)
            self.given = await self.call.platform.listeners.name(self.call.tenant, self.address.name, self.worker)
        return self.worker

    async def held(self) -> list[Run]:
        """The runs that it holds by the store's account, the oldest first."""
        if self.worker is None:
            return []
        where = RunFilter(states=[RunState.RUNNING], workflow=self.address.name, owner=self.worker)
        return (await self.store.list_runs(where, limit=1000))[::-1]

    async def unheard_of(self, holding: Collection[str], most: int) -> list[Held]:
        """Runs that it holds, and does not know of."""
        known = frozenset(holding)  # what is settled while this looks was known, and may still look as if it were held
        found: list[Held] = []
        for run in await self.held():
            if len(found) < most and delivery_id(run) not in known:
                whole = await self.store.get(run.id)
                if whole is not None and whole.state is RunState.RUNNING and whole.epoch == run.epoch:
                    [history] = await self.store.histories([run.key])
                    found.append(Held(whole, history))
        return found

    async def next(self, holding: Collection[str] = ()) -> Held:
        """The next run that is handed to it, whenever there is one; ``holding`` is what it holds."""
        while self.is_trying_alone(holding):  # noqa: ASYNC110 - it may end by the clock as well
            await asyncio.sleep(ONE_LOOK)
        desk = self.call.platform.desks.of(self.call.tenant)
        caller = self.call.caller
        wait = rules.WAIT_LEASES * self.address.lease
        waiting = Waiting(
            self.number,
            self.shown or caller.name,
            caller.remote,
            check_key=None if self.call.is_own else self.call.check_key,
            suspects_after=lambda: wait if holding else 0.0,
        )
        return await desk.next(self.address.name, waiting)

    def is_trying_alone(self, holding: Collection[str]) -> bool:
        """Whether it holds a run that others died of, and is handed nothing else meanwhile."""
        held = (self.call.platform.held.get(self.call.tenant.namespace, id) for id in holding)
        now, lease = self.store.now(), self.address.lease
        return any(one is not None and one.is_tried_alone(now, lease) for one in held)

    async def next_or_unheard_of(self, holding: Collection[str]) -> Held:
        """The same, but first what it was handed in answers that never arrived."""
        for again in await self.unheard_of(holding, most=1):
            return again
        return await self.next(holding)

    async def told(self, held: Held) -> Delivery:
        """The delivery as the listener gets it; and this server remembers it."""
        self.call.platform.held.put(self.call.tenant.namespace, delivery_id(held.run), held)
        return await told(self.call, held, self.given, self.address.lease)


async def take(
    call: Call, address: str, *, listener: str | None, name: str, holding: Collection[str], wait: float
) -> Delivery | None:
    """The next delivery of an address; ``None`` if there is none for so long."""
    asking = await Listener.of(call, address, listener, name)
    found = await within(call, max(wait, ONE_LOOK), asking.next_or_unheard_of(holding), _disconnected(call))
    return None if found is None else await asking.told(found)


def _as_json(delivery: Delivery) -> Any:
    return to_jsonable_python(asdict(delivery))


async def _disconnected(call: Call) -> None:
    while (await call.request.receive())["type"] != "http.disconnect":
        pass


async def listen(
    call: Call, address: str, *, listener: str | None, name: str, holding: Collection[str], at_once: int
) -> AsyncGenerator[Sent]:
    """Deliveries as they come, as many as the listener can hold at once."""
    asking = await Listener.of(call, address, listener, name)
    worker = await asking.number()
    yield Sent({"listener": asking.given, "lease": asking.address.lease}, event="listener")
    holders, holder = call.platform.desks.of(call.tenant).holders, Holder()
    call.platform.listeners.begins(call.tenant, worker)
    try:
        held = {delivery_id(run): run for run in await asking.held()}
        for id in sorted(set(holding) - set(held)):
            yield Sent({"id": id}, event="over")
        for id in set(holding) & set(held):
            holders.hold(id, held[id], holder)
        waiting = deque(await asking.unheard_of(holder.known, most=at_once))
        suspects: set[str] = set()
        seconds = asking.address.lease / 3
        while not call.platform.closing.is_set():
            # Who holds something must be heard of itself: a stream is open also to a process that stands still.
            if not holder.known:
                lives = await call.platform.listeners.keep(call.tenant, asking.store, worker, asking.address.lease)
                if not lives:
                    return  # it was taken for dead: whoever comes back is a new listener
            holder.changed.clear()
            while holder.over:
                yield Sent({"id": holder.over.pop()}, event="over")
            if len(holder.known) >= at_once:
                await within(call, seconds, holder.changed.wait())
                continue
            if waiting:
                found = waiting.popleft()
            else:
                found = await within(call, seconds, asking.next(holder.known), holder.changed.wait())
            if found is not None:
                delivery = await asking.told(found)
                holders.hold(delivery.id, found.run, holder)
                data = await call.off_loop(0, partial(_as_json, delivery))
                yield Sent(data, event="delivery", id=delivery.id, size=call.size)
                call.size = 0  # the next delivery is another one
            elif not holder.changed.is_set():
                # Another stream of this very listener, which nobody reads any more, may have been handed something.
                # What was seen only once may be on its way back at this moment.
                again = {delivery_id(one.run): one for one in await asking.unheard_of(holder.known, most=at_once)}
                waiting.extend(one for id, one in again.items() if id in suspects)
                suspects = set(again)
    finally:
        holders.leaves(holder)
        is_last = call.platform.listeners.ends(call.tenant, worker)
        if is_last and not call.platform.closing.is_set():
            await asyncio.shield(_left(asking, worker))


async def leave(call: Call, address: str, *, listener: str | None, holding: Collection[str]) -> None:
    """The listener takes nothing more. What it was handed and does not know of goes to others at once."""
    asking = await Listener.of(call, address, listener, "")
    if asking.worker is None:
        return
    held = {delivery_id(run) for run in await asking.held()}
    for id in held.difference(holding):
        with suppress(Problem):  # it is over at this very moment
            await release(call, id, "the listener has left", 0.0)
    if held.isdisjoint(holding):
        await asking.store.retire_worker(asking.worker)


async def _left(asking: Listener, worker: int) -> None:
    """The connection is broken: whoever held something has a moment to come back; others are gone."""
    if await asking.held():
        await asking.call.platform.listeners.shorten(asking.call.tenant, asking.store, worker)
    else:
        await asking.store.retire_worker(worker)
