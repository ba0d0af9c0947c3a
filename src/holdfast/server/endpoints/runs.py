"""Runs: starting, finding and following them, and sending them signals.

What else changes them is in ``run_control``, and what happens in them in ``events``.

**Sending a start again.** With an ``Idempotency-Key``, the id of the run follows from the key, so that the same request
finds the run that the first one has started, also on another server and after a restart: nothing is kept but the run
itself. If it was sent with other inputs, that is a conflict. A workflow that makes ids of its inputs needs no such key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from holdfast.codec import read_error_info, render_run_id
from holdfast.core.states import RunState
from holdfast.errors import InputError
from holdfast.reports.agent_result import AgentResult, decode_plain_result
from holdfast.reports.plans import PlanItem
from holdfast.reports.run_info import RunErrorInfo, RunInfo, get_values_size, read_run_infos
from holdfast.server.auth.scopes import Scope
from holdfast.server.background.policy_enforcer import check_start_allowed
from holdfast.server.calls import Call
from holdfast.server.endpoints.queues import announce_queue
from holdfast.server.http.bounded_wait import wait_at_most
from holdfast.server.http.models import (
    Changed,
    Cursor,
    Items,
    Name,
    Page,
    PageSize,
    StartOptionsBody,
    Text,
    UtcDatetime,
    WaitQuery,
    parse_number_cursor,
    redact_run,
    to_cursor,
)
from holdfast.server.http.request_headers import IDEMPOTENCY_KEY
from holdfast.server.http.router import RequestModel, Router
from holdfast.services.bulk_start import check_bulk_options, start_batches
from holdfast.services.input_validation import bind_inputs
from holdfast.services.json_form import UsageWithCost, UserValue
from holdfast.services.run_start import StartOptions, build_new_run, find_spec, resolve_start
from holdfast.services.timestamps import to_datetime
from holdfast.services.wire_values import VALUES_HEADER
from holdfast.stores.contract import RunFilter, WorkflowSpec
from holdfast.stores.operations import Run, StartResult, StartRun

router = Router()

MAX_RUNS_SCANNED = 2500
"""Runs that one request for a list looks at, if an index cannot tell which ones match."""
MAX_BATCH_SIZE = 10_000
"""Runs that are started by one request."""


async def build_run_info(call: Call, run: Run) -> RunInfo:
    """What can be told of a run whose row was read."""
    [info] = await read_run_infos(await call.store(), [run])
    call.value_bytes += get_values_size(run)
    return redact_run(call, info)


# Starting


class ArgumentsBody(RequestModel):
    """The inputs of one run."""

    args: Annotated[tuple[Any, ...], Field(description="By position.")] = ()
    kwargs: Annotated[dict[Name, Any], Field(description="By name.", default_factory=dict)]

    def decode_arguments(self, call: Call) -> tuple[list[Any], dict[str, Any]]:
        """The values themselves, by position and by name."""
        args = [call.decode_value(one, f"argument {number}") for number, one in enumerate(self.args, 1)]
        kwargs = {name: call.decode_value(one, f"argument {name!r}") for name, one in self.kwargs.items()}
        return args, kwargs

    async def prepare_arguments(self, call: Call) -> tuple[list[Any], dict[str, Any]]:
        """The same, to be stored."""
        args = [await call.prepare_value(one, f"argument {number}") for number, one in enumerate(self.args, 1)]
        kwargs = {name: await call.prepare_value(one, f"argument {name!r}") for name, one in self.kwargs.items()}
        return args, kwargs

    def encode_inputs(self, call: Call, spec: WorkflowSpec, path: str = "") -> bytes:
        """As they are recorded; ``path`` is where this is in the body. Raises ``InputError``."""
        args, kwargs = self.decode_arguments(call)
        try:
            return bind_inputs(spec, args, kwargs)
        except InputError as error:
            raise self.locate_violations(error, spec, path) from None

    def locate_violations(self, error: InputError, spec: WorkflowSpec, path: str = "") -> InputError:
        """The same error, with the paths of values in the body in place of the inputs' names."""

        def locate(input: str) -> str:
            name = re.split(r"[.\[]", input, maxsplit=1)[0]
            position = spec.parameters.index(name) if name in spec.parameters else len(self.args)
            if name in self.kwargs or position >= len(self.args):
                return f"{path}kwargs.{input}"
            return f"{path}args.{position}{input.removeprefix(name)}"

        return InputError(str(error), [{**one, "path": locate(one["path"])} for one in error.violations])


class StartBody(StartOptionsBody, ArgumentsBody):
    """A run to be started."""

    workflow: Annotated[Name, Field(description="A worker must have announced it.")]
    id: Annotated[Name | None, Field(description="The run's id: one that is there with the same inputs is joined.")] = (
        None
    )

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"workflow": "onboarding", "kwargs": {"customer": "acme"}, "tags": ["trial"]}]}
    )


