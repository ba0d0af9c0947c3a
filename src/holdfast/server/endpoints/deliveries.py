"""Calls on a delivery: only its listener makes them, and only as long as it is the listener's."""

from __future__ import annotations

import json
from datetime import datetime
from functools import partial
from typing import Any

from pydantic import BaseModel, Field

from holdfast.admission.usage import NANO, Usage
from holdfast.core.states import RunState
from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call
from holdfast.server.deliveries import delivery_operations, waits
from holdfast.server.deliveries.delivery import Delivery, find_held, told
from holdfast.server.deliveries.history import DeliveryRecord, read_deliveries
from holdfast.server.http.models import LARGEST_INT, LONGEST_SPAN, AnyMoment, Items
from holdfast.server.http.router import Api, Body
from holdfast.services.json_schemas import check_schema
from holdfast.services.thread_offload import LARGE
from holdfast.services.wire_values import VALUES
from holdfast.stores.approvals import Question

api = Api()


class UsageBody(Body):
    """What the model calls of a step have used."""

    calls: int = Field(1, ge=0, le=LARGEST_INT)
    input_tokens: int = Field(0, ge=0, le=LARGEST_INT)
    output_tokens: int = Field(0, ge=0, le=LARGEST_INT)
    cached_tokens: int = Field(0, ge=0, le=LARGEST_INT)
    usd: float | None = Field(None, ge=0, le=1_000_000)
    """What they have cost; left out if that is not known."""
    model: str = Field("", max_length=200)

    def read(self) -> delivery_operations.StepUsage:
        """As the journal has it."""
        used = Usage(
            calls=self.calls,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=self.cached_tokens,
            nano_usd=0 if self.usd is None else round(self.usd * NANO),
            unpriced=self.calls if self.usd is None else 0,
        )
        return delivery_operations.StepUsage(used, self.model)


class StepBody(Body):
    """The outcome of a step."""

    name: str = Field(min_length=1, max_length=200)
    output: Any = None
    started_at: AnyMoment | None = None
    attempts: int = Field(1, ge=1, le=10_000)
    arguments: str = Field("", max_length=10_000)
    """What it was called with, in a few words, for people to read."""
    usage: UsageBody | None = None


class AttemptBody(Body):
    """A step that begins."""

    name: str = Field(min_length=1, max_length=200)
    attempt: int = Field(1, ge=1, le=10_000)
    once: bool = False
    """It must happen at most once: if this listener dies over it, the next one is told that it may have happened."""
    error: str = Field("", max_length=10_000)
    """Why the attempt before it failed."""
    progress: Any = None


class Recorded(BaseModel):
    """A step as it is recorded."""

    name: str
    kind: str
    output: Any
    at: datetime
    recorded: bool
    """False: it was recorded before, and this is what was recorded then."""


class Life(BaseModel):
    """How long a listener is believed to live."""

    lease: float


class CompleteBody(Body):
    """The result of a run."""

    output: Any = None


class ErrorBody(Body):
    """What went wrong."""

    type: str = Field(default="Error", max_length=200)
    message: str = Field(default="", max_length=100_000)


class FailBody(Body):
    """That a delivery has failed."""

    error: ErrorBody = ErrorBody()
    retry: bool = True
    """Whether it is to be delivered again, as often as it may be."""
    delay: float | None = Field(None, ge=0, le=LONGEST_SPAN)
    """Seconds until then; longer each time unless given."""


class ReleaseBody(Body):
    """That a delivery is given back."""

    reason: str = Field("", max_length=1000)
    delay: float = Field(0.0, ge=0, le=LONGEST_SPAN)


class AskBody(Body):
    """A question to a person."""

    name: str = Field(min_length=1, max_length=200)
    question: str = Field(min_length=1, max_length=10_000)
    choices: list[str] = Field(default_factory=list, max_length=100)
    form: dict[str, Any] | None = None
    """The JSON schema of what is to be filled in."""
    asked_of: str = Field("", max_length=200)
    reason: str = Field("", max_length=10_000)
    timeout: float | None = Field(None, gt=0, le=LONGEST_SPAN)
    """Seconds after which the answer is null."""


class WaitBody(Body):
    """What a run waits for."""

    name: str = Field(min_length=1, max_length=200)
    signal: str | None = Field(None, min_length=1, max_length=200)
    seconds: float | None = Field(None, gt=0, le=LONGEST_SPAN)


class RunStateNow(BaseModel):
    """The state of the run."""

    state: RunState


class WaitOutcome(BaseModel):
    """What has become of a wait: an output, or the run is parked and the delivery is over."""

    parked: bool
    name: str
    kind: str | None = None
    output: Any = None
    at: datetime | None = None


_LOST = {409: "The delivery is over."}


@api("GET", "/v1/deliveries/{delivery}", scope=Scope.LISTEN, more=_LOST, headers=(VALUES,))
async def get_delivery(call: Call, delivery: str) -> Delivery:
    """A delivery that is still held, with all that is recorded of it."""
    _, held = await find_held(call, delivery, anew=True)
    listeners = call.platform.listeners
    name = await listeners.name(call.tenant, held.run.workflow, held.run.owner or 0)
    return await told(call, held, name, await listeners.lease_of(call.tenant, held.run.workflow))


