"""Addresses: what is sent to them, who takes it, and their settings."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.responses import StreamingResponse

from holdfast.reports import run_info
from holdfast.server.auth.scopes import Scope
from holdfast.server.background.policy_enforcer import refuse_starts
from holdfast.server.calls import Call
from holdfast.server.deliveries.delivery import Delivery
from holdfast.server.deliveries.listener_session import leave, listen, take
from holdfast.server.endpoints.queues import announce_queue
from holdfast.server.http.models import LONGEST_SPAN, Changed, Items, Name, OptionsBody, RunInfo, WaitQuery
from holdfast.server.http.problems import Problem
from holdfast.server.http.request_headers import IDEMPOTENCY_KEY
from holdfast.server.http.router import Api, Body
from holdfast.server.http.server_sent_events import event_stream
from holdfast.server.webhooks.sender import targets_of
from holdfast.services.addresses import (
    LEASE,
    LONGEST_LEASE,
    LONGEST_WEBHOOK_TIMEOUT,
    SHORTEST_LEASE,
    WEBHOOK_TIMEOUT,
    AddressInfo,
    declare_address,
    delete_address,
    find_address,
    list_addresses,
    put_address,
    send_to,
)
from holdfast.services.timestamps import moment
from holdfast.services.webhook_settings import BOTH_FOR, exchange_secret, remove_webhook, set_webhook
from holdfast.services.wire_values import VALUES
from holdfast.stores.operations import MAX_DELIVERIES

api = Api()


class SendBody(OptionsBody):
    """Work for an address."""

    payload: Any = None
    id: Annotated[Name | None, Field(description="The run's id: sending again under the same id is the same run.")] = (
        None
    )
    deadline: Annotated[
        float | None,
        Field(
            gt=0,
            le=LONGEST_SPAN,
            description="Seconds until the run must have ended; what the address says unless given.",
        ),
    ] = None


class AddressBody(Body):
    """Settings of an address; what is left out stays as it is."""

    max_deliveries: int = Field(MAX_DELIVERIES, ge=1, le=10_000)
    deadline: float | None = Field(None, gt=0, le=LONGEST_SPAN)
    """Seconds that a run has, unless its sender says otherwise."""
    lease: float = Field(LEASE, ge=SHORTEST_LEASE, le=LONGEST_LEASE)
    """Seconds of silence after which a listener counts as dead."""
    webhook: str | None = Field(None, max_length=2000)
    """Where deliveries are to be sent to; null: nowhere."""
    webhook_timeout: float = Field(WEBHOOK_TIMEOUT, ge=1, le=LONGEST_WEBHOOK_TIMEOUT)
    """Seconds until a request to the webhook must be answered."""


class SecretBody(Body):
    """How a secret is exchanged."""

    both_for: float = Field(BOTH_FOR, ge=0, le=30 * 86400)
    """Seconds for which the old secret signs as well."""


@dataclass(frozen=True, slots=True)
class AddressSet(AddressInfo):
    """An address as it was set."""

    webhook_secret: str | None = None
    """What signs the requests to the webhook, if it was made just now: it is not shown again."""


class NewSecret(BaseModel):
    """The secret of a webhook. It is not shown again."""

    webhook: str
    webhook_secret: str
    old_until: datetime | None
    """When the one before it ceases to sign."""


class TakeBody(Body):
    """Who wants a delivery."""

    listener: str | None = Field(None, max_length=200)
    """What the process was called in an earlier delivery."""
    name: str = Field("", max_length=200)
    """What people call it."""
    holding: list[str] = Field(default_factory=list, max_length=1000)
    """The ids of the deliveries that it works on."""


class LeaveBody(Body):
    """Who leaves."""

    listener: str = Field(max_length=200)
    holding: list[str] = Field(default_factory=list, max_length=1000)
    """The ids of the deliveries that it still works on."""


class ListenQuery(Body):
    """Who listens."""

    listener: str | None = Field(None, max_length=200)
    name: str = Field("", max_length=200)
    holding: list[str] = Field(default_factory=list, max_length=1000)
    at_once: int = Field(1, ge=1, le=1000)
    """How many deliveries it can hold at once."""


@api("GET", "/v1/addresses", scope=Scope.READ)
async def list_all_addresses(call: Call) -> Items[AddressInfo]:
    """All addresses, with their settings."""
    return Items[AddressInfo](items=await list_addresses(await call.store()))


@api("GET", "/v1/addresses/{address}", scope=Scope.READ)
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


@api("PUT", "/v1/addresses/{address}", scope=Scope.OPERATE)
async def set_address(call: Call, address: str, body: AddressBody) -> AddressSet:
    """Set the settings of an address: how often it is delivered, how long it may take, how long a listener is waited
    for, and where deliveries are sent to.

    A webhook that is new to the address comes with a secret, which is told in this answer only.
    """
    settings = {name: getattr(body, name) for name in body.model_fields_set - {"webhook"}}
    store = await call.store()
    if body.webhook is not None:
        await targets_of(call.platform).check(body.webhook)
    kept = await put_address(store, address, **settings)
    secret: str | None = None
    if "webhook" in body.model_fields_set:
        if body.webhook is None:
            await remove_webhook(store, address)
        else:
            secret = await set_webhook(store, address, body.webhook)
        kept = replace(kept, webhook=body.webhook, webhook_off=None)
    return AddressSet(**asdict(kept), webhook_secret=secret)


@api("POST", "/v1/addresses/{address}/webhook/secret", scope=Scope.OPERATE)
async def exchange_webhook_secret(call: Call, address: str, body: SecretBody) -> NewSecret:
    """Make a new secret for the webhook of an address.

    It is told in this answer only. For a while both secrets sign, so that the receiver can be told the new one.
    """
    new = await exchange_secret(await call.store(), address, body.both_for)
    old_until = moment(new.old_until)
    return NewSecret(webhook=new.url, webhook_secret=new.secret, old_until=old_until)


@api("DELETE", "/v1/addresses/{address}", scope=Scope.OPERATE)
async def forget_address(call: Call, address: str) -> Changed:
    """Forget the settings of an address, and its webhook.

    Its runs stay, and it is back as soon as somebody uses it.
    """
    return Changed(changed=await delete_address(await call.store(), address))


@api(
    "POST",
    "/v1/addresses/{address}/send",
    scope=Scope.SUBMIT,
    status=201,
    more={200: "The run was there already."},
    headers=(IDEMPOTENCY_KEY, VALUES),
    location="/v1/runs/{id}",
)
async def send(call: Call, address: str, body: SendBody) -> RunInfo:
    """Send work to an address: it is a run, which goes to whoever listens there.

    With an `id` or an `Idempotency-Key`, sending it again is the same run.
    """
    options = body.options(body.id)
    derived = call.derived_id("send") if options.id is None else None
    options = options if derived is None else replace(options, id=derived)
    payload = await call.take(body.payload, "the payload")
    store = await call.store()
    await refuse_starts(store, address, [options.id])
    await announce_queue(call, store, options.queue)
    # What the same request has sent is told also if it has failed since: that is what has come of it.
    run, is_new = await send_to(
        store, address, payload, options, deadline=body.deadline, max_value=call.client.max_value,
        unsuccessful_too=derived is not None, work=call.large_work,
    )  # fmt: skip
    call.platform.desks.of(call.tenant).nudge(address)
    call.status = 201 if is_new else 200
    return await call.off_loop(run_info.size_of(run), lambda: RunInfo.told(call, run_info.RunInfo.of(run, None)))


@api(
    "POST",
    "/v1/addresses/{address}/take",
    scope=Scope.LISTEN,
    on_address=True,
    audited=False,
    more={204: "There is nothing to take."},
    headers=(VALUES,),
)
async def take_delivery(call: Call, address: str, body: TakeBody, query: WaitQuery) -> Delivery | None:
    """Take the next delivery, or wait for one.

    A delivery is the caller's until it is completed, failed, released or parked, or until the caller was not heard of
    for longer than the lease: every call on it counts, and `heartbeat` is there for the time between.
    """
    found = await take(call, address, listener=body.listener, name=body.name, holding=body.holding, wait=query.wait)
    if found is None:
        call.status = 204
    return found


@api("POST", "/v1/addresses/{address}/leave", scope=Scope.LISTEN, on_address=True, audited=False)
async def leave_address(call: Call, address: str, body: LeaveBody) -> None:
    """Say that a listener takes nothing more.

    What it was handed and does not name goes to others at once. Who just stays away loses nothing either, but others
    wait for that until the lease is over.
    """
    await leave(call, address, listener=body.listener, holding=body.holding)


@api("GET", "/v1/addresses/{address}/listen", scope=Scope.LISTEN, on_address=True, headers=(VALUES,))
async def listen_to_address(call: Call, address: str, query: ListenQuery) -> StreamingResponse:
    """Deliveries as they come, as server-sent events.

    First an event `listener`, with the id of the listener; then an event `delivery` for each, and an event `over` with
    its id when it is not the listener's any more, whatever the reason: its heartbeat tells. A listener that holds
    something must be heard of within its lease all the same, by any call on the delivery or by `heartbeat`. When the
    stream breaks, it has a few seconds to come back under its id.
    """
    await declare_address(await call.store(), address)  # what cannot be one is refused before the stream begins
    return event_stream(
        listen(
            call,
            address,
            listener=query.listener,
            name=query.name,
            holding=query.holding,
            at_once=query.at_once,
        )
    )
