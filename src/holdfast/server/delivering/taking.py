"""Taking deliveries: by long poll, one at a time, or over a stream, as they come.

Whoever takes says what it holds. What it holds by the store's account and does not name, it was handed in an answer
that never arrived: it is handed that again, at once, and nothing is counted. So an answer that is lost on the way, with
a server or a connection, costs no delivery.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Coroutine
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from pydantic_core import to_jsonable_python

from holdfast.client.addresses import AddressInfo, declare_address
from holdfast.core.states import RunState
from holdfast.server.calls import Call
from holdfast.server.delivering.deliveries import Delivery, Held, delivery_id, told
from holdfast.server.delivering.desk import LOOK, Waiting
from holdfast.server.delivering.holding import release
from holdfast.server.problems import Problem
from holdfast.server.streams import Sent
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
        worker = await call.platform.listeners.read(call.tenant, address, given)
        if worker is not None and await store.keep_worker(worker, listener.address.lease):
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

    async def unheard_of(self, holding: Collection[str]) -> Held | None:
        """A run that it holds, and does not know of."""
        for run in await self.held():
            if delivery_id(run) not in holding and (whole := await self.store.get(run.id)) is not None:
                [history] = await self.store.histories([run.key])
                return Held(whole, history)
        return None

    async def next(self, holding: Collection[str]) -> Delivery:
        """The next delivery, whenever there is one."""
        again = await self.unheard_of(holding)
        if again is None:
            desk = self.call.platform.desks.of(self.call.tenant)
            waiting = Waiting(self.number, self.shown or self.call.caller.name, self.call.caller.remote)
            again = (await desk.next(self.address.name, waiting)).held
        id = delivery_id(again.run)
        self.call.platform.held.put(self.call.tenant.namespace, id, again)
        return told(self.call, again, self.given, self.address.lease)


async def take(
    call: Call, address: str, *, listener: str | None, name: str, holding: Collection[str], wait: float
) -> Delivery | None:
    """The next delivery of an address; ``None`` if there is none for so long."""
    asking = await Listener.of(call, address, listener, name)
    return await _within(asking, holding, max(wait, ONE_LOOK), _disconnected(call))


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
    known = set(holding)
    try:
        while not call.platform.closing.is_set():
            await call.platform.listeners.keep(call.tenant, asking.store, worker, asking.address.lease)
            held = {delivery_id(run) for run in await asking.held()}
            for over in sorted(known - held):
                yield Sent({"id": over}, event="over")
            known &= held
            if len(known) >= at_once:
                await _changed(call, address)
                continue
            delivery = await _within(asking, known, asking.address.lease / 3)
            if delivery is not None:
                known.add(delivery.id)
                data = to_jsonable_python(asdict(delivery))
                yield Sent(data, event="delivery", id=delivery.id)
    finally:
        if not call.platform.closing.is_set():
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


async def _within(
    asking: Listener, known: Collection[str], seconds: float, gone: Coroutine[Any, Any, None] | None = None
) -> Delivery | None:
    """The next delivery, if there is one within this time, while the server runs and the caller has not ``gone``."""
    found = asyncio.create_task(asking.next(known))
    closing = asyncio.create_task(asking.call.platform.closing.wait())
    ends: list[asyncio.Task[Any]] = [closing] if gone is None else [closing, asyncio.create_task(gone)]
    try:
        await asyncio.wait([found, *ends], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (found, *ends):
            task.cancel()  # a search that goes on gives back what it finds meanwhile
        await asyncio.gather(found, *ends, return_exceptions=True)
    return None if found.cancelled() else found.result()


async def _changed(call: Call, address: str) -> None:
    """Wait until a delivery of this address may be over."""
    with call.platform.desks.of(call.tenant).bell(address) as bell:
        await bell.wait(LOOK)


async def _left(asking: Listener, worker: int) -> None:
    """The connection is broken: whoever held something has a moment to come back; others are gone."""
    if await asking.held():
        await asking.call.platform.listeners.shorten(asking.call.tenant, asking.store, worker)
    else:
        await asking.store.retire_worker(worker)