@api("POST", "/v1/deliveries/{delivery}/steps", scope=Scope.LISTEN, audited=False, more=_LOST, headers=(VALUES,))
async def record_step(call: Call, delivery: str, body: StepBody) -> Recorded:
    """Record the outcome of a step, before the next one begins.

    Steps are known by their names: the first outcome under a name counts, and recording it again tells what it was.
    """
    step, is_new = await delivery_operations.record_step(
        call,
        delivery,
        body.name,
        await call.take(body.output, f"the output of step {body.name!r}"),
        started_at=body.started_at,
        attempts=body.attempts,
        arguments=body.arguments,
        usage=None if body.usage is None else body.usage.read(),
    )
    return Recorded(name=step.name, kind=step.kind, output=step.output, at=step.at, recorded=is_new)


@api("POST", "/v1/deliveries/{delivery}/attempts", scope=Scope.LISTEN, audited=False, more=_LOST, headers=(VALUES,))
async def note_attempt(call: Call, delivery: str, body: AttemptBody) -> None:
    """Note that a step begins, so that the next listener knows if this one dies over it."""
    await delivery_operations.note_attempt(
        call,
        delivery,
        body.name,
        attempt=body.attempt,
        once=body.once,
        error=body.error,
        progress=await call.take(body.progress, f"the progress of step {body.name!r}"),
    )


@api("POST", "/v1/deliveries/{delivery}/heartbeat", scope=Scope.LISTEN, audited=False, more=_LOST)
async def heartbeat(call: Call, delivery: str) -> Life:
    """Say that the listener lives.

    409 tells that the delivery is over: the run was cancelled or paused, its deadline has passed, its address was
    switched off, or somebody else has it.
    """
    return Life(lease=await delivery_operations.heartbeat(call, delivery))


@api("POST", "/v1/deliveries/{delivery}/complete", scope=Scope.LISTEN, audited=False, more=_LOST, headers=(VALUES,))
async def complete_delivery(call: Call, delivery: str, body: CompleteBody) -> RunStateNow:
    """End the run with a result."""
    output = await call.take(body.output, "the output of the run")
    return RunStateNow(state=await delivery_operations.complete(call, delivery, output))


@api("POST", "/v1/deliveries/{delivery}/fail", scope=Scope.LISTEN, audited=False, more=_LOST)
async def fail_delivery(call: Call, delivery: str, body: FailBody) -> RunStateNow:
    """Say that the delivery has failed: the run is delivered again, or ends with the error."""
    error = body.error
    state = await delivery_operations.fail(
        call, delivery, error.type, error.message, retry=body.retry, delay=body.delay
    )
    return RunStateNow(state=state)


@api("POST", "/v1/deliveries/{delivery}/release", scope=Scope.LISTEN, audited=False, more=_LOST)
async def release_delivery(call: Call, delivery: str, body: ReleaseBody) -> RunStateNow:
    """Give the delivery back: the run goes to the next listener, and nothing is counted."""
    return RunStateNow(state=await delivery_operations.release(call, delivery, body.reason, body.delay))


@api(
    "POST",
    "/v1/deliveries/{delivery}/ask",
    scope=Scope.LISTEN,
    audited=False,
    more={**_LOST, 202: "The run waits for the answer: the delivery is over, and comes back with it."},
    headers=(VALUES,),
)
async def ask_person(call: Call, delivery: str, body: AskBody) -> WaitOutcome:
    """Wait for a person's answer, without holding anything meanwhile.

    If it is there, it is told. If not, the run is parked, and is delivered again once it is there: ask the same under
    the same name then.
    """
    form = b""
    if body.form is not None:
        await find_held(call, delivery)  # who holds nothing has no schema checked either
        form = await call.large_work(LARGE + 1, partial(_checked_form, body.form))
    question = Question(
        text=body.question,
        asked_of=body.asked_of,
        choices=tuple(body.choices),
        form=form,
        reason=body.reason,
    )
    return _told(call, body.name, await waits.ask(call, delivery, body.name, question, body.timeout))


@api(
    "POST",
    "/v1/deliveries/{delivery}/wait",
    scope=Scope.LISTEN,
    audited=False,
    more={**_LOST, 202: "The run waits: the delivery is over, and comes back."},
    headers=(VALUES,),
)
async def wait_for(call: Call, delivery: str, body: WaitBody) -> WaitOutcome:
    """Wait for a signal, for a time, or for whichever comes first, without holding anything meanwhile.

    If it is there, it is told. If not, the run is parked, and is delivered again once it is there: wait for the same
    under the same name then.
    """
    return _told(call, body.name, await waits.wait(call, delivery, body.name, body.signal, body.seconds))


@api("GET", "/v1/runs/{run}/deliveries", scope=Scope.READ)
async def list_deliveries(call: Call, run: str) -> Items[DeliveryRecord]:
    """Who has had a run, when, and how that ended."""
    return Items[DeliveryRecord](items=await read_deliveries(call.tenant.connection, run))


def _told(call: Call, name: str, outcome: waits.Outcome) -> WaitOutcome:
    step = outcome.step
    if step is None:
        call.status = 202
        return WaitOutcome(parked=True, name=name)
    return WaitOutcome(parked=False, name=name, kind=step.kind, output=step.output, at=step.at)


def _checked_form(form: dict[str, Any]) -> bytes:
    check_schema(form, "the form")
    return json.dumps(form, sort_keys=True).encode()
