"""Runs: starting, finding and following them, and sending them signals.

What else changes them is in ``run_control``, and what happens in them in ``events``.

**Sending a start again.** With an ``Idempotency-Key``, the id of the run follows from the key, so that the same request
finds the run that the first one has started, also on another server and after a restart: nothing is kept but the run
itself. If it was sent with other inputs, that is a conflict. A workflow that makes ids of its inputs needs no such key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from holdfast.codec import describe_error, render_id
from holdfast.core.states import RunState
from holdfast.reports.agent_result import AgentResult, plain_result
from holdfast.reports.plans import PlanItem
from holdfast.reports.run_info import Failure, infos_of, size_of
from holdfast.server.auth.scopes import Scope
from holdfast.server.background.policy_enforcer import refuse_starts
from holdfast.server.calls import Call
from holdfast.server.endpoints.queues import announce_queue
from holdfast.server.http.bounded_wait import within
from holdfast.server.http.models import (
    Changed,
    Cursor,
    Items,
    Limit,
    Moment,
    Name,
    OptionsBody,
    Page,
    RunInfo,
    Spent,
    Text,
    WaitQuery,
    number_from_cursor,
    to_cursor,
)
from holdfast.server.http.request_headers import IDEMPOTENCY_KEY
from holdfast.server.http.router import Api, Body
from holdfast.services.bulk_start import check_options, start_all
from holdfast.services.input_validation import bind_inputs
from holdfast.services.run_start import StartOptions, accept, find_spec, new_run
from holdfast.services.timestamps import moment
from holdfast.services.wire_values import VALUES
from holdfast.stores.contract import RunFilter, WorkflowSpec
from holdfast.stores.operations import Run, Started, StartRun

api = Api()

LOOKED_AT = 2500
"""Runs that one request for a list looks at, if an index cannot tell which ones match."""
MOST_AT_ONCE = 10_000
"""Runs that are started by one request."""


async def info_of(call: Call, run: Run) -> RunInfo:
    """What can be told of a run whose row was read."""
    [info] = await infos_of(await call.store(), [run])
    return await call.off_loop(size_of(run), lambda: RunInfo.told(call, info))


# Starting


class CallBody(Body):
    """The inputs of one run."""

    args: Annotated[tuple[Any, ...], Field(description="By position.")] = ()
    kwargs: Annotated[dict[Name, Any], Field(description="By name.", default_factory=dict)]

    def taken(self, call: Call) -> tuple[list[Any], dict[str, Any]]:
        """The values themselves, by position and by name."""
        args = [call.taken(one, f"argument {number}") for number, one in enumerate(self.args, 1)]
        kwargs = {name: call.taken(one, f"argument {name!r}") for name, one in self.kwargs.items()}
        return args, kwargs

    async def take(self, call: Call) -> tuple[list[Any], dict[str, Any]]:
        """The same, to be stored."""
        args = [await call.take(one, f"argument {number}") for number, one in enumerate(self.args, 1)]
        kwargs = {name: await call.take(one, f"argument {name!r}") for name, one in self.kwargs.items()}
        return args, kwargs

    def inputs(self, call: Call, spec: WorkflowSpec) -> bytes:
        """As they are recorded. Raises ``InputError``."""
        args, kwargs = self.taken(call)
        return bind_inputs(spec, args, kwargs)


class StartBody(OptionsBody, CallBody):
    """A run to be started."""

    workflow: Annotated[Name, Field(description="A worker must have announced it.")]
    id: Annotated[Name | None, Field(description="The run's id: one that is there with the same inputs is joined.")] = (
        None
    )

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"workflow": "onboarding", "kwargs": {"customer": "acme"}, "tags": ["trial"]}]}
    )


class BatchBody(OptionsBody):
    """Runs of one workflow to be started, with the same options."""

    workflow: Name
    calls: Annotated[list[CallBody], Field(min_length=1, max_length=MOST_AT_ONCE)]

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"workflow": "greet", "calls": [{"kwargs": {"name": "Ada"}}, {"kwargs": {"name": "Bob"}}]}]
        }
    )


class Ids(BaseModel):
    """Runs, in the order in which they were asked for."""

    ids: list[str]


@api(
    "POST",
    "/v1/runs",
    scope=Scope.SUBMIT,
    status=201,
    more={200: "The run was there already."},
    headers=(IDEMPOTENCY_KEY, VALUES),
    location="/v1/runs/{id}",
)
async def start_run(call: Call, body: StartBody) -> RunInfo:
    """Start a run of a workflow, or join the one that is there.

    With an `id`, or an `Idempotency-Key`, sending the request again finds the run that the first one has started; with
    other inputs, that is a 409 `run-conflict`. A run under this `id` that has failed is a 409 `run-unsuccessful`.
    """
    store = await call.store()
    spec = await find_spec(store, body.workflow, body.version)
    options = body.options(body.id)
    derived = _derived(call, spec, options)
    chosen = options if derived is None else replace(options, id=derived)
    new = await call.off_loop(0, lambda: new_run(spec, body.inputs(call, spec), chosen, now=store.now()))
    await refuse_starts(store, spec.name, [new.id])
    await announce_queue(call, store, options.queue)
    [answer] = await store.commit([StartRun(new)])
    call.nudge(spec)
    # What the same request has started is told also if it has failed since: that is what has come of it.
    run = accept(answer, new, unsuccessful_too=derived is not None)
    call.status = 201 if isinstance(answer, Started) and answer.created else 200
    return await info_of(call, run)


@api("POST", "/v1/runs/batch", scope=Scope.SUBMIT, status=201, headers=(IDEMPOTENCY_KEY, VALUES))
async def start_runs(call: Call, body: BatchBody) -> Ids:
    """Start many runs of a workflow, a thousand in one commit.

    If one cannot be started, the answer tells why, and those of the thousands before it are started: send the same
    request again with the same `Idempotency-Key`, or let the workflow make ids of its inputs, and none starts twice.
    """
    store = await call.store()
    spec = await find_spec(store, body.workflow, body.version)
    options = body.options()
    check_options(spec.name, options)
    derived = _derived(call, spec, options)

    def each() -> Iterator[tuple[bytes, StartOptions]]:
        for number, one in enumerate(body.calls):
            id = None if derived is None else f"{derived}-{number}"
            yield one.inputs(call, spec), replace(options, id=id)

    calls = await call.off_loop(0, lambda: list(each()))  # all of them are checked before the first is started
    await refuse_starts(store, spec.name, (_id_of(spec, *one) for one in calls), len(calls))
    await announce_queue(call, store, options.queue)
    ids = await start_all(
        store, spec, calls, call.client.max_value, unsuccessful_too=derived is not None, work=call.large_work
    )
    call.nudge(spec)
    return Ids(ids=ids)


def _derived(call: Call, spec: WorkflowSpec, options: StartOptions) -> str | None:
    """The id that follows from the Idempotency-Key, unless there is another one anyway."""
    if options.id is not None or spec.id_template is not None:
        return None
    return call.derived_id("run")


def _id_of(spec: WorkflowSpec, inputs: bytes, options: StartOptions) -> str | None:
    """The id that a run will have, unless it is made up."""
    if options.id is None and spec.id_template is not None:
        return render_id(spec.id_template, inputs, spec.name, {})
    return options.id


# Finding


class RunsQuery(Body):
    """Which runs: those that match all that is given."""

    state: Annotated[tuple[RunState, ...], Field(description="In one of these states.")] = ()
    workflow: Name | None = None
    tag: Name | None = None
    text: Annotated[Text | None, Field(description="Something in its id, workflow, tags or error.")] = None
    parent: Annotated[Name | None, Field(description="Started by this run.")] = None
    id_prefix: Annotated[Name | None, Field(description="Its id begins with this.")] = None
    created_after: Annotated[Moment | None, Field(description="Created then or later.")] = None
    created_before: Annotated[Moment | None, Field(description="Created earlier.")] = None
    limit: Limit = 50
    cursor: Cursor | None = None
    before: Annotated[Name | None, Field(description="Older than this run; a place like `cursor`, by its id.")] = None


class RunsPage(Page[RunInfo]):
    """Runs, and how far back they were looked for."""

    searched_until: Annotated[
        datetime | None, Field(description="When the last one was created that was looked at; null: the page is full.")
    ] = None


@api("GET", "/v1/runs", scope=Scope.READ, headers=(VALUES,))
async def list_runs(call: Call, query: RunsQuery) -> RunsPage:
    """Runs that match, newest first.

    Large inputs and outputs are not read: a text that tells their size stands for them. One request looks at a few
    thousand runs and no more: if it found less than a page, and there are others to look at, `searched_until` tells how
    far back it has come; go on with `next`, also if there are no items.
    """
    store = await call.store()
    where = RunFilter(
        states=query.state,
        workflow=query.workflow,
        tag=query.tag,
        text=query.text,
        parent=query.parent,
        id_prefix=query.id_prefix,
        created_after=None if query.created_after is None else query.created_after.timestamp(),
        created_before=None if query.created_before is None else query.created_before.timestamp(),
    )
    before = None if query.cursor is None else number_from_cursor("runs", query.cursor)
    if query.before is not None:
        before = (await call.tenant.connection.read(query.before)).key
    found = await store.search_runs(where, limit=query.limit + 1, before=before, most=LOOKED_AT)
    page = found.runs[: query.limit]
    is_full = len(found.runs) > query.limit
    until = page[-1].key if is_full else found.until
    infos = await infos_of(store, page, listed=True)
    return RunsPage(
        items=await call.off_loop(sum(map(size_of, page)), lambda: [RunInfo.told(call, info) for info in infos]),
        next=None if until is None else to_cursor("runs", until),
        searched_until=None if is_full else moment(found.until_at),
    )


@api("GET", "/v1/runs/{id}", scope=Scope.READ, headers=(VALUES,))
async def get_run(call: Call, id: str, query: WaitQuery) -> RunInfo:
    """What can be told of a run; with `wait`, once it has ended, or so many seconds have passed."""
    return await info_of(call, await _ended(call, id, query.wait))


class Result(BaseModel):
    """What has become of a run."""

    run_id: str
    workflow: str
    state: RunState
    output: Annotated[Any, Field(description="What it returned; of an agent, its answer.")] = None
    usage: Annotated[Spent | None, Field(description="What an agent's run has used.")] = None
    finish_reason: Annotated[
        str | None, Field(description="Why the model stopped: `stop`, `length` or `content_filter`.")
    ] = None
    refusal: Annotated[str | None, Field(description="The words in which the model refuses to answer.")] = None
    error: Annotated[Failure | None, Field(description="The exception that it ended with.")] = None
    retryable: Annotated[bool, Field(description="It has no result, and can be retried.")] = False


@api(
    "GET",
    "/v1/runs/{id}/result",
    scope=Scope.READ,
    more={202: "The run has not ended yet."},
    headers=(VALUES,),
)
async def get_result(call: Call, id: str, query: WaitQuery) -> Result:
    """The result of a run, or what it failed with.

    202 as long as it has not ended; with `wait`, after so many seconds.
    """
    run = await _ended(call, id, query.wait)
    result = Result(run_id=run.id, workflow=run.workflow, state=run.state)
    if not run.state.is_terminal:
        call.status = 202
        return result
    if run.state is not RunState.COMPLETED:
        result.retryable = run.rewind is None or not run.rewind.undone
        if run.error is not None:
            fault = describe_error(run.error)
            result.error = Failure(type=fault.type, message=fault.message)
        return result
    return await call.off_loop(size_of(run), lambda: _with_output(call, result, run.output or b"null"))


def _with_output(call: Call, result: Result, recorded: bytes) -> Result:
    output = plain_result(recorded)
    if isinstance(output, AgentResult):
        result.usage = Spent.of(output.usage)
        result.finish_reason, result.refusal = output.finish_reason, output.refusal or None
        output = output.output  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    result.output = call.out(output)
    return result


async def _ended(call: Call, run_id: str, seconds: float) -> Run:
    """A run as it is once it has ended, or so many seconds later."""
    connection = call.tenant.connection
    if seconds > 0:
        run = await within(call, seconds, connection.wait_for_end(run_id))
        if run is not None:
            return run
    return await connection.read(run_id)


# What else can be told of one


@api("GET", "/v1/runs/{id}/usage", scope=Scope.READ)
async def get_run_usage(call: Call, id: str) -> Spent:
    """What the model calls of a run have used so far, with those of the runs that it has started."""
    await call.tenant.connection.read(id)
    return Spent.of(await call.client.usage(id))


@api("GET", "/v1/runs/{id}/plan", scope=Scope.READ)
async def get_plan(call: Call, id: str) -> Items[PlanItem]:
    """What an agent's run means to do, and how far it is; empty as long as it has written no plan."""
    return Items[PlanItem](items=list(await call.client.plan(id)))


# Signals


class SignalBody(Body):
    """A value to be sent into a run."""

    name: Annotated[Name, Field(description="What the run waits for.")]
    value: Any = None
    id: Annotated[Name | None, Field(description="Sending one with the same again changes nothing.")] = None

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "paid", "value": {"invoice": 17}}]})


@api("POST", "/v1/runs/{id}/signals", scope=Scope.SUBMIT, headers=(IDEMPOTENCY_KEY, VALUES))
async def send_signal(call: Call, id: str, body: SignalBody) -> Changed:
    """Send a value into a run; 409 `run-ended` if it has ended."""
    value = await call.take(body.value, f"signal {body.name!r}")
    given = call.derived_id("signal") if body.id is None else body.id
    return Changed(changed=await call.client.signal(id, body.name, value, id=given))
