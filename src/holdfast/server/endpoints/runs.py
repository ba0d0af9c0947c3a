"""Runs: starting, finding, and awaiting them, and sending them signals.

``run_control`` changes runs in other ways, and ``events`` reports what happens in them.

**Repeating a start.** With an ``Idempotency-Key``, the id of the run follows from the key. So a repeat of the request
finds the run that the first one started, even on another server and after a restart: nothing is stored but the run
itself. A repeat with other inputs is a conflict. A workflow that makes ids of its inputs needs no such key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from holdfast.codec import check_readable, read_error_info, render_run_id
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
    Items,
    Name,
    Page,
    PageQuery,
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
"""Runs that one list request examines if no index says which ones match."""
MAX_BATCH_SIZE = 10_000


async def build_run_info(call: Call, run: Run) -> RunInfo:
    """A run as the caller may see it, from its row."""
    [info] = await read_run_infos(call.store, [run], read_environment=call.tenant.environment.read)
    call.value_bytes += get_values_size(run)
    return redact_run(call, info)


# Starting


class ArgumentsBody(RequestModel):
    """The inputs of one run."""

    args: Annotated[tuple[Any, ...], Field(description="By position.")] = ()
    kwargs: Annotated[dict[Name, Any], Field(description="By name.", default_factory=dict)]

    def decode_arguments(self, call: Call) -> tuple[list[Any], dict[str, Any]]:
        """The decoded values, by position and by name."""
        args = [call.decode_value(data, f"argument {number}") for number, data in enumerate(self.args, 1)]
        kwargs = {name: call.decode_value(data, f"argument {name!r}") for name, data in self.kwargs.items()}
        return args, kwargs

    async def prepare_arguments(self, call: Call) -> tuple[list[Any], dict[str, Any]]:
        """The values, ready to be stored, by position and by name."""
        args = [await call.prepare_value(data, f"argument {number}") for number, data in enumerate(self.args, 1)]
        kwargs = {name: await call.prepare_value(data, f"argument {name!r}") for name, data in self.kwargs.items()}
        return args, kwargs

    def encode_inputs(self, call: Call, spec: WorkflowSpec, path: str = "") -> bytes:
        """The inputs as they are recorded; ``path`` is where they are in the body. Raises ``InputError``."""
        args, kwargs = self.decode_arguments(call)
        try:
            return bind_inputs(spec, args, kwargs)
        except InputError as error:
            raise self.locate_violations(error, spec, path) from None

    def locate_violations(self, error: InputError, spec: WorkflowSpec, path: str = "") -> InputError:
        """The same error, with paths in the body in place of the names of inputs."""

        def locate(input: str) -> str:
            name = re.split(r"[.\[]", input, maxsplit=1)[0]
            position = spec.parameters.index(name) if name in spec.parameters else len(self.args)
            if name in self.kwargs or position >= len(self.args):
                return f"{path}kwargs.{input}"
            return f"{path}args.{position}{input.removeprefix(name)}"

        violations = [{**violation, "path": locate(violation["path"])} for violation in error.violations]
        return InputError(str(error), violations)


class StartBody(StartOptionsBody, ArgumentsBody):
    """A run to start."""

    workflow: Annotated[Name, Field(description="A worker must have announced it.")]
    id: Annotated[Name | None, Field(description="The run's id. An existing run with the same inputs is joined.")] = (
        None
    )

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"workflow": "onboarding", "kwargs": {"customer": "acme"}, "tags": ["trial"]}]}
    )


class BatchBody(StartOptionsBody):
    """Runs of one workflow to start with the same options."""

    workflow: Name
    calls: Annotated[list[ArgumentsBody], Field(min_length=1, max_length=MAX_BATCH_SIZE)]

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"workflow": "greet", "calls": [{"kwargs": {"name": "Ada"}}, {"kwargs": {"name": "Bob"}}]}]
        }
    )


class RunIds(BaseModel):
    """The ids of the runs, in the order of the request."""

    ids: list[str]


@router(
    "POST",
    "/v1/runs",
    scope=Scope.SUBMIT,
    status=201,
    commits_audit_entry=True,
    extra_responses={200: "The run already exists."},
    headers=(IDEMPOTENCY_KEY, VALUES_HEADER),
    location="/v1/runs/{id}",
)
async def start_run(call: Call, body: StartBody) -> RunInfo:
    """Start a run of a workflow, or join an existing one.

    With an `id` or an `Idempotency-Key`, a repeat of the request finds the run that the first one started; with other
    inputs, it is a 409 `run-conflict`. If the run with this `id` has failed, it is a 409 `run-unsuccessful`.
    """
    store = call.store
    spec = await find_spec(store, body.workflow, body.version)
    options = body.to_start_options(body.id)
    derived = _derive_run_id(call, spec, options)
    chosen = options if derived is None else replace(options, id=derived)
    new = await call.run_body_work(
        0, lambda: build_new_run(spec, body.encode_inputs(call, spec), chosen, now=store.now())
    )
    await check_start_allowed(call.tenant, spec.name, [new.id])
    await announce_queue(call, options.queue)
    [result] = await call.commit([StartRun(new)])
    call.notify_listeners(spec)
    # A repeat of the same request finds its run even if that has failed since.
    run = resolve_start(result, new, join_unsuccessful=derived is not None)
    call.status = 201 if isinstance(result, StartResult) and result.is_new else 200
    return await build_run_info(call, run)


@router("POST", "/v1/runs/batch", scope=Scope.SUBMIT, status=201, headers=(IDEMPOTENCY_KEY, VALUES_HEADER))
async def start_runs(call: Call, body: BatchBody) -> RunIds:
    """Start many runs of a workflow, a thousand in one commit.

    If one cannot be started, the response says why; earlier batches of a thousand stay started. To repeat the request
    safely, send the same `Idempotency-Key`, or let the workflow make ids of its inputs: then no run starts twice.
    """
    store = call.store
    spec = await find_spec(store, body.workflow, body.version)
    options = body.to_start_options()
    check_bulk_options(spec.name, options)
    derived = _derive_run_id(call, spec, options)

    def encode_calls() -> Iterator[tuple[bytes, StartOptions]]:
        for number, arguments in enumerate(body.calls):
            id = None if derived is None else f"{derived}-{number}"
            yield arguments.encode_inputs(call, spec, f"calls.{number}."), replace(options, id=id)

    starts = await call.run_body_work(0, lambda: list(encode_calls()))  # all are checked before the first one starts
    await check_start_allowed(call.tenant, spec.name, (_predict_run_id(spec, *start) for start in starts), len(starts))
    await announce_queue(call, options.queue)
    ids = await start_batches(
        store, spec, starts, call.client.max_value, join_unsuccessful=derived is not None, runner=call.run_large_work
    )
    call.notify_listeners(spec)
    return RunIds(ids=ids)


def _derive_run_id(call: Call, spec: WorkflowSpec, options: StartOptions) -> str | None:
    """The id that follows from the Idempotency-Key, unless the run has another id anyway."""
    if options.id is not None or spec.id_template is not None:
        return None
    return call.derive_id("run", spec.name)


def _predict_run_id(spec: WorkflowSpec, inputs: bytes, options: StartOptions) -> str | None:
    """The id that a run will have, unless it is generated."""
    if options.id is None and spec.id_template is not None:
        return render_run_id(spec.id_template, inputs, spec.name, {})
    return options.id


# Finding


class RunsQuery(PageQuery):
    """Which runs: those that match everything given."""

    state: Annotated[tuple[RunState, ...], Field(description="In one of these states.")] = ()
    workflow: Name | None = None
    tag: Name | None = None
    text: Annotated[Text | None, Field(description="Text in its id, workflow, tags, or error.")] = None
    parent: Annotated[Name | None, Field(description="Started by this run.")] = None
    id_prefix: Annotated[Name | None, Field(description="Its id begins with this.")] = None
    created_after: Annotated[UtcDatetime | None, Field(description="Created then or later.")] = None
    created_before: Annotated[UtcDatetime | None, Field(description="Created earlier.")] = None
    limit: PageSize = 50
    before: Annotated[Name | None, Field(description="Older than this run; like `cursor`, but with the run's id.")] = (
        None
    )


class RunsPage(Page[RunInfo]):
    """Runs, and how far back the search has come."""

    searched_until: Annotated[
        datetime | None, Field(description="When the last examined run was created; null: the page is full.")
    ] = None


@router("GET", "/v1/runs", scope=Scope.READ, headers=(VALUES_HEADER,))
async def list_runs(call: Call, query: RunsQuery) -> RunsPage:
    """Runs that match, newest first.

    In place of large inputs and outputs, there is a text with their size. One request examines a few thousand runs at
    most. If it finds less than a page, and there are more runs to examine, `searched_until` says how far back it has
    come: continue with `next`, even if there are no items.
    """
    store = call.store
    matching = RunFilter(
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
        before = (await call.tenant.connections.read(query.before)).key
    found = await store.search_runs(matching, limit=query.limit + 1, before_key=before, max_scanned=MAX_RUNS_SCANNED)
    page, is_full = query.split(found.runs)
    until = page[-1].key if is_full else found.cursor
    call.value_bytes += sum(map(get_values_size, page))
    items = await read_run_infos(store, page, allow_stale_usage=True, read_environment=call.tenant.environment.read)
    return RunsPage(
        items=items,
        next=None if until is None else to_cursor("runs", until),
        searched_until=None if is_full else to_datetime(found.cursor_created_at),
    )


@router("GET", "/v1/runs/{id}", scope=Scope.READ, headers=(VALUES_HEADER,))
async def get_run(call: Call, id: str, query: WaitQuery) -> RunInfo:
    """One run; with `wait`, once it has ended, or after that many seconds."""
    return await build_run_info(call, await _wait_until_ended(call, id, query.wait))


class RunResult(BaseModel):
    """The result of a run."""

    run_id: str
    workflow: str
    state: RunState
    output: Annotated[UserValue, Field(description="What it returned; for an agent, its answer.")] = None
    usage: Annotated[UsageWithCost | None, Field(description="What an agent's run used.")] = None
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
    """The result of a run, or the error that it failed with.

    202 while it has not ended; with `wait`, after that many seconds.
    """
    run = await _wait_until_ended(call, id, query.wait)
    if not run.state.is_terminal:
        call.status = 202
    return await build_result(call, run)


async def build_result(call: Call, run: Run) -> RunResult:
    """The result of a run, if it has ended."""
    result = RunResult(run_id=run.id, workflow=run.workflow, state=run.state)
    if not run.state.is_terminal:
        return result
    if run.state is not RunState.COMPLETED:
        result.retryable = run.rewind is None or not run.rewind.is_compensated
        if run.error is not None:
            fault = read_error_info(run.error)
            result.error = RunErrorInfo(type=fault.type, message=fault.message)
        return result
    return await call.run_body_work(get_values_size(run), lambda: _add_output(result, run.output or b"null"))


def _add_output(result: RunResult, recorded: bytes) -> RunResult:
    check_readable(recorded, f"what run {result.run_id!r} returned")
    output = decode_plain_result(recorded)
    if isinstance(output, AgentResult):
        result.usage = output.usage
        result.finish_reason, result.refusal = output.finish_reason, output.refusal or None
        output = output.output  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    result.output = output
    return result


async def _wait_until_ended(call: Call, run_id: str, timeout_s: float) -> Run:
    """A run, once it has ended, or after ``timeout_s`` seconds."""
    connections = call.tenant.connections
    if timeout_s > 0:
        run = await wait_at_most(call, timeout_s, connections.wait_for_end(run_id))
        if run is not None:
            return run
    return await connections.read(run_id)


# More about one run


@router("GET", "/v1/runs/{id}/usage", scope=Scope.READ)
async def get_run_usage(call: Call, id: str) -> UsageWithCost:
    """What the model calls of a run used so far, with those of the runs that it has started."""
    await call.tenant.connections.read(id)
    return await call.client.usage(id)


@router("GET", "/v1/runs/{id}/plan", scope=Scope.READ)
async def get_plan(call: Call, id: str) -> Items[PlanItem]:
    """The plan of an agent's run, and its progress; empty if it has written no plan."""
    return Items[PlanItem](items=list(await call.client.plan(id)))


# Signals


class SignalBody(RequestModel):
    """A value to send into a run."""

    name: Annotated[Name, Field(description="The signal that the run waits for.")]
    value: Any = None
    id: Annotated[Name | None, Field(description="Sending another signal with the same id changes nothing.")] = None

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "paid", "value": {"invoice": 17}}]})


@router("POST", "/v1/runs/{id}/signals", scope=Scope.SUBMIT, headers=(IDEMPOTENCY_KEY, VALUES_HEADER))
async def send_signal(call: Call, id: str, body: SignalBody) -> Changed:
    """Send a value into a run; 409 `run-ended` if it has ended."""
    value = await call.prepare_value(body.value, f"signal {body.name!r}")
    signal_id = call.derive_id("signal") if body.id is None else body.id
    return Changed(changed=await call.client.signal(id, body.name, value, id=signal_id))
