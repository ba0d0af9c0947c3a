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

from starlette.requests import Request

from holdfast.background_tasks import keep_running
from holdfast.errors import CodecError, HoldfastError, StoreError
from holdfast.server.auth.authenticator import Caller
from holdfast.server.auth.scopes import Scope
from holdfast.server.background.tasks import poll_tenants, running_task
from holdfast.server.calls import Call
from holdfast.server.deliveries import delivery_operations
from holdfast.server.deliveries.delivery import Delivery
from holdfast.server.deliveries.listener_session import ListenerSession
from holdfast.server.http.problems import Problem
from holdfast.server.tenants import Tenant
from holdfast.server.webhooks.http_client import NoResponse, WebhookHttpClient
from holdfast.server.webhooks.request_slots import RequestSlots
from holdfast.server.webhooks.response_outcomes import (
    Accepted,
    Completed,
    Failed,
    WebhookOutcome,
    get_retry_delay,
    interpret_response,
)
from holdfast.server.webhooks.target_policy import TargetPolicy, get_host
from holdfast.services.json_form import to_json_bytes
from holdfast.services.webhook_settings import Webhook, disable_webhook, find_webhook, list_webhooks
from holdfast.webhooks import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign

if TYPE_CHECKING:
    from holdfast.server.app import Platform

log = logging.getLogger("holdfast.server")

POLL_INTERVAL_S = 1.0
"""Seconds between two looks at which webhooks there are."""
MAX_PER_ADDRESS = 10
"""Requests that are under way for one address, from one server."""
MAX_PER_NAMESPACE = 100
"""Requests that are under way for one namespace, from one server."""
MAX_REQUESTS = 500
"""Requests that are under way from one server."""
MAX_HEARTBEAT_INTERVAL_S = 5.0
"""Seconds after which a request that is under way is looked after, at the latest."""
SHUTDOWN_GRACE_S = 5.0
"""Seconds that a server which stops waits for answers."""
STORE_RETRY_S = 1.0
"""Seconds until a store that could not be reached is asked again."""


async def run_webhook_sender(platform: Platform) -> AsyncGenerator[None]:
    """Sends what there is to send in all namespaces that the server speaks for, as long as it runs."""
    sending = WebhookSender(platform)
    looks = poll_tenants(
        platform.tenants, sending.poll, interval_s=POLL_INTERVAL_S, error_message="its webhooks could not be read"
    )
    try:
        async with running_task(looks):
            yield
    finally:
        await sending.stop()


