"""A listener over HTTP: a stream of deliveries that mends itself, and heartbeats.

**The stream.** When it breaks, the listener connects again, under its id and with the ids of all that it holds: so it
keeps them, and is told of nothing twice. An answer that was lost on the way is given again, since its delivery is not
among those. When the server has taken the listener for dead meanwhile, it gives it another id, and the next heartbeats
tell which deliveries are lost.

**Heartbeats** go on beside, for every delivery that is held: they tell the server that this process does not only have
a connection, but lives, and find out that a run was cancelled or paused, or that somebody else has it. While there is
no stream they are more frequent, since the server gives a listener whose connection has broken only a few seconds to be
heard of again.

**The end.** A listener that leaves gives back what it was handed and has not passed on. What it has passed on belongs
to whoever works on it: its heartbeats go on until it is settled.

Only what the server refuses for good ends a listener: a key that it does not know, or that may not listen there.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Mapping
from typing import Any

from holdfast.background_tasks import keep_running
from holdfast.client.delivery import FAREWELL, Delivery
from holdfast.client.http.backoff import Patience
from holdfast.client.http.runs import part
from holdfast.client.http.sse import Received
from holdfast.client.http.transport import Passing, Transport
from holdfast.client.listener import LONGEST_NAME, Listener
from holdfast.errors import DeliveryLost, HoldfastError, NotAllowed, ServerError, Unauthenticated, UsageError

log = logging.getLogger("holdfast.listening")

LEASE = 30.0
"""Seconds, until the server has said how long they are."""
BEATS = 3
"""Heartbeats in the time of a lease."""
LONGEST_PAUSE = 10.0
"""Seconds between two heartbeats at most: whoever cancels a run does not wait for a long lease."""
ALONE = 1.0
"""Seconds between two heartbeats while there is no stream."""


class HttpListeners:
    """The listeners of a backend, so that closing it ends them."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._here: set[HttpListener] = set()

    def add(self, address: str, *, at_once: int, name: str | None) -> HttpListener:
        """A new one."""
        self._here = {one for one in self._here if not one.is_over}
        listener = HttpListener(self._transport, address, at_once, name or _process_name())
        self._here.add(listener)
        return listener

    async def close(self) -> None:
        """End those of the running event loop."""
        loop = asyncio.get_running_loop()
        for listener in [one for one in self._here if one.loop in (None, loop)]:
            self._here.discard(listener)
            await listener.leave()
            await listener.stop()


