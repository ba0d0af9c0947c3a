"""Policies of agents, workflows and addresses: limits per day, and what happens when one is reached."""

from __future__ import annotations

from pydantic import Field

from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call
from holdfast.server.http.models import MAX_INT, Changed, Items
from holdfast.server.http.problems import Problem
from holdfast.server.http.router import RequestModel, Router
from holdfast.services.policies import OnBreach, Policy, PolicyInfo, delete_policy, put_policy, read_policy_info

router = Router()


class PolicyBody(RequestModel):
    """What may be used up in a day; what is left out is not limited."""

    runs_per_day: int | None = Field(None, ge=0, le=MAX_INT)
    usd_per_day: float | None = Field(None, ge=0, le=1e9)
    on_breach: OnBreach = "refuse"


@router("GET", "/v1/policies", scope=Scope.READ)
async def list_all_policies(call: Call) -> Items[PolicyInfo]:
    """All policies, and how the day is for each."""
    return Items[PolicyInfo](items=await call.client.policies.list())


@router("GET", "/v1/agents/{agent}/policy", scope=Scope.READ)
async def get_policy(call: Call, agent: str) -> PolicyInfo:
    """The policy of an agent, a workflow or an address, and how the day is."""
    found = await read_policy_info(await call.store(), agent)
    if found is None:
        raise Problem(404, "no-policy", "There is no policy", f"{agent!r} has no policy: its days are not limited.")
    return found


@router("PUT", "/v1/agents/{agent}/policy", scope=Scope.ADMIN)
async def set_policy(call: Call, agent: str, body: PolicyBody) -> PolicyInfo:
    """Limit the runs and the cost of a day, and say what happens when a limit is reached.

    `notify` only tells; `refuse` starts no more runs until the day (of UTC) is over; `pause` disables it until the day
    is over; `disable` until someone enables it.
    """
    await put_policy(await call.store(), agent, Policy(body.runs_per_day, body.usd_per_day, body.on_breach))
    return await get_policy(call, agent)


@router("DELETE", "/v1/agents/{agent}/policy", scope=Scope.ADMIN)
async def remove_policy(call: Call, agent: str) -> Changed:
    """Let it have no policy. What the policy had disabled for the day is enabled."""
    return Changed(changed=await delete_policy(await call.store(), agent))
