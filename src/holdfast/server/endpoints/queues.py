"""Queues with limits: viewing them, and setting their limits by hand."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from holdfast.admission.queue_limits import Queue
from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call, not_allowed_problem
from holdfast.server.http.models import Changed, Rate
from holdfast.server.http.router import RequestModel, Router
from holdfast.services.queues import QueueInfo
from holdfast.stores.queues import NewQueue

router = Router()


class QueueLimitsBody(RequestModel):
    """Limits to set. A limit that is left out stays as it is; null removes it."""

    concurrency: Annotated[int | None, Field(ge=1, le=10**9, description="Runs that are executed at once.")] = None
    rate: Annotated[Rate | None, Field(description="How many begin, or how many tokens they use.")] = None
    key_concurrency: Annotated[int | None, Field(ge=1, le=10**9, description="The same for each key.")] = None
    key_rate: Annotated[Rate | None, Field(description="The same for each key.")] = None

    model_config = ConfigDict(json_schema_extra={"examples": [{"concurrency": 10, "rate": "100/min"}, {"rate": None}]})


class QueueList(BaseModel):
    """Queues with limits, and the names of all queues."""

    items: list[QueueInfo]
    names: Annotated[list[str], Field(description="All known queues, with limits or without.")]


@router("GET", "/v1/queues", scope=Scope.READ)
async def list_queues(call: Call) -> QueueList:
    """All queues with limits, by name."""
    queues = call.client.queues
    return QueueList(items=await queues.list(), names=await queues.names())


@router("GET", "/v1/queues/{name}", scope=Scope.READ)
async def get_queue(call: Call, name: str) -> QueueInfo:
    """One queue; 404 `unknown-queue` if it has no limits."""
    return await call.client.queues.get(name)


@router("PATCH", "/v1/queues/{name}", scope=Scope.OPERATE)
async def set_queue_limits(call: Call, name: str, body: QueueLimitsBody) -> Changed:
    """Set limits of a queue by hand, for all workers and at once. They override those in code until `reset`.

    This also adds limits to a queue that has none.
    """
    limits: dict[str, Any] = {name: getattr(body, name) for name in body.model_fields_set}
    return Changed(changed=await call.client.queues.set(name, **limits))


@router("POST", "/v1/queues/{name}/reset", scope=Scope.OPERATE)
async def reset_queue_limits(call: Call, name: str) -> Changed:
    """Restore the limits that a queue has in code, or none."""
    return Changed(changed=await call.client.queues.reset(name))


class PauseQueueBody(RequestModel):
    """Which names of queues are accepted."""

    allow_unknown: Annotated[bool, Field(description="Accept a name that no worker has announced yet.")] = False


@router("POST", "/v1/queues/{name}/pause", scope=Scope.OPERATE)
async def pause_queue(call: Call, name: str, body: PauseQueueBody) -> Changed:
    """Keep runs of a queue from starting or continuing until it is resumed. Runs in execution are not affected."""
    return Changed(changed=await call.client.queues.pause(name, allow_unknown=body.allow_unknown))


@router("POST", "/v1/queues/{name}/resume", scope=Scope.OPERATE)
async def resume_queue(call: Call, name: str) -> Changed:
    """Let the runs of a queue start again."""
    return Changed(changed=await call.client.queues.resume(name))


async def announce_queue(call: Call, queue: str | Queue | None) -> None:
    """Store the limits of a queue before a run enters it. A key that may only submit may not change them."""
    if not isinstance(queue, Queue):
        return
    known = await call.store.queues.list([queue.name])
    if known and known[0].declared_limits == queue.limits:
        return
    if not call.caller.has_scope(Scope.OPERATE):
        raise not_allowed_problem(Scope.OPERATE)
    await call.store.queues.declare([NewQueue(queue.name, queue.limits)])