class HttpListener(Listener):
    """A listener on one address, and the line of its deliveries to the server. It connects when it is first asked."""

    def __init__(self, transport: Transport, address: str, at_once: int, name: str) -> None:
        self._transport = transport
        self._address = address
        self._at_once = at_once
        self._name = name
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop that it lives on."""
        self._id: str | None = None
        self._lease = LEASE
        self._held: dict[str, Delivery] = {}
        self._waiting: asyncio.Queue[Delivery | HoldfastError] = asyncio.Queue()
        """What was delivered, and not asked for yet."""
        self._is_connected = False
        self._beat_now = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._has_left = False
        self._asking = 0
        """How many wait for a delivery."""
        self._path = f"/v1/addresses/{part(address)}"

    @property
    def is_over(self) -> bool:
        """Whether it has left, and holds nothing."""
        return self._has_left and not self._held

    # For those who listen

    async def next(self) -> Delivery:
        """The next delivery."""
        if self._has_left:
            raise UsageError(f"this listener on {self._address!r} has left: call `client.listen` for a new one")
        if self._following is None:
            following = keep_running(self._follow, f"listening on {self._address!r}", log)
            self._following = asyncio.create_task(following)
        if self._beating is None:
            self.loop = asyncio.get_running_loop()
            beating = keep_running(self._beat, f"sending heartbeats to {self._address!r}", log)
            self._beating = asyncio.create_task(beating)
        self._asking += 1
        try:
            while True:
                found = await self._waiting.get()
                if isinstance(found, HoldfastError):
                    raise found
                if not found.settled:
                    return found
        finally:
            self._asking -= 1

    async def pause(self) -> None:
        """Take nothing more, unless somebody waits for it, or until somebody does."""
        if self._following is None or self._asking:
            return
        following, self._following = self._following, None
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        self._is_connected = False
        self._beat_now.set()

    async def leave(self) -> None:
        """Take nothing more, and give back what nobody has asked for."""
        if self._has_left:
            return
        asking, self._has_left, self._asking = self._asking, True, 0
        await self.pause()
        unasked: list[Delivery] = []
        while not self._waiting.empty():
            found = self._waiting.get_nowait()
            if isinstance(found, Delivery) and not found.settled:
                unasked.append(found)
        for _ in range(asking):
            self._waiting.put_nowait(UsageError(f"the client was closed while it listened on {self._address!r}"))
        await asyncio.gather(*(one.give_back("the listener stops") for one in unasked))
        await self._say_farewell()
        if not self._held:
            await self.stop()

    async def _say_farewell(self) -> None:
        """What is on its way here at this moment goes to others at once."""
        if self._id is None:
            return
        body = {"listener": self._id, "holding": list(self._held)}
        try:
            async with asyncio.timeout(FAREWELL):
                (await self._transport.ask("POST", f"{self._path}/leave", body=body)).checked()
        except (HoldfastError, TimeoutError) as error:
            log.info("address %r: the server does not hear that this listener leaves: %s", self._address, error)

    async def stop(self) -> None:
        """End the heartbeats."""
        if self._beating is not None and self._beating is not asyncio.current_task():
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)

    # For its deliveries

    async def call(self, delivery: str, what: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Do something with a delivery, however long the server cannot be reached."""
        answer = await self._transport.ask("POST", f"/v1/deliveries/{delivery}/{what}", body=dict(body), patience=None)
        data = answer.checked()
        return answer.status, data

    def settled(self, delivery: str) -> None:
        """A delivery is over."""
        self._held.pop(delivery, None)

    # The stream

    async def _follow(self) -> None:
        patience = Patience(self._transport.pace, None)
        while True:
            wait = None
            try:
                await self._read(patience)
                why = "the server has ended the stream"
            except Passing as passing:
                why, wait = str(passing), passing.wait
            except HoldfastError as error:
                if not _may_pass(error):
                    self._waiting.put_nowait(error)
                    return
                why = str(error)
            log.info("address %r: %s; connecting again", self._address, why)
            self._is_connected = False
            self._beat_now.set()
            await patience.wait(wait)

    async def _read(self, patience: Patience) -> None:
        query = {
            "listener": self._id,
            "name": self._name,
            "holding": list(self._held),
            "at_once": self._at_once,
        }
        async with self._transport.stream(f"{self._path}/listen", query=query) as stream:
            async for event in stream:
                try:
                    self._hear(event, patience)
                except (ValueError, KeyError, TypeError) as error:
                    raise ServerError(
                        f"{self._transport.place.url} has sent what this version of Holdfast cannot read, as "
                        f"{event.event!r} of address {self._address!r}: {error!r}. Are both of the same version?"
                    ) from error

    def _hear(self, event: Received, patience: Patience) -> None:
        if event.event == "listener":
            told = json.loads(event.data)
            self._id, self._lease = str(told["listener"]), float(told["lease"])
            self._is_connected = True
            patience.renew()
        elif event.event == "delivery":
            self._take(json.loads(event.data))
        elif event.event == "over" and json.loads(event.data)["id"] in self._held:
            self._beat_now.set()  # which tells why

    def _take(self, told: Mapping[str, Any]) -> None:
        if str(told["id"]) in self._held:
            return
        delivery = Delivery(told, self)
        for other in [other for other in self._held.values() if other.run_id == delivery.run_id]:
            other.hear(
                DeliveryLost(
                    f"delivery {other.number} of run {other.run_id!r} is over: there is a newer one",
                    other.run_id,
                    reason="taken-over",
                )
            )
        self._held[delivery.id] = delivery
        self._waiting.put_nowait(delivery)

    # Heartbeats

    async def _beat(self) -> None:
        while not self.is_over:
            pause = min(self._lease / BEATS, LONGEST_PAUSE if self._is_connected else ALONE)
            try:
                async with asyncio.timeout(pause):
                    await self._beat_now.wait()
            except TimeoutError:
                pass
            self._beat_now.clear()
            await asyncio.gather(*(self._beat_of(one, pause) for one in list(self._held.values())))

    async def _beat_of(self, delivery: Delivery, patience: float) -> None:
        path = f"/v1/deliveries/{delivery.id}/heartbeat"
        try:
            (await self._transport.ask("POST", path, body={}, answer=LONGEST_PAUSE, patience=patience)).checked()
        except DeliveryLost as loss:
            delivery.hear(loss)
        except HoldfastError as error:
            log.info("%s: no heartbeat (%s)", delivery, error)


def _may_pass(error: HoldfastError) -> bool:
    """Whether a listener goes on although the server has answered so."""
    if isinstance(error, Unauthenticated | NotAllowed):
        return False
    return isinstance(error, ServerError) and error.status is not None and error.status >= 500


def _process_name() -> str:
    return f"{socket.gethostname()[: LONGEST_NAME - 12]} {os.getpid()}"
