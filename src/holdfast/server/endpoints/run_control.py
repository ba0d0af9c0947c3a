"""Changing runs: cancelling, pausing, retrying, settling, and forking them; budgets; dead runs, and deleting runs.

**Repeating a fork.** With an ``Idempotency-Key``, the fork's id follows from the key, and its seed from the whole
request. So a repeat finds the fork, and another request under the same key is a conflict.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Annotated, Any

from pydantic import Field
from pydantic_core import to_json

from holdfast.codec import compute_digest
from holdfast.core.seeded_random import SEED_BYTES
from holdfast.core.states import RunState
from holdfast.errors import RunConflict
from holdfast.reports.budgets import BudgetInfo
from holdfast.reports.dead_runs import DeadRun
from holdfast.reports.run_info import RunInfo
from holdfast.server.auth.scopes import Scope
from holdfast.server.background.policy_enforcer import check_start_allowed
from holdfast.server.calls import Call
from holdfast.server.endpoints.runs import build_run_info
from holdfast.server.http.models import (
    MAX_INT,
    BudgetBody,
    Changed,
    Name,
    Page,
    PageQuery,
    PageSize,
    Seconds,
    Text,
    bad_cursor_problem,
    parse_cursor,
    to_cursor,
)
from holdfast.server.http.request_headers import IDEMPOTENCY_KEY
from holdfast.server.http.router import RequestModel, Router
from holdfast.services.erasure import EraseReport
from holdfast.services.forks import NOT_GIVEN, fork_run
from holdfast.services.retention import PruneReport
from holdfast.services.wire_values import VALUES_HEADER
from holdfast.stores.operations import Run

router = Router("runs")


@router("POST", "/v1/runs/{id}/cancel", scope=Scope.OPERATE)
async def cancel_run(call: Call, id: str) -> Changed:
    """Ask for a run to be cancelled; 409 `run-ended` if it has ended.

    Steps in flight are interrupted, and steps with a compensation are undone. `changed` is false if the run was asked
    to cancel before.
    """
    return Changed(changed=await call.client.cancel(id))


@router("POST", "/v1/runs/{id}/pause", scope=Scope.OPERATE)
async def pause_run(call: Call, id: str) -> Changed:
    """Pause a run. Steps in flight may end, and are recorded."""
    return Changed(changed=await call.client.pause(id))


@router("POST", "/v1/runs/{id}/resume", scope=Scope.OPERATE)
async def resume_run(call: Call, id: str) -> Changed:
    """Resume a paused run; `changed` is false if it was not paused."""
    return Changed(changed=await call.client.resume(id))


class RetryBody(RequestModel):
    """How a run is retried."""

    run_again: Annotated[bool, Field(description="A `once` step may run a second time.")] = False
    version: Annotated[Text | None, Field(description="The version of its workflow that continues it.")] = None


@router("POST", "/v1/runs/{id}/retry", scope=Scope.OPERATE, headers=(VALUES_HEADER,))
async def retry_run(call: Call, id: str, body: RetryBody) -> RunInfo:
    """Continue a failed, cancelled, or dead run from where it went wrong; 409 `retry-refused` if it cannot.

    The records that ended it are removed from its journal, with what the workflow did because of them.
    """
    await call.client.retry(id, run_again=body.run_again, version=body.version)
    return await build_run_info(call, await call.tenant.connections.read(id))


class SettleBody(RequestModel):
    """The outcome of a step."""

    step: Annotated[
        Annotated[int, Field(ge=1, le=MAX_INT)] | Name, Field(description="The step, by its number or its name.")
    ]
    output: Annotated[Any, Field(description="What it returned, null included.")] = None
    happened: Annotated[bool, Field(description="False: it did not happen, and runs again; then without output.")] = (
        True
    )
    by: Annotated[Text | None, Field(description="Who says so; default: the name of the key.")] = None


@router("POST", "/v1/runs/{id}/settle", scope=Scope.OPERATE, headers=(VALUES_HEADER,))
async def settle_run(call: Call, id: str, body: SettleBody) -> RunInfo:
    """Decide the outcome of a `once` step whose outcome is unknown, and continue; 409 `settle-refused` if not possible.

    With `output`, the step returned that; with `"happened": false`, it runs again, and no other `once` step does.
    """
    output = await call.prepare_value(body.output, "the output") if "output" in body.model_fields_set else NOT_GIVEN
    await call.client.settle(id, body.step, output, happened=body.happened, by=call.actor(body.by))
    return await build_run_info(call, await call.tenant.connections.read(id))


class ForkBody(RequestModel):
    """Where a fork begins."""

    at: Annotated[
        Annotated[int, Field(ge=1, le=MAX_INT)] | Name | None,
        Field(description="The step to continue from, by its number or its name; default: after the last record."),
    ] = None
    output: Annotated[
        Any, Field(description="What that step returned, in the fork, null included; left out: it runs again.")
    ] = None
    id: Annotated[Name | None, Field(description="The id of the new run; default: generated.")] = None


@router(
    "POST",
    "/v1/runs/{id}/fork",
    scope=Scope.OPERATE,
    status=201,
    extra_responses={200: "The same request has forked it before."},
    headers=(IDEMPOTENCY_KEY, VALUES_HEADER),
    location="/v1/runs/{id}",
)
async def create_fork(call: Call, id: str, body: ForkBody) -> RunInfo:
    """Start a new run that shares the records of another one before a step."""
    output = await call.prepare_value(body.output, "the output") if "output" in body.model_fields_set else NOT_GIVEN
    derived = call.derive_id("fork", f"{id}-fork") if body.id is None else None
    seed = None if derived is None else await call.run_body_work(0, lambda: _derive_fork_seed(derived, id, body))
    run = await _find_earlier_fork(call, derived, seed)
    if run is not None:
        return await build_run_info(call, run)
    forked = await call.tenant.connections.read(id)
    new_id, by = body.id or derived, call.caller.name or None
    await check_start_allowed(call.tenant, forked.workflow, [new_id])
    try:
        run = await fork_run(call.store, id, at=body.at, with_output=output, new_id=new_id, entropy=seed, by=by)
    except RunConflict:
        run = await _find_earlier_fork(call, derived, seed)  # the same request may have made it at this moment
        if run is None:
            raise
    return await build_run_info(call, run)


async def _find_earlier_fork(call: Call, derived_id: str | None, seed: bytes | None) -> Run | None:
    """The fork that the same request made before, which makes the status a 200.

    Raises ``RunConflict`` if a request with another body made it.
    """
    run = None if derived_id is None else await call.store.get_run(derived_id)
    if run is not None and seed is not None and not run.seed.endswith(seed):
        raise RunConflict(
            f"the Idempotency-Key of this request made fork {run.id!r} with another body: use a new key", run.id
        )
    if run is not None:
        call.status = 200
    return run


def _derive_fork_seed(derived_id: str, source: str, body: ForkBody) -> bytes:
    """The fork's own part of its seed, which follows from the request: so a repeat is recognized by the run it made."""
    digest = compute_digest(to_json([derived_id, source, body.model_dump(exclude_unset=True)]))
    return blake2b(digest, digest_size=SEED_BYTES).digest()