class BatchBody(StartOptionsBody):
    """Runs of one workflow to be started, with the same options."""

    workflow: Name
    calls: Annotated[list[ArgumentsBody], Field(min_length=1, max_length=MAX_BATCH_SIZE)]

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"workflow": "greet", "calls": [{"kwargs": {"name": "Ada"}}, {"kwargs": {"name": "Bob"}}]}]
        }
    )


class RunIds(BaseModel):
    """Runs, in the order in which they were asked for."""

    ids: list[str]


@router(
    "POST",
    "/v1/runs",
    scope=Scope.SUBMIT,
    status=201,
    extra_responses={200: "The run was there already."},
    headers=(IDEMPOTENCY_KEY, VALUES_HEADER),
    location="/v1/runs/{id}",
)
async def start_run(call: Call, body: StartBody) -> RunInfo:
    """Start a run of a workflow, or join the one that is there.

    With an `id`, or an `Idempotency-Key`, sending the request again finds the run that the first one has started; with
    other inputs, that is a 409 `run-conflict`. A run under this `id` that has failed is a 409 `run-unsuccessful`.
    """
    store = await call.store()
    spec = await find_spec(store, body.workflow, body.version)
    options = body.to_start_options(body.id)
    derived = _derive_run_id(call, spec, options)
    chosen = options if derived is None else replace(options, id=derived)
    new = await call.run_body_work(
        0, lambda: build_new_run(spec, body.encode_inputs(call, spec), chosen, now=store.now())
    )
    await check_start_allowed(store, spec.name, [new.id])
    await announce_queue(call, store, options.queue)
    [answer] = await store.commit([StartRun(new)])
    call.notify_listeners(spec)
    # What the same request has started is told also if it has failed since: that is what has come of it.
    run = resolve_start(answer, new, join_unsuccessful=derived is not None)
    call.status = 201 if isinstance(answer, StartResult) and answer.is_new else 200
    return await build_run_info(call, run)


@router("POST", "/v1/runs/batch", scope=Scope.SUBMIT, status=201, headers=(IDEMPOTENCY_KEY, VALUES_HEADER))
async def start_runs(call: Call, body: BatchBody) -> RunIds:
    """Start many runs of a workflow, a thousand in one commit.

    If one cannot be started, the answer tells why, and those of the thousands before it are started: send the same
    request again with the same `Idempotency-Key`, or let the workflow make ids of its inputs, and none starts twice.
    """
    store = await call.store()
    spec = await find_spec(store, body.workflow, body.version)
    options = body.to_start_options()
    check_bulk_options(spec.name, options)
    derived = _derive_run_id(call, spec, options)

    def each() -> Iterator[tuple[bytes, StartOptions]]:
        for number, one in enumerate(body.calls):
            id = None if derived is None else f"{derived}-{number}"
            yield one.encode_inputs(call, spec, f"calls.{number}."), replace(options, id=id)

    calls = await call.run_body_work(0, lambda: list(each()))  # all of them are checked before the first is started
    await check_start_allowed(store, spec.name, (_predict_run_id(spec, *one) for one in calls), len(calls))
    await announce_queue(call, store, options.queue)
    ids = await start_batches(
        store, spec, calls, call.client.max_value, join_unsuccessful=derived is not None, runner=call.run_large_work
    )
    call.notify_listeners(spec)
    return RunIds(ids=ids)


def _derive_run_id(call: Call, spec: WorkflowSpec, options: StartOptions) -> str | None:
    """The id that follows from the Idempotency-Key, unless there is another one anyway."""
    if options.id is not None or spec.id_template is not None:
        return None
    return call.derive_id("run", spec.name)


def _predict_run_id(spec: WorkflowSpec, inputs: bytes, options: StartOptions) -> str | None:
    """The id that a run will have, unless it is made up."""
    if options.id is None and spec.id_template is not None:
        return render_run_id(spec.id_template, inputs, spec.name, {})
    return options.id


# Finding


class RunsQuery(RequestModel):
    """Which runs: those that match all that is given."""

    state: Annotated[tuple[RunState, ...], Field(description="In one of these states.")] = ()
    workflow: Name | None = None
    tag: Name | None = None
    text: Annotated[Text | None, Field(description="Something in its id, workflow, tags or error.")] = None
    parent: Annotated[Name | None, Field(description="Started by this run.")] = None
    id_prefix: Annotated[Name | None, Field(description="Its id begins with this.")] = None
    created_after: Annotated[UtcDatetime | None, Field(description="Created then or later.")] = None
    created_before: Annotated[UtcDatetime | None, Field(description="Created earlier.")] = None
    limit: PageSize = 50
    cursor: Cursor | None = None
    before: Annotated[Name | None, Field(description="Older than this run; a place like `cursor`, by its id.")] = None


class RunsPage(Page[RunInfo]):
    """Runs, and how far back they were looked for."""

    searched_until: Annotated[
        datetime | None, Field(description="When the last one was created that was looked at; null: the page is full.")
    ] = None


