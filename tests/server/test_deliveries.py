"""Deliveries: work for processes elsewhere, that keep nothing themselves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from asgi_server import AsgiServer, Clock, running_server

from holdfast.errors import StoreUnavailable
from holdfast.server.app import Settings
from holdfast.server.background import sweeper
from holdfast.server.background.sweeper import sweep
from holdfast.services import json_schemas
from holdfast.stores.leases import LeaseWindow

pytestmark = pytest.mark.asyncio


@dataclass
class World:
    served: AsgiServer
    clock: Clock
    http: httpx2.AsyncClient
    _since: float | None = None

    async def post(self, path: str, body: Any = None, *, status: int | None = 200, **params: Any) -> Any:
        answer = await self.http.post(path, json={} if body is None else body, params=params)
        assert answer.status_code == status or (status is None and answer.is_success), answer.text
        return answer.json() if answer.content else None

    async def get(self, path: str, status: int = 200) -> Any:
        answer = await self.http.get(path)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def send(self, address: str, payload: Any = None, **more: Any) -> str:
        return (await self.post(f"/v1/addresses/{address}/send", {"payload": payload, **more}, status=201))["id"]

    async def take(self, address: str, **more: Any) -> Any:
        return await self.post(f"/v1/addresses/{address}/claim", more, wait=5)

    async def on(self, delivery: Any, what: str, body: Any = None, status: int = 200) -> Any:
        return await self.post(f"/v1/deliveries/{delivery['id']}/{what}", body, status=status)

    async def advance(self, seconds: float) -> None:
        """Time passes, and the server looks around."""
        tenant = await self.served.app.platform.tenants.get_tenant("default")
        if self._since is None:
            self._since = self.clock.now
        self.clock.now += seconds
        await sweep(self.served.app.platform, tenant, LeaseWindow(self._since, self.clock.now), should_trim_audit=True)


@pytest_asyncio.fixture
async def world() -> AsyncGenerator[World]:
    clock = Clock(1_000_000.0)
    async with running_server(settings=Settings(clock=clock)) as served:
        yield World(served, clock, served.caller())


async def test_one_request_records_the_last_steps_completes_the_run_and_takes_the_next_delivery(world: World):
    first, second = await world.send("line", 1), await world.send("line", 2)
    delivery = await world.take("line", name="box-1")
    await world.on(delivery, "steps", {"name": "load", "output": "recorded before"})
    steps = [{"name": "load", "output": "too late"}, {"name": "work", "output": [1]}, {"name": "tidy", "output": None}]
    body = {"output": "done", "steps": steps, "next": {"listener_id": delivery["listener_id"], "name": "box-1"}}
    answer = await world.on(delivery, "complete", body)
    assert (answer["state"], answer["delivery"]["run_id"]) == ("completed", second)
    assert answer["delivery"]["listener_id"] == delivery["listener_id"]
    [delivered] = (await world.get(f"/v1/runs/{first}/deliveries"))["items"]
    assert (delivered["state"], delivered["steps"]) == ("completed", ["load", "work", "tidy"])
    assert (await world.get(f"/v1/runs/{first}/records/0"))["output"] == "recorded before"
    assert (await world.get(f"/v1/runs/{first}/records/1"))["output"] == [1]
    # The response was lost: the same request completes nothing twice, and has the same delivery.
    again = await world.on(delivery, "complete", body)
    assert again == answer
    held = {"listener_id": delivery["listener_id"], "active_deliveries": [answer["delivery"]["id"]]}
    last = await world.on(answer["delivery"], "complete", {"next": held})
    assert last == {"state": "completed", "delivery": None}


async def test_steps_of_a_delivery_that_is_lost_are_not_recorded_with_its_result(world: World):
    run = await world.send("lost", 1)
    delivery = await world.take("lost")
    await world.on(delivery, "release")
    body = {"output": 1, "steps": [{"name": "work", "output": 1}], "next": {}}
    assert (await world.on(delivery, "complete", body, status=409))["reason"] == "taken-over"
    again = await world.take("lost")
    assert (again["run_id"], again["steps"]) == (run, [])
    await world.on(again, "complete", {"steps": [{"name": " ", "output": 1}]}, status=422)
    assert (await world.on(again, "complete", {"steps": [{"name": "work", "output": 1}]})) == {"state": "completed"}


async def test_runs_go_to_many_waiting_listeners_one_each(world: World):
    waiting = [asyncio.create_task(world.take("many", name=f"box-{number}")) for number in range(40)]
    await asyncio.sleep(0.05)
    sent = await asyncio.gather(*(world.send("many", number) for number in range(40)))
    deliveries = await asyncio.gather(*waiting)
    assert sorted(delivery["run_id"] for delivery in deliveries) == sorted(sent)
    assert len({delivery["listener_id"] for delivery in deliveries}) == 40
    for delivery in deliveries:
        [delivered] = (await world.get(f"/v1/runs/{delivery['run_id']}/deliveries"))["items"]
        assert (delivered["number"], delivered["state"]) == (1, "claimed")
        await world.on(delivery, "complete")


async def test_a_run_goes_to_a_listener_and_ends_with_its_output(world: World):
    run = await world.send("pipeline", {"rows": 3}, tags=["nightly"])
    delivery = await world.take("pipeline", name="box-1")
    assert (delivery["run_id"], delivery["payload"], delivery["number"]) == (run, {"rows": 3}, 1)
    assert (delivery["steps"], delivery["tags"]) == ([], ["nightly"])
    step = await world.on(delivery, "steps", {"name": "extract", "output": [1, 2]})
    assert (step["is_new"], step["output"]) == (True, [1, 2])
    again = await world.on(delivery, "steps", {"name": "extract", "output": "something else"})
    assert (again["is_new"], again["output"]) == (False, [1, 2])
    assert await world.on(delivery, "complete", {"output": "done"}) == {"state": "completed"}
    assert await world.on(delivery, "complete", {"output": "done"}) == {"state": "completed"}
    assert await world.served.app.platform.tenants.list_open()[0].client.wait(run) == "done"
    [delivered] = (await world.get(f"/v1/runs/{run}/deliveries"))["items"]
    assert (delivered["listener_name"], delivered["state"], delivered["steps"]) == ("box-1", "completed", ["extract"])


async def test_a_dead_listeners_delivery_continues_at_another_listener_with_its_steps(world: World):
    await world.send("pipeline")
    first = await world.take("pipeline")
    await world.on(first, "steps", {"name": "extract", "output": 7})
    await world.on(first, "attempts", {"name": "charge", "once": True, "progress": {"at": 2}}, status=204)
    assert (await world.http.post("/v1/addresses/pipeline/claim", json={})).status_code == 204
    await world.advance(20)
    await world.on(first, "heartbeat")
    await world.advance(20)
    assert (await world.http.post("/v1/addresses/pipeline/claim", json={})).status_code == 204
    await world.advance(31)
    second = await world.take("pipeline")
    assert (second["run_id"], second["number"], second["failure_count"]) == (first["run_id"], 2, 1)
    assert [(step["name"], step["output"]) for step in second["steps"]] == [("extract", 7)]
    [begun] = second["in_flight"]
    assert (begun["name"], begun["once"], begun["progress"]) == ("charge", True, {"at": 2})
    settling = await world.http.post(f"/v1/runs/{first['run_id']}/settle", json={"step": "charge", "output": 1})
    assert (settling.status_code, settling.json()["type"]) == (409, "settle-refused")
    assert "is for a listener to say, with delivery.record('charge', outcome)" in settling.json()["detail"]
    for what, body in (
        ("steps", {"name": "late", "output": 1}),
        ("heartbeat", {}),
        ("attempts", {"name": "late"}),
        ("complete", {"output": 1}),
        ("fail", {"error": {"message": "late"}}),
        ("fail", {"error": {"message": "late"}, "retry": False}),
        ("release", {}),
        ("ask", {"name": "q", "question": "?"}),
        ("wait", {"name": "w", "seconds": 1}),
    ):
        problem = await world.on(first, what, body, status=409)
        assert (problem["type"], problem["reason"]) == ("delivery-lost", "taken-over"), what
    await world.on(second, "complete", {"output": 8})
    history = (await world.get(f"/v1/runs/{first['run_id']}/deliveries"))["items"]
    assert [(one["state"], one["steps"]) for one in history] == [("lost", ["extract"]), ("completed", [])]


async def test_a_wait_does_not_replace_the_note_of_a_step_in_flight(world: World):
    await world.send("pipeline")
    first = await world.take("pipeline")
    await world.on(first, "attempts", {"name": "charge", "once": True}, status=204)
    await world.on(first, "wait", {"name": "nap", "seconds": 60}, status=202)
    await world.advance(61)
    second = await world.take("pipeline")
    assert [(step["name"], step["once"]) for step in second["in_flight"]] == [("charge", True)]
    assert (await world.on(second, "wait", {"name": "nap", "seconds": 60}))["output"] is None
    assert (await world.on(second, "steps", {"name": "charge", "output": 1}))["is_new"] is True
    assert await world.on(second, "complete") == {"state": "completed"}


async def test_a_server_that_was_down_declares_no_listener_dead_at_once(world: World):
    await world.send("pipeline")
    delivery = await world.take("pipeline")
    world.clock.now += 3600  # nobody could renew meanwhile
    await world.advance(0)
    await world.advance(29)
    await world.on(delivery, "heartbeat")
    await world.advance(29)
    assert (await world.on(delivery, "steps", {"name": "a", "output": 1}))["is_new"] is True
    await world.advance(31)
    await world.on(delivery, "heartbeat", status=409)


async def test_a_delivery_in_a_lost_response_is_handed_out_again_and_does_not_count(world: World):
    await world.send("pipeline", 1)
    await world.send("pipeline", 2)
    first = await world.take("pipeline")
    again = await world.take("pipeline", listener_id=first["listener_id"])
    assert (again["id"], again["failure_count"]) == (first["id"], 0)
    other = await world.take("pipeline", listener_id=first["listener_id"], active_deliveries=[first["id"]])
    assert (other["payload"], other["listener_id"]) == (2, first["listener_id"])
    stranger = await world.http.post("/v1/addresses/elsewhere/claim", json={"listener_id": first["listener_id"]})
    assert stranger.status_code == 204  # the id of a listener means nothing on another address


async def test_a_run_that_fails_too_often_is_dead_and_progress_counts(world: World):
    await world.http.put("/v1/addresses/brittle", json={"max_deliveries": 2})
    run = await world.send("brittle")
    first = await world.take("brittle")
    assert await world.on(first, "fail", {"error": {"type": "Oops", "message": "no"}}) == {"state": "pending"}
    assert (await world.http.post("/v1/addresses/brittle/claim", json={})).status_code == 204  # it waits for a while
    await world.advance(2)
    second = await world.take("brittle")
    await world.on(second, "steps", {"name": "a", "output": 1})
    assert await world.on(second, "fail", {"error": {"message": "no"}, "delay": 0}) == {"state": "pending"}
    third = await world.take("brittle")
    assert third["failure_count"] == 1
    assert await world.on(third, "fail", {"error": {"type": "Oops", "message": "no"}, "delay": 0}) == {"state": "dead"}
    info = await world.served.app.platform.tenants.list_open()[0].client.get(run)
    assert (info.state, str(info.error)) == ("dead", "Oops: no")
    reasons = [one["reason"] for one in (await world.get(f"/v1/runs/{run}/deliveries"))["items"]]
    assert reasons == ["failed: Oops: no", "failed: Error: no", "failed: Oops: no"]


async def take_all(world: World, address: str) -> list[Any]:
    """What a new listener is handed that asks for more as long as it gets something."""
    taken: list[Any] = []
    while True:
        known: dict[str, Any] = {"listener_id": taken[-1]["listener_id"]} if taken else {}
        more = await world.post(
            f"/v1/addresses/{address}/claim",
            {**known, "active_deliveries": [one["id"] for one in taken]},
            wait=0,
            status=None,
        )
        if more is None:
            return taken
        taken.append(more)


async def test_a_delivery_that_kills_its_listeners_ends_dead_and_no_other_does(world: World):
    runs = [await world.send("pipeline", number) for number in range(4)]
    bad, alone = runs[1], 0
    for _ in range(20):
        taken = await take_all(world, "pipeline")
        if not taken:
            break
        alone += len(taken) == 1
        if bad not in [one["run_id"] for one in taken]:
            for one in taken:
                await world.on(one, "complete", {"output": "done"})
        else:
            await world.advance(31)
    assert alone > 3
    infos = {run: await world.get(f"/v1/runs/{run}") for run in runs}
    assert {run: one["state"] for run, one in infos.items()} == dict.fromkeys(runs, "completed") | {bad: "dead"}
    assert "died 3 times while this was the only run it held" in str(infos[bad]["error"])


async def test_a_listener_that_holds_a_run_others_died_of_gets_more_when_it_has_recorded_a_step(world: World):
    for number in range(2):
        await world.send("pipeline", number)
    for _ in range(2):
        assert len(await take_all(world, "pipeline")) == 2
        await world.advance(31)
    [first] = await take_all(world, "pipeline")
    await world.on(first, "steps", {"name": "extract", "output": 1})
    holding = {"listener_id": first["listener_id"], "active_deliveries": [first["id"]]}
    await world.advance(20)  # others that hold nothing come first for what is isolated
    await world.on(first, "heartbeat")
    assert await world.post("/v1/addresses/pipeline/claim", holding, wait=0, status=None) is None
    for _ in range(4):
        await world.advance(20)
        await world.on(first, "heartbeat")
    assert (await world.take("pipeline", **holding))["payload"] == 1


async def test_a_failure_for_good_ends_the_run(world: World):
    run = await world.send("brittle")
    delivery = await world.take("brittle")
    failed = {"error": {"type": "ValueError", "message": "bad rows"}, "retry": False}
    assert await world.on(delivery, "fail", failed) == {"state": "failed"}
    info = await world.served.app.platform.tenants.list_open()[0].client.get(run)
    assert (info.state, str(info.error)) == ("failed", "ValueError: bad rows")


async def test_a_released_delivery_goes_to_the_next_listener_and_does_not_count(world: World):
    await world.send("pipeline")
    for number in (1, 2, 3, 4):
        delivery = await world.take("pipeline")
        assert (delivery["number"], delivery["failure_count"]) == (number, 0)
        assert await world.on(delivery, "release", {"reason": "deploy"}) == {"state": "pending"}


@pytest.mark.parametrize("state", ["pending", "held", "parked"])
async def test_a_cancel_takes_effect_at_once_in_every_state(world: World, state: str):
    run = await world.send("pipeline")
    client = world.served.app.platform.tenants.list_open()[0].client
    delivery = None if state == "pending" else await world.take("pipeline")
    if state == "parked":
        await world.on(delivery, "ask", {"name": "ok", "question": "Go on?"}, status=202)
    assert await client.cancel(run) is True
    assert (await client.get(run)).state == "cancelled"
    if delivery is not None:
        problem = await world.on(delivery, "steps", {"name": "late", "output": 1}, status=409)
        assert problem["reason"] == "cancelled"
    assert await client.approvals(run) == []


@pytest.mark.parametrize("held", [False, True])
async def test_a_deadline_ends_a_run_whether_it_is_held_or_not(world: World, held: bool):
    await world.http.put("/v1/addresses/pipeline", json={"deadline": 100, "lease": 1000})
    run = await world.send("pipeline")
    own = await world.send("pipeline", deadline=50)
    delivery = await world.take("pipeline") if held else None
    await world.advance(60)
    client = world.served.app.platform.tenants.list_open()[0].client
    assert [(await client.get(one)).state for one in (run, own)] == ["running" if held else "pending", "failed"]
    if delivery is not None:
        await world.on(delivery, "heartbeat", status=200)
    await world.advance(41)
    error = (await client.get(run)).error
    assert str(error) == f"holdfast.errors.RunTimedOut: run {run!r} did not end within its deadline"
    if delivery is not None:
        assert (await world.on(delivery, "heartbeat", status=409))["reason"] == "expired"


async def test_a_run_waits_for_a_person_without_a_listener(world: World):
    run = await world.send("pipeline")
    first = await world.take("pipeline")
    await world.on(first, "steps", {"name": "plan", "output": "all of it"})
    question = {"name": "ok", "question": "Delete all of it?", "assignee": "alice"}
    assert (await world.on(first, "ask", question, status=202))["parked"] is True
    assert (await world.on(first, "ask", question, status=409))["reason"] == "parked"
    client = world.served.app.platform.tenants.list_open()[0].client
    [approval] = await client.approvals(run)
    assert (approval.question, approval.assignee) == ("Delete all of it?", "alice")
    assert (await client.get(run)).waits_for == "answer: Delete all of it?"
    await client.approve(approval.id, by="alice", reason="fine")
    second = await world.take("pipeline")
    assert [step["name"] for step in second["steps"]] == ["plan"]
    assert second["in_flight"] == []
    for _ in range(2):
        answer = await world.on(second, "ask", question)
        assert (answer["kind"], answer["output"]["approved"], answer["output"]["answered_by"]) == (
            "approval",
            True,
            "alice",
        )
    await world.on(second, "complete")


async def test_an_approval_without_an_answer_in_time_is_null(world: World):
    run = await world.send("pipeline")
    delivery = await world.take("pipeline")
    question = {"name": "ok", "question": "Go on?", "timeout": 60}
    await world.on(delivery, "ask", question, status=202)
    await world.advance(59)
    assert (await world.http.post("/v1/addresses/pipeline/claim", json={})).status_code == 204
    await world.advance(2)
    delivery = await world.take("pipeline")
    answer = await world.on(delivery, "ask", question)
    assert (answer["parked"], answer["output"]) == (False, None)
    assert await world.served.app.platform.tenants.list_open()[0].client.approvals(run) == []


async def test_a_run_waits_for_a_signal_or_for_a_time(world: World):
    run = await world.send("pipeline")
    client = world.served.app.platform.tenants.list_open()[0].client
    delivery = await world.take("pipeline")
    await world.on(delivery, "wait", {"name": "go", "signal": "go"}, status=202)
    await client.signal(run, "other", 1)
    await client.signal(run, "go", {"by": "bob"})
    delivery = await world.take("pipeline")
    assert (await world.on(delivery, "wait", {"name": "go", "signal": "go"}))["output"] == {"by": "bob"}
    await world.on(delivery, "wait", {"name": "nap", "seconds": 600}, status=202)
    await world.advance(599)
    assert (await world.http.post("/v1/addresses/pipeline/claim", json={})).status_code == 204
    await world.advance(2)
    delivery = await world.take("pipeline")
    assert (await world.on(delivery, "wait", {"name": "nap", "seconds": 600}))["output"] is None
    assert (await world.on(delivery, "wait", {"name": "other", "signal": "other", "seconds": 5}))["output"] == 1
    assert [step["name"] for step in (await world.get(f"/v1/deliveries/{delivery['id']}"))["steps"]] == [
        "go",
        "nap",
        "other",
    ]


@pytest.mark.parametrize("how", ["paused", "disabled"])
async def test_a_stopped_delivery_is_revoked_with_its_steps_and_continues_later(world: World, how: str):
    run = await world.send("pipeline")
    client = world.served.app.platform.tenants.list_open()[0].client
    delivery = await world.take("pipeline")
    await (client.pause(run) if how == "paused" else client.disable("pipeline"))
    await world.on(delivery, "steps", {"name": "a", "output": 1})  # it is done, so it is kept
    world.clock.now += 2
    assert (await world.on(delivery, "heartbeat", status=409))["reason"] == how
    assert (await world.http.post("/v1/addresses/pipeline/claim", json={})).status_code == 204
    await (client.resume(run) if how == "paused" else client.enable("pipeline"))
    again = await world.take("pipeline")
    assert ([step["name"] for step in again["steps"]], again["failure_count"]) == (["a"], 0)


async def test_steps_side_by_side_are_all_recorded_also_through_several_servers(world: World):
    await world.send("pipeline")
    delivery = await world.take("pipeline")
    async with asyncio.TaskGroup() as tasks:
        for number in range(20):
            tasks.create_task(world.on(delivery, "steps", {"name": f"s{number}", "output": number}))
            if number % 5 == 4:  # as if the next ones went through another server
                world.served.app.platform.delivery_cache.pop(("default", delivery["id"]), None)
    steps = (await world.get(f"/v1/deliveries/{delivery['id']}"))["steps"]
    assert sorted((step["name"], step["output"]) for step in steps) == sorted((f"s{n}", n) for n in range(20))


async def test_usage_that_a_step_reports_is_counted(world: World):
    run = await world.send("pipeline")
    delivery = await world.take("pipeline")
    usage = {"input_tokens": 100, "output_tokens": 10, "usd": 0.25, "model": "acme:large"}
    for _ in range(2):
        await world.on(delivery, "steps", {"name": "think", "output": 1, "usage": usage})
    tenant = world.served.app.platform.tenants.list_open()[0]
    assert (await tenant.client.usage(run)).cost == pytest.approx(0.25)
    [day] = await tenant.store.daily_usage.get("1970-01-01", "1970-12-31")
    assert (day.workflow, day.model, day.used.tokens) == ("pipeline", "acme:large", 110)


async def test_sending_again_is_the_same_run(world: World):
    headers = {"idempotency-key": "order-17"}
    sent = [world.http.post("/v1/addresses/pipeline/send", json={"payload": 1}, headers=headers) for _ in range(5)]
    answers = await asyncio.gather(*sent)
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 200, 201]
    other = await world.http.post("/v1/addresses/pipeline/send", json={"payload": 2}, headers=headers)
    assert (other.status_code, other.json()["type"]) == (409, "run-conflict")


async def test_one_submission_wakes_one_of_many_listeners(world: World):
    waiting = [asyncio.create_task(world.take("pipeline", name=f"box-{n}")) for n in range(20)]
    await asyncio.sleep(0.05)
    runs = {await world.send("pipeline", n) for n in range(20)}
    got = await asyncio.gather(*waiting)
    assert {delivery["run_id"] for delivery in got} == runs
    assert all(delivery["number"] == 1 for delivery in got)


async def test_a_listener_that_disconnects_while_it_waits_leaves_no_worker(world: World):
    waiting = asyncio.create_task(world.take("pipeline"))
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await world.send("pipeline")
    delivery = await world.take("pipeline")
    assert (delivery["number"], delivery["failure_count"]) in ((1, 0), (2, 0))


async def test_a_repeated_send_finds_its_run_even_if_that_has_failed(world: World):
    path, name = "/v1/addresses/frail/send", {"Idempotency-Key": "once"}
    sent = (await world.http.post(path, json={"payload": 1}, headers=name)).json()
    failure = {"error": {"type": "Error", "message": "no"}, "retry": False}
    await world.on(await world.take("frail"), "fail", failure)
    again = await world.http.post(path, json={"payload": 1}, headers=name)
    assert (again.status_code, again.json()["id"], again.json()["state"]) == (200, sent["id"], "failed")
    by_id = await world.http.post(path, json={"payload": 1, "id": sent["id"]})
    assert (by_id.status_code, by_id.json()["type"]) == (409, "run-unsuccessful")


@pytest.mark.parametrize("debounced", [{}, {"debounce": 60}])
async def test_work_sent_again_with_a_dedup_key_is_not_doubled(world: World, debounced: dict[str, Any]):
    path, name = "/v1/addresses/once/send", {"Idempotency-Key": "one request"}
    body = {"payload": 1, "dedup": "order-7", **debounced}
    sent = (await world.http.post(path, json=body, headers=name)).json()["id"]
    if debounced:
        joined = await world.http.post(path, json={**body, "payload": 2}, headers={"Idempotency-Key": "another"})
        assert joined.json()["id"] == sent
        await world.advance(120)
    await world.on(await world.take("once"), "complete")
    again = await world.http.post(path, json=body, headers=name)
    assert (again.status_code, again.json()["id"]) == (200, sent)
    other = (await world.http.post(path, json={**body, "payload": 3})).json()["id"]
    assert other != sent, "a new request is new work"
    again = await world.http.post(path, json=body, headers=name)
    assert again.json()["id"] == sent, "and not what the repeat joins"
    if not debounced:
        conflict = await world.http.post(path, json={**body, "payload": 4}, headers=name)
        assert (conflict.status_code, conflict.json()["type"]) == (409, "run-conflict")


@pytest.mark.parametrize("named", [5, ["x"], "http://[no"])
async def test_a_form_with_an_unknown_schema_dialect_is_refused(world: World, named: Any):
    await world.send("asking")
    body = {"name": "sure", "question": "Sure?", "form": {"$schema": named, "type": "string"}}
    refused = await world.on(await world.take("asking"), "ask", body, status=422)
    assert "$schema" in refused["detail"]


async def test_a_server_does_not_remember_every_listener_that_was_ever_there(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    listeners = world.served.app.platform.tenants.list_open()[0].listeners
    monkeypatch.setattr(listeners._renewed_at, "_max_size", 2)
    for number in range(5):
        await world.send("quick", number)
        await world.on(await world.take("quick"), "complete")
    assert len(listeners._renewed_at) == 2


async def taken_delivery(served: AsgiServer) -> str:
    caller = served.caller()
    await caller.post("/v1/addresses/forms/send", json={"payload": 1})
    return f"/v1/deliveries/{(await caller.post('/v1/addresses/forms/claim?wait=5', json={})).json()['id']}"


async def test_a_form_with_a_pattern_that_cannot_be_matched_in_linear_time_is_refused_by_name():
    async with running_server() as served:
        delivery, caller = await taken_delivery(served), served.caller()
        form = {"properties": {"code": {"type": "string", "pattern": r"(a)\1"}}}
        answer = await caller.post(f"{delivery}/ask", json={"name": "q", "question": "Which?", "form": form})
        assert (answer.status_code, answer.json()["type"]) == (422, "bad-input")
        assert r"(a)\\1" in answer.json()["detail"]
        form["properties"]["code"]["pattern"] = "^(a+)+$"
        answer = await caller.post(f"{delivery}/ask", json={"name": "q", "question": "Which?", "form": form})
        assert answer.status_code == 202
        [question] = (await caller.get("/v1/approvals")).json()["items"]
        approve = f"/v1/approvals/{question['id']}/approve"
        refused = await caller.post(approve, json={"value": {"code": "a" * 40 + "!"}})
        assert (refused.status_code, refused.json()["violations"][0]["path"]) == (422, "value.code")
        assert (await caller.post(approve, json={"value": {"code": "aaa"}})).status_code == 200


async def test_a_form_is_not_checked_for_a_caller_without_a_delivery(monkeypatch: pytest.MonkeyPatch):
    looked: list[Any] = []
    monkeypatch.setattr("holdfast.server.endpoints.deliveries.check_schema", lambda *given: looked.append(given))
    async with running_server() as served:
        body = {"name": "q", "question": "Which?", "form": {"enum": list(range(10_000))}}
        answer = await served.caller().post("/v1/deliveries/1.YQ/ask", json=body)
        assert answer.status_code == 404
        assert not looked


async def test_a_form_is_checked_off_the_event_loop(monkeypatch: pytest.MonkeyPatch):
    threads: set[threading.Thread] = set()
    plain = json_schemas.find_violations

    def watched(*given: Any) -> Any:
        threads.add(threading.current_thread())
        return plain(*given)

    monkeypatch.setattr("holdfast.services.approvals.find_violations", watched)
    monkeypatch.setattr(
        "holdfast.server.endpoints.deliveries.check_schema", lambda *given: threads.add(threading.current_thread())
    )
    async with running_server() as served:
        delivery, caller = await taken_delivery(served), served.caller()
        await caller.post(f"{delivery}/ask", json={"name": "q", "question": "Which?", "form": {"type": "string"}})
        assert threads
        assert threading.current_thread() not in threads
        threads.clear()
        [question] = (await caller.get("/v1/approvals")).json()["items"]
        answer = await caller.post(f"/v1/approvals/{question['id']}/approve", json={"value": "yes"})
        assert answer.status_code == 200
        assert threads
        assert threading.current_thread() not in threads


async def test_a_listener_is_not_declared_dead_for_time_in_which_the_database_was_away(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    """Nobody's heartbeats were written down meanwhile; leases count anew when the server reaches it again."""
    platform = world.served.app.platform
    tenant = await platform.tenants.get_tenant("default")
    store, lease_tracker = tenant.store, tenant.listeners.lease_tracker
    await world.send("pipeline")
    delivery = await world.take("pipeline")

    async def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("the database cannot be reached")

    with monkeypatch.context() as outage:
        outage.setattr(store.workers, "renew_listener_lease", away)
        world.clock.now += 20  # so that a heartbeat is worth a write
        answer = await world.http.post(f"/v1/deliveries/{delivery['id']}/heartbeat", json={})
        assert answer.status_code == 503
        window = lease_tracker.get_window()
        assert window.since == window.until == world.clock.now

        outage.setattr(store.workers, "reap_dead", away)
        with pytest.raises(StoreUnavailable):
            await swept(platform, tenant)
    world.clock.now += 3600
    await swept(platform, tenant)
    await world.on(delivery, "heartbeat")


async def swept(platform: Any, tenant: Any) -> None:
    """One sweep, as the server makes it."""
    async with asyncio.timeout(20):
        await sweeper.sweep_once(platform, tenant, should_trim_audit=False)
