"""Agents, workers and dead runs: how they are, and the switch that stops an agent everywhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio
from dashboard_server import Stage, check_looks, staged

from holdfast import step, wait_for_signal, workflow
from holdfast.admission.usage import Usage
from holdfast.codec import encode_error
from holdfast.core.records import Record, RecordKind, Rewind
from holdfast.core.states import RunState
from holdfast.stores.contract import WorkflowSpec
from holdfast.stores.operations import AppendRecord, FinishRun
from holdfast.stores.workers import NewWorker
from waits import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

GATES: dict[str, asyncio.Event] = {}


@step
async def shown_look(round: int) -> int:
    if GATES:
        await GATES["look"].wait()
    return round


@workflow(name="shown_researcher")
async def shown_researcher(rounds: int) -> int:
    return sum([await shown_look(round) for round in range(rounds)])


@workflow(name="shown_waiter")
async def shown_waiter() -> str:
    return await wait_for_signal("go")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage() -> AsyncGenerator[Stage]:
    async with staged("shown_researcher", "shown_waiter") as stage:
        yield stage


async def spend(stage: Stage, agent: str, *usd: float, workers: int = 1) -> None:
    """Runs of an agent have called a model; so many workers serve it."""
    store = stage.store
    await store.announce_workflows([WorkflowSpec(agent, ("payload",), is_agent=True)])
    new = [NewWorker(f"{agent}-{number}", f"host-{number}", 7, (agent,)) for number in range(workers)]
    ids = [await store.workers.register(one, 600.0) for one in new]
    for cost in usd:
        await stage.client.start(agent, 1)
        [run] = await store.claims.claim(ids[0], workflows=[agent], queues=None, limit=1)
        record = Record(0, RecordKind.STEP, 0, "model", True, b"1", store.now(), epoch=run.epoch)
        used = Usage(calls=1, input_tokens=1200, output_tokens=60, nano_usd=round(cost * 1e9))
        await store.commit([AppendRecord(run.key, record, used=used, model="openai:gpt-5")])


async def test_a_disabled_agent_stops_at_the_next_recorded_point_and_continues_when_enabled(
    page: Any, stage: Stage
) -> None:
    GATES["look"] = asyncio.Event()
    run = await stage.client.start("shown_researcher", 3)
    await wait_until(lambda: is_in_flight(stage, run.run_id))
    await stage.open(page, "agents?all=1")
    row = page.get_by_role("row").filter(has_text="shown_researcher")
    await row.get_by_text("1 live worker").wait_for()
    await row.get_by_role("button", name="disable").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_text("1 unfinished run").wait_for()
    await dialog.get_by_role("button", name="Disable it everywhere").click()
    await row.get_by_text("none of its runs start", exact=False).wait_for()
    GATES["look"].set()
    await wait_until(lambda: has_stopped(stage, run.run_id))
    refused = await stage.http.post("/v1/runs", json={"workflow": "shown_researcher", "args": [1]})
    assert refused.status_code == 409
    recorded = (await stage.http.get(f"/v1/runs/{run.run_id}/steps")).json()["items"]
    assert len(recorded) < 3, "it stopped before its end"
    await page.get_by_role("link", name="Agents").get_by_text("1").wait_for()
    await row.get_by_role("button", name="Enable").click()
    assert await run.result(10) == 3
    await row.get_by_text("serving").wait_for()
    del GATES["look"]


async def is_in_flight(stage: Stage, run_id: str) -> bool:
    return (await stage.client.get(run_id)).state is RunState.RUNNING


async def has_stopped(stage: Stage, run_id: str) -> bool:
    return (await stage.client.get(run_id)).state is not RunState.RUNNING


async def test_agents_are_shown_with_their_costs_and_policies(page: Any, stage: Stage, keep_picture: Any) -> None:
    await spend(stage, "researcher", 0.75, 0.5, workers=2)
    await spend(stage, "support", 0.02)
    await spend(stage, "translator", workers=0)
    await stage.client.disable("support")
    await stage.http.post("/v1/addresses/invoices/send", json={"payload": 1})
    await stage.http.post("/v1/addresses/invoices/claim?wait=20", json={"name": "ledger-1"})
    await stage.open(page, "agents")
    row = page.get_by_role("row").filter(has_text="researcher")
    await row.get_by_text("2 live workers").wait_for()
    assert await row.get_by_text("$1.25").count() == 2
    await page.get_by_role("row").filter(has_text="translator").get_by_text("no worker serves it").wait_for()
    assert await page.get_by_role("row").filter(has_text="shown_waiter").count() == 0, "that is a workflow"
    await page.get_by_role("row").filter(has_text="invoices").get_by_text("ledger-1").wait_for()

    await row.get_by_role("button", name="policy of researcher").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Save").click()
    await dialog.get_by_text("give at least one of the two").wait_for()
    await dialog.get_by_label("Runs a day").fill("many")
    await dialog.get_by_label("Dollars a day").fill("5")
    await dialog.get_by_role("button", name="Save").click()
    await dialog.get_by_text("A whole number, or nothing").wait_for()
    await dialog.get_by_label("Runs a day").fill("10")
    await dialog.get_by_role("combobox").select_option("disable")
    await dialog.get_by_role("button", name="Save").click()
    await row.get_by_text("then: disabled until someone enables it").wait_for()
    await row.get_by_text("2 of 10 runs today").wait_for()
    await row.get_by_text("$1.25 of $5.00 today").wait_for()
    await keep_picture(page, "dashboard-agents")
    await stage.http.post("/v1/addresses/odd/send", json={})
    await stage.http.post("/v1/addresses/odd/claim?wait=20", json={"name": "<b>listener</b>"})
    await page.get_by_role("row").filter(has_text="odd").get_by_text("<b>listener</b>").wait_for()
    await check_looks(page)


async def test_enter_saves_a_policy_and_only_its_button_removes_it(page: Any, stage: Stage) -> None:
    await stage.http.put("/v1/agents/shown_waiter/policy", json={"runs_per_day": 5})
    await stage.open(page, "agents?all=1")
    row = page.get_by_role("row").filter(has_text="shown_waiter")
    await row.get_by_role("button", name="policy of shown_waiter").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Runs a day").fill("7")
    await page.keyboard.press("Enter")
    await row.get_by_text("of 7 runs today").wait_for()
    assert (await stage.http.get("/v1/agents/shown_waiter/policy")).json()["policy"]["runs_per_day"] == 7
    await row.get_by_role("button", name="policy of shown_waiter").click()
    await dialog.get_by_role("button", name="Remove it").click()
    await row.get_by_text("no limits").wait_for()
    assert (await stage.http.get("/v1/agents/shown_waiter/policy")).status_code == 404


async def test_a_worker_is_shown_with_the_runs_that_it_holds(page: Any, stage: Stage) -> None:
    GATES["look"] = asyncio.Event()
    run = await stage.client.start("shown_researcher", 1)
    await wait_until(lambda: is_in_flight(stage, run.run_id))
    await stage.open(page, "workers")
    held = page.get_by_role("row").filter(has_text="shown_researcher, shown_waiter")
    await held.get_by_role("link", name=run.run_id).wait_for()
    await check_looks(page)
    GATES["look"].set()
    await run.result(10)
    del GATES["look"]


async def die(stage: Stage, id: str, rewind: Rewind | None = None) -> None:
    """A run that is found dead."""
    store = stage.store
    await store.announce_workflows([WorkflowSpec("shown_crasher", ())])
    await stage.client.options(id=id).start("shown_crasher")
    worker = await store.workers.register(NewWorker("victim", "elsewhere", 8, ("shown_crasher",)), 60.0)
    claimed = await store.claims.claim(worker, workflows=["shown_crasher"], queues=None, limit=9)
    [run] = [one for one in claimed if one.id == id]
    error = encode_error(RuntimeError("<i>took down</i> 3 workers"))
    await store.commit([FinishRun(run.key, run.epoch, RunState.DEAD, None, error, store.now(), rewind)])


async def test_dead_runs_are_retried_one_by_one_or_together(page: Any, stage: Stage) -> None:
    for id in ("dead-1", "dead-2", "dead-3"):
        await die(stage, id)
    await stage.open(page, "dead")
    await page.get_by_text("<i>took down</i> 3 workers").first.wait_for()
    await check_looks(page)
    await page.set_viewport_size({"width": 1280, "height": 900})
    await page.get_by_role("button", name="retry dead-2").click()
    await page.get_by_role("link", name="dead-2").wait_for(state="detached")
    assert (await stage.client.get("dead-2")).state is RunState.PENDING
    await page.get_by_label("all of these").check()
    await page.get_by_role("button", name="Retry 2 runs").click()
    await page.get_by_text("No run is dead.").wait_for()
    assert await stage.client.dead() == []


async def test_a_run_with_a_once_step_is_retried_only_with_explicit_permission(page: Any, stage: Stage) -> None:
    page.allowed.append("409")
    await die(stage, "paid-once", Rewind((), 0, 0, once_seqs=(0,)))
    await stage.open(page, "dead")
    await page.get_by_role("button", name="retry paid-once").click()
    await page.get_by_role("alert").get_by_text("would run a `once` step a second time").wait_for()
    assert (await stage.client.get("paid-once")).state is RunState.DEAD
    await page.get_by_role("button", name="It may run again: retry").click()
    await page.get_by_role("link", name="paid-once").wait_for(state="detached")
    assert (await stage.client.get("paid-once")).state is RunState.PENDING


async def test_actions_that_a_key_may_not_do_are_disabled_and_say_why(page: Any, stage: Stage) -> None:
    await die(stage, "dead-for-readers")
    await stage.open(page, "agents?all=1", await stage.key("read"))
    disable = page.get_by_role("button", name="disable shown_waiter")
    await disable.wait_for()
    assert await disable.is_disabled()
    assert "operate" in (await disable.get_attribute("title") or "")
    await page.keyboard.press("g")
    await page.keyboard.press("d")
    retry = page.get_by_role("button", name="retry dead-for-readers")
    await retry.wait_for()
    assert await retry.is_disabled()
