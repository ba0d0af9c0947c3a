"""Policies of agents, workflows, and addresses: daily limits, and what happens when one is reached."""

from __future__ import annotations

from pydantic import Field

from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call
from holdfast.server.http.models import MAX_INT, Changed, Items
from holdfast.server.http.router import RequestModel, Router
from holdfast.services.policies import OnBreach, Policy, PolicyInfo, delete_policy, put_policy, read_policy_info
from holdfast.services.problems import Problem

router = Router()


class PolicyBody(RequestModel):
    """Daily limits; a limit that is left out does not apply."""

    runs_per_day: int | None = Field(None, ge=0, le=MAX_INT)
    usd_per_day: float | None = Field(None, ge=0, le=1e9)
    on_breach: OnBreach = "refuse"


@router("GET", "/v1/policies", scope=Scope.READ)
async def list_all_policies(call: Call) -> Items[PolicyInfo]:
    """All policies, and today's use of each."""
    return Items[PolicyInfo](items=await call.client.policies.list())


@router("GET", "/v1/agents/{agent}/policy", scope=Scope.READ)
async def get_policy(call: Call, agent: str) -> PolicyInfo:
    """The policy of an agent, a workflow, or an address, and today's use."""
    found = await read_policy_info(call.store, agent)
    if found is None:
        raise Problem(
            404, "policy-not-found", "There is no policy", f"{agent!r} has no policy: its days are not limited."
        )
    return found


@router("PUT", "/v1/agents/{agent}/policy", scope=Scope.ADMIN)
async def set_policy(call: Call, agent: str, body: PolicyBody) -> PolicyInfo:
    """Limit the runs and the cost of a day, and set what happens when a limit is reached.

    `notify` only logs it; `refuse` starts no more runs until the end of the day (in UTC); `pause` disables the agent
    until the end of the day; `disable` disables it until someone enables it.
    """
    await put_policy(call.store, agent, Policy(body.runs_per_day, body.usd_per_day, body.on_breach))
    call.tenant.limited_workflows.clear()
    return await get_policy(call, agent)


@router("DELETE", "/v1/agents/{agent}/policy", scope=Scope.ADMIN)
async def remove_policy(call: Call, agent: str) -> Changed:
    """Remove a policy. An agent that the policy has disabled for the day is enabled."""
    return Changed(changed=await delete_policy(call.store, agent))
