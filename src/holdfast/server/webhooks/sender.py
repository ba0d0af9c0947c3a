"""Sending: the server takes the deliveries of addresses with a webhook, sends them, and settles them by the answers.

For each such address one task waits at the desk, like a listener, until as many requests are under way as there may be
at once. A delivery that is taken has a listener of its own in the store, so that it can be left to the receiver alone
(202): from then on it lives as long as the receiver is heard of. Until then this server renews the lease, and hears in
the same way that the run was cancelled or that the delivery is lost, upon which the request is broken off.

What this server knows of webhooks is read from the store every second, and of one that is about to be sent to, right
before: a secret that was exchanged, or a webhook that was taken away, counts from then on, whichever server was told.

A server that stops takes nothing more, gives back what it has not begun to send, and waits a moment for answers. One
that is killed leaves its deliveries to the leases: they are sent again, under the next number, with the steps that are
recorded by then. Requests whose answer was not heard may thus come twice, and say so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pydantic_core import to_json
from starlette.requests import Request

from holdfast.background_tasks import keep_running
from holdfast.errors import CodecError, HoldfastError, StoreError
from holdfast.server.auth.authenticator import Caller
from holdfast.server.auth.scopes import Scope
from holdfast.server.background.tasks import look_after, meanwhile
from holdfast.server.calls import Call
from holdfast.server.deliveries import delivery_operations
from holdfast.server.deliveries.delivery import Delivery
from holdfast.server.deliveries.listener_session import Listener
from holdfast.server.http.problems import Problem
from holdfast.server.tenants import Tenant
from holdfast.server.webhooks.http_client import NotAnswered, Poster
from holdfast.server.webhooks.request_slots import RequestSlots
from holdfast.server.webhooks.response_outcomes import Completed, Failed, GoesOn, Meaning, meaning, pause_before
from holdfast.server.webhooks.target_policy import Targets, shown_host
from holdfast.services.webhook_settings import Webhook, find_webhook, list_webhooks, switch_off
from holdfast.webhooks import ID, SIGNATURE, TIMESTAMP, signature

if TYPE_CHECKING:
    from holdfast.server.app import Platform

log = logging.getLogger("holdfast.server")

EVERY = 1.0
"""Seconds between two looks at which webhooks there are."""
AT_ONCE = 10
"""Requests that are under way for one address, from one server."""
PER_NAMESPACE = 100
"""Requests that are under way for one namespace, from one server."""
IN_ALL = 500
"""Requests that are under way from one server."""
BEAT = 5.0
"""Seconds after which a request that is under way is looked after, at the latest."""
LAST_ANSWERS = 5.0
"""Seconds that a server which stops waits for answers."""
STORE_PAUSE = 1.0
"""Seconds until a store that could not be reached is asked again."""


async def sender(platform: Platform) -> AsyncGenerator[None]:
    """Sends what there is to send in all namespaces that the server speaks for, as long as it runs."""
    sending = Sending(platform)
    looks = look_after(platform.tenants, sending.look, every=EVERY, what="its webhooks could not be read")
    try:
        async with meanwhile(looks):
            yield
    finally:
        await sending.stop()


class Sending:
    """All that one server sends."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._poster = Poster(targets_of(platform))
        self._slots = RequestSlots(IN_ALL, PER_NAMESPACE)
        self._lines: dict[tuple[str, str, str], asyncio.Task[None]] = {}
        """Who waits for deliveries, by namespace, address and URL."""
        self._under_way: dict[asyncio.Task[None], Errand] = {}

    async def look(self, tenant: Tenant) -> None:
        """One look at the webhooks of a namespace: somebody is kept waiting for each that there is."""
        hooks = await list_webhooks(await tenant.store())
        wanted = {(tenant.namespace, name, hook.url) for name, hook in hooks.items() if hook.off is None}
        for place, line in list(self._lines.items()):
            if place[0] == tenant.namespace and (place not in wanted or line.done()):
                line.cancel()
                del self._lines[place]
        for place in wanted - self._lines.keys():
            line = partial(self._wait_in_line, tenant, place[1], place[2])
            what = f"address {place[1]!r}: sending to its webhook"
            self._lines[place] = asyncio.create_task(keep_running(line, what, log))

    async def stop(self) -> None:
        """Take nothing more, give back what was not begun, and wait a moment for answers."""
        lines = list(self._lines.values())
        for task in lines:
            task.cancel()
        await asyncio.gather(*lines, return_exceptions=True)
        for task, errand in list(self._under_way.items()):
            if not errand.is_begun:
                task.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=LAST_ANSWERS)
        tasks = list(self._under_way)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait_in_line(self, tenant: Tenant, address: str, url: str) -> None:
        """Take deliveries of one address, as many as may be under way at once."""
        slots = asyncio.Semaphore(AT_ONCE)
        call = _own_call(self._platform, tenant, shown_host(url))
        while True:
            await slots.acquire()
            try:
                errand = await Errand.taken(call, address)
            except (HoldfastError, Problem) as error:
                log.warning("address %r: nothing can be taken for its webhook: %s", address, error)
                slots.release()
                await asyncio.sleep(STORE_PAUSE)
                continue
            task = asyncio.create_task(errand.run(self._poster, self._slots))
            self._under_way[task] = errand
            task.add_done_callback(self._under_way.pop)
            task.add_done_callback(lambda _: slots.release())


