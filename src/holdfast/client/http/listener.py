"""A listener over HTTP: a stream of deliveries that reconnects, and heartbeats.

**The stream.** When it breaks, the listener connects again with its id and the ids of all deliveries that it holds. So
it keeps them, and gets nothing twice. A delivery that was lost on the way is sent again, since it is not among those.
If the server has declared the listener dead meanwhile, the listener gets another id, and the next heartbeats show which
deliveries are lost.

**Heartbeats** are sent for every delivery that is held. They show the server that this process lives and does not only
have a connection, and they find out that a run was cancelled or paused, or that another listener has it. They are more
frequent while there is no stream, since the server gives a listener whose connection is broken only a few seconds.

**The end.** A listener that leaves first stops taking deliveries: otherwise it would get back what it releases. It
releases what it received and has not passed on, and then tells the server that it leaves, so what is on its way to it
at that moment goes to others at once. Deliveries that it has passed on belong to the code that works on them: their
heartbeats continue until they end.

Only what the server refuses for good ends a listener: an unknown key, or one that may not listen there.
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
from holdfast.client.delivery import RELEASE_TIMEOUT_S, Delivery
from holdfast.client.http.backoff import Backoff
from holdfast.client.http.requests import quote_segment
from holdfast.client.http.sse import ServerSentEvent
from holdfast.client.http.transport import TransientError, Transport
from holdfast.client.listener import MAX_NAME_LENGTH
from holdfast.errors import DeliveryLost, HoldfastError, NotAllowed, ServerError, Unauthenticated, UsageError

log = logging.getLogger("holdfast.listeners")

DEFAULT_LEASE_S = 30.0
"""Used until the server has sent the duration of its leases."""
HEARTBEATS_PER_LEASE = 3
MAX_HEARTBEAT_INTERVAL_S = 10.0
"""Heartbeats find out that a run was cancelled, and that should not take as long as a long lease."""
DISCONNECTED_HEARTBEAT_INTERVAL_S = 1.0
"""Seconds between two heartbeats while there is no stream."""


class HttpListenerRegistry:
    """The listeners of a client, so that closing it ends them."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._listeners: set[HttpListener] = set()

    def create(self, address: str, *, concurrency: int, name: str | None) -> HttpListener:
        """A new listener."""
        self._listeners = {listener for listener in self._listeners if not listener.is_finished}
        listener = HttpListener(self._transport, address, concurrency, name or _get_process_name())
        self._listeners.add(listener)
        return listener

    async def close(self) -> None:
        """End the listeners of the running event loop."""
        loop = asyncio.get_running_loop()
        for listener in [listener for listener in self._listeners if listener.loop in (None, loop)]:
            self._listeners.discard(listener)
            await listener.leave()
            await listener.stop_heartbeats()


