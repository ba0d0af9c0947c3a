"""What does not fit is told as such, with words, and never as a fault of the server's."""

from __future__ import annotations

import json

import pytest
from asgi_server import running_server

from holdfast.services.json_form import to_json_bytes
from holdfast.stores.contract import WorkflowSpec

pytestmark = pytest.mark.asyncio

JSON = {"content-type": "application/json"}

BODIES = {
    "a tagged number of 6000 digits": (b'{"workflow": "takes", "args": [{"$int": "' + b"9" * 5000 + b'"}]}', 422),
    "no JSON": (b"{", 422),
    "not a number": (b'{"workflow": "takes", "args": [NaN]}', 422),
    "an infinite number": (b'{"workflow": "takes", "args": [-Infinity]}', 422),
    "half a character": (rb'{"workflow": "takes", "args": ["\ud800"]}', 422),
    "half a character in a name": (rb'{"workflow": "\udc00"}', 422),
    "bytes that are no text": (b'{"workflow": "\xff"}', 422),
    "a NUL in a name": (rb'{"workflow": "a\u0000b"}', 422),
    "a NUL in a tag": (rb'{"workflow": "takes", "args": [1], "tags": ["a\u0000"]}', 422),
    "a NUL in an id": (rb'{"workflow": "takes", "args": [1], "id": "a\u0000"}', 422),
    "a NUL in a value": (rb'{"workflow": "takes", "args": ["a\u0000b"]}', 201),
    "a huge number": (b'{"workflow": "takes", "args": [' + b"9" * 300 + b"]}", 201),
    "a number that is longer than Python reads": (b'{"workflow": "takes", "args": [' + b"9" * 5000 + b"]}", 422),
    "a priority that no column takes": (b'{"workflow": "takes", "args": [1], "priority": 9223372036854775808}', 422),
    "a text that looks like a number": (b'{"workflow": "takes", "args": [1], "priority": "5"}', 422),
    "a delay of a thousand years": (b'{"workflow": "takes", "args": [1], "delay": 31557600000}', 422),
    "a budget of nothing": (b'{"workflow": "takes", "args": [1], "budget": {}}', 422),
    "an option that is misspelt": (b'{"workflow": "takes", "args": [1], "taggs": []}', 422),
    "a list": (b"[]", 422),
    "nothing": (b"", 422),
    "too deep": (b'{"workflow": "takes", "args": [' + b"[" * 70 + b"]" * 70 + b"]}", 422),
    "an input that there is not": (b'{"workflow": "takes", "kwargs": {"other": 1}}', 422),
    "a workflow that nobody has announced": (b'{"workflow": "unheard of"}', 404),
    "a lone quote in the mark of tagged values": (b'{"workflow": "takes", "args": [{"$tagged": {"$t": 1}}]}', 201),
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_body_that_does_not_fit_is_refused_in_words(name: str):
    data, status = BODIES[name]
    async with running_server() as served:
        store = (await served.app.platform.tenants.get_tenant("default")).store
        await store.announce_workflows([WorkflowSpec("takes", ("value",))])
        answer = await served.caller().post("/v1/runs", content=data, headers=JSON)
        assert answer.status_code == status, answer.text
        if status != 201:
            assert answer.headers["content-type"] == "application/problem+json"
            assert len(answer.json()["detail"]) > 10
            return
        run = answer.json()["id"]
        response = await served.caller().get(f"/v1/runs/{run}")
        assert response.json()["inputs"] == {"value": json.loads(data)["args"][0]}


ODD = {
    "a number of 400 digits": ({"$int": "f" * 332}, int("f" * 332, 16)),
    "a set as a key": ({"$dict": [[{"$frozenset": [1]}, 2]]}, {"[1]": 2}),
    "a time that is none": ({"$datetime": "noon"}, {"$datetime": "noon"}),
    "a tag that there is not": ({"$nonsense": 1}, {"$nonsense": 1}),
}


@pytest.mark.parametrize("name", ODD)
async def test_an_odd_tagged_value_is_stored_and_returned_in_plain_form(name: str):
    sent, expected = ODD[name]
    async with running_server() as served:
        caller = served.caller(**{"Holdfast-Values": "tagged"})
        put = await caller.put("/v1/memories/m/k", json={"value": {"$tagged": sent}})
        assert put.status_code == 204, put.text
        assert (await served.caller().get("/v1/memories/m/k")).json()["value"] == expected
        assert (await caller.get("/v1/memories/m/k")).status_code == 200


async def test_ids_that_nothing_can_have_lead_nowhere():
    async with running_server() as served:
        caller = served.caller()
        for path in ("/v1/runs/%00", "/v1/runs/a%0Ab", "/v1/runs/%FF", "/v1/memories/%00/%00", "/v1/queues/%ED%A0%80"):
            answer = await caller.get(path)
            assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json"), path
        long = await caller.get(f"/v1/runs/{'x' * 5000}")
        assert long.json()["type"] == "run-not-found"


async def test_a_value_that_json_cannot_represent_is_returned_as_text():
    assert to_json_bytes({"text": "a\ud800b"}) == b'{"text":"a?b"}'
    async with running_server() as served:
        store = (await served.app.platform.tenants.get_tenant("default")).store
        await store.announce_workflows([WorkflowSpec("takes", ("value",))])
        tagged = served.caller(**{"Holdfast-Values": "tagged"})  # which has a form for it
        body = {"workflow": "takes", "args": [{"$tagged": {"$float": "inf"}}], "id": "infinite"}
        assert (await tagged.post("/v1/runs", json=body)).status_code == 201
        assert (await served.caller().get("/v1/runs/infinite")).json()["inputs"] == {"value": "Infinity"}


MOMENTS = {
    "a deadline that no calendar has": ("POST", "/v1/addresses/far/send", {"payload": 1, "deadline": 1e300}),
    "a deadline without an end": ("POST", "/v1/addresses/far/send", b'{"deadline": 1e999}'),
    "a key until the end of the calendar": (
        "POST",
        "/v1/keys",
        {"name": "far", "scopes": ["read"], "expires_at": "9999-12-31T23:59:59.999999Z"},
    ),
    "a schedule from before the calendar": (
        "PUT",
        "/v1/schedules/far",
        {"workflow": "takes", "every": 60, "start": "0001-01-01T00:00:00+14:00"},
    ),
    "runs from before the calendar": ("GET", "/v1/runs?created_after=0001-01-01T00:00:00%2B14:00", None),
    "what has happened before the calendar": ("GET", "/v1/events?since=0001-01-01T00:00:00%2B14:00", None),
}


@pytest.mark.parametrize("name", MOMENTS)
async def test_a_time_out_of_range_is_refused_before_it_is_stored(name: str):
    method, path, body = MOMENTS[name]
    async with running_server() as served:
        content = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else b""
        answer = await served.caller().request(method, path, content=content, headers=JSON)
        assert (answer.status_code, answer.json()["type"]) == (422, "bad-input"), answer.text


async def test_a_step_that_began_before_the_calendar_is_refused_and_one_without_a_zone_began_in_utc():
    async with running_server() as served:
        caller = served.caller()
        await caller.post("/v1/addresses/far/send", json={"payload": 1})
        taken = (await caller.post("/v1/addresses/far/claim?wait=5", json={})).json()
        steps = f"/v1/deliveries/{taken['id']}/steps"
        refused = await caller.post(steps, json={"name": "a", "started_at": "0001-01-01T00:00:00+14:00"})
        assert (refused.status_code, refused.json()["type"]) == (422, "bad-input")
        assert (await caller.post(steps, json={"name": "a", "started_at": "2026-11-16T12:00:00"})).status_code == 200
        [step] = (await caller.get(f"/v1/runs/{taken['run_id']}/steps")).json()["items"]
        assert step["started_at"] == "2026-11-16T12:00:00Z"


HEADED = {
    "send": ("POST", "/v1/addresses/a/send", "Idempotency-Key", ""),
    "values sent": ("POST", "/v1/addresses/a/send", "Holdfast-Values", "taged"),
    "take": ("POST", "/v1/addresses/a/claim", "Holdfast-Values", "taged"),
    "listen": ("GET", "/v1/addresses/a/listen", "Holdfast-Values", "taged"),
    "steps": ("POST", "/v1/deliveries/1.YQ/steps", "Holdfast-Values", "taged"),
    "ask": ("POST", "/v1/deliveries/1.YQ/ask", "Holdfast-Values", "taged"),
}


@pytest.mark.parametrize("name", HEADED)
async def test_a_header_that_does_not_fit_is_refused_wherever_it_is_read(name: str):
    method, path, header, value = HEADED[name]
    async with running_server() as served:
        answer = await served.caller().request(method, path, headers={header: value})
        assert (answer.status_code, answer.json()["type"]) == (422, "bad-header"), answer.text


async def test_a_cursor_of_another_list_is_refused_alike_everywhere():
    async with running_server() as served:
        caller = served.caller()
        for path in ("/v1/runs", "/v1/dead-runs", "/v1/audit"):
            answer = await caller.get(path, params={"cursor": "bm9uZTox"})
            assert (answer.status_code, answer.json()["type"]) == (422, "bad-cursor"), path