class Errand:
    """One delivery on its way to its receiver."""

    def __init__(self, call: Call, listener: Listener, delivery: Delivery) -> None:
        self._call = call
        self._listener = listener
        self._delivery = delivery
        self.is_begun = False
        """A request may have been sent."""
        self._is_receivers = False
        """The receiver goes on by itself."""

    @classmethod
    async def taken(cls, call: Call, address: str) -> Errand:
        """The next delivery of an address, whenever there is one."""
        listener = await Listener.of(call, address, None, "webhook")
        what = f"address {address!r}: keeping its listener"
        kept = asyncio.create_task(keep_running(partial(_stay, listener), what, log))
        try:
            return cls(call, listener, await listener.told(await listener.next()))
        except BaseException:
            await asyncio.shield(_leave(listener))
            raise
        finally:
            kept.cancel()

    async def run(self, poster: Poster, slots: RequestSlots) -> None:
        """Send it, look after it meanwhile, and settle it."""
        sent = asyncio.create_task(self._send(poster, slots))
        what = f"run {self._delivery.run_id!r}: renewing the lease of its webhook"
        kept = asyncio.create_task(keep_running(self._keep, what, log))
        try:
            await asyncio.wait([sent, kept], return_when=asyncio.FIRST_COMPLETED)
            if sent.done():
                sent.result()
        except asyncio.CancelledError:
            sent.cancel()
            await asyncio.gather(sent, return_exceptions=True)
            await self._give_back("the server has stopped")
            raise
        except StoreError as error:
            log.warning("run %r: its webhook cannot be sent yet: %s", self._delivery.run_id, error)
            await self._give_back("the store could not be asked", STORE_PAUSE)
        except Exception:
            # It counts as a failure: what fails here each time must come to an end.
            log.exception("run %r: its webhook could not be sent", self._delivery.run_id)
            await self._settled(Failed("WebhookFailed", "the server failed to send it: its log tells more"))
        finally:
            for task in (sent, kept):
                task.cancel()
            await asyncio.gather(sent, kept, return_exceptions=True)
            if not self._is_receivers:
                await _leave(self._listener)

    async def _send(self, poster: Poster, slots: RequestSlots) -> None:
        async with slots.slot(self._call.tenant.namespace):
            store = await self._call.store()
            hook = await find_webhook(store, self._delivery.address)
            if hook is None or hook.off is not None:
                await self._give_back("the webhook was taken away", EVERY)  # by then nobody waits for it here
                return
            # What it was when the wait began may be long ago.
            address = await self._call.platform.listeners.settings_of(self._call.tenant, self._delivery.address)
            self._delivery = replace(self._delivery, lease=address.lease)
            self.is_begun = True
            meant = await self._posted(poster, hook, address.webhook_timeout)
        await self._settled(meant, hook)

    async def _settled(self, meant: Meaning, hook: Webhook | None = None) -> None:
        while True:
            try:
                await self._settle(meant, hook)
            except StoreError as error:  # what was answered must not be forgotten
                log.warning("run %r: the answer to its webhook cannot be kept yet: %s", self._delivery.run_id, error)
                await asyncio.sleep(STORE_PAUSE)
            except Problem as problem:
                log.info("run %r: the answer to its webhook comes too late: %s", self._delivery.run_id, problem)
                return
            else:
                return

    async def _posted(self, poster: Poster, hook: Webhook, timeout: float) -> Meaning:
        settings, delivery = self._call.platform.settings, self._delivery
        body = await self._call.off_loop(0, lambda: to_json(delivery))
        now = settings.now()
        headers = signed(hook.signing((await self._call.store()).now()), message_id(delivery.id), int(now), body)
        largest = min(settings.max_body, self._call.client.max_value)
        with self._call.platform.bodies.room(f"webhooks of {self._call.tenant.namespace}") as room:
            try:
                answer = await poster.post(hook.url, headers, body, within=timeout, largest=largest, take=room.take)
            except NotAnswered as problem:
                return Failed("WebhookFailed", f"the delivery could not be sent, or was not answered: {problem}")
            except Problem as problem:
                return Failed("WebhookFailed", f"the answer could not be read: {problem}")
            return await self._call.off_loop(len(answer.body), lambda: meaning(answer, now))

    async def _settle(self, meant: Meaning, hook: Webhook | None) -> None:
        call, delivery = self._call, self._delivery
        match meant:
            case GoesOn():
                store = await call.store()
                self._is_receivers = await store.keep_worker(self._listener.worker or 0, delivery.lease)
            case Completed(output):
                try:
                    await delivery_operations.complete(call, delivery.id, output)
                except CodecError as error:
                    await delivery_operations.fail(
                        call, delivery.id, "WebhookRefused", str(error), retry=False, delay=None
                    )
            case Failed():
                if meant.is_gone and hook is not None:
                    await switch_off(await call.store(), hook, meant.message)
                    log.warning("address %r: its webhook is switched off: %s", delivery.address, meant.message)
                pause = pause_before(delivery.failures, delivery.id, meant.after)
                await delivery_operations.fail(
                    call, delivery.id, meant.type, meant.message, retry=meant.retry, delay=pause
                )

    async def _keep(self) -> None:
        """Renew the lease, until the delivery is lost."""
        while True:
            await asyncio.sleep(min(self._delivery.lease / 3, BEAT))
            try:
                await delivery_operations.heartbeat(self._call, self._delivery.id)
            except Problem as problem:
                log.info("run %r: its webhook is broken off: %s", self._delivery.run_id, problem)
                return
            except StoreError as error:
                log.warning("run %r: its lease cannot be renewed: %s", self._delivery.run_id, error)

    async def _give_back(self, why: str, delay: float = 0.0) -> None:
        try:
            await delivery_operations.release(self._call, self._delivery.id, why, delay)
        except Problem:
            pass
        except StoreError as error:
            log.warning("run %r could not be given back, and goes on after its lease: %s", self._delivery.run_id, error)


