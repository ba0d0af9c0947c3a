"""Requests to a server: what is sent again, for how long, what is not, and who gets to see the key."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest

from holdfast import Budget, Client, HoldfastError, Runtime, UsageError
from holdfast.client.http.backoff import Timing
from holdfast.client.http.client import HttpClient
from holdfast.client.http.sse import ServerSentEvent, SseParser
from holdfast.errors import (
    NotAllowed,
    PolicyLimitReached,
    RetryRefused,
    RunConflict,
    ServerError,
    ServerUnavailable,
    StoreUnavailable,
    TooManyRequests,
    Unauthenticated,
)

pytestmark = pytest.mark.asyncio

KEY = "hf_abc_SECRET"
RUN = {
    "id": "r", "workflow": "w", "state": "running", "queue": "default", "queue_key": "", "finished_at": None,
    "created_at": "2030-01-01T00:00:00Z", "inputs": {}, "output": None, "error": None, "waits_for": "", "tags": [],
    "is_paused": False, "is_cancelling": False, "parent": None, "forked_from": None, "version": "",
    "stall_advice": None, "wake_at": None, "paused_at": None, "stall_summary": None, "has_started": True,
    "is_claimed": True, "usage": None,
}  # fmt: skip
BROKEN = httpx2.ReadError("the connection broke")
AWAY = httpx2.ConnectError("nobody listens")

Reply = Exception | httpx2.Response | Callable[[httpx2.Request], httpx2.Response]


def json_response(data: Any, status: int = 200, **headers: str) -> httpx2.Response:
    kind = "application/problem+json" if status >= 400 else "application/json"
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx2.Response(status, content=json.dumps(data).encode(), headers={"content-type": kind, **headers})


def problem(status: int, type: str, detail: str = "", **more: str) -> httpx2.Response:
    headers = {name: more.pop(name) for name in ("retry_after",) if name in more}
    return json_response({"type": type, "title": type, "status": status, "detail": detail, **more}, status, **headers)


def stream(*events: tuple[str, dict[str, Any]], end: bytes = b"") -> httpx2.Response:
    text = ": welcome\n\n" + "".join(f"id: {id}\nevent: e\ndata: {json.dumps(data)}\n\n" for id, data in events)
    return httpx2.Response(200, content=text.encode() + end, headers={"content-type": "text/event-stream"})


def event(offset: str, kind: str = "step") -> tuple[str, dict[str, Any]]:
    at = "2030-01-01T00:00:00+00:00"
    return offset, {
        "offset": offset,
        "kind": kind,
        "at": at,
        "run_id": "r",
        "step": 1,
        "name": "n",
        "text": "",
        "data": {},
    }


@dataclass
class Script:
    """A server that answers by a script, and a clock that only waiting moves."""

    replies: list[Reply]
    requests: list[httpx2.Request] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    now: float = 0.0

    def client(self, url: str = "http://localhost:7100", **options: Any) -> Client:
        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)
            self.now += seconds

        pace = Timing(lambda: self.now, sleep, lambda: 1.0)
        return HttpClient(url, api_key=KEY, timing=pace, http_transport=httpx2.MockTransport(self.answer), **options)

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, httpx2.Response) else reply(request)


def script(*replies: Reply) -> Script:
    return Script(list(replies))


def bodies(requests: Sequence[httpx2.Request]) -> list[Any]:
    return [json.loads(request.content or b"null") for request in requests]


# What is sent again


async def test_a_failed_request_is_sent_again_with_the_same_key() -> None:
    server = script(AWAY, BROKEN, problem(503, "store-unavailable"), problem(502, ""), json_response(RUN, 201))
    assert (await server.client().start("w", 1)).run_id == "r"
    assert len({request.headers["idempotency-key"] for request in server.requests}) == 1
    assert len({request.content for request in server.requests}) == 1
    assert server.slept == [0.1, 0.2, 0.4, 0.8]
    other = await server.client().start("w", 1)
    assert other.run_id == "r"
    assert server.requests[-1].headers["idempotency-key"] != server.requests[0].headers["idempotency-key"]


async def test_retry_after_is_respected() -> None:
    server = script(
        problem(429, "too-many-requests", retry_after="3"), problem(503, "x", retry_after="0"), json_response(RUN)
    )
    await server.client().get("r")
    assert server.slept == [3.1, 0.2]


async def test_a_call_gives_up_after_half_a_minute_with_a_helpful_error() -> None:
    server = script(AWAY)
    with pytest.raises(
        ServerUnavailable, match=r"http://localhost:7100 does not answer \(nobody listens\), and GET /v1/runs/r"
    ):
        await server.client().get("r")
    assert 20 < server.now <= 30
    assert max(server.slept) == 5.0
    server = script(BROKEN)
    with pytest.raises(StoreUnavailable, match="It may have been carried out"):
        await server.client().cancel("r")
    with pytest.raises(ServerUnavailable, match="store cannot be reached"):
        await script(problem(503, "store-unavailable", "The store cannot be reached")).client().get("r")
    with pytest.raises(TooManyRequests, match="Ask again in 40 s"):
        await script(problem(429, "too-many-requests", "Ask again in 40 s", retry_after="40")).client().get("r")


async def test_a_permanent_error_is_not_retried() -> None:
    for reply, kind in (
        (problem(401, "invalid-api-key", "It has expired."), Unauthenticated),
        (problem(403, "not-allowed", "It needs more.", scope="operate"), NotAllowed),
        (problem(429, "policy-limit", "No more today.", retry_after="3600"), PolicyLimitReached),
        (problem(500, "server-error", "Look for 7 in the log."), ServerError),
        (problem(409, "run-conflict", "taken", run_id="r"), RunConflict),
        (problem(418, "something-newer", "Short and stout."), ServerError),
        (httpx2.Response(404, text="<html>"), ServerError),
        (httpx2.Response(200, text="<html>welcome</html>"), ServerError),
        (json_response([]), ServerError),
    ):
        server = script(reply)
        with pytest.raises(kind) as raised:
            await server.client().get("r")
        assert len(server.requests) == 1
        detail = (
            json.loads(reply.content).get("detail") if reply.status_code > 400 and reply.content[:1] == b"{" else ""
        )
        assert (detail or "") in str(raised.value)


async def test_a_wait_survives_any_outage_of_the_server() -> None:
    ended = {"run_id": "r", "workflow": "w", "state": "completed", "output": 7, "usage": None, "error": None}
    not_yet = json_response({"run_id": "r", "workflow": "w", "state": "running"}, 202)
    server = script(*[AWAY] * 50, not_yet, BROKEN, not_yet, json_response(ended))
    assert await server.client().wait("r") == 7
    assert server.now > 200
    assert all(
        delay > 0 for delay in server.slept
    )  # a server that does not wait, because it stops, is not asked at once
    assert {request.url.params["wait"] for request in server.requests} == {"25"}


async def test_the_effect_of_an_earlier_try_is_no_error() -> None:
    refused, taken = problem(409, "retry-refused", "it is running"), problem(409, "run-conflict", "taken")
    server = script(BROKEN, refused, json_response(RUN))
    await server.client().retry("r")
    assert [request.method for request in server.requests] == ["POST", "POST", "GET"]
    with pytest.raises(RetryRefused):
        await script(refused).client().retry("r")
    with pytest.raises(RetryRefused):
        await script(AWAY, refused).client().retry("r")  # nobody can have heard the first one
    server = script(BROKEN, taken, json_response(RUN | {"id": "f", "forked_from": "r"}))
    assert (await server.client().fork("r", id="f")).run_id == "f"
    with pytest.raises(RunConflict):
        await (
            script(BROKEN, taken, json_response(RUN | {"id": "f", "forked_from": "another"})).client().fork("r", id="f")
        )
    server = script(BROKEN, json_response({"changed": False}))
    assert await server.client().signal("r", "go")  # it was the first try that has sent it
    assert bodies(server.requests)[0] == bodies(server.requests)[1]
    assert not await script(json_response({"changed": False})).client().signal("r", "go", id="mine")


# Events


async def test_events_continue_after_the_last_one_whatever_breaks() -> None:
    half = b'id: x\ndata: {"offset": "x"'  # what was cut off is not taken for an event
    server = script(
        stream(event("a"), event("b"), end=half),
        json_response(RUN),  # it has ended without a word: is the run over?
        AWAY,
        problem(503, "store-unavailable"),
        stream(end=b'event: problem\ndata: {"type": "store-unavailable", "status": 503}\n\n'),
        stream(event("c"), event("d", "ended")),
    )
    assert [one.offset async for one in server.client().events("r", "0")] == ["a", "b", "c", "d"]
    streams = [request for request in server.requests if request.headers["accept"] == "text/event-stream"]
    assert [request.headers["last-event-id"] for request in streams] == ["0", "b", "b", "b", "b"]
    assert len(server.slept) == 4


async def test_a_problem_in_a_stream_is_raised() -> None:
    gone = b'event: problem\ndata: {"type": "run-not-found", "status": 404, "detail": "it was deleted"}\n\n'
    with pytest.raises(HoldfastError, match="it was deleted"):
        await anext(script(stream(end=gone)).client().events("r"))
    with pytest.raises(ServerError, match="no stream of events"):
        await anext(script(json_response({})).client().events("r"))


async def test_events_are_read_wherever_the_bytes_are_cut() -> None:
    text = "\ufeff: hello\r\nid: 1\r\nevent: text\r\ndata: ä\r\ndata:  b\r\n\r\ndata\n\n\nid: 2\rdata: c\r\r"
    text += "event: x\n\nretry: 5\ndata: d\n\ndata: lost"
    expected = [
        ServerSentEvent("ä\n b", "text", "1"),
        ServerSentEvent("", "", "1"),
        ServerSentEvent("c", "", "2"),
        ServerSentEvent("d", "", "2"),
    ]
    data = text.encode()
    for size in (1, 2, 3, 5, len(data)):
        reader = SseParser()
        found = [one for at in range(0, len(data), size) for one in reader.feed(data[at : at + size])]
        assert found == expected, size


async def test_an_event_that_comes_in_many_pieces_is_looked_through_once() -> None:
    """A delivery may bring many megabytes: a reader that began anew with each piece would never be done."""
    reader, piece = SseParser(), b"x" * 512
    assert list(reader.feed(b"data: ")) == []
    for _ in range(64_000):
        assert list(reader.feed(piece)) == []
    [found] = reader.feed(b"\n\n")
    assert len(found.data) == 64_000 * 512


async def test_a_listener_raises_when_the_server_sends_unreadable_data() -> None:
    hello = 'event: listener\ndata: {"listener_id": "1.box", "lease": 30}\n\n'
    odd = 'event: delivery\ndata: {"id": "d1", "kind": "of another version"}\n\n'
    answer = httpx2.Response(200, content=(hello + odd).encode(), headers={"content-type": "text/event-stream"})
    client = script(answer, json_response({}, 200)).client()
    with pytest.raises(ServerError, match=r"cannot read, as 'delivery' of address 'box'.*Are both of the same version"):
        async with asyncio.timeout(10):
            await anext(client.listen("box"))
    await client.close()


async def test_an_invalid_request_raises_an_error_of_holdfast() -> None:
    with pytest.raises(ServerError, match="cannot be asked: URL too long"):
        await script(json_response(RUN)).client().get("r" * 70_000)
    with pytest.raises(ServerError, match="cannot be asked: Invalid IDNA hostname"):
        await script(json_response(RUN)).client("http://\u200b.localhost").get("r")


# The key


async def test_the_key_goes_to_the_server_and_nowhere_else(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server = script(httpx2.Response(307, headers={"location": "http://evil.example/v1/runs/r"}))
    client = server.client()
    with pytest.raises(ServerError, match="not followed") as redirected:
        await client.get("r")
    assert [request.url.host for request in server.requests] == ["localhost"]
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    with pytest.raises(ServerUnavailable) as failed:
        await script(AWAY).client().get("r")
    with pytest.raises(Unauthenticated) as unknown:
        await script(problem(401, "invalid-api-key")).client().get("r")
    place = client._transport.endpoint
    shown = [client, client.url, client._transport, place, vars(client), caplog.text]
    shown += [redirected.value, failed.value, unknown.value, vars(failed.value)]
    assert not any("SECRET" in text for one in shown for text in (repr(one), str(one)))


async def test_a_key_is_not_sent_in_plain_text_over_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="in plain text") as refused:
        Client("http://holdfast.example", api_key=KEY)
    assert "SECRET" not in str(refused.value)
    for url in ("http://localhost:1", "http://127.0.0.9", "http://[::1]:7100", "https://holdfast.example/base/"):
        assert Client(url, api_key=KEY).url == url.rstrip("/")
    Client("http://holdfast.example", api_key=KEY, insecure=True)
    Client("http://holdfast.example")  # without a key there is nothing to be read
    monkeypatch.setenv("HOLDFAST_API_KEY", KEY)
    with pytest.raises(UsageError, match="HOLDFAST_INSECURE=1"):
        Client("http://10.0.0.1")
    monkeypatch.setenv("HOLDFAST_INSECURE", "1")
    monkeypatch.setenv("HOLDFAST_URL", "http://10.0.0.1:7100")
    assert Client()._transport.endpoint.auth_headers() == {"Authorization": f"Bearer {KEY}"}
    with pytest.raises(UsageError, match="is a Holdfast server, and this needs the store itself"):
        Runtime()


async def test_a_servers_address_is_checked() -> None:
    for url, words in (
        ("http://", "names no host"),
        ("http://user:SECRET@host", "the key is given as api_key="),
        ("http://host:port", "cannot be read"),
        ("http://host/?namespace=acme", "nothing behind its path"),
    ):
        with pytest.raises(UsageError, match=words) as refused:
            Client(url)
        assert "SECRET" not in str(refused.value)
    with pytest.raises(UsageError, match="holdfast keys create"):
        Client("http://localhost", api_key="hf_SECRET\n")
    with pytest.raises(UsageError, match="a key of that namespace"):
        Client("http://localhost", namespace="acme")
    with pytest.raises(UsageError, match="is a store"):
        Client("sqlite:///runs.db", api_key=KEY)


async def test_paths_and_values_are_quoted() -> None:
    server = script(json_response(RUN))
    client = server.client("http://localhost/base/")
    await client.get("a/b?c#d ü%2F")
    assert server.requests[-1].url.raw_path == b"/base/v1/runs/a%2Fb%3Fc%23d%20%C3%BC%252F"
    server.replies = [json_response({"changed": True})]
    await client.set_budget("r", Budget(usd=0.5, turns=3))
    assert bodies(server.requests)[-1] == {"usd": 0.5, "turns": 3}
    assert server.requests[-1].headers["holdfast-values"] == "tagged"


async def test_a_client_of_a_server_loads_neither_tools_nor_model_library_nor_server() -> None:
    heavy = ("pydantic_ai", "holdfast.tools", "holdfast.agents", "holdfast.engine", "psycopg", "starlette", "uvicorn")
    code = (
        "import sys, holdfast\n"
        "holdfast.Client('sqlite:///x.db')\n"
        f"print([name for name in {(*heavy, 'httpx2')!r} if name in sys.modules])\n"
        "holdfast.Client('http://localhost:1')\n"
        f"print([name for name in {heavy!r} if name in sys.modules])\n"
    )
    out = subprocess.run(  # noqa: ASYNC221
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert out.split("\n")[:2] == ["[]", "[]"]