@router("GET", "/v1/runs", scope=Scope.READ, headers=(VALUES_HEADER,))
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
    before = None if query.cursor is None else parse_number_cursor("runs", query.cursor)
    if query.before is not None:
        before = (await call.tenant.connection.read(query.before)).key
    found = await store.search_runs(where, limit=query.limit + 1, before_key=before, max_scanned=MAX_RUNS_SCANNED)
    page = found.runs[: query.limit]
    is_full = len(found.runs) > query.limit
    until = page[-1].key if is_full else found.cursor
    call.value_bytes += sum(map(get_values_size, page))
    return RunsPage(
        items=await read_run_infos(store, page, allow_stale_usage=True),
        next=None if until is None else to_cursor("runs", until),
        searched_until=None if is_full else to_datetime(found.cursor_created_at),
    )


@router("GET", "/v1/runs/{id}", scope=Scope.READ, headers=(VALUES_HEADER,))
async def get_run(call: Call, id: str, query: WaitQuery) -> RunInfo:
    """What can be told of a run; with `wait`, once it has ended, or so many seconds have passed."""
    return await build_run_info(call, await _wait_until_ended(call, id, query.wait))


class RunResult(BaseModel):
    """What has become of a run."""

    run_id: str
    workflow: str
    state: RunState
    output: Annotated[UserValue, Field(description="What it returned; of an agent, its answer.")] = None
    usage: Annotated[UsageWithCost | None, Field(description="What an agent's run has used.")] = None
    finish_reason: Annotated[
        str | None, Field(description="Why the model stopped: `stop`, `length` or `content_filter`.")
    ] = None
    refusal: Annotated[str | None, Field(description="The words in which the model refuses to answer.")] = None
    error: Annotated[RunErrorInfo | None, Field(description="The exception that it ended with.")] = None
    retryable: Annotated[bool, Field(description="It has no result, and can be retried.")] = False


@router(
    "GET",
    "/v1/runs/{id}/result",
    scope=Scope.READ,
    extra_responses={202: "The run has not ended yet."},
    headers=(VALUES_HEADER,),
)
async def get_result(call: Call, id: str, query: WaitQuery) -> RunResult:
    """The result of a run, or what it failed with.

    202 as long as it has not ended; with `wait`, after so many seconds.
    """
    run = await _wait_until_ended(call, id, query.wait)
    result = RunResult(run_id=run.id, workflow=run.workflow, state=run.state)
    if not run.state.is_terminal:
        call.status = 202
        return result
    if run.state is not RunState.COMPLETED:
        result.retryable = run.rewind is None or not run.rewind.is_compensated
        if run.error is not None:
            fault = read_error_info(run.error)
            result.error = RunErrorInfo(type=fault.type, message=fault.message)
        return result
    return await call.run_body_work(get_values_size(run), lambda: _add_output(result, run.output or b"null"))


def _add_output(result: RunResult, recorded: bytes) -> RunResult:
    output = decode_plain_result(recorded)
    if isinstance(output, AgentResult):
        result.usage = output.usage
        result.finish_reason, result.refusal = output.finish_reason, output.refusal or None
        output = output.output  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    result.output = output
    return result


async def _wait_until_ended(call: Call, run_id: str, timeout_s: float) -> Run:
    """A run as it is once it has ended, or so many seconds later."""
    connection = call.tenant.connection
    if timeout_s > 0:
        run = await wait_at_most(call, timeout_s, connection.wait_for_end(run_id))
        if run is not None:
            return run
    return await connection.read(run_id)


# What else can be told of one


@router("GET", "/v1/runs/{id}/usage", scope=Scope.READ)
async def get_run_usage(call: Call, id: str) -> UsageWithCost:
    """What the model calls of a run have used so far, with those of the runs that it has started."""
    await call.tenant.connection.read(id)
    return await call.client.usage(id)


@router("GET", "/v1/runs/{id}/plan", scope=Scope.READ)
async def get_plan(call: Call, id: str) -> Items[PlanItem]:
    """What an agent's run means to do, and how far it is; empty as long as it has written no plan."""
    return Items[PlanItem](items=list(await call.client.plan(id)))


# Signals


class SignalBody(RequestModel):
    """A value to be sent into a run."""

    name: Annotated[Name, Field(description="What the run waits for.")]
    value: Any = None
    id: Annotated[Name | None, Field(description="Sending one with the same again changes nothing.")] = None

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "paid", "value": {"invoice": 17}}]})


@router("POST", "/v1/runs/{id}/signals", scope=Scope.SUBMIT, headers=(IDEMPOTENCY_KEY, VALUES_HEADER))
async def send_signal(call: Call, id: str, body: SignalBody) -> Changed:
    """Send a value into a run; 409 `run-ended` if it has ended."""
    value = await call.prepare_value(body.value, f"signal {body.name!r}")
    given = call.derive_id("signal") if body.id is None else body.id
    return Changed(changed=await call.client.signal(id, body.name, value, id=given))
