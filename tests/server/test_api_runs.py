"""Runs over HTTP: started once however often they are asked for, found, followed to their end, retried and forked."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from asgi_server import running_server
from server_worker import running_worker

from holdfast import step, wait_for_signal, workflow
from holdfast.errors import RunConflict
from holdfast.server.endpoints import run_control
from holdfast.services.wire_values import from_wire, to_wire

pytestmark = pytest.mark.asyncio

TAGGED = {"Holdfast-Values": "tagged"}
answers = {"broken": True}


@step
async def api_greet(name: str) -> str:
    return f"hello {name}"


@step
async def api_maybe(name: str) -> str:
    if answers["broken"]:
        raise ValueError(f"{name} is not there")
    return name


@workflow
async def api_greeting(name: str, times: int = 1) -> str:
    return " ".join([await api_greet(name) for _ in range(times)])


@workflow
async def api_waiting(name: str) -> str:
    return f"{await api_greet(name)}, {await wait_for_signal('word')}"


@workflow
async def api_failing(name: str) -> str:
    await api_greet(name)
    return await api_maybe(name)


@workflow
async def api_echo(value: Any) -> Any:
    return value


def start(workflow: str, *args: Any, **more: Any) -> dict[str, Any]:
    return {"workflow": workflow, "args": list(args), **more}


async def test_a_run_is_started_waited_for_and_its_result_read():
    async with running_server() as served, running_worker(served):
        caller = served.caller()
        answer = await caller.post("/v1/runs", json=start("api_greeting", "Ada", tags=["trial"]))
        assert answer.status_code == 201
        run = answer.json()
        assert (run["workflow"], run["inputs"], run["tags"]) == ("api_greeting", {"name": "Ada"}, ["trial"])
        ended = (await caller.get(f"/v1/runs/{run['id']}", params={"wait": 20})).json()
        assert (ended["state"], ended["output"]) == ("completed", "hello Ada")
        result = await caller.get(f"/v1/runs/{run['id']}/result")
        assert (result.status_code, result.json()["output"], result.json()["error"]) == (200, "hello Ada", None)
        [recorded] = (await caller.get(f"/v1/runs/{run['id']}/steps")).json()["items"]
        assert (recorded["number"], recorded["name"], recorded["value"]) == (1, "api_greet", "hello Ada")
        assert (recorded["ok"], recorded["worker"] != "") == (True, True)


@pytest.mark.parametrize(
    ("body", "paths"),
    [
        ({}, {"workflow"}),
        ({"workflow": 5}, {"workflow"}),
        ({"workflow": "api_greeting", "tags": ["a", 5]}, {"tags.1"}),
        ({"workflow": "api_greeting", "queue": {"concurrency": 1}}, {"queue", "queue.name"}),
        ({"workflow": "api_greeting", "nothing": 1}, {"nothing"}),
        ([], {""}),
    ],
)
async def test_a_violation_names_the_path_in_what_was_sent(body: Any, paths: set[str]):
    async with running_server() as served:
        answer = await served.caller().post("/v1/runs", json=body)
        assert answer.status_code == 422
        assert {one["path"] for one in answer.json()["violations"]} == paths
        query = await served.caller().get("/v1/runs", params={"limit": "many"})
        assert [one["path"] for one in query.json()["violations"]] == ["query.limit"]


async def test_inputs_that_do_not_fit_are_refused_before_anything_is_stored():
    async with running_server() as served, running_worker(served):
        caller = served.caller()
        good, bad = {"args": ["Ada"]}, {"name": "Ada", "times": "often"}
        greeting = {"workflow": "api_greeting"}
        for method, path, body, place in [
            ("POST", "/v1/runs", greeting | {"kwargs": bad, "id": "typo"}, "kwargs.times"),
            ("POST", "/v1/runs", greeting | {"args": ["Ada", "often"]}, "args.1"),
            ("POST", "/v1/runs/batch", greeting | {"calls": [good, {"kwargs": bad}]}, "calls.1.kwargs.times"),
            ("PUT", "/v1/schedules/nightly", greeting | {"kwargs": bad, "every": 3600}, "kwargs.times"),
            ("PUT", "/v1/schedules/nightly", greeting | {"args": ["Ada", "often"], "every": 3600}, "args.1"),
        ]:
            answer = await caller.request(method, path, json=body)
            assert (answer.status_code, answer.json()["type"]) == (422, "bad-input"), answer.text
            assert answer.json()["violations"] == [{"path": place, "message": "must be an integer, not a string"}]
            assert "input 'times' must be an integer, not a string" in answer.json()["detail"]
        assert (await caller.get("/v1/runs")).json()["items"] == []
        assert (await caller.get("/v1/schedules")).json()["items"] == []
        again = await caller.post(
            "/v1/runs", json={"workflow": "api_greeting", "kwargs": {"name": "Ada"}, "id": "typo"}
        )
        assert again.status_code == 201
        schema = (await caller.get("/v1/agents/api_greeting")).json()["inputs_schema"]
        assert (schema["required"], schema["properties"]["times"]) == (["name"], {"type": "integer"})


async def test_the_same_request_sent_five_times_at_once_starts_one_run():
    async with running_server() as served:
        token = await served.key("submit", "read")
        caller = served.caller(token)
        async with running_worker(served):
            pass  # so that the workflow is known; nobody executes it now
        body, name = start("api_greeting", "Ada"), {"Idempotency-Key": "order 17"}
        sent = await asyncio.gather(*(caller.post("/v1/runs", json=body, headers=name) for _ in range(5)))
        assert sorted(one.status_code for one in sent) == [200, 200, 200, 200, 201]
        assert len({one.json()["id"] for one in sent}) == 1
        assert len((await caller.get("/v1/runs")).json()["items"]) == 1
        other = await caller.post("/v1/runs", json=start("api_greeting", "Bob"), headers=name)
        assert (other.status_code, other.json()["type"]) == (409, "run-conflict")
        rotated = served.caller(await served.key("submit", name="the key that replaces it"))
        again = await rotated.post("/v1/runs", json=body, headers=name)
        assert (again.status_code, again.json()["id"]) == (200, sent[0].json()["id"])


async def test_a_request_that_is_sent_again_is_answered_with_its_run_also_when_that_has_failed():
    async with running_server() as served, running_worker(served):
        caller, name = served.caller(), {"Idempotency-Key": "once"}
        answers["broken"] = True
        run = (await caller.post("/v1/runs", json=start("api_failing", "Eve"), headers=name)).json()
        result = (await caller.get(f"/v1/runs/{run['id']}/result", params={"wait": 20})).json()
        assert (result["state"], result["retryable"]) == ("failed", True)
        assert result["error"] == {"type": "builtins.ValueError", "message": "Eve is not there"}
        again = await caller.post("/v1/runs", json=start("api_failing", "Eve"), headers=name)
        assert (again.status_code, again.json()["state"]) == (200, "failed")
        by_id = await caller.post("/v1/runs", json=start("api_failing", "Eve", id=run["id"]))
        assert (by_id.status_code, by_id.json()["type"], by_id.json()["state"]) == (409, "run-unsuccessful", "failed")

        answers["broken"] = False
        retried = await caller.post(f"/v1/runs/{run['id']}/retry")
        assert retried.status_code == 200
        ended = (await caller.get(f"/v1/runs/{run['id']}", params={"wait": 20})).json()
        assert ended["output"] == "Eve"
        refused = await caller.post(f"/v1/runs/{run['id']}/retry")
        assert (refused.status_code, refused.json()["type"]) == (409, "retry-refused")


async def test_a_batch_that_is_sent_again_starts_nothing_twice():
    async with running_server() as served, running_worker(served):
        caller = served.caller()
        body = {"workflow": "api_greeting", "calls": [{"args": ["a"]}, {"kwargs": {"name": "b"}}, {"args": ["a"]}]}
        first, second = [
            (await caller.post("/v1/runs/batch", json=body, headers={"Idempotency-Key": "many"})).json()["ids"]
            for _ in range(2)
        ]
        assert first == second
        assert len(set(first)) == 3
        outputs = [(await caller.get(f"/v1/runs/{one}", params={"wait": 20})).json()["output"] for one in first]
        assert outputs == ["hello a", "hello b", "hello a"]
        wrong = {"workflow": "api_greeting", "calls": [{"args": ["c"]}, {"kwargs": {"nme": "d"}}]}
        refused = await caller.post("/v1/runs/batch", json=wrong)
        assert (refused.status_code, refused.json()["type"]) == (422, "bad-input")
        assert len((await caller.get("/v1/runs")).json()["items"]) == 3, "none of a batch with a fault is started"


async def test_pages_of_runs_have_every_run_once_while_others_are_started():
    async with running_server() as served:
        caller = served.caller()
        async with running_worker(served):
            pass
        for number in range(7):
            await caller.post("/v1/runs", json=start("api_greeting", "Ada", id=f"run-{number}"))
        seen: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = (await caller.get("/v1/runs", params={"limit": 3, **cursor})).json()
            seen += [one["id"] for one in page["items"]]
            if page["next"] is None:
                break
            cursor = {"cursor": page["next"]}
            await caller.post("/v1/runs", json=start("api_greeting", "Bob"))
        assert seen == [f"run-{number}" for number in reversed(range(7))]
        wrong = await caller.get("/v1/runs", params={"cursor": "nonsense"})
        assert (wrong.status_code, wrong.json()["type"]) == (422, "bad-cursor")
        assert (await caller.get("/v1/runs", params={"limit": 501})).status_code == 422
        some = await caller.get("/v1/runs", params=[("state", "failed"), ("state", "dead")])
        assert some.json() == {"items": [], "next": None, "searched_until": None}
        assert len((await caller.get("/v1/runs", params={"text": "RUN-3"})).json()["items"]) == 1


async def test_signals_reach_a_run_once_and_it_can_be_paused_resumed_and_cancelled():
    async with running_server() as served, running_worker(served):
        caller = served.caller()
        run = (await caller.post("/v1/runs", json=start("api_waiting", "Ada", id="order/17"))).json()["id"]
        place = f"/v1/runs/{run.replace('/', '%2F')}"
        assert (await caller.get(f"{place}/result", params={"wait": 0.05})).status_code == 202
        assert (await caller.post(f"{place}/pause")).json() == {"changed": True}
        assert (await caller.post(f"{place}/pause")).json() == {"changed": False}
        assert "paused" in (await caller.get(place)).json()["stall_advice"]
        assert (await caller.post(f"{place}/resume")).json() == {"changed": True}
        for changed in (True, False):
            sent = await caller.post(
                f"{place}/signals", json={"name": "word", "value": "x"}, headers={"Idempotency-Key": "s"}
            )
            assert sent.json() == {"changed": changed}
        assert (await caller.get(place, params={"wait": 20})).json()["output"] == "hello Ada, x"
        late = await caller.post(f"{place}/cancel")
        assert (late.status_code, late.json()["type"], late.json()["run_id"]) == (409, "run-ended", run)

        other = (await caller.post("/v1/runs", json=start("api_waiting", "Bob"))).json()["id"]
        assert (await caller.post(f"/v1/runs/{other}/cancel")).json() == {"changed": True}
        assert (await caller.get(f"/v1/runs/{other}", params={"wait": 20})).json()["state"] == "cancelled"


async def test_a_fork_continues_from_a_step_and_is_made_once():
    async with running_server() as served, running_worker(served):
        caller = served.caller()
        run = (await caller.post("/v1/runs", json=start("api_greeting", "Ada", 2))).json()["id"]
        await caller.get(f"/v1/runs/{run}", params={"wait": 20})
        body, name = {"at": 2, "output": None}, {"Idempotency-Key": "fork"}
        forks = [await caller.post(f"/v1/runs/{run}/fork", json=body, headers=name) for _ in range(2)]
        assert [one.status_code for one in forks] == [201, 200]
        assert forks[0].json()["id"] == forks[1].json()["id"]
        for another in ({"at": 2, "output": "x"}, {"at": 2}, {"at": 1, "output": None}):
            conflict = await caller.post(f"/v1/runs/{run}/fork", json=another, headers=name)
            assert (conflict.status_code, conflict.json()["type"]) == (409, "run-conflict")
            assert "Idempotency-Key" in conflict.json()["detail"]
        failed = (await caller.get(f"/v1/runs/{forks[0].json()['id']}/result", params={"wait": 20})).json()
        assert failed["state"] == "failed", "null is an output, which the code cannot join"
        again = (await caller.post(f"/v1/runs/{run}/fork", json={"at": 2})).json()
        assert again["forked_from"] == run
        assert (await caller.get(f"/v1/runs/{again['id']}", params={"wait": 20})).json()[
            "output"
        ] == "hello Ada hello Ada"
        wrong = await caller.post(f"/v1/runs/{run}/fork", json={"at": "api_greet"})
        assert (wrong.status_code, wrong.json()["type"]) == (422, "bad-request")


async def test_a_fork_that_the_same_request_makes_at_the_same_moment_is_found(monkeypatch: pytest.MonkeyPatch):
    plain = run_control.fork_run

    async def fork_behind_another(*args: Any, **kwargs: Any) -> Any:
        raise RunConflict("the id is taken", (await plain(*args, **kwargs)).id)

    monkeypatch.setattr(run_control, "fork_run", fork_behind_another)
    async with running_server() as served, running_worker(served):
        caller = served.caller()
        run = (await caller.post("/v1/runs", json=start("api_greeting", "Ada", 2))).json()["id"]
        await caller.get(f"/v1/runs/{run}", params={"wait": 20})
        found = await caller.post(f"/v1/runs/{run}/fork", json={"at": 2}, headers={"Idempotency-Key": "fork"})
        assert (found.status_code, found.json()["forked_from"]) == (200, run)


async def test_values_are_plain_json_or_lose_nothing():
    moment, value = datetime(2026, 11, 16, tzinfo=UTC), {"when": None, "parts": (1, b"\x00\xff"), "$tagged": 1}
    value["when"] = moment
    async with running_server() as served, running_worker(served):
        caller = served.caller()
        sent = start("api_echo", to_wire(value))
        run = (await caller.post("/v1/runs", json=sent, headers=TAGGED)).json()["id"]
        tagged = await caller.get(f"/v1/runs/{run}/result", params={"wait": 20}, headers=TAGGED)
        assert from_wire(tagged.json()["output"]) == value
        plain = (await caller.get(f"/v1/runs/{run}/result")).json()["output"]
        assert (plain["when"], plain["parts"][0]) == ("2026-11-16T00:00:00Z", 1)
        info = (await caller.get(f"/v1/runs/{run}", headers=TAGGED)).json()
        assert from_wire(info["inputs"])["value"] == value
        wrong = await caller.get(f"/v1/runs/{run}", headers={"Holdfast-Values": "taged"})
        assert (wrong.status_code, wrong.json()["type"]) == (422, "bad-header")


async def test_dead_runs_are_listed_and_ended_ones_deleted():
    async with running_server() as served, running_worker(served):
        caller = served.caller()
        assert (await caller.get("/v1/dead-runs")).json() == {"items": [], "next": None}
        run = (await caller.post("/v1/runs", json=start("api_greeting", "Ada"))).json()["id"]
        await caller.get(f"/v1/runs/{run}", params={"wait": 20})
        dry = (await caller.post("/v1/prune", json={"older_than": 0, "dry_run": True})).json()
        assert (dry["run_count"], dry["dry_run"]) == (1, True)
        assert (await caller.post("/v1/prune", json={"older_than": 0})).json()["run_count"] == 1
        gone = await caller.get(f"/v1/runs/{run}")
        assert (gone.status_code, gone.json()["type"], gone.json()["run_id"]) == (404, "run-not-found", run)
        assert (await caller.get(f"/v1/runs/{run}/usage")).status_code == 404


async def test_a_key_that_may_only_submit_cannot_change_the_limits_of_a_queue():
    async with running_server() as served:
        async with running_worker(served):
            pass
        operator = served.caller(await served.key("operate", "submit"))
        submitter = served.caller(await served.key("submit", name="submitter"))
        limited = start("api_greeting", "Ada", queue={"name": "narrow", "concurrency": 1})
        refused = await submitter.post("/v1/runs", json=limited)
        assert (refused.status_code, refused.json()["scope"]) == (403, "operate")
        assert (await operator.post("/v1/runs", json=limited)).status_code == 201
        assert (await submitter.post("/v1/runs", json=limited)).status_code == 201, "the limits are as they were"
        wider = start("api_greeting", "Ada", queue={"name": "narrow", "concurrency": 1000})
        assert (await submitter.post("/v1/runs", json=wider)).status_code == 403
        assert (await operator.get("/v1/queues/narrow")).json()["concurrency"] == 1
        assert (await submitter.post("/v1/runs", json=start("api_greeting", "Ada", queue="narrow"))).status_code == 201


async def test_a_key_that_may_only_submit_reads_nothing_of_others_runs():
    async with running_server() as served, running_worker(served):
        reader = served.caller(await served.key("admin", name="reader"))
        submitter = served.caller(await served.key("submit"))
        done = (await reader.post("/v1/runs", json=start("api_greeting", "secret", id="known"))).json()
        await reader.get(f"/v1/runs/{done['id']}", params={"wait": 20})
        joined = await submitter.post("/v1/runs", json=start("api_greeting", "secret", id="known"))
        assert (joined.status_code, joined.json()["id"], joined.json()["state"]) == (200, "known", "completed")
        assert "secret" not in joined.text
        conflict = await submitter.post("/v1/runs", json=start("api_failing", "guess", id="known"))
        assert (conflict.status_code, conflict.json()["type"]) == (409, "run-conflict")
        assert "api_greeting" not in conflict.text

        answers["broken"] = True
        await reader.post("/v1/runs", json=start("api_failing", "secret", id="failed"))
        await reader.get("/v1/runs/failed", params={"wait": 20})
        failed = await submitter.post("/v1/runs", json=start("api_failing", "secret", id="failed"))
        assert (failed.status_code, failed.json()["type"], failed.json()["state"]) == (
            409,
            "run-unsuccessful",
            "failed",
        )
        assert "secret" not in failed.text
        assert "secret" in (await reader.post("/v1/runs", json=start("api_failing", "secret", id="failed"))).text

        sent = {"payload": "secret", "dedup": "x"}
        first = (await reader.post("/v1/addresses/shop/send", json=sent)).json()
        second = await submitter.post("/v1/addresses/shop/send", json={"payload": "mine", "dedup": "x"})
        assert (second.status_code, second.json()["id"]) == (200, first["id"])
        assert "secret" not in second.text

        for path, body in (
            ("/v1/runs", start("api_greetng", "Ada")),
            ("/v1/runs/batch", {"workflow": "api_greetng", "calls": [{}]}),
            ("/v1/schedules/nightl/trigger", {}),
        ):
            await reader.put("/v1/schedules/nightly", json={"workflow": "api_greeting", "every": "1 h", "args": ["x"]})
            unknown = await submitter.post(path, json=body)
            assert unknown.status_code == 404, unknown.text
            assert not {"api_greeting", "nightly"} & set(unknown.text.replace("'", " ").split())


async def test_a_created_resource_is_at_its_location():
    async with running_server() as served:
        caller = served.caller()
        sent = await caller.post("/v1/addresses/jobs/send", json={"id": "a/b c"})
        assert (sent.status_code, sent.headers["location"]) == (201, "/v1/runs/a%2Fb%20c")
        assert (await caller.get(sent.headers["location"])).json()["id"] == "a/b c"
        again = await caller.post("/v1/addresses/jobs/send", json={"id": "a/b c"})
        assert (again.status_code, again.headers.get("location")) == (200, None)
        forked = await caller.post("/v1/runs/a%2Fb%20c/fork", json={"id": "other"})
        assert (forked.status_code, forked.headers["location"]) == (201, "/v1/runs/other")
        made = await caller.post("/v1/keys", json={"name": "a", "scopes": ["read"]})
        assert made.headers["location"] == f"/v1/keys/{made.json()['id']}"


async def test_the_error_of_a_run_has_one_form():
    async with running_server() as served:
        caller = served.caller()
        await caller.post("/v1/addresses/jobs/send", json={"id": "fails"})
        taken = (await caller.post("/v1/addresses/jobs/claim?wait=5", json={})).json()
        error = {"type": "ValueError", "message": "bad: rows"}
        await caller.post(f"/v1/deliveries/{taken['id']}/fail", json={"error": error, "retry": False})
        assert (await caller.get("/v1/runs/fails")).json()["error"] == error
        assert (await caller.get("/v1/runs")).json()["items"][0]["error"] == error
        assert (await caller.get("/v1/runs/fails/result")).json()["error"] == error
        refused = await caller.post("/v1/addresses/jobs/send", json={"id": "fails"})
        assert (refused.status_code, refused.json()["error"]) == (409, error)
