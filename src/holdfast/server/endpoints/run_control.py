"""Changing runs: cancelling, pausing, retrying, settling and forking them; budgets; dead runs, and deleting runs.

**Sending a fork again.** With an ``Idempotency-Key``, the fork's id follows from the key, and its seed from the whole
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
    Cursor,
    Name,
    Page,
    PageSize,
    Seconds,
    Text,
    bad_cursor_problem,
    parse_cursor,
    to_cursor,
)
from holdfast.server.http.request_headers import IDEMPOTENCY_KEY
from holdfast.server.http.router import RequestModel, Router
from holdfast.services.forks import NOT_GIVEN, fork_run
from holdfast.services.retention import PruneReport
from holdfast.services.wire_values import VALUES_HEADER
from holdfast.stores.contract import Store
from holdfast.stores.operations import Run

router = Router("runs")


@router("POST", "/v1/runs/{id}/cancel", scope=Scope.OPERATE)
async def cancel_run(call: Call, id: str) -> Changed:
    """Ask for a run to be cancelled; 409 `run-ended` if it has ended.

    What it is doing is interrupted, and steps with a compensation are undone. `changed` is false when that was asked
    before.
    """
    return Changed(changed=await call.client.cancel(id))


@router("POST", "/v1/runs/{id}/pause", scope=Scope.OPERATE)
async def pause_run(call: Call, id: str) -> Changed:
    """Keep a run from going on. Steps in flight may end, and are recorded."""
    return Changed(changed=await call.client.pause(id))


@router("POST", "/v1/runs/{id}/resume", scope=Scope.OPERATE)
async def resume_run(call: Call, id: str) -> Changed:
    """Let a paused run go on; `changed` is false when it was not paused."""
    return Changed(changed=await call.client.resume(id))


class RetryBody(RequestModel):
    """How a run is retried."""

    run_again: Annotated[bool, Field(description="A `once` step may run a second time.")] = False
    version: Annotated[Text | None, Field(description="Of its workflow, whose code goes on with it.")] = None


@router("POST", "/v1/runs/{id}/retry", scope=Scope.OPERATE, headers=(VALUES_HEADER,))
async def retry_run(call: Call, id: str, body: RetryBody) -> RunInfo:
    """Let a failed, cancelled or dead run go on from where it went wrong; 409 `retry-refused` if it cannot.

    The records that ended it are taken back from its journal, with what the workflow did because of them.
    """
    await call.client.retry(id, run_again=body.run_again, version=body.version)
    return await build_run_info(call, await call.tenant.connection.read(id))


class SettleBody(RequestModel):
    """What came of a step."""

    step: Annotated[
        Annotated[int, Field(ge=1, le=MAX_INT)] | Name, Field(description="The step, by its number or its name.")
    ]
    output: Annotated[Any, Field(description="What it has returned, null included.")] = None
    happened: Annotated[bool, Field(description="False: it did not happen, and runs again; then without output.")] = (
        True
    )
    by: Annotated[Text | None, Field(description="Who says so; the name of the key unless given.")] = None


@router("POST", "/v1/runs/{id}/settle", scope=Scope.OPERATE, headers=(VALUES_HEADER,))
async def settle_run(call: Call, id: str, body: SettleBody) -> RunInfo:
    """Say what came of a `once` step of unknown outcome, and let the run go on; 409 `settle-refused` if it cannot.

    With `output`, the step has returned that; with `"happened": false`, it runs again, and no other `once` step does.
    """
    output = await call.prepare_value(body.output, "the output") if "output" in body.model_fields_set else NOT_GIVEN
    await call.client.settle(id, body.step, output, happened=body.happened, by=call.actor(body.by))
    return await build_run_info(call, await call.tenant.connection.read(id))


class ForkBody(RequestModel):
    """Where a fork begins."""

    at: Annotated[
        Annotated[int, Field(ge=1, le=MAX_INT)] | Name | None,
        Field(description="The step to go on from, by its number or its name; without it, all that is recorded."),
    ] = None
    output: Annotated[
        Any, Field(description="What that step is taken to have returned, null included; left out: it runs again.")
    ] = None
    id: Annotated[Name | None, Field(description="Of the new run; made up unless given.")] = None


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
    """Start a new run that shares what was recorded of another one before a step."""
    output = await call.prepare_value(body.output, "the output") if "output" in body.model_fields_set else NOT_GIVEN
    derived = call.derive_id("fork", f"{id}-fork") if body.id is None else None
    fresh = None if derived is None else await call.run_body_work(0, lambda: _derive_fork_seed(derived, id, body))
    store = await call.store()
    run = await _find_earlier_fork(store, derived, fresh)
    if run is not None:
        call.status = 200
        return await build_run_info(call, run)
    forked = await call.tenant.connection.read(id)
    await check_start_allowed(store, forked.workflow, [body.id or derived])
    by = call.caller.name or None
    try:
        run = await fork_run(store, id, at=body.at, with_output=output, new_id=body.id or derived, entropy=fresh, by=by)
    except RunConflict:
        run = await _find_earlier_fork(store, derived, fresh)  # by the same request, at the same moment
        if run is None:
            raise
        call.status = 200
    return await build_run_info(call, run)


async def _find_earlier_fork(store: Store, derived_id: str | None, seed: bytes | None) -> Run | None:
    """The fork that the same request made before. Raises ``RunConflict`` if a request with another body made it."""
    run = None if derived_id is None else await store.get_run(derived_id)
    if run is not None and seed is not None and not run.seed.endswith(seed):
        raise RunConflict(
            f"the Idempotency-Key of this request made fork {run.id!r} with another body: use a new key", run.id
        )
    return run


def _derive_fork_seed(derived_id: str, source: str, body: ForkBody) -> bytes:
    """The fork's own part of its seed, which follows from the request: so a repeat is recognized by the run it made."""
    given = compute_digest(to_json([derived_id, source, body.model_dump(exclude_unset=True)]))
    return blake2b(given, digest_size=SEED_BYTES).digest()


