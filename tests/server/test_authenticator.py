"""Who is let in: keys, the door before there are any, and namespaces."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from asgi_server import AsgiServer, Clock, running_server
from live_server import running_live_server

from holdfast.errors import UsageError
from holdfast.server.app import Settings
from holdfast.server.auth import authenticator as server_keys
from holdfast.server.auth.scopes import Scope, has_scope
from holdfast.services import api_keys as kept_keys
from holdfast.services.api_keys import create_key, list_keys, revoke_key

pytestmark = pytest.mark.asyncio


async def status(served: AsgiServer, token: str | None = None, **more: str) -> int:
    return (await served.caller(token, **more).get("/v1/whoami")).status_code


async def test_a_key_is_stored_only_as_a_hash_and_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch):
    compared: list[bool] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(len(one) == len(other) == 32)
        return hmac.compare_digest(one, other)

    class Watched:
        compare_digest = staticmethod(compare)

    monkeypatch.setattr(server_keys, "hmac", Watched)
    async with running_server() as served:
        token = await served.key("read")
        id, secret = token.removeprefix("hf_").split("_", 1)
        home = await served.app.platform.tenants.get_default_store()
        [kept] = await home.documents.list("key")
        assert kept.name == id
        assert secret.encode() not in kept.data
        assert len(bytes.fromhex(json.loads(kept.data)["hash"])) == 32
        assert await status(served, token) == 200
        assert await status(served, token[:-1] + ("A" if token[-1] != "A" else "B")) == 401
        assert await status(served, f"hf_{'0' * 12}_{secret}") == 401  # nobody's id: compared all the same
        assert compared == [True] * 3


@pytest.mark.parametrize("token", ["", "hf_", "hf_x_y", "hf_" + "0" * 12 + "_" + "é" * 43, "x" * 10_000, "hf_\t_"])
async def test_a_malformed_key_is_refused(token: str):
    async with running_server() as served:
        await served.key("read")
        code, headers, body = await served.raw(
            "GET", b"/v1/whoami", [("host", "localhost"), ("authorization", f"Bearer {token}")]
        )
        assert (code, headers["content-type"]) == (401, "application/problem+json")
        assert headers["www-authenticate"].startswith("Bearer")
        assert json.loads(body)["type"] == "invalid-api-key"


async def test_a_key_works_until_it_expires():
    clock = Clock(1_000_000.0)
    async with running_server(settings=Settings(clock=clock)) as served:
        token = await served.key("read", expires_at=datetime.fromtimestamp(clock.now + 60, UTC))
        assert await status(served, token) == 200
        clock.now += 59.9
        assert await status(served, token) == 200
        clock.now += 0.2
        assert await status(served, token) == 401
        with pytest.raises(UsageError, match="that is over"):
            await served.key("read", expires_at=datetime.fromtimestamp(clock.now, UTC))
        with pytest.raises(UsageError, match="leave that out"):
            await served.key("read", expires_at=datetime.max.replace(tzinfo=UTC))


async def test_a_key_that_was_revoked_elsewhere_works_for_two_seconds_at_most_also_if_the_clock_is_set_back():
    clock = Clock(1_000_000.0)
    async with running_server(settings=Settings(clock=clock)) as served:
        home = await served.app.platform.tenants.get_default_store()
        first, second = await served.key("read"), await served.key("read")
        assert [await status(served, token) for token in (first, second)] == [200, 200]
        for token in (first, second):
            assert await revoke_key(home, token.split("_")[1], clock.now)
        clock.now += 1.9
        assert await status(served, first) == 200  # as it was read
        clock.now += 0.2
        assert await status(served, first) == 401
        clock.now -= 3600
        assert await status(served, second) == 401
        assert await revoke_key(home, first.split("_")[1], clock.now) is False


@pytest.mark.parametrize("way", ["take", "listen"])
async def test_a_listener_whose_key_is_revoked_while_it_waits_is_handed_nothing(way: str):
    async with running_server() as served:
        platform = served.app.platform
        home, token = await platform.tenants.get_default_store(), await served.key("listen:*")
        admin = served.caller(await served.key("admin", "listen:*", name="admin"))
        revoked = served.caller(token)
        if way == "take":
            waiting = asyncio.create_task(revoked.post("/v1/addresses/shop/claim", json={}, params={"wait": 20}))
        else:
            waiting = asyncio.create_task(revoked.get("/v1/addresses/shop/listen"))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await revoke_key(home, token.split("_")[1], 1.0)
        platform.authenticator.invalidate(token.split("_")[1])
        sent = (await admin.post("/v1/addresses/shop/send", json={"payload": "secret"})).json()["id"]
        answer = await asyncio.wait_for(waiting, 20)
        assert "secret" not in answer.text
        if way == "take":
            assert (answer.status_code, answer.json()["type"]) == (401, "invalid-api-key")
        delivery = (await admin.post("/v1/addresses/shop/claim", json={}, params={"wait": 20})).json()
        assert (delivery["run_id"], delivery["number"]) == (sent, 1), "it was not claimed for the revoked key"


async def test_a_long_poll_returns_nothing_if_its_key_is_revoked_meanwhile(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("holdfast.server.app.CACHE_TTL_S", 0.0)
    async with running_server() as served:
        token = await served.key("read")
        admin = served.caller(await served.key("admin", "listen:*", name="admin"))
        sent = (await admin.post("/v1/addresses/shop/send", json={"payload": 1})).json()["id"]
        delivery = (await admin.post("/v1/addresses/shop/claim", json={}, params={"wait": 20})).json()
        poll = served.caller(token).get(f"/v1/runs/{sent}/result", params={"wait": 20})
        waiting = asyncio.create_task(poll)
        await asyncio.sleep(0.05)
        await revoke_key(await served.app.platform.tenants.get_default_store(), token.split("_")[1], 1.0)
        served.app.platform.authenticator.invalidate(token.split("_")[1])
        await admin.post(f"/v1/deliveries/{delivery['id']}/complete", json={"output": "secret"})
        answer = await asyncio.wait_for(waiting, 20)
        assert (answer.status_code, answer.json()["type"]) == (401, "invalid-api-key")


async def test_the_first_key_closes_the_door_and_revoking_all_does_not_open_it_again():
    clock = Clock(1_000_000.0)
    async with running_server(settings=Settings(clock=clock)) as served:
        anybody = served.caller()
        assert (await anybody.get("/v1/whoami")).status_code == 200
        made = await anybody.post("/v1/keys", json={"name": "first", "scopes": ["admin"]})
        assert made.status_code == 201
        assert (await anybody.get("/v1/whoami")).status_code == 401  # at once
        admin = served.caller(made.json()["token"])
        assert (await admin.delete(f"/v1/keys/{made.json()['id']}")).json() == {"changed": True}
        assert (await admin.get("/v1/whoami")).status_code == 401  # at once
        clock.now += 60
        assert (await anybody.get("/v1/whoami")).status_code == 401


@pytest.mark.parametrize(
    ("remote", "headers", "is_let_in"),
    [
        ("127.0.0.1", {}, True),
        ("::1", {}, True),
        ("::ffff:127.0.0.1", {}, True),
        ("10.0.0.7", {}, False),
        ("::ffff:10.0.0.7", {}, False),
        ("", {}, False),
        ("testclient", {}, False),
        # Somebody here passes it on for somebody else.
        ("127.0.0.1", {"x-forwarded-for": "127.0.0.1"}, False),
        ("127.0.0.1", {"forwarded": "for=203.0.113.9"}, False),
        ("127.0.0.1", {"via": "1.1 proxy"}, False),
        ("127.0.0.1", {"x-forwarded-host": "agents.example"}, False),
        ("127.0.0.1", {"x-real-ip": "203.0.113.9"}, False),
        # A proxy that passes on nothing but what a browser says: a page of that name, from this very server.
        ("127.0.0.1", {"origin": "https://agents.example", "sec-fetch-site": "same-origin"}, False),
        ("127.0.0.1", {"referer": "https://agents.example/"}, False),
        ("127.0.0.1", {"origin": "http://localhost", "sec-fetch-site": "same-origin"}, True),
    ],
)
async def test_without_keys_only_this_machine_is_served(remote: str, headers: dict[str, str], is_let_in: bool):
    async with running_server() as served:
        answer = await served.caller(remote=remote, **headers).get("/v1/whoami")
        assert answer.status_code == (200 if is_let_in else 401)


async def test_without_keys_requests_of_an_old_proxy_are_not_taken_for_local_ones():
    async with running_server() as served:
        for version, expected in (("1.0", 401), ("1.1", 200)):
            assert (await served.raw("GET", b"/v1/whoami", http_version=version))[0] == expected


async def test_an_allowed_host_name_does_not_make_a_request_local():
    async with running_server(settings=Settings(allowed_hosts=("localhost", "agents.example"))) as served:
        assert await status(served) == 200
        assert await status(served, host="agents.example") == 401
        refused = await served.caller().get("/v1/whoami", headers={"host": "agents.example"})
        assert "holdfast keys create" in refused.json()["detail"]


ASK = """
import socket, sys
wire = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
head = "GET /v1/whoami HTTP/1.1\\r\\nHost: 127.0.0.1:{}\\r\\nConnection: close\\r\\n\\r\\n"
wire.sendall(head.format(sys.argv[1]).encode())
print(wire.makefile().readline().split()[1])
"""


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="runs a program as another user")
async def test_without_keys_a_proxy_of_another_user_is_not_taken_for_a_local_program_though_it_adds_nothing():
    async with running_live_server() as server:
        port = server.address.rpartition(":")[2]
        for user, expected in ((65534, "401"), (None, "200")):
            asking = await asyncio.create_subprocess_exec(
                "/usr/bin/python3", "-c", ASK, port, stdout=subprocess.PIPE, user=user
            )
            output, _ = await asking.communicate()
            assert output.decode().strip() == expected


async def test_a_server_that_answers_under_any_name_takes_none_but_its_own_without_a_key():
    async with running_server(settings=Settings(allowed_hosts=("*",))) as served:
        assert await status(served) == 200
        assert await status(served, host="rebound.example") == 401
        token = await served.key("read")
        served.app.platform.authenticator.invalidate("")
        assert await status(served, token, host="any.example") == 200


async def test_two_tenants_see_nothing_of_each_other_nor_of_each_others_keys():
    async with running_server() as served:
        acme = served.caller(await served.key("admin", "listen:*", namespace="acme"))
        rival = served.caller(await served.key("admin", "listen:*", namespace="rival"))
        assert (await acme.get("/v1/whoami", params={"namespace": "rival"})).json()["namespace"] == "acme"
        sent = await acme.post("/v1/addresses/jobs/send", json={"id": "one", "payload": 1})
        assert sent.status_code == 201
        assert (await rival.get("/v1/addresses")).json() == {"items": []}
        assert (await rival.post("/v1/addresses/jobs/claim", json={})).status_code == 204

        made = (await acme.post("/v1/keys", json={"name": "ours", "scopes": ["read"]})).json()
        assert made["namespace"] == "acme"
        assert made["created_by"] == (await acme.get("/v1/whoami")).json()["key_id"]
        assert [key["name"] for key in (await acme.get("/v1/keys")).json()["items"]] == ["test", "ours"]
        assert [key["name"] for key in (await rival.get("/v1/keys")).json()["items"]] == ["test"]
        assert all("hash" not in key and "token" not in key for key in (await acme.get("/v1/keys")).json()["items"])
        refused = await rival.delete(f"/v1/keys/{made['id']}")
        assert (refused.status_code, refused.json()["type"]) == (404, "key-not-found")
        assert await status(served, made["token"]) == 200
        # A namespace is nothing that can be asked for.
        response = await rival.post("/v1/keys", json={"name": "sly", "scopes": ["admin"], "namespace": "acme"})
        assert response.status_code == 422

        assert [entry["action"] for entry in (await rival.get("/v1/audit")).json()["items"]] == ["revoke_api_key"]
        assert {entry["key_name"] for entry in (await acme.get("/v1/audit")).json()["items"]} == {"test"}


@pytest.mark.parametrize(
    "body",
    [
        {"name": "", "scopes": ["read"]},
        {"name": "x\u001b[31m", "scopes": ["read"]},
        {"name": "n\0", "scopes": ["read"]},
        {"name": "x" * 101, "scopes": ["read"]},
        {"name": "x", "scopes": []},
        {"name": "x", "scopes": ["any"]},
        {"name": "x", "scopes": ["listen"]},
        {"name": "x", "scopes": ["listen:"]},
        {"name": "x", "scopes": ["ADMIN"]},
        {"name": "x", "scopes": ["read"], "expires_in": -1},
        {"name": "x", "scopes": ["read"], "expires_in": 1e300},
        {"name": "x", "scopes": ["read"], "expires_at": "2026-01-01T00:00:00"},
        {"name": "x", "scopes": ["read"], "expires_at": "2001-01-01T00:00:00Z"},
        {"name": "x", "scopes": ["read"], "expires_in": 5, "expires_at": "2099-01-01T00:00:00Z"},
    ],
)
async def test_an_invalid_key_is_not_made(body: dict[str, object]):
    async with running_server() as served:
        answer = await served.caller().post("/v1/keys", json=body)
        assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
        assert await list_keys(await served.app.platform.tenants.get_default_store()) == []


async def test_the_id_of_an_existing_key_is_not_used_again(monkeypatch: pytest.MonkeyPatch):
    ids = iter(["a" * 12, "a" * 12, "b" * 12])
    monkeypatch.setattr(kept_keys.secrets, "token_hex", lambda size: next(ids))
    async with running_server() as served:
        home = await served.app.platform.tenants.get_default_store()
        made = [(await create_key(home, "x", ["read"], "default", now=1.0))[0].id for _ in range(2)]
        assert made == ["a" * 12, "b" * 12]


async def test_what_scopes_allow():
    def allowed(*scopes: str) -> set[str]:
        plain = (Scope.READ, Scope.SUBMIT, Scope.OPERATE, Scope.ADMIN)
        return {str(scope) for scope in plain if has_scope(scopes, scope)} | {
            f"listen:{address}" for address in ("mine", "other") if has_scope(scopes, Scope.LISTEN, address)
        }

    assert allowed("read") == {"read"}
    assert allowed("submit") == {"submit"}
    assert allowed("operate") == {"operate", "read"}
    assert allowed("admin") == {"admin", "operate", "read", "submit"}
    assert allowed("listen:mine") == {"listen:mine"}
    assert allowed("listen:*") == {"listen:mine", "listen:other"}
    assert allowed("listen:mine2", "listen:min") == set()
