"""Questions, schedules, queues, memories, agents and spending over HTTP: what the library does with them, HTTP does."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from zoneinfo import ZoneInfo

import pytest
from asgi_server import AsgiServer, running_server
from pydantic import BaseModel
from server_worker import running_worker

from holdfast import ask, step, workflow
from holdfast.admission.usage import Usage
from holdfast.core.records import Record, RecordKind
from holdfast.services.wire_values import from_wire, to_wire
from holdfast.stores.operations import AppendRecord
from holdfast.stores.workers import NewWorker

pytestmark = pytest.mark.asyncio

TAGGED = {"Holdfast-Values": "tagged"}


@step
async def group_step(text: str) -> str:
    return text


@workflow
async def group_asking(what: str) -> str:
    colour: Literal["red", "blue"] = await ask(f"Which colour for {what}?", choices=["red", "blue"])
    return await group_step(colour)


class Parcel(BaseModel):
    weights: list[float]
    colour: Literal["red", "blue"]


@workflow
async def group_filling_in() -> str:
    return (await ask("What is in it?", form=Parcel)).colour


@workflow
async def group_plain(what: str = "x") -> str:
    return await group_step(what)


async def open_question(caller: Any, run: str) -> dict[str, Any]:
    """The question of a run, once it has asked."""
    after: dict[str, str] = {}
    while True:
        page = (await caller.get(f"/v1/runs/{run}/events", params={"wait": 20, **after})).json()
        if any(event["kind"] == "approval" for event in page["items"]):
            break
        after = {"after": page["next"]}
    return (await caller.get("/v1/approvals", params={"run_id": run})).json()["items"][0]


# Questions


async def test_a_question_is_answered_once_and_the_key_is_named_with_the_person_it_speaks_for():
    async with running_server() as served, running_worker(served):
        operator = served.caller(await served.key("operate", "submit", name="helpdesk"))
        run = (await operator.post("/v1/runs", json={"workflow": "group_asking", "args": ["tea"]})).json()["id"]
        question = await open_question(operator, run)
        assert (question["question"], question["choices"]) == ("Which colour for tea?", ["red", "blue"])
        place = f"/v1/approvals/{question['id']}"
        wrong = await operator.post(f"{place}/approve", json={"value": "green"})
        assert (wrong.status_code, wrong.json()["type"]) == (422, "bad-input")
        answer = {"value": "blue", "by": "Ada", "reason": "it is calm"}
        assert (await operator.post(f"{place}/approve", json=answer)).json() == {"changed": True}
        assert (await operator.post(f"{place}/approve", json=answer)).json() == {"changed": False}
        late = await operator.post(f"{place}/deny", json={"by": "Bob"})
        assert (late.status_code, late.json()["type"]) == (409, "approval-closed")
        assert late.json()["approval_id"] == question["id"]
        assert (await operator.get(f"/v1/runs/{run}", params={"wait": 20})).json()["output"] == "blue"
        answered = (await operator.get(place)).json()
        assert (answered["state"], answered["answered_by"]) == ("answered", "Ada (key helpdesk)")
        assert answered["answer"]["value"] == "blue"
        assert (await operator.get("/v1/approvals")).json()["items"] == []
        assert len((await operator.get("/v1/approvals", params={"include_closed": True})).json()["items"]) == 1
        assert (await operator.get("/v1/approvals", params={"only_closed": True})).json()["items"] == [answered]
        unknown = await operator.get("/v1/approvals/zzz")
        assert (unknown.status_code, unknown.json()["type"]) == (404, "unknown-approval")


async def test_violations_of_an_answer_are_listed_by_field_and_the_approval_stays_open():
    async with running_server() as served, running_worker(served):
        caller = served.caller()
        run = (await caller.post("/v1/runs", json={"workflow": "group_filling_in"})).json()["id"]
        question = await open_question(caller, run)
        wrong = await caller.post(f"/v1/approvals/{question['id']}/approve", json={"value": {"weights": [1.5, "much"]}})
        assert (wrong.status_code, wrong.json()["type"]) == (422, "bad-input")
        assert {one["path"] for one in wrong.json()["violations"]} == {"value", "value.weights.1"}
        assert (await caller.get(f"/v1/approvals/{question['id']}")).json()["state"] == "open"
        right = {"value": {"weights": [1.5], "colour": "red"}}
        assert (await caller.post(f"/v1/approvals/{question['id']}/approve", json=right)).status_code == 200
        assert (await caller.get(f"/v1/runs/{run}", params={"wait": 20})).json()["output"] == "red"


# Schedules


async def test_ticks_of_a_timing_are_listed_without_a_schedule():
    async with running_server() as served:
        caller = served.caller()
        query = {"timing": "30 2 * * mon-fri in Europe/Berlin", "limit": 3}
        response = (await caller.get("/v1/ticks", params=query)).json()
        assert response["timing"] == "30 2 * * MON-FRI in Europe/Berlin"
        assert "Europe/Berlin" in response["description"]
        ticks = [datetime.fromisoformat(one).astimezone(ZoneInfo("Europe/Berlin")) for one in response["items"]]
        assert [(one.hour, one.minute, one.weekday() < 5) for one in ticks] == [(2, 30, True)] * 3
        assert sorted(ticks) == ticks
        often = (await caller.get("/v1/ticks", params={"timing": "every 15 min"})).json()
        assert (often["description"], len(often["items"])) == ("every 15 min", 5)
        for wrong in ("", "61 2 * * *", "every fortnight", "0 6 * * * in Mars", "30 2 30 2 *"):
            assert (await caller.get("/v1/ticks", params={"timing": wrong})).status_code == 422, wrong


async def test_a_schedule_is_made_looked_at_paused_triggered_once_and_forgotten():
    async with running_server() as served, running_worker(served):
        caller = served.caller()
        body = {"workflow": "group_plain", "cron": "0 6 * * *", "zone": "Europe/Berlin", "kwargs": {"what": "tea"}}
        made = await caller.put("/v1/schedules/early", json=body)
        assert made.status_code == 200
        assert (made.json()["zone"], made.json()["inputs"]) == ("Europe/Berlin", {"what": "tea"})
        assert (await caller.put("/v1/schedules/early", json=body)).json() == made.json()
        other = {"workflow": "group_plain", "every": "15 min"}
        refused = await caller.put("/v1/schedules/early", json=other)
        assert (refused.status_code, refused.json()["type"]) == (422, "bad-request")
        assert (await caller.put("/v1/schedules/early", json=other | {"replace": True})).json()["zone"] == ""
        assert (await caller.post("/v1/schedules/early/pause")).json() == {"changed": True}
        assert (await caller.get("/v1/schedules/early")).json()["paused_at"] is not None
        sent = [await caller.post("/v1/schedules/early/trigger", headers={"Idempotency-Key": "now"}) for _ in range(2)]
        [run] = {one.json()["run_id"] for one in sent}
        assert (await caller.get(f"/v1/runs/{run}", params={"wait": 20})).json()["output"] == "x"
        assert [one["last_run_id"] for one in (await caller.get("/v1/schedules")).json()["items"]] == [run]
        assert (await caller.post("/v1/schedules/early/resume")).json() == {"changed": True}
        assert (await caller.delete("/v1/schedules/early")).json() == {"changed": True}
        gone = await caller.post("/v1/schedules/early/pause")
        assert (gone.status_code, gone.json()["type"]) == (404, "unknown-schedule")
        for wrong in (
            {"cron": "0 6 * * *", "every": "1 h"},
            {"cron": "61 * * * *"},
            {"every": "1 fortnight"},
            {"cron": "0 6 * * *", "zone": "Mars"},
        ):
            assert (await caller.put("/v1/schedules/no", json={"workflow": "group_plain"} | wrong)).status_code == 422


# Queues


async def test_limits_of_a_queue_are_set_and_removed_one_by_one():
    async with running_server() as served:
        caller = served.caller()
        unknown = await caller.get("/v1/queues/llm")
        assert (unknown.status_code, unknown.json()["type"]) == (404, "unknown-queue")
        limits = {"concurrency": 3, "rate": ["100/min", "50000 tokens/min"], "key_rate": "5/s"}
        assert (await caller.patch("/v1/queues/llm", json=limits)).json() == {"changed": True}
        assert (await caller.patch("/v1/queues/llm", json={"concurrency": 3})).json() == {"changed": False}
        assert (await caller.patch("/v1/queues/llm", json={"rate": None})).json() == {"changed": True}
        info = (await caller.get("/v1/queues/llm")).json()
        assert (info["concurrency"], info["rate"], info["key_rate"], info["is_overridden"]) == (3, [], ["5/s"], True)
        assert (await caller.patch("/v1/queues/llm", json={})).status_code == 422
        assert (await caller.patch("/v1/queues/llm", json={"rate": "many"})).status_code == 422
        assert (await caller.post("/v1/queues/llm/pause")).json() == {"changed": True}
        assert (await caller.get("/v1/queues")).json()["items"][0]["blocked_reason"] is not None
        assert (await caller.post("/v1/queues/llm/resume")).json() == {"changed": True}
        assert (await caller.post("/v1/queues/llm/reset")).json() == {"changed": True}


# Memories


async def test_memories_are_stored_listed_found_and_deleted():
    async with running_server() as served:
        caller = served.caller()
        for name, text in (("a/b", "green tea"), ("c", "black tea"), ("d", "coffee")):
            place = f"/v1/memories/drinks/{name.replace('/', '%2F')}"
            assert (await caller.put(place, json={"value": {"text": text}})).status_code == 204
        page = (await caller.get("/v1/memories/drinks", params={"limit": 2})).json()
        assert ([one["key"] for one in page["items"]], page["next"]) == (["a/b", "c"], "c")
        rest = (await caller.get("/v1/memories/drinks", params={"after": "c"})).json()
        assert ([one["key"] for one in rest["items"]], rest["next"]) == (["d"], None)
        found = (await caller.get("/v1/memories/drinks", params={"q": "Tea"})).json()
        assert {one["key"] for one in found["items"]} == {"a/b", "c"}
        assert (await caller.get("/v1/memories/drinks/a%2Fb")).json()["value"] == {"text": "green tea"}
        assert (await caller.delete("/v1/memories/drinks/a%2Fb")).status_code == 204
        gone = await caller.get("/v1/memories/drinks/a%2Fb")
        assert (gone.status_code, gone.json()["type"]) == (404, "memory-not-found")
        value = {"set": {1, 2}, "bytes": b"\xff"}
        await caller.put("/v1/memories/drinks/odd", json={"value": to_wire(value)}, headers=TAGGED)
        assert from_wire((await caller.get("/v1/memories/drinks/odd", headers=TAGGED)).json()["value"]) == value


# Agents and workers


async def agent(served: AsgiServer, name: str) -> dict[str, Any]:
    return (await served.caller().get(f"/v1/agents/{name}")).json()


async def test_an_agent_is_disabled_everywhere_and_enabled():
    async with running_server() as served, running_worker(served):
        caller = served.caller()
        health = await agent(served, "group_plain")
        assert (health["state"], health["worker_count"]) == ("serving", 1)
        assert (await caller.post("/v1/agents/group_plain/disable")).json() == {"changed": True}
        assert (await caller.post("/v1/agents/group_plain/disable")).json() == {"changed": False}
        assert (await agent(served, "group_plain"))["state"] == "disabled"
        refused = await caller.post("/v1/runs", json={"workflow": "group_plain"})
        assert (refused.status_code, refused.json()["type"]) == (409, "workflow-disabled")
        assert (await caller.post("/v1/agents/group_plain/enable")).json() == {"changed": True}
        assert (await caller.post("/v1/runs", json={"workflow": "group_plain"})).status_code == 201
        assert "group_asking" in [one["name"] for one in (await caller.get("/v1/agents")).json()["items"]]
        [worker] = (await caller.get("/v1/workers")).json()["items"]
        assert (worker["state"], worker["is_alive"], worker["is_listener"]) == ("live", True, False)
        unknown = await caller.get("/v1/agents/unknown")
        assert (unknown.status_code, unknown.json()["type"]) == (404, "unknown-workflow")


async def test_a_worker_is_listed_with_the_runs_that_it_holds():
    async with running_server() as served:
        caller = served.caller()
        for number in range(2):
            await caller.post("/v1/addresses/group-desk/send", json={"payload": number, "id": f"held-{number}"})
        for _ in range(2):
            taken = await caller.post("/v1/addresses/group-desk/claim?wait=20", json={"name": "host-1"})
            assert taken.status_code == 200
        workers = (await caller.get("/v1/workers")).json()["items"]
        assert sorted(run["id"] for worker in workers for run in worker["claimed_runs"]) == ["held-0", "held-1"]
        assert {(worker["is_listener"], worker["has_more_runs"]) for worker in workers} == {(True, False)}


async def test_heartbeats_keep_an_agent_of_another_framework_alive_and_report_that_it_is_disabled():
    async with running_server() as served:
        store = (await served.app.platform.tenants.get_tenant("default")).store
        now = store.now()
        store._clock = lambda: now
        place = "/v1/agents/crew/heartbeat"
        first = (await served.caller().post(place, json={"name": "host-1", "lease": 60})).json()
        assert (first["disabled"], first["lease"]) == (False, 60)
        again = (await served.caller().post(place, json={"listener_id": first["listener_id"], "lease": 60})).json()
        assert again["listener_id"] == first["listener_id"]
        assert (await agent(served, "crew"))["state"] == "serving"
        now += 61
        assert (await agent(served, "crew"))["state"] == "silent"
        await served.caller().post(place, json={"listener_id": first["listener_id"], "lease": 60})
        assert (await agent(served, "crew"))["state"] == "serving"
        [worker] = (await served.caller().get("/v1/workers")).json()["items"]
        assert (worker["name"], worker["is_listener"], worker["workflows"]) == ("host-1", True, ["crew"])
        await served.caller().post("/v1/agents/crew/disable")
        now += 2
        assert (await served.caller().post(place, json={"listener_id": first["listener_id"]})).json()[
            "disabled"
        ] is True
        forged = (
            await served.caller().post("/v1/agents/other/heartbeat", json={"listener_id": first["listener_id"]})
        ).json()
        assert forged["listener_id"] != first["listener_id"], (
            "a listener of another agent is not kept alive by this one"
        )


# Spending


async def test_spending_is_reported_by_day_workflow_and_model():
    async with running_server() as served:
        async with running_worker(served):
            pass
        caller = served.caller()
        await caller.post("/v1/runs", json={"workflow": "group_plain"})
        store = (await served.app.platform.tenants.get_tenant("default")).store
        worker = await store.workers.register(NewWorker("w", "h", 1, ("group_plain",)), 60)
        [run] = await store.claims.claim(worker, workflows=["group_plain"], queues=None, limit=1)
        at = 1_800_000_000.0
        record = Record(0, RecordKind.STEP, 0, "model call", True, b"1", at, at, 1, worker, run.epoch)
        used = Usage(calls=1, input_tokens=10, output_tokens=2, nano_usd=5_000_000)
        await store.commit([AppendRecord(run.key, record, used=used, model="openai:gpt-4o")])
        report = (await caller.get("/v1/usage", params={"since": "2027-01-15", "until": "2027-01-15"})).json()
        [line] = report["daily_usage"]
        assert (line["day"], line["workflow"], line["model"]) == ("2027-01-15", "group_plain", "openai:gpt-4o")
        assert (line["usage"]["input_tokens"], line["usage"]["usd"]) == (10, 0.005)
        assert [one["run_count"] for one in (await caller.get("/v1/usage")).json()["daily_runs"]] == [1]
        used_by_run = (await caller.get(f"/v1/runs/{run.id}/usage")).json()
        assert used_by_run["calls"] == 1
        wrong = await caller.get("/v1/usage", params={"since": "2027-01-16", "until": "2027-01-15"})
        assert wrong.status_code == 422


async def test_pages_of_approvals_continue_after_one_that_was_answered_meanwhile():
    async with running_server() as served:
        caller = served.caller()
        for number in range(5):
            await caller.post("/v1/addresses/asks/send", json={"id": f"asks-{number}"})
            taken = (await caller.post("/v1/addresses/asks/claim?wait=5", json={})).json()
            body = {"name": "q", "question": f"Question {number}?"}
            assert (await caller.post(f"/v1/deliveries/{taken['id']}/ask", json=body)).status_code == 202
        seen, cursor = list[str](), None
        while True:
            page = (
                await caller.get("/v1/approvals", params={"limit": 2} | ({"cursor": cursor} if cursor else {}))
            ).json()
            seen += [one["question"] for one in page["items"]]
            if page["next"] is None:
                break
            cursor = page["next"]
            await caller.post(f"/v1/approvals/{page['items'][-1]['id']}/approve", json={})  # the place itself is gone
        assert seen == [f"Question {number}?" for number in range(5)]
        closed = (await caller.get("/v1/approvals", params={"only_closed": True, "limit": 1})).json()
        assert closed["items"][0]["question"] == "Question 3?"
        rest = (await caller.get("/v1/approvals", params={"only_closed": True, "cursor": closed["next"]})).json()
        assert ([one["question"] for one in rest["items"]], rest["next"]) == (["Question 1?"], None)
        for odd in ("bm9uZTox", "YXBwcm92YWxzOm5hbi9h", "YXBwcm92YWxzOnh5"):
            refused = await caller.get("/v1/approvals", params={"cursor": odd})
            assert (refused.status_code, refused.json()["type"]) == (422, "bad-cursor"), odd
