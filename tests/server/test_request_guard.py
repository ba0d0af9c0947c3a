"""What is refused before anybody looks at it, and that all of it is told as a problem."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import quote

import pytest
from asgi_server import AsgiServer, running_server

from holdfast.errors import RunNotFound, SchemaTooNew, StoreError, StoreUnavailable
from holdfast.server.app import App, Settings
from holdfast.server.calls import Call
from holdfast.server.http.json_scanner import JsonLimitExceeded, check_json
from holdfast.server.http.response import StreamingResponse
from holdfast.server.http.router import Router
from holdfast.server.http.server_sent_events import ServerSentEvent, make_event_response
from holdfast.services.problems import problem_from_error

pytestmark = pytest.mark.asyncio

JSON = ("content-type", "application/json")
UNSAFE = ["POST", "PUT", "PATCH", "DELETE"]


@pytest.mark.parametrize(
    ("hosts", "is_ours"),
    [
        (["localhost"], True),
        (["localhost:7100"], True),
        (["LocalHost:7100"], True),
        (["127.0.0.1:7100"], True),
        (["[::1]:7100"], True),
        (["[::1]"], True),
        (["evil.example"], False),
        (["evil.example:7100"], False),
        (["localhost.evil.example"], False),
        (["localhost:7100.evil.example"], False),
        (["localhost:"], False),
        (["localhost@evil.example"], False),
        (["127.0.0.2"], False),
        (["[::2]:7100"], False),
        ([""], False),
        ([], False),
        (["localhost", "evil.example"], False),
        (["evil.example", "localhost"], False),
    ],
)
async def test_only_expected_host_names_are_answered_so_that_dns_rebinding_fails(hosts: list[str], is_ours: bool):
    async with running_server() as served:
        code, headers, body = await served.raw("GET", b"/v1/whoami", [("host", host) for host in hosts])
        assert code == (200 if is_ours else 421)
        if not is_ours:
            assert headers["content-type"] == "application/problem+json"
            assert json.loads(body)["type"] == "unknown-host"


async def test_more_host_names_can_be_allowed():
    async with running_server(settings=Settings(allowed_hosts=("Agents.example",))) as served:
        for host, expected in (("agents.example:443", 200), ("localhost", 421)):
            code, _, _ = await served.raw("GET", b"/v1/health", [("host", host)])
            assert code == expected


@pytest.mark.parametrize("method", UNSAFE)
@pytest.mark.parametrize(
    ("headers", "is_taken"),
    [
        ({}, True),
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"origin": "http://localhost:7100"}, True),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, False),
        ({"sec-fetch-site": ""}, False),
        ({"origin": "null"}, False),
        ({"origin": "https://evil.example"}, False),
        ({"origin": "http://localhost:3000"}, False),
        ({"origin": "http://localhost"}, False),
        ({"origin": "http://["}, False),
        ({"origin": ""}, False),
    ],
)
async def test_pages_of_other_sites_change_nothing(method: str, headers: dict[str, str], is_taken: bool):
    async with running_server() as served:
        path = b"/v1/keys/" + b"0" * 12  # which takes DELETE, and is asked for in vain
        code, response_headers, body = await served.raw(method, path, [("host", "localhost:7100"), *headers.items()])
        assert code == ((404 if method == "DELETE" else 405) if is_taken else 403)
        assert response_headers["content-type"] == "application/problem+json"
        assert (json.loads(body)["type"] == "cross-site") is not is_taken


async def test_a_page_of_another_site_may_link_here_but_neither_embed_nor_listen():
    async with running_server() as served:
        across = [("host", "localhost"), ("sec-fetch-site", "cross-site")]
        linked = [*across, ("sec-fetch-mode", "navigate")]
        assert (await served.raw("GET", b"/v1/whoami", linked))[0] == 200
        assert (await served.raw("GET", b"/v1/whoami", across))[0] == 403
        assert (await served.raw("GET", b"/v1/whoami", [("host", "localhost"), ("origin", "https://a.example")]))[
            0
        ] == 403
        # Listening takes work away from others, whatever its method.
        assert (await served.raw("GET", b"/v1/addresses/jobs/listen", linked))[0] == 403


async def test_a_body_that_is_too_large_is_refused_whether_it_says_so_or_not():
    async with running_server(settings=Settings(max_body_bytes=1000)) as served:
        host = ("host", "localhost")
        for length in ("1001", "9" * 30):
            code, _, body = await served.raw("POST", b"/v1/keys", [host, JSON, ("content-length", length)])
            assert (code, json.loads(body)["type"]) == (413, "too-large")
        code, _, body = await served.raw("POST", b"/v1/keys", [host, JSON], [b" " * 300] * 4)
        assert (code, json.loads(body)["type"]) == (413, "too-large")
        fits = json.dumps({"name": "x", "scopes": ["read"]}).encode()
        code, _, _ = await served.raw("POST", b"/v1/keys", [host, JSON], [fits[:10], fits[10:]])
        assert code == 201


async def test_the_nesting_of_json_is_limited():
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}"), (b'[{"[[[":', b"}]")):
        levels = 2 if opening.startswith(b"[{") else 1
        at_most = opening * (64 // levels) + b"1" + closing * (64 // levels)
        check_json(at_most)
        with pytest.raises(JsonLimitExceeded) as refused:
            check_json(b"[" + at_most + b"]")
        assert refused.value.kind == "too-deep"
    check_json(b'["' + b"[" * 1000 + rb"\"[[[[\\" + b'", {}]')
    check_json(b"[" + b"[],{}," * 40_000 + b"[]]")
    with pytest.raises(JsonLimitExceeded) as refused:
        check_json(b"[" * 1_000_000)
    assert refused.value.kind == "too-deep"
    async with running_server() as served:
        deep = b'{"payload":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        for body, expected in ((deep, "too-deep"), (b"[" * 60, "bad-input"), (b"\xff\xfe", "bad-input")):
            code, _, content = await served.raw(
                "POST", b"/v1/addresses/jobs/send", [("host", "localhost"), JSON], [body]
            )
            assert (code, json.loads(content)["type"]) == (422, expected)


@pytest.mark.parametrize(
    "path",
    [
        b"",
        b"//",
        b"/ui",
        b"/ui/",
        b"//v1/whoami",
        b"/v1//whoami",
        b"/v1/whoami/",
        b"/v1/../whoami",
        b"/v1/./whoami",
        b"/v1/%2e%2e/whoami",
        b"/v1%2Fwhoami",
        b"/v1/who%61mi",
        b"/V1/whoami",
        b"/v1/addresses/%00",
        b"/v1/addresses/a%00b",
        b"/v1/addresses/%ff",
        b"/v1/addresses/",
        b"/v1/whoami;x=1",
        b"http://evil.example/v1/whoami",
        b"*",
        b"/v1/\xff",
    ],
)
async def test_odd_paths_lead_nowhere(path: bytes):
    async with running_server() as served:
        code, headers, body = await served.raw("GET", path)
        assert (code, headers["content-type"]) == (404, "application/problem+json")
        assert json.loads(body)["type"] == "path-not-found"


async def test_a_name_may_contain_anything_and_is_one_segment_of_the_path():
    async with running_server() as served:
        for name in ("../../etc/passwd", "a/b", "..", "%2e%2e", "ünï", "?x=1", "#"):
            path = f"/v1/addresses/{quote(name, safe='').replace('.', '%2E')}".encode()
            assert (await served.raw("PUT", path, [("host", "localhost"), JSON], [b"{}"]))[0] == 200
            code, _, body = await served.raw("GET", path)
            assert (code, json.loads(body)["name"]) == (200, name)


async def test_a_405_lists_the_methods_of_a_path_and_head_has_no_body():
    async with running_server() as served:
        code, headers, _ = await served.raw("BREW", b"/v1/whoami")
        assert (code, headers["allow"]) == (405, "GET, HEAD")
        for method in ("OPTIONS", "TRACE", "CONNECT", "PUT"):
            assert (await served.raw(method, b"/v1/keys"))[0] == 405
        code, headers, body = await served.raw("HEAD", b"/v1/whoami")
        assert (code, body) == (200, b"")
        assert int(headers["content-length"]) > 0
        code, headers, body = await served.raw("HEAD", b"/v1/addresses/jobs/listen")
        assert (code, body, headers["content-type"]) == (200, b"", "text/event-stream; charset=utf-8")


async def test_responses_forbid_caching_and_embedding():
    async with running_server() as served:
        for path, host in ((b"/v1/whoami", "localhost"), (b"/nowhere", "localhost"), (b"/v1/whoami", "evil.example")):
            _, headers, _ = await served.raw("GET", path, [("host", host)])
            assert headers["cache-control"] == "no-store"
            assert headers["x-content-type-options"] == "nosniff"
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert not [name for name in headers if name.startswith("access-control-") or name == "server"]


@pytest.mark.parametrize(
    ("error", "status", "type"),
    [
        (StoreUnavailable("postgresql://user:hunter2@db/x is gone"), 503, "store-unavailable"),
        (SchemaTooNew("a newer Holdfast has migrated postgresql://user:hunter2@db/x"), 503, "server-outdated"),
        (StoreError("postgresql://user:hunter2@db/x has no table"), 500, "server-error"),
        (ZeroDivisionError("hunter2"), 500, "server-error"),
    ],
)
async def test_the_outside_learns_nothing_of_the_servers_own_troubles(
    error: Exception, status: int, type: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async with running_server() as served:
        store = await served.app.platform.tenants.get_default_store()
        assert (await served.caller().get("/v1/whoami")).status_code == 200

        async def fail(*_: Any, **__: Any) -> None:
            raise error

        monkeypatch.setattr(store.audit_log, "list", fail)
        with caplog.at_level(logging.WARNING, "holdfast.server"):
            answer = await served.caller().get("/v1/audit")
        assert (answer.status_code, answer.json()["type"]) == (status, type)
        assert answer.headers["content-type"] == "application/problem+json"
        assert "hunter2" not in answer.text
        assert "Traceback" not in answer.text
        assert answer.headers.get("retry-after") == ("1" if status == 503 else None)
        if status == 500:
            assert answer.json()["error_id"] in caplog.text


@pytest.mark.parametrize("error", [StoreUnavailable("hunter2"), ZeroDivisionError("hunter2"), None])
async def test_a_stream_that_fails_just_ends_and_all_end_when_the_server_is_about_to_stop(
    error: Exception | None, caplog: pytest.LogCaptureFixture
):
    api, is_closed = Router(), asyncio.Event()

    @api("GET", "/v1/stream", scope=None)
    async def stream(call: Call) -> StreamingResponse:  # pyright: ignore[reportUnusedFunction]
        async def events() -> AsyncGenerator[ServerSentEvent]:
            try:
                yield ServerSentEvent(b'{"number":1}')
                if error is not None:
                    raise error
                call.platform.closing.set()
                await asyncio.sleep(3600)
            finally:
                is_closed.set()

        return make_event_response(events())

    async with running_server() as served:
        with caplog.at_level(logging.WARNING, "holdfast.server"):
            app = App(served.app.platform, api.endpoints)
            code, _, body = await AsgiServer(app, "memory://").raw("GET", b"/v1/stream")
        assert code == 200
        assert body.startswith(b': welcome\n\ndata: {"number":1}\n\n')
        assert b"hunter2" not in body
        assert is_closed.is_set()
        assert ("server error" in caplog.text) is isinstance(error, ZeroDivisionError)


async def test_the_location_of_the_store_is_not_revealed():
    async with running_server() as served:
        answer = await served.caller().get("/v1/runs/nope/deliveries")
        assert (answer.status_code, answer.json()["type"]) == (404, "run-not-found")
        assert "memory://" not in answer.text
        assert "this server's store" in answer.json()["detail"]


@pytest.mark.parametrize("url", ["sqlite:////var/runs.db", "postgresql://u:p@db/x", "temporal://t:7233/acme"])
async def test_the_url_of_no_kind_of_store_is_revealed(url: str):
    problem = problem_from_error(RunNotFound(f"there is no run 'a' in {url}.", "a"))
    assert problem is not None
    assert problem.detail == "there is no run 'a' in this server's store."


async def test_texts_have_no_nuls_but_values_may():
    async with running_server() as served:
        http = served.caller()
        for body, status in (
            ({"payload": ["a\0b", {"\0": "\0"}]}, 201),
            ({"payload": 1, "id": "a\0b"}, 422),
            ({"payload": 1, "tags": ["a", "b\0"]}, 422),
        ):
            answer = await http.post("/v1/addresses/jobs/send", json=body)
            assert answer.status_code == status, answer.text
        assert (await http.get("/v1/audit", params={"cursor": "1\0"})).status_code == 422