class HttpListener:
    """A listener on one address, which also sends the calls of its deliveries to the server.

    It connects when the first delivery is requested, and belongs to the event loop that requests it.
    """

    def __init__(self, transport: Transport, address: str, concurrency: int, name: str) -> None:
        self._transport = transport
        self._address = address
        self._concurrency = concurrency
        self._name = name
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop that it lives on."""
        self._id: str | None = None
        self._lease_s = DEFAULT_LEASE_S
        self._open_deliveries: dict[str, Delivery] = {}
        self._pending: asyncio.Queue[Delivery | HoldfastError] = asyncio.Queue()
        """Deliveries that were received and not yet requested."""
        self._is_connected = False
        self._can_take_next = False
        """The server can send the next delivery in its response to a request that completes one."""
        self._heartbeat_now = asyncio.Event()
        self._stream_task: asyncio.Task[None] | None = None
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._has_left = False
        self._waiter_count = 0
        """Callers that wait for a delivery."""
        self._path = f"/v1/addresses/{quote_segment(address)}"

    @property
    def is_finished(self) -> bool:
        """Whether it has left, and holds no delivery."""
        return self._has_left and not self._open_deliveries

    # For the code that listens

    async def next(self) -> Delivery:
        """The next delivery, however long that takes, and however often the listener must reconnect.

        Raises an error if the server refuses for good.
        """
        if self._has_left:
            raise UsageError(f"this listener on {self._address!r} has left: call `client.listen` for a new one")
        if self._stream_task is None:
            self._start_stream()
        if self._heartbeat_task is None:
            self.loop = asyncio.get_running_loop()
            heartbeats = keep_running(self._run_heartbeats, f"sending heartbeats to {self._address!r}", log)
            self._heartbeat_task = asyncio.create_task(heartbeats)
        self._waiter_count += 1
        try:
            while True:
                found = await self._pending.get()
                if isinstance(found, HoldfastError):
                    raise found
                if not found.is_ended:
                    return found
        finally:
            self._waiter_count -= 1

    def _start_stream(self) -> None:
        stream = keep_running(self._run_stream, f"listening on {self._address!r}", log)
        self._stream_task = asyncio.create_task(stream)

    async def pause(self) -> None:
        """Accept no more deliveries, unless a caller waits for one, or until a caller does."""
        if self._stream_task is None or self._waiter_count:
            return
        task, self._stream_task = self._stream_task, None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self._is_connected = False
        self._heartbeat_now.set()

    async def leave(self) -> None:
        """Accept no more deliveries, and release those that were not requested. The others stay until they end."""
        if self._has_left:
            return
        waiter_count, self._has_left, self._waiter_count = self._waiter_count, True, 0
        await self.pause()
        unrequested: list[Delivery] = []
        while not self._pending.empty():
            found = self._pending.get_nowait()
            if isinstance(found, Delivery) and not found.is_ended:
                unrequested.append(found)
        for _ in range(waiter_count):
            self._pending.put_nowait(UsageError(f"the client was closed while it listened on {self._address!r}"))
        await asyncio.gather(*(delivery.try_release("the listener stops") for delivery in unrequested))
        await self._announce_leave()
        if not self._open_deliveries:
            await self.stop_heartbeats()

    async def _announce_leave(self) -> None:
        """Tell the server, so that a delivery that is on its way here goes to another listener at once."""
        if self._id is None:
            return
        body = {"listener_id": self._id, "active_deliveries": list(self._open_deliveries)}
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                (await self._transport.request("POST", f"{self._path}/leave", body=body)).unwrap()
        except (HoldfastError, TimeoutError) as error:
            log.info("address %r: the server does not hear that this listener leaves: %s", self._address, error)

    async def stop_heartbeats(self) -> None:
        """Stop sending heartbeats."""
        if self._heartbeat_task is not None and self._heartbeat_task is not asyncio.current_task():
            self._heartbeat_task.cancel()
            await asyncio.gather(self._heartbeat_task, return_exceptions=True)

    # For its deliveries

    async def call(self, delivery_id: str, operation: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Send an operation on a delivery until the server answers: the status and the data of the response.

        Raises ``DeliveryLost``, and errors for what the server refuses.
        """
        is_taking_next = operation == "complete" and self._can_take_next and self._is_connected
        response = await self._transport.request(
            "POST",
            f"/v1/deliveries/{delivery_id}/{operation}",
            body={**body, "next": "stream"} if is_taking_next else dict(body),
            give_up_after_s=None,
        )
        data = response.unwrap()
        if is_taking_next:
            await self._accept_next(data["delivery"], is_repeat=response.has_unconfirmed_attempt)
        return response.status, data

    async def _accept_next(self, data: Mapping[str, Any] | None, *, is_repeat: bool) -> None:
        """Accept the delivery in the response to a request that has completed another one."""
        if data is None:
            if is_repeat and self._stream_task is not None:
                # A response that was lost may have had a delivery: the server sends what this listener does not name.
                self._stream_task.cancel()
                self._start_stream()
        elif self._stream_task is None:  # it has left, or accepts nothing now
            await Delivery(data, self).try_release("the listener stops")
        else:
            self._accept_delivery(data)

    def on_delivery_ended(self, delivery_id: str) -> None:
        """Forget a delivery that has ended."""
        self._open_deliveries.pop(delivery_id, None)

    # The stream

    async def _run_stream(self) -> None:
        backoff = Backoff(self._transport.timing, None)
        while True:
            retry_after_s = None
            try:
                await self._read_stream(backoff)
                reason = "the server has ended the stream"
            except TransientError as error:
                reason, retry_after_s = str(error), error.retry_after_s
            except HoldfastError as error:
                if not _is_retryable(error):
                    self._pending.put_nowait(error)
                    return
                reason = str(error)
            log.info("address %r: %s; connecting again", self._address, reason)
            self._is_connected = False
            self._heartbeat_now.set()
            await backoff.wait(retry_after_s)

    async def _read_stream(self, backoff: Backoff) -> None:
        query = {
            "listener_id": self._id,
            "name": self._name,
            "active_deliveries": list(self._open_deliveries),
            "max_active": self._concurrency,
        }
        async with self._transport.stream(f"{self._path}/listen", query=query) as stream:
            async for event in stream:
                try:
                    self._handle_event(event, backoff)
                except (ValueError, KeyError, TypeError) as error:
                    raise ServerError(
                        f"{self._transport.endpoint.url} has sent what this version of Holdfast cannot read, as "
                        f"{event.event!r} of address {self._address!r}: {error!r}. Are both of the same version?"
                    ) from error

    def _handle_event(self, event: ServerSentEvent, backoff: Backoff) -> None:
        if event.event == "listener":
            data = json.loads(event.data)
            self._id, self._lease_s = str(data["listener_id"]), float(data["lease"])
            self._can_take_next = bool(data.get("can_take_next"))  # an older server does not say
            self._is_connected = True
            backoff.reset()
        elif event.event == "delivery":
            self._accept_delivery(json.loads(event.data))
        elif event.event == "ended":
            delivery = self._open_deliveries.get(json.loads(event.data)["id"])
            if delivery is not None and not delivery.is_ending:
                self._heartbeat_now.set()  # the response says why

    def _accept_delivery(self, data: Mapping[str, Any]) -> None:
        if str(data["id"]) in self._open_deliveries:
            return
        delivery = Delivery(data, self)
        for other in [other for other in self._open_deliveries.values() if other.run_id == delivery.run_id]:
            other.handle_loss(
                DeliveryLost(
                    f"delivery {other.number} of run {other.run_id!r} is over: there is a newer one",
                    other.run_id,
                    reason="taken-over",
                )
            )
        self._open_deliveries[delivery.id] = delivery
        self._pending.put_nowait(delivery)

    # Heartbeats

    async def _run_heartbeats(self) -> None:
        while not self.is_finished:
            interval_s = min(
                self._lease_s / HEARTBEATS_PER_LEASE,
                MAX_HEARTBEAT_INTERVAL_S if self._is_connected else DISCONNECTED_HEARTBEAT_INTERVAL_S,
            )
            try:
                async with asyncio.timeout(interval_s):
                    await self._heartbeat_now.wait()
            except TimeoutError:
                pass
            self._heartbeat_now.clear()
            deliveries = list(self._open_deliveries.values())
            await asyncio.gather(*(self._send_heartbeat(delivery, interval_s) for delivery in deliveries))

    async def _send_heartbeat(self, delivery: Delivery, give_up_after_s: float) -> None:
        path = f"/v1/deliveries/{delivery.id}/heartbeat"
        try:
            response = await self._transport.request(
                "POST", path, body={}, timeout_s=MAX_HEARTBEAT_INTERVAL_S, give_up_after_s=give_up_after_s
            )
            response.unwrap()
        except DeliveryLost as loss:
            delivery.handle_loss(loss)
        except HoldfastError as error:
            log.info("%s: no heartbeat (%s)", delivery, error)


def _is_retryable(error: HoldfastError) -> bool:
    """Whether a listener continues after this error."""
    if isinstance(error, Unauthenticated | NotAllowed):
        return False
    return isinstance(error, ServerError) and error.status is not None and error.status >= 500


def _get_process_name() -> str:
    return f"{socket.gethostname()[: MAX_NAME_LENGTH - 12]} {os.getpid()}"
