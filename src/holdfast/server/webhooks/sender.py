"""The webhook sender takes the deliveries of addresses with a webhook, sends them, and applies the responses.

For each such address, one task waits at the dispatcher, like a listener, until the maximum number of requests is in
flight. Each delivery has its own listener in the store, so that it can be left to the receiver alone (202): from then
on, the requests of the receiver keep it alive. Until then, this server renews the lease. If it learns by that that the
run was cancelled, or that the delivery is lost, it cancels the request.

The server reads all webhooks from the store every second, and the webhook of a delivery right before it sends. So a
rotated secret or a removed webhook counts from then on, whichever server got the request to change it.

A server that stops takes no more deliveries, releases those that it has not begun to send, and waits a moment for
responses. If a server is killed, the leases of its deliveries expire: they are sent again, with the next number and the
steps that are recorded by then. So a request whose response was lost may come twice; the number says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from holdfast.background_tasks import keep_running
from holdfast.errors import CodecError, HoldfastError, StoreError
from holdfast.server.auth.authenticator import Caller
from holdfast.server.auth.scopes import Scope
from holdfast.server.background.tasks import poll_tenants, running_task
from holdfast.server.calls import Call
from holdfast.server.deliveries import delivery_operations
from holdfast.server.deliveries.delivery import Delivery
from holdfast.server.deliveries.listener_session import ListenerSession
from holdfast.server.http.request import Request
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
from holdfast.server.webhooks.target_policy import get_host
from holdfast.services.json_form import to_json_bytes
from holdfast.services.problems import Problem
from holdfast.services.webhook_settings import Webhook, disable_webhook, find_webhook, list_webhooks
from holdfast.trace_context import TRACE_PARENT_HEADER
from holdfast.webhooks import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign

if TYPE_CHECKING:
    from holdfast.server.app import Platform
    from holdfast.server.tenants import Tenant

log = logging.getLogger("holdfast.server")

POLL_INTERVAL_S = 1.0
MAX_PER_ADDRESS = 10
"""Concurrent requests of one server for one address."""
MAX_PER_NAMESPACE = 100
"""Concurrent requests of one server for one namespace."""
MAX_REQUESTS = 500
"""Concurrent requests of one server."""
MAX_HEARTBEAT_INTERVAL_S = 5.0
SHUTDOWN_GRACE_S = 5.0
"""Seconds that a server waits for responses when it stops."""
STORE_RETRY_S = 1.0


async def run_webhook_sender(platform: Platform) -> AsyncGenerator[None]:
    """Send the webhooks of all namespaces that the server serves, until it stops."""
    sender = WebhookSender(platform)
    polling = poll_tenants(
        platform.tenants, sender.poll, interval_s=POLL_INTERVAL_S, error_message="its webhooks could not be read"
    )
    try:
        async with running_task(polling):
            yield
    finally:
        await sender.stop()


class WebhookSender:
    """Sends the webhooks of one server."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._http_client = WebhookHttpClient(platform.target_policy)
        self._slots = RequestSlots(MAX_REQUESTS, MAX_PER_NAMESPACE)
        self._address_tasks: dict[tuple[str, str, str], asyncio.Task[None]] = {}
        """The tasks that take deliveries, by namespace, address, and URL."""
        self._deliveries: dict[asyncio.Task[None], WebhookDelivery] = {}

    async def poll(self, tenant: Tenant) -> None:
        """Start and stop tasks, so that there is one for each webhook of a namespace."""
        hooks = await list_webhooks(tenant.store)
        wanted = {(tenant.namespace, name, hook.url) for name, hook in hooks.items() if hook.disabled_reason is None}
        for key, task in list(self._address_tasks.items()):
            if key[0] == tenant.namespace and (key not in wanted or task.done()):
                task.cancel()
                del self._address_tasks[key]
        for key in wanted - self._address_tasks.keys():
            _, address, url = key
            serve = partial(self._serve_address, tenant, address, url)
            description = f"address {address!r}: sending to its webhook"
            self._address_tasks[key] = asyncio.create_task(keep_running(serve, description, log))

    async def stop(self) -> None:
        """Take no more deliveries, release those that were not begun, and wait a moment for responses."""
        address_tasks = list(self._address_tasks.values())
        for task in address_tasks:
            task.cancel()
        await asyncio.gather(*address_tasks, return_exceptions=True)
        for task, delivery in list(self._deliveries.items()):
            if not delivery.has_started:
                task.cancel()
        if self._deliveries:
            await asyncio.wait(self._deliveries, timeout=SHUTDOWN_GRACE_S)
        tasks = list(self._deliveries)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve_address(self, tenant: Tenant, address: str, url: str) -> None:
        """Take deliveries of one address, as many as may be in flight at once."""
        slots = asyncio.Semaphore(MAX_PER_ADDRESS)
        call = _make_internal_call(self._platform, tenant, get_host(url))
        while True:
            await slots.acquire()
            try:
                delivery = await WebhookDelivery.claim_next(call, address)
            except (HoldfastError, Problem) as error:
                log.warning("address %r: nothing can be taken for its webhook: %s", address, error)
                slots.release()
                await asyncio.sleep(STORE_RETRY_S)
                continue
            task = asyncio.create_task(delivery.run(self._http_client, self._slots))
            self._deliveries[task] = delivery
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
        """The receiver continues through the API."""

    @classmethod
    async def claim_next(cls, call: Call, address: str) -> WebhookDelivery:
        """The next delivery of an address, as soon as there is one."""
        listener = await ListenerSession.open(call, address, None, "webhook")
        description = f"address {address!r}: keeping its listener"
        heartbeat = asyncio.create_task(keep_running(partial(_keep_listener_alive, listener), description, log))
        try:
            return cls(call, listener, await listener.build_delivery(await listener.next_delivery()))
        except BaseException:
            await asyncio.shield(_retire_listener(listener))
            raise
        finally:
            heartbeat.cancel()

    async def run(self, http_client: WebhookHttpClient, slots: RequestSlots) -> None:
        """Send the delivery, renew its lease meanwhile, and apply the outcome."""
        sending = asyncio.create_task(self._send(http_client, slots))
        description = f"run {self._delivery.run_id!r}: renewing the lease of its webhook"
        heartbeat = asyncio.create_task(keep_running(self._renew_lease, description, log))
        try:
            await asyncio.wait([sending, heartbeat], return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        except asyncio.CancelledError:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await self._release("the server has stopped")
            raise
        except StoreError as error:
            log.warning("run %r: its webhook cannot be sent yet: %s", self._delivery.run_id, error)
            await self._release("the store could not be asked", STORE_RETRY_S)
        except Exception:
            # It counts as a failure, so that a delivery that fails here each time comes to an end.
            log.exception("run %r: its webhook could not be sent", self._delivery.run_id)
            await self._apply_outcome_with_retries(
                Failed("WebhookFailed", "the server failed to send it: its log tells more")
            )
        finally:
            for task in (sending, heartbeat):
                task.cancel()
            await asyncio.gather(sending, heartbeat, return_exceptions=True)
            if not self._is_accepted:
                await _retire_listener(self._listener)

    async def _send(self, http_client: WebhookHttpClient, slots: RequestSlots) -> None:
        async with slots.acquire(self._call.tenant.namespace):
            hook = await find_webhook(self._call.store, self._delivery.address)
            if hook is None or hook.disabled_reason is not None:
                # After that delay, the task that took the delivery has been stopped.
                await self._release("the webhook was taken away", POLL_INTERVAL_S)
                return
            # The settings may have changed while this delivery waited for a slot.
            address = await self._call.tenant.listeners.get_settings(self._delivery.address)
            self._delivery = replace(self._delivery, lease=address.lease)
            self.has_started = True
            outcome = await self._post(http_client, hook, address.webhook_timeout)
        await self._apply_outcome_with_retries(outcome, hook)

    async def _apply_outcome_with_retries(self, outcome: WebhookOutcome, webhook: Webhook | None = None) -> None:
        while True:
            try:
                await self._apply_outcome(outcome, webhook)
            except StoreError as error:  # the response must not be lost
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
        secrets = webhook.get_signing_secrets(self._call.store.now())
        headers = make_signature_headers(secrets, make_message_id(delivery.id), int(now), body)
        headers[TRACE_PARENT_HEADER] = delivery.trace_parent
        max_bytes = min(settings.max_body_bytes, self._call.client.max_value)
        body_budget = self._call.platform.body_budget
        with body_budget.open_reservation(f"webhooks of {self._call.tenant.namespace}") as reservation:
            try:
                response = await http_client.post(
                    webhook.url, headers, body,
                    timeout_s=timeout_s, max_bytes=max_bytes, count_bytes=reservation.extend,
                )  # fmt: skip
            except NoResponse as problem:
                return Failed("WebhookFailed", f"the delivery could not be sent, or was not answered: {problem}")
            except Problem as problem:
                return Failed("WebhookFailed", f"the answer could not be read: {problem}")
            return await self._call.run_body_work(len(response.body), lambda: interpret_response(response, now))

    async def _apply_outcome(self, outcome: WebhookOutcome, webhook: Webhook | None) -> None:
        call, delivery = self._call, self._delivery
        if (telemetry := call.platform.telemetry) is not None and telemetry.metrics is not None:
            telemetry.metrics.webhooks.add((type(outcome).__name__.lower(),))
        match outcome:
            case Accepted():
                worker_id = self._listener.worker_id or 0
                self._is_accepted = await call.store.workers.renew_listener_lease(worker_id, delivery.lease)
            case Completed(output):
                try:
                    await delivery_operations.complete(call, delivery.id, output)
                except CodecError as error:
                    await delivery_operations.fail(
                        call, delivery.id, "WebhookRefused", str(error), retry=False, delay=None
                    )
            case Failed():
                if outcome.is_gone and webhook is not None:
                    await disable_webhook(call.store, webhook, outcome.message)
                    log.warning("address %r: its webhook is disabled: %s", delivery.address, outcome.message)
                delay_s = get_retry_delay(delivery.failure_count, delivery.id, outcome.retry_after_s)
                await delivery_operations.fail(
                    call, delivery.id, outcome.type, outcome.message, retry=outcome.is_retryable, delay=delay_s
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
    """Renew the lease of a listener that waits. It is registered once there is a run for it, which it may not get."""
    while True:
        await asyncio.sleep(listener.address.lease / 3)
        try:
            if listener.worker_id is not None:
                await listener.call.store.workers.renew_listener_lease(listener.worker_id, listener.address.lease)
        except StoreError as error:
            log.warning("a listener of %r could not be kept: %s", listener.address.name, error)


async def _retire_listener(listener: ListenerSession) -> None:
    if listener.worker_id is not None:
        try:
            await listener.call.tenant.listeners.retire(listener.worker_id)
        except StoreError as error:
            log.warning("a listener of %r could not be retired: %s", listener.address.name, error)


def make_signature_headers(secrets: list[str], message_id: str, now: int, body: bytes) -> dict[str, str]:
    """The headers that prove who sent a request, and when."""
    signatures = [sign(secret, message_id, str(now), body) for secret in secrets]
    return {ID_HEADER: message_id, TIMESTAMP_HEADER: str(now), SIGNATURE_HEADER: " ".join(signatures)}


def make_message_id(delivery_id: str) -> str:
    """The id of a delivery in the header, where the specification allows no periods."""
    return delivery_id.replace(".", "_", 1)


def _make_internal_call(platform: Platform, tenant: Tenant, host: str) -> Call:
    """A call that the server makes itself: it may listen everywhere, and uses plain values."""
    caller = Caller("", "webhook", tenant.namespace, (Scope.LISTEN_TO_ALL,), remote_address=host)
    return Call(Request({"method": "POST", "path": "", "headers": []}), platform, caller, tenant, is_internal=True)
