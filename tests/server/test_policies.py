"""Policies: what an agent may use up in a day, and what happens when that is reached."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio
from asgi_server import AsgiServer, Clock, running_server

from holdfast.server.app import Settings
from holdfast.server.background.policy_enforcer import enforce_policies
from holdfast.stores.contract import WorkflowSpec

pytestmark = pytest.mark.asyncio

NOON = 20_000 * 86400.0 + 43_200


class World:
    def __init__(self, served: AsgiServer, clock: Clock) -> None:
        self.served, self.clock = served, clock
        self.http = served.caller()

    async def limit(self, **policy: Any) -> None:
        answer = await self.http.put("/v1/agents/spender/policy", json=policy)
        assert answer.status_code == 200, answer.text

    async def send(self, status: int = 201) -> Any:
        answer = await self.http.post("/v1/addresses/spender/send", json={})
        assert answer.status_code == status, answer.text
        return answer.json()

    async def spend(self, usd: float) -> None:
        """A run that costs so much."""
        run = await self.send()
        taken = (await self.http.post("/v1/addresses/spender/claim?wait=5", json={})).json()
        step = {"name": "think", "output": 1, "usage": {"usd": usd}}
        assert (await self.http.post(f"/v1/deliveries/{taken['id']}/steps", json=step)).status_code == 200
        await self.http.post(f"/v1/deliveries/{taken['id']}/complete", json={})
        assert taken["run_id"] == run["id"]

    async def look(self, seconds: float = 0) -> Any:
        """Time passes, the server looks, and tells what it sees."""
        self.clock.now += seconds
        await enforce_policies(await self.served.app.platform.tenants.get_tenant("default"))
        return (await self.http.get("/v1/agents/spender/policy")).json()

    async def is_off(self) -> bool:
        tenant = await self.served.app.platform.tenants.get_tenant("default")
        return "spender" in await tenant.store.disabled_workflows.get_all()


@pytest_asyncio.fixture
async def world() -> AsyncGenerator[World]:
    clock = Clock(NOON)
    async with running_server(settings=Settings(clock=clock)) as served:
        yield World(served, clock)


async def test_runs_of_a_day_are_refused_above_the_limit_until_the_next_day(world: World):
    await world.limit(runs_per_day=2)
    await world.send()
    await world.send()
    problem = await world.send(429)
    assert (problem["type"], problem["limit"]) == ("policy-limit", "runs")
    seen = await world.look()
    assert (seen["run_count"], seen["breach"]["limit"], await world.is_off()) == (2, "runs", False)
    await world.look(43_199)
    await world.send(429)
    await world.look(2)
    await world.send()


async def test_a_daily_cost_limit_disables_an_agent_until_the_end_of_the_day(world: World):
    await world.limit(usd_per_day=1.0, on_breach="pause")
    await world.spend(0.6)
    assert (await world.look())["breach"] is None
    await world.spend(0.5)
    seen = await world.look()
    assert (seen["usd"], seen["breach"]["limit"], await world.is_off()) == (pytest.approx(1.1), "usd", True)
    await world.send(409)
    assert (await world.look(43_201))["breach"] is None
    assert not await world.is_off()
    await world.send()


async def test_enabling_by_hand_overrides_the_policy_for_the_day(world: World):
    await world.limit(usd_per_day=1.0, on_breach="pause")
    await world.spend(2)
    await world.look()
    tenant = await world.served.app.platform.tenants.get_tenant("default")
    await tenant.client.enable("spender")
    await world.look(1)
    assert not await world.is_off()
    await world.look(86_400)
    await world.spend(2)
    await world.look()
    assert await world.is_off()


async def test_an_agent_disabled_by_hand_while_a_policy_paused_it_stays_disabled_at_midnight(world: World):
    await world.limit(usd_per_day=1.0, on_breach="pause")
    await world.spend(2)
    await world.look()
    [paused] = (await world.http.get("/v1/disabled")).json()["items"]
    assert (paused["by"], paused["reason"][:29]) == ("policy", "it reached its limit of $1 fo")
    answer = await world.http.post("/v1/agents/spender/disable", json={"reason": "wrong prices", "by": "ada"})
    assert answer.json() == {"changed": True}
    await world.look(43_201)
    assert await world.is_off()
    [disabled] = (await world.http.get("/v1/disabled")).json()["items"]
    assert (disabled["by"], disabled["reason"], disabled["since"]) == ("ada", "wrong prices", paused["since"])


async def test_an_agent_stays_disabled_until_it_is_enabled_and_that_is_in_the_audit_log(world: World):
    await world.limit(usd_per_day=1.0, on_breach="disable")
    await world.spend(2)
    await world.look()
    await world.look(86_400)
    assert await world.is_off()
    tenant = await world.served.app.platform.tenants.get_tenant("default")
    entries = [entry.event for entry in await tenant.store.audit_log.list() if entry.event.key_name == "policy"]
    assert [(one.action, one.target) for one in entries] == [("policy_disable", "spender")]


async def test_a_policy_that_only_notifies_stops_nothing(world: World):
    await world.limit(runs_per_day=1, on_breach="notify")
    await world.send()
    await world.send()
    seen = await world.look()
    assert (seen["run_count"], seen["breach"]["on_breach"], await world.is_off()) == (2, "notify", False)


async def test_a_policy_that_limits_nothing_is_refused(world: World):
    answer = await world.http.put("/v1/agents/spender/policy", json={})
    assert (answer.status_code, answer.json()["type"]) == (422, "bad-request")
    assert (await world.http.get("/v1/agents/spender/policy")).status_code == 404


async def test_without_its_policy_it_is_on_again(world: World):
    await world.limit(usd_per_day=1.0, on_breach="pause")
    await world.spend(2)
    await world.look()
    assert (await world.http.delete("/v1/agents/spender/policy")).json() == {"changed": True}
    assert not await world.is_off()


async def test_a_schedule_that_is_triggered_and_a_fork_are_runs_of_the_day_as_well(world: World):
    run = await world.send()
    made = {"workflow": "spender", "every": 3600, "kwargs": {"payload": 1}}
    assert (await world.http.put("/v1/schedules/often", json=made)).status_code == 200
    await world.limit(runs_per_day=2)
    name = {"Idempotency-Key": "now"}
    first = await world.http.post("/v1/schedules/often/trigger", headers=name)
    assert first.status_code == 200
    for path in ("/v1/schedules/often/trigger", f"/v1/runs/{run['id']}/fork"):
        refused = await world.http.post(path)
        assert (refused.status_code, refused.json()["type"]) == (429, "policy-limit"), refused.text
    again = await world.http.post("/v1/schedules/often/trigger", headers=name)
    assert again.json() == first.json(), "that is no other run"


async def test_existing_runs_are_found_even_above_the_limit(world: World):
    store = (await world.served.app.platform.tenants.get_tenant("default")).store
    await store.announce_workflows(
        [WorkflowSpec("spender", ("n",)), WorkflowSpec("named", ("n",), id_template="named-{n}")]
    )
    await world.limit(runs_per_day=3)
    assert (await world.http.put("/v1/agents/named/policy", json={"runs_per_day": 3})).status_code == 200

    async def start(workflow: str, many: int, **headers: str) -> Any:
        body = {"workflow": workflow, "calls": [{"args": [number]} for number in range(many)]}
        return await world.http.post("/v1/runs/batch", json=body, headers=headers)

    for workflow, name in (("spender", {"Idempotency-Key": "import"}), ("named", {})):
        first = await start(workflow, 3, **name)
        assert first.status_code == 201, first.text
        assert (await start(workflow, 3, **name)).json() == first.json(), "its answer may have been lost"
        more = await start(workflow, 4, **name)
        assert (more.status_code, more.json()["type"]) == (429, "policy-limit")


async def test_a_batch_with_a_dedup_key_is_refused():
    async with running_server() as served:
        store = (await served.app.platform.tenants.get_tenant("default")).store
        await store.announce_workflows([WorkflowSpec("spender", ("n",))])
        body = {"workflow": "spender", "calls": [{"args": [1]}, {"args": [2]}], "dedup": "x"}
        refused = await served.caller().post("/v1/runs/batch", json=body)
        assert (refused.status_code, refused.json()["type"]) == (422, "bad-request")