class WebhookSender:
    """All that one server sends."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._http_client = WebhookHttpClient(make_target_policy(platform))
        self._slots = RequestSlots(MAX_REQUESTS, MAX_PER_NAMESPACE)
        self._address_tasks: dict[tuple[str, str, str], asyncio.Task[None]] = {}
        """Who waits for deliveries, by namespace, address and URL."""
        self._deliveries: dict[asyncio.Task[None], WebhookDelivery] = {}

    async def poll(self, tenant: Tenant) -> None:
        """One look at the webhooks of a namespace: somebody is kept waiting for each that there is."""
        hooks = await list_webhooks(await tenant.store())
        wanted = {(tenant.namespace, name, hook.url) for name, hook in hooks.items() if hook.disabled_reason is None}
        for place, line in list(self._address_tasks.items()):
            if place[0] == tenant.namespace and (place not in wanted or line.done()):
                line.cancel()
                del self._address_tasks[place]
        for place in wanted - self._address_tasks.keys():
            line = partial(self._serve_address, tenant, place[1], place[2])
            what = f"address {place[1]!r}: sending to its webhook"
            self._address_tasks[place] = asyncio.create_task(keep_running(line, what, log))

    async def stop(self) -> None:
        """Take nothing more, give back what was not begun, and wait a moment for answers."""
        lines = list(self._address_tasks.values())
        for task in lines:
            task.cancel()
        await asyncio.gather(*lines, return_exceptions=True)
        for task, errand in list(self._deliveries.items()):
            if not errand.has_started:
                task.cancel()
        if self._deliveries:
            await asyncio.wait(self._deliveries, timeout=SHUTDOWN_GRACE_S)
        tasks = list(self._deliveries)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve_address(self, tenant: Tenant, address: str, url: str) -> None:
        """Take deliveries of one address, as many as may be under way at once."""
        slots = asyncio.Semaphore(MAX_PER_ADDRESS)
        call = _make_internal_call(self._platform, tenant, get_host(url))
        while True:
            await slots.acquire()
            try:
                errand = await WebhookDelivery.claim_next(call, address)
            except (HoldfastError, Problem) as error:
                log.warning("address %r: nothing can be taken for its webhook: %s", address, error)
                slots.release()
                await asyncio.sleep(STORE_RETRY_S)
                continue
            task = asyncio.create_task(errand.run(self._http_client, self._slots))
            self._deliveries[task] = errand
            task.add_done_callback(self._deliveries.pop)
            task.add_done_callback(lambda _: slots.release())


class WebhookDelivery:
    """One delivery on its way to its receiver."""

    def __init__(self, call: Call, listener: ListenerSession, delivery: Delivery) -> None:
        self._call = call
        self._listener = listener
        self._delivery = delivery
        self.has_started = False
        """A request may have been sent."""
        self._is_accepted = False
        """The receiver goes on by itself."""

    @classmethod
    async def claim_next(cls, call: Call, address: str) -> WebhookDelivery:
        """The next delivery of an address, whenever there is one."""
        listener = await ListenerSession.open(call, address, None, "webhook")
        what = f"address {address!r}: keeping its listener"
        kept = asyncio.create_task(keep_running(partial(_keep_listener_alive, listener), what, log))
        try:
            return cls(call, listener, await listener.build_delivery(await listener.next_delivery()))
        except BaseException:
            await asyncio.shield(_retire_listener(listener))
            raise
        finally:
            kept.cancel()

    async def run(self, http_client: WebhookHttpClient, slots: RequestSlots) -> None:
        """Send it, look after it meanwhile, and settle it."""
        sent = asyncio.create_task(self._send(http_client, slots))
        what = f"run {self._delivery.run_id!r}: renewing the lease of its webhook"
        kept = asyncio.create_task(keep_running(self._renew_lease, what, log))
        try:
            await asyncio.wait([sent, kept], return_when=asyncio.FIRST_COMPLETED)
            if sent.done():
                sent.result()
        except asyncio.CancelledError:
            sent.cancel()
            await asyncio.gather(sent, return_exceptions=True)
            await self._release("the server has stopped")
            raise
        except StoreError as error:
            log.warning("run %r: its webhook cannot be sent yet: %s", self._delivery.run_id, error)
            await self._release("the store could not be asked", STORE_RETRY_S)
        except Exception:
            # It counts as a failure: what fails here each time must come to an end.
            log.exception("run %r: its webhook could not be sent", self._delivery.run_id)
            await self._apply_outcome_with_retries(
                Failed("WebhookFailed", "the server failed to send it: its log tells more")
            )
        finally:
            for task in (sent, kept):
                task.cancel()
            await asyncio.gather(sent, kept, return_exceptions=True)
            if not self._is_accepted:
                await _retire_listener(self._listener)

    async def _send(self, http_client: WebhookHttpClient, slots: RequestSlots) -> None:
        async with slots.acquire(self._call.tenant.namespace):
            store = await self._call.store()
            hook = await find_webhook(store, self._delivery.address)
            if hook is None or hook.disabled_reason is not None:
                await self._release("the webhook was taken away", POLL_INTERVAL_S)  # by then nobody waits for it here
                return
            # What it was when the wait began may be long ago.
            address = await self._call.platform.listeners.get_settings(self._call.tenant, self._delivery.address)
            self._delivery = replace(self._delivery, lease=address.lease)
            self.has_started = True
            meant = await self._post(http_client, hook, address.webhook_timeout)
        await self._apply_outcome_with_retries(meant, hook)

    async def _apply_outcome_with_retries(self, outcome: WebhookOutcome, webhook: Webhook | None = None) -> None:
        while True:
            try:
                await self._apply_outcome(outcome, webhook)
            except StoreError as error:  # what was answered must not be forgotten
                log.warning("run %r: the answer to its webhook cannot be kept yet: %s", self._delivery.run_id, error)
                await asyncio.sleep(STORE_RETRY_S)
            except Problem as problem:
                log.info("run %r: the answer to its webhook comes too late: %s", self._delivery.run_id, problem)
                return
            else:
                return

    async def _post(self, http_client: WebhookHttpClient, webhook: Webhook, timeout_s: float) -> WebhookOutcome:
        settings, delivery = self._call.platform.settings, self._delivery
        body = await self._call.run_body_work(0, lambda: to_json_bytes(delivery))
        now = settings.now()
        headers = make_signature_headers(
            webhook.get_signing_secrets((await self._call.store()).now()), make_message_id(delivery.id), int(now), body
        )
        largest = min(settings.max_body_bytes, self._call.client.max_value)
        with self._call.platform.body_budget.open_reservation(f"webhooks of {self._call.tenant.namespace}") as room:
            try:
                answer = await http_client.post(
                    webhook.url, headers, body, timeout_s=timeout_s, max_bytes=largest, count_bytes=room.extend
                )
            except NoResponse as problem:
                return Failed("WebhookFailed", f"the delivery could not be sent, or was not answered: {problem}")
            except Problem as problem:
                return Failed("WebhookFailed", f"the answer could not be read: {problem}")
            return await self._call.run_body_work(len(answer.body), lambda: interpret_response(answer, now))

    async def _apply_outcome(self, outcome: WebhookOutcome, webhook: Webhook | None) -> None:
        call, delivery = self._call, self._delivery
        match outcome:
            case Accepted():
                store = await call.store()
                self._is_accepted = await store.workers.renew_listener_lease(
                    self._listener.worker_id or 0, delivery.lease
                )
            case Completed(output):
                try:
                    await delivery_operations.complete(call, delivery.id, output)
                except CodecError as error:
                    await delivery_operations.fail(
                        call, delivery.id, "WebhookRefused", str(error), retry=False, delay=None
                    )
            case Failed():
                if outcome.is_gone and webhook is not None:
                    await disable_webhook(await call.store(), webhook, outcome.message)
                    log.warning("address %r: its webhook is disabled: %s", delivery.address, outcome.message)
                pause = get_retry_delay(delivery.failure_count, delivery.id, outcome.retry_after_s)
                await delivery_operations.fail(
                    call, delivery.id, outcome.type, outcome.message, retry=outcome.is_retryable, delay=pause
                )

    async def _renew_lease(self) -> None:
        """Renew the lease, until the delivery is lost."""
        while True:
            await asyncio.sleep(min(self._delivery.lease / 3, MAX_HEARTBEAT_INTERVAL_S))
            try:
                await delivery_operations.record_heartbeat(self._call, self._delivery.id)
            except Problem as problem:
                log.info("run %r: its webhook is broken off: %s", self._delivery.run_id, problem)
                return
            except StoreError as error:
                log.warning("run %r: its lease cannot be renewed: %s", self._delivery.run_id, error)

    async def _release(self, reason: str, delay_s: float = 0.0) -> None:
        try:
            await delivery_operations.release(self._call, self._delivery.id, reason, delay_s)
        except Problem:
            pass
        except StoreError as error:
            log.warning("run %r could not be given back, and goes on after its lease: %s", self._delivery.run_id, error)


async def _keep_listener_alive(listener: ListenerSession) -> None:
    """Keep a listener that waits: it is registered when there is a run for it, which it may not get after all."""
    while True:
        await asyncio.sleep(listener.address.lease / 3)
        try:
            if listener.worker_id is not None:
                await listener.store.workers.renew_listener_lease(listener.worker_id, listener.address.lease)
        except StoreError as error:
            log.warning("a listener of %r could not be kept: %s", listener.address.name, error)


async def _retire_listener(listener: ListenerSession) -> None:
    """The listener is not needed any more."""
    if listener.worker_id is not None:
        try:
            await listener.store.workers.retire(listener.worker_id)
        except StoreError as error:
            log.warning("a listener of %r could not be retired: %s", listener.address.name, error)


def make_signature_headers(secrets: list[str], message_id: str, now: int, body: bytes) -> dict[str, str]:
    """The headers that say who has sent this, and when."""
    signatures = [sign(secret, message_id, str(now), body) for secret in secrets]
    return {ID_HEADER: message_id, TIMESTAMP_HEADER: str(now), SIGNATURE_HEADER: " ".join(signatures)}


def make_message_id(delivery_id: str) -> str:
    """What a delivery is called in the header: there, the specification wants no full stops."""
    return delivery_id.replace(".", "_", 1)


def make_target_policy(platform: Platform) -> TargetPolicy:
    """Where this server's webhooks may be sent to."""
    return TargetPolicy(platform.settings.allowed_webhook_hosts, platform.settings.resolver)


def _make_internal_call(platform: Platform, tenant: Tenant, host: str) -> Call:
    """A call that the server makes for itself: it may listen everywhere, and wants plain values."""
    caller = Caller("", "webhook", tenant.namespace, (Scope.LISTEN_TO_ALL,), remote_address=host)
    return Call(Request({"type": "http", "headers": []}), platform, caller, tenant, is_internal=True)
