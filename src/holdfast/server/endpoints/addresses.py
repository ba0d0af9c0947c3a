"""Addresses: sending work to them, taking it, and their settings."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, Field

from holdfast.reports.run_info import RunInfo, get_values_size
from holdfast.server.auth.scopes import Scope
from holdfast.server.background.policy_enforcer import check_start_allowed
from holdfast.server.calls import Call
from holdfast.server.deliveries.delivery import Delivery
from holdfast.server.deliveries.direct_delivery import commit_start
from holdfast.server.deliveries.listener_session import ListenerSession, stream_deliveries
from holdfast.server.endpoints.deliveries import ClaimBody
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
from holdfast.server.http.request_headers import IDEMPOTENCY_KEY
from holdfast.server.http.response import StreamingResponse
from holdfast.server.http.router import RequestModel, Router
from holdfast.server.http.server_sent_events import make_event_response
from holdfast.services.addresses import (
    DEFAULT_LEASE_S,
    DEFAULT_WEBHOOK_TIMEOUT_S,
    MAX_LEASE_S,
    MAX_WEBHOOK_TIMEOUT_S,
    MIN_LEASE_S,
    AddressInfo,
    delete_address,
    find_address,
    list_addresses,
    put_address,
    send_to_address,
)
from holdfast.services.problems import Problem
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
            description="Seconds until the run must have ended. Default: that of the address.",
        ),
    ] = None


class AddressSettingsBody(RequestModel):
    """Settings of an address. Fields that are left out stay as they are."""

    max_deliveries: int = Field(MAX_DELIVERIES, ge=1, le=10_000)
    deadline: float | None = Field(None, gt=0, le=MAX_DURATION_S)
    """Seconds that a run may take, unless its sender sets another deadline."""
    lease: float = Field(DEFAULT_LEASE_S, ge=MIN_LEASE_S, le=MAX_LEASE_S)
    """Seconds of silence after which a listener counts as dead."""
    webhook: str | None = Field(None, max_length=2000)
    """The URL that deliveries are sent to; null: none."""
    webhook_timeout: float = Field(DEFAULT_WEBHOOK_TIMEOUT_S, ge=1, le=MAX_WEBHOOK_TIMEOUT_S)
    """Seconds within which the webhook must respond."""


class RotateSecretBody(RequestModel):
    """How a secret is rotated."""

    overlap: float = Field(SECRET_OVERLAP_S, ge=0, le=30 * 86400)
    """Seconds for which requests are signed with the old secret as well."""


@dataclass(frozen=True, slots=True)
class UpdatedAddress(AddressInfo):
    """An address with its new settings."""

    webhook_secret: str | None = None
    """The secret that signs requests to the webhook, if it is new. It is not shown again."""


class WebhookSecret(BaseModel):
    """The secret of a webhook. It is not shown again."""

    webhook: str
    webhook_secret: str
    old_secret_expires_at: datetime | None
    """When requests are no longer signed with the previous secret."""


class LeaveBody(RequestModel):
    """The listener that leaves."""

    listener_id: str = Field(max_length=200)
    active_deliveries: list[str] = Field(default_factory=list, max_length=1000)
    """The ids of the deliveries that it still works on."""


class ListenQuery(ClaimBody):
    """The listener that opens a stream."""

    max_active: int = Field(1, ge=1, le=1000)
    """Maximum number of deliveries that it holds at once."""


@router("GET", "/v1/addresses", scope=Scope.READ)
async def list_all_addresses(call: Call) -> Items[AddressInfo]:
    """All addresses, with their settings."""
    return Items[AddressInfo](items=await list_addresses(call.store))


@router("GET", "/v1/addresses/{address}", scope=Scope.READ)
async def get_address(call: Call, address: str) -> AddressInfo:
    """One address, with its settings."""
    found = await find_address(call.store, address)
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
    """Change the settings of an address: deliveries per run, deadline, lease, and webhook.

    For a webhook that is new to the address, this response, and only this one, has its secret.
    """
    settings = {name: getattr(body, name) for name in body.model_fields_set - {"webhook"}}
    if body.webhook is not None:
        await call.platform.target_policy.validate_target(body.webhook)
    info = await put_address(call.store, address, **settings)
    call.tenant.listeners.forget_settings(address)
    secret: str | None = None
    if "webhook" in body.model_fields_set:
        if body.webhook is None:
            await remove_webhook(call.store, address)
        else:
            secret = await set_webhook(call.store, address, body.webhook)
        info = replace(info, webhook=body.webhook, webhook_disabled_reason=None)
    return UpdatedAddress(**asdict(info), webhook_secret=secret)


@router("POST", "/v1/addresses/{address}/webhook/secret", scope=Scope.OPERATE)
async def rotate_webhook_secret(call: Call, address: str, body: RotateSecretBody) -> WebhookSecret:
    """Make a new secret for the webhook of an address.

    Only this response has it. For a while requests are signed with both secrets, so that you can give the receiver the
    new one.
    """
    webhook = await rotate_secret(call.store, address, body.overlap)
    expires_at = to_datetime(webhook.old_secret_until)
    return WebhookSecret(webhook=webhook.url, webhook_secret=webhook.secret, old_secret_expires_at=expires_at)


@router("DELETE", "/v1/addresses/{address}", scope=Scope.OPERATE)
async def delete_address_settings(call: Call, address: str) -> Changed:
    """Delete the settings of an address, and its webhook.

    Its runs stay, and the address exists again as soon as it is used.
    """
    was_deleted = await delete_address(call.store, address)
    call.tenant.listeners.forget_settings(address)
    return Changed(changed=was_deleted)


@router(
    "POST",
    "/v1/addresses/{address}/send",
    scope=Scope.SUBMIT,
    status=201,
    commits_audit_entry=True,
    extra_responses={200: "The run already exists."},
    headers=(IDEMPOTENCY_KEY, VALUES_HEADER),
    location="/v1/runs/{id}",
)
async def send(call: Call, address: str, body: SendBody) -> RunInfo:
    """Send work to an address: a run, which goes to a listener there.

    With an `id` or an `Idempotency-Key`, sending it again finds the same run.
    """
    options = body.to_start_options(body.id)
    derived = call.derive_id("send", address) if options.id is None else None
    options = options if derived is None else replace(options, id=derived)
    payload = await call.prepare_value(body.payload, "the payload")
    await check_start_allowed(call.tenant, address, [options.id])
    await announce_queue(call, options.queue)
    # A repeat of the same request finds its run even if that has failed since.
    run, is_new = await send_to_address(
        call.store, address, payload, options, deadline_s=body.deadline, max_value=call.client.max_value,
        declare=call.tenant.listeners.declare_address,
        join_unsuccessful=derived is not None, runner=call.run_large_work, commit=partial(commit_start, call),
    )  # fmt: skip
    call.status = 201 if is_new else 200
    info = await call.run_body_work(get_values_size(run), lambda: RunInfo.from_row(run, None))
    return redact_run(call, info)


@router(
    "POST",
    "/v1/addresses/{address}/claim",
    scope=Scope.LISTEN,
    is_address_scoped=True,
    is_audited=False,
    extra_responses={204: "There is no delivery."},
    headers=(VALUES_HEADER,),
)
async def claim_delivery(call: Call, address: str, body: ClaimBody, query: WaitQuery) -> Delivery | None:
    """Take the next delivery, or wait for one.

    The caller holds a delivery until it completes, fails, releases, or parks it, or until it is silent for longer than
    the lease. Every call on the delivery renews the lease; in between, send `heartbeat`.
    """
    session = await ListenerSession.open(call, address, body.listener_id, body.name)
    found = await session.poll(body.active_deliveries, query.wait)
    if found is None:
        call.status = 204
    return found


@router("POST", "/v1/addresses/{address}/leave", scope=Scope.LISTEN, is_address_scoped=True, is_audited=False)
async def leave_address(call: Call, address: str, body: LeaveBody) -> None:
    """Report that a listener takes no more deliveries.

    Deliveries that it holds and does not name go to others at once. A listener that leaves without this request loses
    nothing either, but its deliveries go to others only when the lease expires.
    """
    session = await ListenerSession.open(call, address, body.listener_id, "")
    await session.retire(body.active_deliveries)


@router("GET", "/v1/addresses/{address}/listen", scope=Scope.LISTEN, is_address_scoped=True, headers=(VALUES_HEADER,))
async def listen_to_address(call: Call, address: str, query: ListenQuery) -> StreamingResponse:
    """Deliveries as they come, as server-sent events.

    The first event, `listener`, has the id of the listener. Then there is an event `delivery` for each delivery, and an
    event `ended` with its id when the listener no longer holds it, for any reason (its heartbeat says which). A
    listener that holds a delivery must still renew its lease, by any call on the delivery or by `heartbeat`. When the
    stream breaks, the listener has a few seconds to reconnect with its id.
    """
    session = await ListenerSession.open(call, address, query.listener_id, query.name)
    return make_event_response(stream_deliveries(session, query.active_deliveries, query.max_active))
