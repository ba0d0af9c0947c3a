"""Agents and workflows: whether they are served, and the switch that stops them everywhere; and the workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from holdfast.errors import UnknownWorkflow
from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call
from holdfast.server.http.models import Changed, Items, Text
from holdfast.server.http.router import Api, Body
from holdfast.services.addresses import LONGEST_LEASE, SHORTEST_LEASE, declare_address
from holdfast.services.health import Health, Switch
from holdfast.services.workers import WorkerInfo

api = Api()


@api("GET", "/v1/agents", scope=Scope.READ)
async def list_agents(call: Call) -> Items[Health]:
    """How it is with every agent and workflow that was announced: who serves it, by its workers' heartbeats."""
    return Items[Health](items=await call.client.health())


@api("GET", "/v1/agents/{name}", scope=Scope.READ)
async def get_agent(call: Call, name: str) -> Health:
    """How it is with one agent or workflow."""
    for one in await call.client.health():
        if one.name == name:
            return one
    raise UnknownWorkflow(
        f"nobody has announced an agent or a workflow {name!r}: GET /v1/agents tells which there are. A worker "
        f"announces what it serves when it starts; an agent of another framework, with its first heartbeat."
    )


class KillBody(Body):
    """Why an agent is stopped."""

    reason: Annotated[Text, Field(max_length=1000, description="Shown wherever the agent is shown as stopped.")] = ""
    by: Annotated[Text | None, Field(description="Who stops it; default: the name of the key.")] = None


@api("POST", "/v1/agents/{name}/kill", scope=Scope.OPERATE)
async def kill_agent(call: Call, name: str, body: KillBody) -> Changed:
    """Stop an agent or a workflow everywhere: its runs stop at the next recorded point, and none is started.

    It stays stopped until someone lifts that, also if a policy had stopped it for the rest of the day.
    """
    return Changed(changed=await call.client.switch_off(name, reason=body.reason, by=call.said_by(body.by)))


@api("POST", "/v1/agents/{name}/lift", scope=Scope.OPERATE)
async def lift_agent(call: Call, name: str) -> Changed:
    """Let the runs of an agent that was stopped go on."""
    return Changed(changed=await call.client.switch_on(name))


@api("GET", "/v1/switched-off", scope=Scope.READ)
async def list_switched_off(call: Call) -> Items[Switch]:
    """The agents and workflows that are stopped: since when, by whom, and why."""
    off = await call.client.switched_off()
    return Items[Switch](items=[off[name] for name in sorted(off)])


# Agents that take no deliveries


class HeartbeatBody(Body):
    """A sign of life."""

    listener: Annotated[
        str | None,
        Field(max_length=200, description="What the answer to the last one said; left out by a process that starts."),
    ] = None
    name: Annotated[Text, Field(description="What people call the process.")] = ""
    lease: Annotated[
        float | None,
        Field(ge=SHORTEST_LEASE, le=LONGEST_LEASE, description="Seconds until it counts as silent."),
    ] = None

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "host-1", "lease": 60}]})


class Heard(BaseModel):
    """What an agent learns when it is heard of."""

    listener: Annotated[str, Field(description="Hand it in with the next heartbeat.")]
    lease: float
    killed: Annotated[bool, Field(description="Somebody has stopped the agent: it should do nothing until `lift`.")]


@api("POST", "/v1/agents/{name}/heartbeat", scope=Scope.LISTEN, on_address=True, audited=False)
async def send_heartbeat(call: Call, name: str, body: HeartbeatBody) -> Heard:
    """Tell that an agent of another framework is alive, and hear whether it is to stop.

    It is for those that take no deliveries; those that do are heard of by what they ask for. `GET /v1/agents` tells of
    it from the first heartbeat on.
    """
    store, tenant, listeners = await call.store(), call.tenant, call.platform.listeners
    address = await declare_address(store, name)
    lease = address.lease if body.lease is None else body.lease
    worker = await listeners.read(tenant, name, body.listener)
    if worker is None or not await listeners.keep(tenant, store, worker, lease):
        worker = await listeners.register(call, store, replace(address, lease=lease), body.name)
    return Heard(
        listener=await listeners.name(tenant, name, worker),
        lease=lease,
        killed=await call.platform.switches.is_off(tenant, name),
    )


# Workers


@api("GET", "/v1/workers", scope=Scope.READ)
async def list_workers(call: Call) -> Items[WorkerInfo]:
    """The workers that are live, and those that unfinished runs refer to; with the runs that they hold."""
    return Items[WorkerInfo](items=await call.client.workers())
