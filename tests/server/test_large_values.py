"""Large values, and JSON that is made to be slow: the event loop of a server is for everybody, and does none of it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from asgi_server import AsgiServer, running_server

from holdfast.codec import canonical, tags
from holdfast.core.states import RunState
from holdfast.server.http import router
from holdfast.server.webhooks.http_client import WebhookResponse
from holdfast.server.webhooks.response_outcomes import Completed, Failed, interpret_response
from holdfast.services import json_form
from holdfast.services.thread_offload import LARGE_BYTES
from holdfast.stores.contract import WorkflowSpec
from holdfast.stores.operations import FinishRun
from holdfast.stores.workers import NewWorker

pytestmark = pytest.mark.asyncio

JSON = {"content-type": "application/json"}
HOSTILE = b"[" + b",".join([b"[" * 60 + b"]" * 60] * 4000) + b"]"
"""Half a megabyte with a quarter of a million arrays."""
NESTED = [[[number, {"a": []}]] for number in range(3000)]


@pytest.fixture
def on_loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What was encoded or decoded by the event loop's thread although it is large."""
    seen: list[str] = []
    loops = threading.current_thread()

    def watch(module: Any, name: str) -> None:
        plain = getattr(module, name)

        def watched(data: Any, *args: Any, **options: Any) -> Any:
            result = plain(data, *args, **options)
            sizes = [len(one) for one in (data, result) if isinstance(one, bytes | str)]
            if threading.current_thread() is loops and max(sizes, default=0) > LARGE_BYTES:
                seen.append(f"{module.__name__}.{name}")
            return result

        monkeypatch.setattr(module, name, watched)

    for module, name in (
        (tags, "from_json"),
        (tags, "to_json"),
        (canonical, "from_json"),
        (canonical, "to_canonical_bytes"),
        (json_form, "to_json_bytes"),
        (router, "to_json_bytes"),
    ):
        watch(module, name)
    yield seen
    assert not seen


async def ended(served: AsgiServer, run_id: str, output: bytes) -> None:
    store = (await served.app.platform.tenants.get_tenant("default")).store
    worker = await store.workers.register(NewWorker("test", "test", 1, ("takes",)), 60.0)
    [run] = await store.claims.claim(worker, workflows=["takes"], queues=None, limit=1)
    assert run.id == run_id
    await store.commit([FinishRun(run.key, run.epoch, RunState.COMPLETED, output, None, 0.0)])


async def test_large_values_are_encoded_and_decoded_off_the_event_loop(on_loop: list[str]):
    async with running_server() as served:
        store = (await served.app.platform.tenants.get_tenant("default")).store
        await store.announce_workflows([WorkflowSpec("takes", ("value",))])
        caller = served.caller()

        async def ask(method: str, path: str, body: Any = None, expected: int = 200) -> Any:
            answer = await caller.request(method, path, json=body)
            assert answer.status_code == expected, answer.text[:500]
            return answer.json() if answer.content else None

        started = await ask("POST", "/v1/runs", {"workflow": "takes", "args": [NESTED], "id": "a"}, 201)
        assert started["inputs"] == {"value": NESTED}
        await ask("POST", "/v1/runs/a/signals", {"name": "s", "value": NESTED})
        await ended(served, "a", json.dumps(NESTED).encode())
        assert (await ask("GET", "/v1/runs/a"))["output"] == NESTED
        assert (await ask("GET", "/v1/runs/a/result"))["output"] == NESTED
        assert (await ask("GET", "/v1/runs/a/report?values=full"))["output"] == NESTED
        assert (await ask("GET", "/v1/runs/a/events"))["items"][-1]["data"]["output"] == NESTED
        await ask("GET", "/v1/runs/a/journal")
        await ask("POST", "/v1/runs/batch", {"workflow": "takes", "calls": [{"args": [NESTED]}]}, 201)
        await ask("PUT", "/v1/memories/notes/large", {"value": NESTED}, 204)
        assert (await ask("GET", "/v1/memories/notes/large"))["value"] == NESTED
        assert (await ask("GET", "/v1/memories/notes"))["items"][0]["value"] == NESTED
        await ask("PUT", "/v1/schedules/often", {"workflow": "takes", "every": 3600, "args": [NESTED]})
        sent = await ask("POST", "/v1/addresses/jobs/send", {"payload": NESTED}, 201)
        taken = await ask("POST", "/v1/addresses/jobs/claim?wait=5", {})
        assert taken["payload"] == NESTED
        delivery = f"/v1/deliveries/{taken['id']}"
        await ask("POST", f"{delivery}/attempts", {"name": "s", "progress": NESTED}, 204)
        assert (await ask("POST", f"{delivery}/steps", {"name": "s", "output": NESTED}))["output"] == NESTED
        assert (await ask("GET", delivery))["steps"][0]["output"] == NESTED
        steps = await ask("GET", f"/v1/runs/{sent['id']}/steps")
        assert steps["items"][0]["value"] == NESTED
        assert (await ask("GET", f"/v1/runs/{sent['id']}/records/0"))["output"] == NESTED
        await ask("POST", f"{delivery}/complete", {"output": NESTED})
        assert (await ask("GET", f"/v1/runs/{sent['id']}/result"))["output"] == NESTED


async def test_a_body_with_too_many_values_is_refused_while_it_comes_in():
    async with running_server() as served:
        left = [HOSTILE[start : start + 50_000] for start in range(0, len(HOSTILE), 50_000)]
        head = [("host", "localhost"), ("content-type", "application/json")]
        code, _, body = await served.raw("POST", b"/v1/addresses/jobs/send", head, left)
        assert (code, json.loads(body)["type"]) == (422, "too-many-values")
        assert left


@pytest.mark.parametrize("number", ["1e400", "-1e400", "1" * 400 + ".0"])
async def test_a_number_too_large_for_a_float_is_refused_and_not_stored_as_text(number: str):
    async with running_server() as served:
        body = f'{{"payload": {{"amount": {number}}}}}'.encode()
        answer = await served.caller().post("/v1/addresses/jobs/send", content=body, headers=JSON)
        assert (answer.status_code, answer.json()["type"]) == (422, "bad-input")
        assert (await served.caller().get("/v1/runs")).json()["items"] == []


@pytest.mark.parametrize("body", [HOSTILE, b'{"amount": 1e400}', b"[NaN]"])
async def test_an_answer_of_a_webhook_has_the_same_limits(body: bytes):
    meant = interpret_response(WebhookResponse(200, {}, body), 0.0)
    assert isinstance(meant, Failed)
    assert "not JSON" in meant.message
    assert isinstance(interpret_response(WebhookResponse(200, {}, b'{"amount": 1e40}'), 0.0), Completed)


async def test_one_namespace_has_one_large_thing_done_at_a_time():
    async with running_server() as served:
        turns = served.app.platform.large_work
        first, second = turns.lock_for("acme"), turns.lock_for("acme")
        assert first is second
        assert turns.lock_for("other") is not first
        async with first:
            waiting = asyncio.create_task(second.acquire())
            await asyncio.sleep(0)
            assert not waiting.done()
        await waiting
