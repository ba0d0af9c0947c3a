"""Agents and workflows: their health, and how to disable and enable them everywhere; and the workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from holdfast.errors import UnknownWorkflow
from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call
from holdfast.server.http.models import Changed, Items, Text
from holdfast.server.http.router import RequestModel, Router
from holdfast.services.addresses import MAX_LEASE_S, MIN_LEASE_S, declare_address
from holdfast.services.health import DisabledWorkflow, Health
from holdfast.services.workers import WorkerInfo

router = Router()


@router("GET", "/v1/agents", scope=Scope.READ)
async def list_agents(call: Call) -> Items[Health]:
    """The health of every announced agent and workflow: which workers serve it, by their heartbeats."""
    return Items[Health](items=await call.client.health())


@router("GET", "/v1/agents/{name}", scope=Scope.READ)
async def get_agent(call: Call, name: str) -> Health:
    """The health of one agent or workflow."""
    for health in await call.client.health():
        if health.name == name:
            return health
    raise UnknownWorkflow(
        f"nobody has announced an agent or a workflow {name!r}: GET /v1/agents tells which there are. A worker "
        f"announces what it serves when it starts; an agent of another framework, with its first heartbeat."
    )


class DisableBody(RequestModel):
    """Why an agent is disabled."""

    reason: Annotated[Text, Field(max_length=1000, description="Shown wherever the agent is shown as disabled.")] = ""
    by: Annotated[Text | None, Field(description="Who disables it; default: the name of the key.")] = None
    allow_unknown: Annotated[bool, Field(description="Accept a name that no worker has announced yet.")] = False


@router("POST", "/v1/agents/{name}/disable", scope=Scope.OPERATE)
async def disable_agent(call: Call, name: str, body: DisableBody) -> Changed:
    """Disable an agent or a workflow everywhere: its runs stop at the next recorded point, and none start.

    It stays disabled until someone enables it, even if a policy had disabled it for the rest of the day.
    """
    changed = await call.client.disable(
        name, reason=body.reason, by=call.actor(body.by), allow_unknown=body.allow_unknown
    )
    return Changed(changed=changed)


@router("POST", "/v1/agents/{name}/enable", scope=Scope.OPERATE)
async def enable_agent(call: Call, name: str) -> Changed:
    """Enable an agent or a workflow again: its runs continue."""
    return Changed(changed=await call.client.enable(name))


@router("GET", "/v1/disabled", scope=Scope.READ)
async def list_disabled(call: Call) -> Items[DisabledWorkflow]:
    """The disabled agents and workflows: since when, by whom, and why."""
    disabled = await call.client.disabled_workflows()
    return Items[DisabledWorkflow](items=[disabled[name] for name in sorted(disabled)])


# Agents that take no deliveries


class HeartbeatBody(RequestModel):
    """A heartbeat."""

    listener_id: Annotated[
        str | None,
        Field(max_length=200, description="From the response to the previous heartbeat; left out in the first one."),
    ] = None
    name: Annotated[Text, Field(description="The name of the process, for people to read.")] = ""
    lease: Annotated[
        float | None,
        Field(ge=MIN_LEASE_S, le=MAX_LEASE_S, description="Seconds until it counts as silent."),
    ] = None

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "host-1", "lease": 60}]})


class HeartbeatResponse(BaseModel):
    """The response to a heartbeat."""

    listener_id: Annotated[str, Field(description="Send it with the next heartbeat.")]
    lease: float
    disabled: Annotated[bool, Field(description="The agent is disabled: it should do nothing until it is enabled.")]


@router("POST", "/v1/agents/{name}/heartbeat", scope=Scope.LISTEN, is_address_scoped=True, is_audited=False)
async def send_heartbeat(call: Call, name: str, body: HeartbeatBody) -> HeartbeatResponse:
    """Report that an agent of another framework is alive, and learn whether it is disabled.

    This is for agents that take no deliveries; the requests of those that do are their heartbeats. `GET /v1/agents`
    lists the agent from the first heartbeat on.
    """
    listeners = call.tenant.listeners
    address = await declare_address(call.store, name)
    lease = address.lease if body.lease is None else body.lease
    worker_id = await listeners.parse_listener_id(name, body.listener_id)
    if worker_id is None or not await listeners.keep_alive(worker_id, lease):
        worker_id = await listeners.register(call.caller, replace(address, lease=lease), body.name)
    return HeartbeatResponse(
        listener_id=await listeners.make_listener_id(name, worker_id),
        lease=lease,
        disabled=await call.tenant.disabled_workflows.has(name),
    )


# Workers


@router("GET", "/v1/workers", scope=Scope.READ)
async def list_workers(call: Call) -> Items[WorkerInfo]:
    """The live workers, and those that unfinished runs refer to, with the runs that they hold."""
    return Items[WorkerInfo](items=await call.client.workers())
