"""Schedules, which start runs at set times."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from holdfast.admission.calendars import CatchUp, Overlap, Timing
from holdfast.admission.queue_limits import Queue
from holdfast.errors import InputError
from holdfast.server.auth.scopes import Scope
from holdfast.server.background.policy_enforcer import check_start_allowed
from holdfast.server.calls import Call
from holdfast.server.endpoints.queues import announce_queue
from holdfast.server.endpoints.runs import ArgumentsBody
from holdfast.server.http.models import (
    BudgetBody,
    Changed,
    DurationInput,
    Items,
    Name,
    Priority,
    QueueBody,
    Tags,
    Text,
    UtcDatetime,
)
from holdfast.server.http.request_headers import IDEMPOTENCY_KEY
from holdfast.server.http.router import RequestModel, Router
from holdfast.services.queue_options import resolve_queue_key
from holdfast.services.run_start import find_spec
from holdfast.services.schedules import ScheduleInfo
from holdfast.services.thread_offload import estimate_size
from holdfast.services.timestamps import to_datetime
from holdfast.services.wire_values import VALUES_HEADER

router = Router()


class ScheduleBody(ArgumentsBody):
    """A schedule, with either `cron` or `every`."""

    workflow: Annotated[Name, Field(description="A worker must have announced it.")]
    cron: Annotated[Text | None, Field(description="Five fields, or six with seconds in front.")] = None
    every: Annotated[DurationInput | None, Field(description="An interval: seconds, or words such as 15 min.")] = None
    zone: Annotated[Text | None, Field(description="The time zone of `cron`; default: UTC.")] = None
    start: Annotated[UtcDatetime | None, Field(description="When an interval begins to count.")] = None
    catch_up: Annotated[CatchUp, Field(description="Which missed ticks fire later.")] = "last"
    max_catch_up: Annotated[int, Field(ge=1, le=10_000, description="Maximum number of missed ticks to fire.")] = 100
    overlap: Annotated[Overlap, Field(description="skip: no new run while the previous one is unfinished.")] = "allow"
    queue: Name | QueueBody | None = None
    key: Annotated[Name | int | None, Field(description="Their queue key.")] = None
    priority: Priority = 0
    tags: Tags = ()
    budget: BudgetBody | None = None
    max_deliveries: Annotated[int | None, Field(ge=1, le=10**6)] = None
    replace: Annotated[bool, Field(description="Change an existing schedule of this name.")] = False

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"workflow": "report", "cron": "0 6 * * 1-5", "zone": "Europe/Berlin", "kwargs": {"kind": "daily"}}
            ]
        }
    )


class TriggerBody(RequestModel):
    """An extra run."""

    id: Annotated[Name | None, Field(description="The run's id. If the run exists, it is returned.")] = None


class TriggeredRun(BaseModel):
    """The run that was started."""

    run_id: str


@router("GET", "/v1/schedules", scope=Scope.READ, headers=(VALUES_HEADER,))
async def list_schedules(call: Call) -> Items[ScheduleInfo]:
    """All schedules, by name."""
    return Items[ScheduleInfo](items=[_count_size(call, info) for info in await call.client.schedules.list()])


@router("GET", "/v1/schedules/{name}", scope=Scope.READ, headers=(VALUES_HEADER,))
async def get_schedule(call: Call, name: str) -> ScheduleInfo:
    """One schedule, and when it fires next."""
    return _count_size(call, await call.client.schedules.get(name))


@router("PUT", "/v1/schedules/{name}", scope=Scope.OPERATE, headers=(VALUES_HEADER,))
async def put_schedule(call: Call, name: str, body: ScheduleBody) -> ScheduleInfo:
    """Create a schedule; nothing changes if the same schedule exists.

    To change an existing one, set `replace`. If it is paused, it stays paused.
    """
    args, kwargs = await body.prepare_arguments(call)
    queue, key = body.queue, body.key
    if isinstance(queue, QueueBody):
        # Its limits are not declared in this process, which serves several namespaces: only its name is passed on.
        limited: Queue = queue.to_queue()
        spec = await find_spec(call.store, body.workflow, None)
        given_key = None if key is None else str(key)
        key = await call.run_body_work(
            0, lambda: resolve_queue_key(limited, given_key, spec, body.encode_inputs(call, spec), {})
        )
        await announce_queue(call, limited)
        queue = limited.name
    try:
        info = await call.client.schedules.create(
            name,
            body.workflow,
            cron=body.cron,
            every=body.every,
            zone=body.zone,
            start=body.start,
            args=args,
            kwargs=kwargs,
            catch_up=body.catch_up,
            max_catch_up=body.max_catch_up,
            overlap=body.overlap,
            queue=queue,
            key=key,
            priority=body.priority,
            tags=body.tags,
            budget=None if body.budget is None else body.budget.to_budget(),
            max_deliveries=body.max_deliveries,
            replace=body.replace,
        )
    except InputError as error:
        raise body.locate_violations(error, await find_spec(call.store, body.workflow, None)) from None
    return _count_size(call, info)


class TicksQuery(RequestModel):
    """A timing that no schedule has yet."""

    timing: Annotated[Text, Field(description="As in `0 6 * * 1-5 in Europe/Berlin`, or `every 15 min`.")]
    limit: Annotated[int, Field(ge=1, le=50, description="Maximum number of ticks.")] = 5


class Ticks(BaseModel):
    """When a timing fires."""

    timing: Annotated[str, Field(description="In its canonical spelling.")]
    description: str
    items: Annotated[list[datetime], Field(description="The next ticks.")]


@router("GET", "/v1/ticks", scope=Scope.READ)
async def list_ticks(call: Call, query: TicksQuery) -> Ticks:
    """When a schedule with this timing would fire next, and the timing in words."""
    timing = Timing.parse(query.timing)
    ticks = timing.list_ticks(call.store.now(), math.inf, query.limit)
    return Ticks(timing=str(timing), description=timing.describe(), items=[to_datetime(tick) for tick in ticks])


@router("POST", "/v1/schedules/{name}/pause", scope=Scope.OPERATE)
async def pause_schedule(call: Call, name: str) -> Changed:
    """Pause a schedule. It stays paused across restarts and deploys."""
    return Changed(changed=await call.client.schedules.pause(name))


@router("POST", "/v1/schedules/{name}/resume", scope=Scope.OPERATE)
async def resume_schedule(call: Call, name: str) -> Changed:
    """Resume a schedule; its `catch_up` decides about ticks that it missed."""
    return Changed(changed=await call.client.schedules.resume(name))


@router("POST", "/v1/schedules/{name}/trigger", scope=Scope.SUBMIT, headers=(IDEMPOTENCY_KEY,))
async def trigger_schedule(call: Call, name: str, body: TriggerBody) -> TriggeredRun:
    """Start an extra run of a schedule now, whether it is paused or not."""
    run_id = call.derive_id("trigger", f"{name}-by-hand") if body.id is None else body.id
    schedule = await call.client.schedules.get(name)
    await check_start_allowed(call.tenant, schedule.workflow, [run_id])
    return TriggeredRun(run_id=await call.client.schedules.trigger(name, id=run_id))


@router("DELETE", "/v1/schedules/{name}", scope=Scope.OPERATE)
async def delete_schedule(call: Call, name: str) -> Changed:
    """Delete a schedule; its runs stay. A schedule in code is back when a worker with that code starts."""
    return Changed(changed=await call.client.schedules.delete(name))


def _count_size(call: Call, info: ScheduleInfo) -> ScheduleInfo:
    call.value_bytes += estimate_size(info.inputs)
    return info