async def _stay(listener: Listener) -> None:
    """Keep a listener that waits: it is registered when there is a run for it, which it may not get after all."""
    while True:
        await asyncio.sleep(listener.address.lease / 3)
        try:
            if listener.worker is not None:
                await listener.store.keep_worker(listener.worker, listener.address.lease)
        except StoreError as error:
            log.warning("a listener of %r could not be kept: %s", listener.address.name, error)


async def _leave(listener: Listener) -> None:
    """The listener is not needed any more."""
    if listener.worker is not None:
        try:
            await listener.store.retire_worker(listener.worker)
        except StoreError as error:
            log.warning("a listener of %r could not be retired: %s", listener.address.name, error)


def signed(secrets: list[str], id: str, now: int, body: bytes) -> dict[str, str]:
    """The headers that say who has sent this, and when."""
    signatures = [signature(secret, id, str(now), body) for secret in secrets]
    return {ID: id, TIMESTAMP: str(now), SIGNATURE: " ".join(signatures)}


def message_id(delivery_id: str) -> str:
    """What a delivery is called in the header: there, the specification wants no full stops."""
    return delivery_id.replace(".", "_", 1)


def targets_of(platform: Platform) -> Targets:
    """Where this server's webhooks may be sent to."""
    return Targets(platform.settings.allow_webhooks_to, platform.settings.resolve)


def _own_call(platform: Platform, tenant: Tenant, host: str) -> Call:
    """A call that the server makes for itself: it may listen everywhere, and wants plain values."""
    caller = Caller("", "webhook", tenant.namespace, (Scope.LISTEN_TO_ALL,), remote=host)
    return Call(Request({"type": "http", "headers": []}), platform, caller, tenant, is_own=True)