@router("GET", "/v1/runs/{id}/budget", scope=Scope.READ)
async def get_budget(call: Call, id: str) -> BudgetInfo:
    """What a run may use and has used, with the budgets above it and the runs that it has started."""
    return await call.client.budget(id)


@router("PUT", "/v1/runs/{id}/budget", scope=Scope.OPERATE)
async def set_budget(call: Call, id: str, body: BudgetBody) -> Changed:
    """Give a run another budget in place of the one that it was started with; it goes on if that was used up."""
    await call.client.set_budget(id, body.to_budget())
    return Changed(changed=True)


# Dead runs, and those that nobody needs any more


class DeadQuery(RequestModel):
    """Which dead runs."""

    workflow: Name | None = None
    limit: PageSize = 50
    cursor: Cursor | None = None
    before: Annotated[Name | None, Field(description="Older than this run; a place like `cursor`, by its id.")] = None


@router("GET", "/v1/dead-runs", scope=Scope.READ)
async def list_dead_runs(call: Call, query: DeadQuery) -> Page[DeadRun]:
    """Runs whose workers died too often while they held nothing else, newest first, and what was in flight.

    They are left alone until somebody retries them.
    """
    before = query.before
    if query.cursor is not None:
        before = parse_cursor("dead", query.cursor)
        if await (await call.store()).get_run(before) is None:  # it was deleted, and nobody knows where it stood
            raise bad_cursor_problem(query.cursor)
    found = await call.client.dead(workflow=query.workflow, limit=query.limit + 1, before=before)
    page = found[: query.limit]
    return Page[DeadRun](items=page, next=to_cursor("dead", page[-1].id) if len(found) > query.limit else None)


class PruneBody(RequestModel):
    """Which runs are deleted."""

    older_than: Annotated[Seconds, Field(description="Seconds since they ended.")]
    state: Annotated[
        tuple[RunState, ...],
        Field(description="Ended states; completed and cancelled unless given.", max_length=10),
    ] = ()
    workflow: Name | None = None
    keep: Annotated[int, Field(ge=0, le=10**9, description="Not the newest so many of each workflow.")] = 0
    unclaimed: Annotated[bool, Field(description="Also those whose result nobody has had.")] = False
    run_ids: Annotated[list[Name] | None, Field(description="Only these.", max_length=10_000)] = None
    dry_run: Annotated[bool, Field(description="Delete nothing, only tell.")] = False


@router("POST", "/v1/prune", scope=Scope.ADMIN)
async def prune_runs(call: Call, body: PruneBody) -> PruneReport:
    """Delete runs that ended longer ago than that, with all that belongs to them; never one that is still needed."""
    return await call.client.prune(
        body.older_than,
        state=body.state,
        workflow=body.workflow,
        keep=body.keep,
        unclaimed=body.unclaimed,
        run_ids=body.run_ids,
        dry_run=body.dry_run,
    )
