"""Who is let in, how often and how much at once, and that nobody can keep others out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx2
import pytest
from asgi_server import AsgiServer, Clock, running_server
from live_server import running_live_server

from holdfast.server.app import Settings
from holdfast.server.auth import audit_log
from holdfast.server.endpoints import server_info
from holdfast.stores.audit_log import AuditEvent

pytestmark = pytest.mark.asyncio

GUESSES = [f"hf_{number:012x}_{'x' * 43}" for number in range(60)]


async def status(served: AsgiServer, token: str | None = None, **more: Any) -> int:
    return (await served.caller(token, **more).get("/v1/whoami")).status_code


# Keys that are not valid


async def test_a_valid_key_is_served_at_an_address_that_sent_many_invalid_ones():
    async with running_server(settings=Settings(clock=Clock(1000.0))) as served:
        seen = await served.key("read")
        assert await status(served, seen) == 200
        codes = [await status(served, guess) for guess in GUESSES]
        codes += [await status(served) for _ in range(20)]
        assert codes == [401] * 20 + [429] * 60  # what is said to strangers is limited
        fresh = await served.key("read")
        assert await status(served, fresh) == 200
        assert await status(served, seen) == 200


async def test_keys_that_are_looked_up_at_the_same_time_share_reads_of_the_store(monkeypatch: pytest.MonkeyPatch):
    async with running_server() as served:
        valid = [await served.key("read") for _ in range(3)]
        store, requested = await served.app.platform.tenants.get_default_store(), list[Any]()
        await status(served, valid[0])
        plain = store.documents.list

        async def documents(kind: str, names: Any = None, **more: Any) -> Any:
            requested.append(names)
            await asyncio.sleep(0.01)
            return await plain(kind, names, **more)

        monkeypatch.setattr(store.documents, "list", documents)
        served.app.platform.authenticator._cache.clear()
        codes = await asyncio.gather(*(status(served, token) for token in [*GUESSES, *valid]))
        assert codes[-3:] == [200] * 3
        assert len(requested) <= 3


async def test_a_failing_store_fails_the_waiting_requests_and_no_later_ones(
    monkeypatch: pytest.MonkeyPatch,
):
    async with running_server() as served:
        token = await served.key("read")
        store = await served.app.platform.tenants.get_default_store()
        await status(served)
        plain = store.documents.list

        async def fail(*given: Any, **more: Any) -> Any:
            await asyncio.sleep(0)
            raise OSError("gone")

        monkeypatch.setattr(store.documents, "list", fail)
        assert await asyncio.gather(*(status(served, token) for _ in range(3))) == [500] * 3
        monkeypatch.setattr(store.documents, "list", plain)
        assert await status(served, token) == 200


# Refused requests in the audit log


async def test_a_key_that_is_refused_again_and_again_does_not_fill_the_audit_log():
    clock = Clock(1000.0)
    async with running_server(settings=Settings(clock=clock, requests_per_s=10_000)) as served:
        denied = served.caller(await served.key("read", name="ci"))
        for number in range(200):
            answer = await denied.put(f"/v1/addresses/jobs-{number}", json={})
            assert answer.status_code == 403
        await denied.delete("/v1/schedules/nightly")
        store = await served.app.platform.tenants.get_default_store()
        assert len(await store.audit_log.list(limit=1000)) == audit_log.MAX_ENTRIES_PER_WINDOW
        clock.now += audit_log.WINDOW_S
        await denied.put("/v1/addresses/jobs", json={})  # the next window begins
        newest = [one.event for one in await store.audit_log.list(limit=3)]
        entries = {(one.action, one.outcome, one.target, one.key_name) for one in newest}
        assert entries == {
            ("set_address", "denied", "jobs", "ci"),
            ("set_address", "denied", "190 more requests, the last for jobs-199", "ci"),
            ("delete_schedule", "denied", "1 more requests, the last for nightly", "ci"),
        }


async def test_counted_denials_are_logged_when_the_server_stops(monkeypatch: pytest.MonkeyPatch):
    noted: list[AuditEvent] = []
    async with running_server() as served:
        denied = served.caller(await served.key("read"))
        store = await served.app.platform.tenants.get_default_store()
        plain = store.audit_log.append

        async def note_audit(entries: Sequence[AuditEvent]) -> None:
            noted.extend(entries)
            await plain(entries)

        monkeypatch.setattr(store.audit_log, "append", note_audit)
        for _ in range(audit_log.MAX_ENTRIES_PER_WINDOW + 5):
            await denied.put("/v1/addresses/jobs", json={})
    assert noted[-1].target == "5 more requests, the last for jobs"


# Rates, and what is open at once


async def test_responses_have_the_rate_limit_and_the_rest_of_it():
    clock = Clock(1000.0)
    async with running_server(settings=Settings(requests_per_s=5.0, clock=clock)) as served:
        caller = served.caller(await served.key("read"))
        answer = await caller.get("/v1/whoami")
        assert answer.headers["ratelimit-policy"] == '"default";q=10;w=2'
        assert answer.headers["ratelimit"] == '"default";r=9;t=1'
        for _ in range(9):
            answer = await caller.get("/v1/whoami")
        assert answer.headers["ratelimit"] == '"default";r=0;t=2'
        refused = await caller.get("/v1/whoami")
        assert (refused.status_code, refused.headers["ratelimit"]) == (429, '"default";r=0;t=2')
        assert (await caller.get("/v1/nowhere")).headers.get("ratelimit") is None  # it counts for nobody


async def test_streams_are_limited_for_each_key():
    async with (
        running_live_server(settings=Settings(max_open_streams=2)) as server,
        httpx2.AsyncClient(base_url=server.address) as client,
    ):
        made = await client.post("/v1/keys", json={"name": "a", "scopes": ["admin"]})
        first = {"authorization": f"Bearer {made.json()['token']}"}
        made = await client.post("/v1/keys", json={"name": "b", "scopes": ["read"]}, headers=first)
        second = {"authorization": f"Bearer {made.json()['token']}"}
        async with (
            client.stream("GET", "/v1/changes", headers=first) as one,
            client.stream("GET", "/v1/events", headers=first) as two,
        ):
            assert (one.status_code, two.status_code) == (200, 200)
            refused = await client.get("/v1/changes", headers=first)
            assert (refused.status_code, refused.json()["type"]) == (429, "too-many-concurrent-requests")
            assert refused.headers["retry-after"] == "1"
            async with client.stream("GET", "/v1/changes", headers=second) as other:
                assert other.status_code == 200
        for _ in range(100):
            async with client.stream("GET", "/v1/changes", headers=first) as again:
                if again.status_code == 200:
                    return
            await asyncio.sleep(0.02)
        pytest.fail("streams that have ended still count")


async def test_concurrent_requests_are_limited_for_each_key_including_long_polls():
    async with running_server(settings=Settings(max_open_requests=2)) as served:
        waiting, other = served.caller(await served.key("admin")), served.caller(await served.key("admin"))
        await waiting.post("/v1/addresses/a/send", json={"id": "never"})
        polls = [asyncio.create_task(waiting.get("/v1/runs/never?wait=20")) for _ in range(2)]
        await asyncio.sleep(0.1)
        refused = await waiting.get("/v1/whoami")
        assert (refused.status_code, refused.json()["type"]) == (429, "too-many-concurrent-requests")
        assert (await other.get("/v1/whoami")).status_code == 200
        await other.post("/v1/runs/never/cancel")
        assert [(await poll).status_code for poll in polls] == [200, 200]
        assert (await waiting.get("/v1/whoami")).status_code == 200


# What anybody may ask for


async def test_the_openapi_document_is_made_once_and_has_a_tag(monkeypatch: pytest.MonkeyPatch):
    async with running_server() as served:
        anybody = served.caller(remote="10.0.0.1")
        first = await anybody.get("/v1/openapi.json")
        monkeypatch.setattr(server_info, "to_json_bytes", None)  # would fail
        monkeypatch.setattr(server_info, "build_document", None)
        again = await anybody.get("/v1/openapi.json")
        assert (again.status_code, again.content) == (200, first.content)
        assert again.headers["cache-control"] == "no-cache"
        tag = first.headers["etag"]
        known = await anybody.get("/v1/openapi.json", headers={"if-none-match": f'"other", W/{tag}'})
        assert (known.status_code, known.content, known.headers["etag"]) == (304, b"", tag)
        other = await anybody.get("/v1/openapi.json", headers={"if-none-match": '"other"'})
        assert other.status_code == 200


# Ids of requests


async def test_every_response_has_the_id_of_its_request():
    async with running_server() as served:
        caller = served.caller()
        given = await caller.get("/v1/whoami", headers={"x-request-id": "trace-17"})
        assert given.headers["x-request-id"] == "trace-17"
        refused = await caller.get("/v1/runs/nobody", headers={"x-request-id": "trace-18"})
        assert (refused.status_code, refused.json()["request_id"]) == (404, "trace-18")
        assert refused.headers["x-request-id"] == "trace-18"
        for odd in ("", "a b", "x" * 200, "log\tline"):
            made = (await caller.get("/v1/whoami", headers={"x-request-id": odd})).headers["x-request-id"]
            assert made != odd
            assert len(made) == 24
        elsewhere = await caller.get("/v1/whoami", headers={"host": "evil.example", "x-request-id": "trace-19"})
        assert (elsewhere.status_code, elsewhere.json()["request_id"]) == (421, "trace-19")
