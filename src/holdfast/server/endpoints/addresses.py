"""Addresses: what is sent to them, who takes it, and their settings."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.responses import StreamingResponse

from holdfast.reports.run_info import RunInfo, get_values_size
from holdfast.server.auth.scopes import Scope
from holdfast.server.background.policy_enforcer import check_start_allowed
from holdfast.server.calls import Call
from holdfast.server.deliveries.delivery import Delivery
from holdfast.server.deliveries.listener_session import poll_delivery, retire_listener, stream_deliveries
from holdfast.server.endpoints.queues import announce_queue
from holdfast.server.http.models import (
    MAX_DURATION_S,
    Changed,
    Items,
    Name,
    StartOptionsBody,
    WaitQuery,
    redact_run,
)
from holdfast.server.http.problems import Problem
from holdfast.server.http.request_headers import IDEMPOTENCY_KEY
from holdfast.server.http.router import RequestModel, Router
from holdfast.server.http.server_sent_events import make_event_response
from holdfast.server.webhooks.sender import make_target_policy
from holdfast.services.addresses import (
    DEFAULT_LEASE_S,
    DEFAULT_WEBHOOK_TIMEOUT_S,
    MAX_LEASE_S,
    MAX_WEBHOOK_TIMEOUT_S,
    MIN_LEASE_S,
    AddressInfo,
    declare_address,
    delete_address,
    find_address,
    list_addresses,
    put_address,
    send_to_address,
)
from holdfast.services.timestamps import to_datetime
from holdfast.services.webhook_settings import SECRET_OVERLAP_S, remove_webhook, rotate_secret, set_webhook
from holdfast.services.wire_values import VALUES_HEADER
from holdfast.stores.operations import MAX_DELIVERIES

router = Router()


class SendBody(StartOptionsBody):
    """Work for an address."""

    payload: Any = None
    id: Annotated[Name | None, Field(description="The run's id: sending again under the same id is the same run.")] = (
        None
    )
    deadline: Annotated[
        float | None,
        Field(
            gt=0,
            le=MAX_DURATION_S,
            description="Seconds until the run must have ended; what the address says unless given.",
        ),
    ] = None


class AddressSettingsBody(RequestModel):
    """Settings of an address; what is left out stays as it is."""

    max_deliveries: int = Field(MAX_DELIVERIES, ge=1, le=10_000)
    deadline: float | None = Field(None, gt=0, le=MAX_DURATION_S)
    """Seconds that a run has, unless its sender says otherwise."""
    lease: float = Field(DEFAULT_LEASE_S, ge=MIN_LEASE_S, le=MAX_LEASE_S)
    """Seconds of silence after which a listener counts as dead."""
    webhook: str | None = Field(None, max_length=2000)
    """Where deliveries are to be sent to; null: nowhere."""
    webhook_timeout: float = Field(DEFAULT_WEBHOOK_TIMEOUT_S, ge=1, le=MAX_WEBHOOK_TIMEOUT_S)
    """Seconds until a request to the webhook must be answered."""


class RotateSecretBody(RequestModel):
    """How a secret is exchanged."""

    overlap: float = Field(SECRET_OVERLAP_S, ge=0, le=30 * 86400)
    """Seconds for which the old secret signs as well."""


@dataclass(frozen=True, slots=True)
class UpdatedAddress(AddressInfo):
    """An address as it was set."""

    webhook_secret: str | None = None
    """What signs the requests to the webhook, if it was made just now: it is not shown again."""


class WebhookSecret(BaseModel):
    """The secret of a webhook. It is not shown again."""

    webhook: str
    webhook_secret: str
    old_secret_expires_at: datetime | None
    """When the one before it ceases to sign."""


class ClaimBody(RequestModel):
    """Who wants a delivery."""

    listener_id: str | None = Field(None, max_length=200)
    """What the process was called in an earlier delivery."""
    name: str = Field("", max_length=200)
    """What people call it."""
    active_deliveries: list[str] = Field(default_factory=list, max_length=1000)
    """The ids of the deliveries that it works on."""


class LeaveBody(RequestModel):
    """Who leaves."""

    listener_id: str = Field(max_length=200)
    active_deliveries: list[str] = Field(default_factory=list, max_length=1000)
    """The ids of the deliveries that it still works on."""


class ListenQuery(ClaimBody):
    """Who listens."""

    max_active: int = Field(1, ge=1, le=1000)
    """How many deliveries it can hold at once."""


@router("GET", "/v1/addresses", scope=Scope.READ)
async def list_all_addresses(call: Call) -> Items[AddressInfo]:
    """All addresses, with their settings."""
    return Items[AddressInfo](items=await list_addresses(await call.store()))


@router("GET", "/v1/addresses/{address}", scope=Scope.READ)
async def get_address(call: Call, address: str) -> AddressInfo:
    """One address, with its settings."""
    found = await find_address(await call.store(), address)
    if found is None:
        raise Problem(
            404,
            "unknown-address",
            "There is no such address",
            f"Nobody has sent to {address!r}, or listened on it, and it has no settings.",
        )
    return found


@router("PUT", "/v1/addresses/{address}", scope=Scope.OPERATE)
async def set_address(call: Call, address: str, body: AddressSettingsBody) -> UpdatedAddress:
    """Set the settings of an address: how often it is delivered, how long it may take, how long a listener is waited
    for, and where deliveries are sent to.

    A webhook that is new to the address comes with a secret, which is told in this answer only.
    """
    settings = {name: getattr(body, name) for name in body.model_fields_set - {"webhook"}}
    store = await call.store()
    if body.webhook is not None:
        await make_target_policy(call.platform).validate_target(body.webhook)
    kept = await put_address(store, address, **settings)
    secret: str | None = None
    if "webhook" in body.model_fields_set:
        if body.webhook is None:
            await remove_webhook(store, address)
        else:
            secret = await set_webhook(store, address, body.webhook)
        kept = replace(kept, webhook=body.webhook, webhook_disabled_reason=None)
    return UpdatedAddress(**asdict(kept), webhook_secret=secret)


@router("POST", "/v1/addresses/{address}/webhook/secret", scope=Scope.OPERATE)
async def rotate_webhook_secret(call: Call, address: str, body: RotateSecretBody) -> WebhookSecret:
    """Make a new secret for the webhook of an address.

    It is told in this answer only. For a while both secrets sign, so that the receiver can be told the new one.
    """
    new = await rotate_secret(await call.store(), address, body.overlap)
    old_until = to_datetime(new.old_secret_until)
    return WebhookSecret(webhook=new.url, webhook_secret=new.secret, old_secret_expires_at=old_until)


@router("DELETE", "/v1/addresses/{address}", scope=Scope.OPERATE)
async def delete_address_settings(call: Call, address: str) -> Changed:
    """Forget the settings of an address, and its webhook.

    Its runs stay, and it is back as soon as somebody uses it.
    """
    return Changed(changed=await delete_address(await call.store(), address))


@router(
    "POST",
    "/v1/addresses/{address}/send",
    scope=Scope.SUBMIT,
    status=201,
    extra_responses={200: "The run was there already."},
    headers=(IDEMPOTENCY_KEY, VALUES_HEADER),
    location="/v1/runs/{id}",
)
async def send(call: Call, address: str, body: SendBody) -> RunInfo:
    """Send work to an address: it is a run, which goes to whoever listens there.

    With an `id` or an `Idempotency-Key`, sending it again is the same run.
    """
    options = body.to_start_options(body.id)
    derived = call.derive_id("send", address) if options.id is None else None
    options = options if derived is None else replace(options, id=derived)
    payload = await call.prepare_value(body.payload, "the payload")
    store = await call.store()
    await check_start_allowed(store, address, [options.id])
    await announce_queue(call, store, options.queue)
    # What the same request has sent is told also if it has failed since: that is what has come of it.
    run, is_new = await send_to_address(
        store, address, payload, options, deadline_s=body.deadline, max_value=call.client.max_value,
        join_unsuccessful=derived is not None, runner=call.run_large_work,
    )  # fmt: skip
    call.platform.dispatchers.get(call.tenant).notify(address)
    call.status = 201 if is_new else 200
    info = await call.run_body_work(get_values_size(run), lambda: RunInfo.from_row(run, None))
    return redact_run(call, info)


@router(
    "POST",
    "/v1/addresses/{address}/claim",
    scope=Scope.LISTEN,
    is_address_scoped=True,
    is_audited=False,
    extra_responses={204: "There is nothing to take."},
    headers=(VALUES_HEADER,),
)
async def claim_delivery(call: Call, address: str, body: ClaimBody, query: WaitQuery) -> Delivery | None:
    """Take the next delivery, or wait for one.

    A delivery is the caller's until it is completed, failed, released or parked, or until the caller was not heard of
    for longer than the lease: every call on it counts, and `heartbeat` is there for the time between.
    """
    found = await poll_delivery(
        call,
        address,
        listener_id=body.listener_id,
        name=body.name,
        active_deliveries=body.active_deliveries,
        wait_s=query.wait,
    )
    if found is None:
        call.status = 204
    return found


@router("POST", "/v1/addresses/{address}/leave", scope=Scope.LISTEN, is_address_scoped=True, is_audited=False)
async def leave_address(call: Call, address: str, body: LeaveBody) -> None:
    """Say that a listener takes nothing more.

    What it was handed and does not name goes to others at once. Who just stays away loses nothing either, but others
    wait for that until the lease is over.
    """
    await retire_listener(call, address, listener_id=body.listener_id, active_deliveries=body.active_deliveries)


@router("GET", "/v1/addresses/{address}/listen", scope=Scope.LISTEN, is_address_scoped=True, headers=(VALUES_HEADER,))
async def listen_to_address(call: Call, address: str, query: ListenQuery) -> StreamingResponse:
    """Deliveries as they come, as server-sent events.

    First an event `listener`, with the id of the listener; then an event `delivery` for each, and an event `over` with
    its id when it is not the listener's any more, whatever the reason: its heartbeat tells. A listener that holds
    something must be heard of within its lease all the same, by any call on the delivery or by `heartbeat`. When the
    stream breaks, it has a few seconds to come back under its id.
    """
    await declare_address(await call.store(), address)  # what cannot be one is refused before the stream begins
    return make_event_response(
        stream_deliveries(
            call,
            address,
            listener_id=query.listener_id,
            name=query.name,
            active_deliveries=query.active_deliveries,
            max_active=query.max_active,
        )
    )
