"""What does not fit is told as such, with words, and never as a fault of the server's."""

from __future__ import annotations

import json

import pytest
from serving import serving

from holdfast.server.streams import Sent
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
    async with serving() as served:
        store = await (await served.app.platform.tenants.tenant("default")).store()
        await store.publish([WorkflowSpec("takes", ("value",))])
        answer = await served.caller().post("/v1/runs", content=data, headers=JSON)
        assert answer.status_code == status, answer.text
        if status != 201:
            assert answer.headers["content-type"] == "application/problem+json"
            assert len(answer.json()["detail"]) > 10
            return
        run = answer.json()["id"]
        told = await served.caller().get(f"/v1/runs/{run}")
        assert told.json()["inputs"] == {"value": json.loads(data)["args"][0]}


ODD = {
    "a number of 400 digits": ({"$int": "f" * 332}, int("f" * 332, 16)),
    "a set as a key": ({"$dict": [[{"$frozenset": [1]}, 2]]}, {"[1]": 2}),
    "a time that is none": ({"$datetime": "noon"}, {"$datetime": "noon"}),
    "a tag that there is not": ({"$nonsense": 1}, {"$nonsense": 1}),
}


@pytest.mark.parametrize("name", ODD)
async def test_an_odd_tagged_value_is_kept_and_told_plainly(name: str):
    sent, expected = ODD[name]
    async with serving() as served:
        caller = served.caller(**{"Holdfast-Values": "tagged"})
        put = await caller.put("/v1/memories/m/k", json={"value": {"$tagged": sent}})
        assert put.status_code == 204, put.text
        assert (await served.caller().get("/v1/memories/m/k")).json()["value"] == expected
        assert (await caller.get("/v1/memories/m/k")).status_code == 200


async def test_ids_that_nothing_can_have_lead_nowhere():
    async with serving() as served:
        caller = served.caller()
        for path in ("/v1/runs/%00", "/v1/runs/a%0Ab", "/v1/runs/%FF", "/v1/memories/%00/%00", "/v1/queues/%ED%A0%80"):
            answer = await caller.get(path)
            assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json"), path
        long = await caller.get(f"/v1/runs/{'x' * 5000}")
        assert long.json()["type"] == "run-not-found"


async def test_what_json_cannot_say_is_said_in_words():
    assert Sent({"text": "a\ud800b"}).encoded() == b'data: {"text":"a?b"}\n\n'
    async with serving() as served:
        store = await (await served.app.platform.tenants.tenant("default")).store()
        await store.publish([WorkflowSpec("takes", ("value",))])
        body = b'{"workflow": "takes", "args": [1e999]}'  # more than any float
        answer = await served.caller().post("/v1/runs", content=body, headers=JSON)
        assert answer.json()["inputs"] == {"value": "Infinity"}