@router("GET", "/v1/runs/{id}/budget", scope=Scope.READ)
async def get_budget(call: Call, id: str) -> BudgetInfo:
    """The budget and the usage of a run, with the budgets above it and the runs that it has started."""
    return await call.client.budget(id)


@router("PUT", "/v1/runs/{id}/budget", scope=Scope.OPERATE)
async def set_budget(call: Call, id: str, body: BudgetBody) -> Changed:
    """Replace the budget of a run. If the old one was used up, the run continues."""
    await call.client.set_budget(id, body.to_budget())
    return Changed(changed=True)


# Dead runs, and deleting runs


class DeadQuery(PageQuery):
    """Which dead runs."""

    workflow: Name | None = None
    limit: PageSize = 50
    before: Annotated[Name | None, Field(description="Older than this run; like `cursor`, but with the run's id.")] = (
        None
    )


@router("GET", "/v1/dead-runs", scope=Scope.READ)
async def list_dead_runs(call: Call, query: DeadQuery) -> Page[DeadRun]:
    """Runs whose workers died too often while they held nothing else, newest first, and what was in flight.

    They are not executed until a person retries them.
    """
    before = query.before
    if query.cursor is not None:
        before = parse_cursor("dead", query.cursor)
        if await call.store.get_run(before) is None:  # it was deleted, and its place in the list is unknown
            raise bad_cursor_problem(query.cursor)
    found = await call.client.dead(workflow=query.workflow, limit=query.limit + 1, before=before)
    page, has_more = query.split(found)
    return Page[DeadRun](items=page, next=to_cursor("dead", page[-1].id) if has_more else None)


class PruneBody(RequestModel):
    """Which runs to delete."""

    older_than: Annotated[Seconds, Field(description="Seconds since they ended.")]
    state: Annotated[
        tuple[RunState, ...],
        Field(description="Ended states; default: completed and cancelled.", max_length=10),
    ] = ()
    workflow: Name | None = None
    keep: Annotated[int, Field(ge=0, le=10**9, description="Number of newest runs of each workflow to keep.")] = 0
    unclaimed: Annotated[bool, Field(description="Also those whose result was never read.")] = False
    run_ids: Annotated[list[Name] | None, Field(description="Only these.", max_length=10_000)] = None
    dry_run: Annotated[bool, Field(description="Delete nothing, only report.")] = False


@router("POST", "/v1/prune", scope=Scope.ADMIN)
async def prune_runs(call: Call, body: PruneBody) -> PruneReport:
    """Delete runs that ended longer ago than that, with everything that belongs to them, unless still needed."""
    return await call.client.prune(
        body.older_than,
        state=body.state,
        workflow=body.workflow,
        keep=body.keep,
        unclaimed=body.unclaimed,
        run_ids=body.run_ids,
        dry_run=body.dry_run,
    )


class EraseBody(RequestModel):
    """What to erase."""

    run_ids: Annotated[list[Name], Field(description="These runs.", default_factory=list, max_length=10_000)]
    tag: Annotated[str, Field(description="All runs with this tag, which is removed from them.", max_length=1000)] = ""
    memories: Annotated[
        list[Name], Field(description="Namespaces whose memories are deleted.", default_factory=list, max_length=1000)
    ]
    by: Annotated[Name | None, Field(description="Who asks for it, if no API key is needed.")] = None
    dry_run: Annotated[bool, Field(description="Erase nothing, only report.")] = False


@router("POST", "/v1/erase", scope=Scope.ADMIN)
async def erase_data(call: Call, body: EraseBody) -> EraseReport:
    """Erase all values that ended runs have recorded, with those of the runs that they started, and their forks.

    The runs are still listed, with their steps, times, and usage. They cannot be retried or forked: 409 `run-erased`.
    """
    return await call.client.erase(
        body.run_ids, tag=body.tag, memories=body.memories, by=call.actor(body.by), dry_run=body.dry_run
    )
