"""Calls on a delivery, by the listener that holds it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel, Field

from holdfast.core.states import RunState
from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call
from holdfast.server.deliveries import delivery_operations, steps, waits
from holdfast.server.deliveries.delivery import (
    Delivery,
    RecordedStep,
    build_delivery,
    build_step,
    find_claimed_delivery,
)
from holdfast.server.deliveries.history import DeliveryRecord, read_deliveries
from holdfast.server.deliveries.listener_session import ListenerSession
from holdfast.server.deliveries.next_delivery import complete_and_take_next
from holdfast.server.deliveries.steps import AttemptBody, StepBody
from holdfast.server.http.models import MAX_DURATION_S, Items, WaitQuery
from holdfast.server.http.router import Handler, RequestModel, Router
from holdfast.services.json_schemas import check_schema
from holdfast.services.thread_offload import LARGE_BYTES
from holdfast.services.wire_values import VALUES_HEADER
from holdfast.stores.approvals import ApprovalRequest

router = Router()

MAX_STEPS = 1000
"""Steps that a request to complete a delivery may carry."""


@dataclass(frozen=True, slots=True)
class StepResponse(RecordedStep):
    """A recorded step."""

    is_new: bool
    """False: it was recorded before, with this output."""


class LeaseResponse(BaseModel):
    """The lease of a listener, in seconds."""

    lease: float


class ClaimBody(RequestModel):
    """The listener that wants a delivery."""

    listener_id: str | None = Field(None, max_length=200)
    """The `listener_id` of an earlier delivery to the same process."""
    name: str = Field("", max_length=200)
    """Its name, for people to read."""
    active_deliveries: list[str] = Field(default_factory=list, max_length=1000)
    """The ids of the deliveries that it works on."""


class CompleteBody(RequestModel):
    """The result of a run."""

    output: Any = None
    steps: list[StepBody] = Field(default_factory=list[StepBody], max_length=MAX_STEPS)
    """Steps that were not recorded yet, to record in the same commit. Until then, another listener would do them again
    if this one died."""
    next: ClaimBody | Literal["stream"] | None = None
    """The same as for `claim`: the response has the next delivery of the address, if there is one within `wait`
    seconds. `"stream"`: the listener has an open stream, and the response has the next delivery if there is one at
    once; otherwise it comes over the stream."""


class ErrorBody(RequestModel):
    """What went wrong."""

    type: str = Field(default="Error", max_length=200)
    message: str = Field(default="", max_length=100_000)


class FailBody(RequestModel):
    """The failure of a delivery."""

    error: ErrorBody = ErrorBody()
    retry: bool = True
    """Whether to deliver the run again, until its deliveries are used up."""
    delay: float | None = Field(None, ge=0, le=MAX_DURATION_S)
    """Seconds until then; default: longer each time."""


class ReleaseBody(RequestModel):
    """The release of a delivery."""

    reason: str = Field("", max_length=1000)
    delay: float = Field(0.0, ge=0, le=MAX_DURATION_S)


class ApprovalRequestBody(RequestModel):
    """A question for a person."""

    name: str = Field(min_length=1, max_length=200)
    question: str = Field(min_length=1, max_length=10_000)
    choices: list[str] = Field(default_factory=list, max_length=100)
    form: dict[str, Any] | None = None
    """The JSON schema of a form to fill in."""
    assignee: str = Field("", max_length=200)
    reason: str = Field("", max_length=10_000)
    timeout: float | None = Field(None, gt=0, le=MAX_DURATION_S)
    """Seconds after which the answer is null."""


class WaitBody(RequestModel):
    """What a run waits for."""

    name: str = Field(min_length=1, max_length=200)
    signal: str | None = Field(None, min_length=1, max_length=200)
    seconds: float | None = Field(None, gt=0, le=MAX_DURATION_S)


class RunStateResponse(BaseModel):
    """The state of the run."""

    state: RunState


class CompletedResponse(RunStateResponse):
    """The state of the run, and the next delivery."""

    delivery: Delivery | None


class WaitResponse(BaseModel):
    """The outcome of a wait; or the run is parked, and the delivery has ended."""

    parked: bool
    name: str
    kind: str | None = None
    output: Any = None
    recorded_at: datetime | None = None


_LOST_RESPONSES = {409: "The delivery is over."}


def _operation(name: str, *, parked: str | None = None, headers: tuple[str, ...] = ()) -> Callable[[Handler], Handler]:
    """Declare an operation on a delivery, for its listener; ``parked`` says what a 202 means."""
    return router(
        "POST",
        f"/v1/deliveries/{{delivery}}/{name}",
        scope=Scope.LISTEN,
        is_audited=False,
        extra_responses=_LOST_RESPONSES | ({} if parked is None else {202: parked}),
        headers=headers,
    )


@router(
    "GET", "/v1/deliveries/{delivery}", scope=Scope.LISTEN, extra_responses=_LOST_RESPONSES, headers=(VALUES_HEADER,)
)
async def get_delivery(call: Call, delivery: str) -> Delivery:
    """A delivery that is still held, with everything that is recorded."""
    held = await find_claimed_delivery(call, delivery, refresh=True)
    address, listeners = held.run.workflow, call.tenant.listeners
    listener_id = await listeners.make_listener_id(address, held.run.owner or 0)
    return await build_delivery(call, held, listener_id, (await listeners.get_settings(address)).lease)


@_operation("steps", headers=(VALUES_HEADER,))
async def record_step(call: Call, delivery: str, body: StepBody) -> StepResponse:
    """Record the outcome of a step, before the next one begins.

    Steps are identified by name. The first outcome of a name counts, and the response to a repeat has that one.
    """
    record, is_new = await steps.record_step(call, delivery, body)
    step = await build_step(call, record)
    return StepResponse(step.name, step.kind, step.output, step.recorded_at, is_new)


@_operation("attempts", headers=(VALUES_HEADER,))
async def note_attempt(call: Call, delivery: str, body: AttemptBody) -> None:
    """Note that a step begins, so that the next listener knows about it if this one dies meanwhile."""
    await steps.note_attempt(call, delivery, body)


@_operation("heartbeat")
async def heartbeat(call: Call, delivery: str) -> LeaseResponse:
    """Renew the lease of the listener.

    409 means that the delivery has ended: the run was cancelled or paused, its deadline has passed, its address was
    disabled, or another listener has it.
    """
    return LeaseResponse(lease=await delivery_operations.record_heartbeat(call, delivery))


@_operation("complete", headers=(VALUES_HEADER,))
async def complete_delivery(
    call: Call, delivery: str, body: CompleteBody, query: WaitQuery
) -> RunStateResponse | CompletedResponse:
    """End the run with a result; with `next`, also take the next delivery of the address.

    Steps that the request carries are recorded together with the result. If the response is lost, repeat the request:
    the run is completed once, and the next delivery is the same one.
    """
    output = await call.prepare_value(body.output, "the output of the run")
    if body.next == "stream":
        found = await complete_and_take_next(call, delivery, output, body.steps)
        return CompletedResponse(state=RunState.COMPLETED, delivery=found)
    run, _ = await delivery_operations.complete(call, delivery, output, body.steps)
    if body.next is None:
        return RunStateResponse(state=RunState.COMPLETED)
    session = await ListenerSession.open(call, run.workflow, body.next.listener_id, body.next.name)
    found = await session.poll(body.next.active_deliveries, query.wait)
    return CompletedResponse(state=RunState.COMPLETED, delivery=found)


@_operation("fail")
async def fail_delivery(call: Call, delivery: str, body: FailBody) -> RunStateResponse:
    """Report that the delivery failed: the run is delivered again, or ends with the error."""
    error = body.error
    state = await delivery_operations.fail(
        call, delivery, error.type, error.message, retry=body.retry, delay=body.delay
    )
    return RunStateResponse(state=state)


@_operation("release")
async def release_delivery(call: Call, delivery: str, body: ReleaseBody) -> RunStateResponse:
    """Give the delivery back: the run goes to the next listener, and that does not count as a failure."""
    return RunStateResponse(state=await delivery_operations.release(call, delivery, body.reason, body.delay))


@_operation(
    "ask",
    parked="The run waits for the answer: the delivery is over, and comes back with it.",
    headers=(VALUES_HEADER,),
)
async def request_approval(call: Call, delivery: str, body: ApprovalRequestBody) -> WaitResponse:
    """Wait for a person's answer, without holding the delivery meanwhile.

    If the answer is there, the response has it. If not, the run is parked, and is delivered again once it is there:
    ask the same under the same name then.
    """
    form = b""
    if body.form is not None:
        await find_claimed_delivery(call, delivery)  # checking a schema is work, done only for holders of a delivery
        form = await call.run_large_work(LARGE_BYTES + 1, partial(_encode_form, body.form))
    question = ApprovalRequest(
        question=body.question,
        assignee=body.assignee,
        choices=tuple(body.choices),
        form_schema=form,
        reason=body.reason,
    )
    step = await waits.wait_for_approval(call, delivery, body.name, question, body.timeout)
    return _build_wait_response(call, body.name, step)


@_operation("wait", parked="The run waits: the delivery is over, and comes back.", headers=(VALUES_HEADER,))
async def wait_for_signal_or_time(call: Call, delivery: str, body: WaitBody) -> WaitResponse:
    """Wait for a signal, for a time, or for whichever comes first, without holding the delivery meanwhile.

    If it has come, the response has the outcome. If not, the run is parked, and is delivered again once it has come:
    wait for the same under the same name then.
    """
    step = await waits.wait_for_signal_or_time(call, delivery, body.name, body.signal, body.seconds)
    return _build_wait_response(call, body.name, step)


@router("GET", "/v1/runs/{run}/deliveries", scope=Scope.READ)
async def list_deliveries(call: Call, run: str) -> Items[DeliveryRecord]:
    """The deliveries of a run: to which listener, when, and how each ended."""
    return Items[DeliveryRecord](items=await read_deliveries(call.tenant.connections, run))


def _build_wait_response(call: Call, name: str, step: RecordedStep | None) -> WaitResponse:
    if step is None:
        call.status = 202
        return WaitResponse(parked=True, name=name)
    return WaitResponse(parked=False, name=name, kind=step.kind, output=step.output, recorded_at=step.recorded_at)


def _encode_form(form: dict[str, Any]) -> bytes:
    check_schema(form, "the form")
    return json.dumps(form, sort_keys=True).encode()
