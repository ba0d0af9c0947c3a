"""Agents and workflows: whether they are served, how to disable and enable them everywhere; and the workers."""

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
    """How it is with every agent and workflow that was announced: who serves it, by its workers' heartbeats."""
    return Items[Health](items=await call.client.health())


@router("GET", "/v1/agents/{name}", scope=Scope.READ)
async def get_agent(call: Call, name: str) -> Health:
    """How it is with one agent or workflow."""
    for one in await call.client.health():
        if one.name == name:
            return one
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
    off = await call.client.disabled_workflows()
    return Items[DisabledWorkflow](items=[off[name] for name in sorted(off)])


# Agents that take no deliveries


class HeartbeatBody(RequestModel):
    """A sign of life."""

    listener_id: Annotated[
        str | None,
        Field(max_length=200, description="What the answer to the last one said; left out by a process that starts."),
    ] = None
    name: Annotated[Text, Field(description="What people call the process.")] = ""
    lease: Annotated[
        float | None,
        Field(ge=MIN_LEASE_S, le=MAX_LEASE_S, description="Seconds until it counts as silent."),
    ] = None

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "host-1", "lease": 60}]})


class HeartbeatResponse(BaseModel):
    """What an agent learns when it is heard of."""

    listener_id: Annotated[str, Field(description="Hand it in with the next heartbeat.")]
    lease: float
    disabled: Annotated[bool, Field(description="The agent is disabled: it should do nothing until it is enabled.")]


@router("POST", "/v1/agents/{name}/heartbeat", scope=Scope.LISTEN, is_address_scoped=True, is_audited=False)
async def send_heartbeat(call: Call, name: str, body: HeartbeatBody) -> HeartbeatResponse:
    """Tell that an agent of another framework is alive, and hear whether it is to stop.

    It is for those that take no deliveries; those that do are heard of by what they ask for. `GET /v1/agents` tells of
    it from the first heartbeat on.
    """
    store, tenant, listeners = await call.store(), call.tenant, call.platform.listeners
    address = await declare_address(store, name)
    lease = address.lease if body.lease is None else body.lease
    worker = await listeners.parse_listener_id(tenant, name, body.listener_id)
    if worker is None or not await listeners.keep_alive(tenant, store, worker, lease):
        worker = await listeners.register(call, store, replace(address, lease=lease), body.name)
    return HeartbeatResponse(
        listener_id=await listeners.make_listener_id(tenant, name, worker),
        lease=lease,
        disabled=await call.platform.disabled_workflows.is_disabled(tenant, name),
    )


# Workers


@router("GET", "/v1/workers", scope=Scope.READ)
async def list_workers(call: Call) -> Items[WorkerInfo]:
    """The workers that are live, and those that unfinished runs refer to; with the runs that they hold."""
    return Items[WorkerInfo](items=await call.client.workers())
