"""Who may do what, for every endpoint that there is: by scope, by key, and across namespaces.

**A new endpoint fails here until it has a row in ``ROWS``.** The row is written by hand, from what the endpoint is
meant to be, never from its declaration: the point is that the two are compared. It says

- which single scopes may call it (one of the sets below),
- what becomes of a call on an object of *another* namespace: ``404`` if the path names an object that must be there, or
  ``OWN`` if it means whatever the caller's own namespace has under that name (a list, or something that is made by
  asking for it). Either way nothing of the other namespace is told or changed, which is checked for all of them;
- a body that the endpoint takes, unless that is ``{}``.

A path with a new kind of name in it needs an object of that kind as well: see ``Objects``.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import httpx2
import pytest
from asgi_server import AsgiServer, Clock, running_server

from holdfast.server.app import Settings
from holdfast.server.endpoints import ENDPOINTS
from holdfast.server.http.router import Endpoint
from holdfast.services.api_keys import revoke_key
from holdfast.stores.contract import RunFilter

pytestmark = pytest.mark.asyncio

SCOPES = ("read", "submit", "operate", "admin", "listen:mine", "listen:*", "listen:other")

NO_KEY_NEEDED = None
ANY_KEY = set(SCOPES)
READ = {"read", "operate", "admin"}
SUBMIT = {"submit", "admin"}
OPERATE = {"operate", "admin"}
ADMIN = {"admin"}
LISTEN = {"listen:mine", "listen:*"}

OWN = None
SECRET = "hush-of-acme"


@dataclass(frozen=True)
class Row:
    may: set[str] | None
    foreign: int | None = OWN
    body: Any = None


ROWS: dict[str, Row] = {
    # The service
    "GET /v1/health": Row(NO_KEY_NEEDED),
    "GET /v1/metrics": Row(ADMIN),
    "GET /v1/openapi.json": Row(NO_KEY_NEEDED),
    "GET /v1/whoami": Row(ANY_KEY),
    # Runs
    "POST /v1/runs": Row(SUBMIT, OWN, {"workflow": SECRET, "args": [1]}),
    "POST /v1/runs/batch": Row(SUBMIT, OWN, {"workflow": SECRET, "calls": [{"args": [1]}]}),
    "POST /v1/runs/results": Row(READ, OWN, {"ids": ["nobody"]}),
    "GET /v1/overview": Row(READ),
    "GET /v1/changes": Row(READ),
    "GET /v1/runs": Row(READ),
    "GET /v1/runs/{}": Row(READ, 404),
    "GET /v1/runs/{}/result": Row(READ, 404),
    "GET /v1/runs/{}/events": Row(READ, 404),
    "GET /v1/runs/{}/journal": Row(READ, 404),
    "GET /v1/runs/{}/budget": Row(READ, 404),
    "GET /v1/events": Row(READ),
    "GET /v1/runs/{}/steps": Row(READ, 404),
    "GET /v1/runs/{}/deliveries": Row(READ, 404),
    "GET /v1/runs/{}/usage": Row(READ, 404),
    "GET /v1/runs/{}/plan": Row(READ, 404),
    "GET /v1/runs/{}/report": Row(READ, 404),
    "GET /v1/runs/{}/records/{}": Row(READ, 404),
    "GET /v1/runs/{}/conversation": Row(READ, 404),
    "GET /v1/runs/{}/tree": Row(READ, 404),
    "POST /v1/runs/{}/signals": Row(SUBMIT, 404, {"name": "go", "value": 1}),
    "POST /v1/runs/{}/cancel": Row(OPERATE, 404),
    "POST /v1/runs/{}/pause": Row(OPERATE, 404),
    "POST /v1/runs/{}/resume": Row(OPERATE, 404),
    "POST /v1/runs/{}/retry": Row(OPERATE, 404),
    "POST /v1/runs/{}/settle": Row(OPERATE, 404, {"step": 1, "output": 1}),
    "POST /v1/runs/{}/fork": Row(OPERATE, 404),
    "PUT /v1/runs/{}/budget": Row(OPERATE, 404, {"usd": 1}),
    "GET /v1/dead-runs": Row(READ),
    "POST /v1/prune": Row(ADMIN, OWN, {"older_than": 0}),
    "POST /v1/erase": Row(ADMIN, OWN, {"tag": "nobody"}),
    # People
    "GET /v1/approvals": Row(READ),
    "GET /v1/approvals/{}": Row(READ, 404),
    "POST /v1/approvals/{}/approve": Row(OPERATE, 404),
    "POST /v1/approvals/{}/deny": Row(OPERATE, 404),
    # Schedules and queues
    "GET /v1/ticks": Row(READ),
    "GET /v1/schedules": Row(READ),
    "GET /v1/schedules/{}": Row(READ, 404),
    "PUT /v1/schedules/{}": Row(OPERATE, OWN, {"workflow": SECRET, "cron": "0 3 * * *"}),
    "POST /v1/schedules/{}/pause": Row(OPERATE, 404),
    "POST /v1/schedules/{}/resume": Row(OPERATE, 404),
    "POST /v1/schedules/{}/trigger": Row(SUBMIT, 404),
    "DELETE /v1/schedules/{}": Row(OPERATE),
    "GET /v1/queues": Row(READ),
    "GET /v1/queues/{}": Row(READ, 404),
    "PATCH /v1/queues/{}": Row(OPERATE, OWN, {"concurrency": 7}),
    "POST /v1/queues/{}/reset": Row(OPERATE),
    "POST /v1/queues/{}/pause": Row(OPERATE),
    "POST /v1/queues/{}/resume": Row(OPERATE),
    # Memory
    "GET /v1/memories": Row(READ),
    "GET /v1/memories/{}": Row(READ),
    "GET /v1/memories/{}/{}": Row(READ, 404),
    "PUT /v1/memories/{}/{}": Row(OPERATE, OWN, {"value": 1}),
    "DELETE /v1/memories/{}/{}": Row(OPERATE),
    # Agents
    "GET /v1/agents": Row(READ),
    "GET /v1/agents/{}": Row(READ, 404),
    "POST /v1/agents/{}/disable": Row(OPERATE),
    "POST /v1/agents/{}/enable": Row(OPERATE),
    "POST /v1/agents/{}/heartbeat": Row(LISTEN),
    "GET /v1/workers": Row(READ),
    "GET /v1/disabled": Row(READ),
    "GET /v1/policies": Row(READ),
    "GET /v1/agents/{}/policy": Row(READ, 404),
    "PUT /v1/agents/{}/policy": Row(ADMIN, OWN, {"runs_per_day": 5}),
    "DELETE /v1/agents/{}/policy": Row(ADMIN),
    "GET /v1/usage": Row(READ),
    # Addresses and deliveries
    "GET /v1/addresses": Row(READ),
    "GET /v1/addresses/{}": Row(READ, 404),
    "PUT /v1/addresses/{}": Row(OPERATE),
    "DELETE /v1/addresses/{}": Row(OPERATE),
    "POST /v1/addresses/{}/webhook/secret": Row(OPERATE, 422),
    "POST /v1/addresses/{}/send": Row(SUBMIT, OWN, {"payload": 1}),
    "POST /v1/addresses/{}/claim": Row(LISTEN),
    "POST /v1/addresses/{}/leave": Row(LISTEN, OWN, {"listener_id": "1.nobody"}),
    "GET /v1/addresses/{}/listen": Row(LISTEN),
    "GET /v1/deliveries/{}": Row(LISTEN, 404),
    "POST /v1/deliveries/{}/steps": Row(LISTEN, 404, {"name": "s", "output": 1}),
    "POST /v1/deliveries/{}/attempts": Row(LISTEN, 404, {"name": "t"}),
    "POST /v1/deliveries/{}/heartbeat": Row(LISTEN, 404),
    "POST /v1/deliveries/{}/complete": Row(LISTEN, 404),
    "POST /v1/deliveries/{}/fail": Row(LISTEN, 404),
    "POST /v1/deliveries/{}/release": Row(LISTEN, 404),
    "POST /v1/deliveries/{}/ask": Row(LISTEN, 404, {"name": "q", "question": "May I?"}),
    "POST /v1/deliveries/{}/wait": Row(LISTEN, 404, {"name": "w", "signal": "go"}),
    # Keys and the audit log
    "POST /v1/keys": Row(ADMIN, OWN, {"name": "k", "scopes": ["read"]}),
    "GET /v1/keys": Row(ADMIN),
    "DELETE /v1/keys/{}": Row(ADMIN, 404),
    "GET /v1/audit": Row(ADMIN),
}


def name_of(endpoint: Endpoint) -> str:
    return f"{endpoint.method} {re.sub('{[^}]*}', '{}', endpoint.path)}"


EVERY = pytest.mark.parametrize("endpoint", ENDPOINTS, ids=name_of)


def row_of(endpoint: Endpoint) -> Row:
    row = ROWS.get(name_of(endpoint))
    assert row is not None, f"{name_of(endpoint)!r} has no row in ROWS: who may call it? See the top of this file."
    return row


@dataclass
class Objects:
    """One of everything in a namespace, by the collection that it is in."""

    by_collection: dict[str, list[str]]

    def path(self, endpoint: Endpoint) -> str:
        """The endpoint's path, with the names of these objects."""
        collection = endpoint.path_segments[1]
        names = iter(self.by_collection.get(collection, ()))
        parts = [next(names) if part.startswith("{") else part for part in endpoint.path_segments]
        return "/" + "/".join(parts)


async def furnish(served: AsgiServer, namespace: str, address: str, secret: Any) -> Objects:
    """One of everything, made in the store or over HTTP; what is kept in them is ``secret``."""
    http = served.caller(await served.key("admin", "listen:*", namespace=namespace, name=f"{secret} maker"))
    client = (await served.app.platform.tenants.get_tenant(namespace)).client

    async def post(path: str, body: Any) -> Any:
        answer = await http.post(path, json=body)
        assert answer.status_code < 300, answer.text
        return answer.json()

    await post(f"/v1/addresses/{address}/send", {"id": f"{address}-1", "payload": secret})
    asking = await post(f"/v1/addresses/{address}/claim?wait=20", {})
    await post(f"/v1/deliveries/{asking['id']}/ask", {"name": "q", "question": f"{secret}?"})
    [question] = await client.approvals()
    await post(f"/v1/addresses/{address}/send", {"id": f"{address}-2", "payload": secret})
    held = await post(f"/v1/addresses/{address}/claim?wait=20", {})
    await client.schedules.create(f"{address}-schedule", address, cron="0 3 * * *", args=(secret,))
    await client.queues.set(f"{address}-queue", concurrency=3)
    await client.memory.put(f"{address}-notes", "first", secret)
    policy = await http.put(f"/v1/agents/{address}/policy", json={"runs_per_day": 100})
    assert policy.status_code == 200, policy.text
    key = await served.key("read", namespace=namespace, name=f"{secret} key")
    return Objects(
        {
            "runs": [asking["run_id"], "0"],  # with the question, it has a record
            "approvals": [question.id],
            "schedules": [f"{address}-schedule"],
            "queues": [f"{address}-queue"],
            "memories": [f"{address}-notes", "first"],
            "agents": [address],
            "addresses": [address],
            "deliveries": [held["id"]],
            "keys": [key.split("_")[1]],
        }
    )


@asynccontextmanager
async def furnished(namespace: str, address: str, secret: Any) -> AsyncGenerator[tuple[AsgiServer, Objects, Clock]]:
    clock = Clock(1_800_000_000.0)
    async with running_server(settings=Settings(clock=clock)) as served:
        objects = await furnish(served, namespace, address, secret)
        served.app.platform.closing.set()  # whoever would wait, or stream, ends at once
        yield served, objects, clock


async def call(http: httpx2.AsyncClient, endpoint: Endpoint, objects: Objects) -> httpx2.Response:
    body = None if endpoint.method == "GET" else row_of(endpoint).body or {}
    return await http.request(endpoint.method, objects.path(endpoint), json=body)


@EVERY
async def test_exactly_the_scopes_that_are_meant_to_may_call_it(endpoint: Endpoint):
    row = row_of(endpoint)
    async with furnished("default", "mine", "secret") as (served, objects, clock):
        expiring = await served.key("admin", "listen:*", expires_at=datetime.fromtimestamp(clock.now + 1, UTC))
        revoked = await served.key("admin", "listen:*")
        await revoke_key(await served.app.platform.tenants.get_default_store(), revoked.split("_")[1], clock.now)
        tokens = {scope: await served.key(scope) for scope in SCOPES}
        answers = {scope: await call(served.caller(token), endpoint, objects) for scope, token in tokens.items()}
        assert not [answer for answer in answers.values() if answer.status_code == 401 or answer.status_code >= 500]
        if row.may is not None:
            assert {scope for scope, answer in answers.items() if not is_refused(answer)} == row.may
        assert (await call(served.caller(expiring), endpoint, objects)).status_code != 401
        clock.now += 1
        for token in (None, revoked, expiring):
            answer = await call(served.caller(token), endpoint, objects)
            assert (answer.status_code == 401) is (row.may is not None), answer.text


def is_refused(answer: httpx2.Response) -> bool:
    if answer.status_code != 403 or answer.json()["type"] != "not-allowed":
        return False
    problem = answer.json()
    assert f"--scope {problem['scope']}`" in problem["detail"]
    assert f"'{problem['scope']}'" in problem["detail"]
    return True


@EVERY
async def test_nothing_in_another_namespace_is_visible_or_changed(endpoint: Endpoint):
    row = row_of(endpoint)
    async with furnished("acme", SECRET, SECRET) as (served, objects, _):
        before = await everything_of(served, "acme")
        rival = served.caller(await served.key("admin", "listen:*", namespace="rival"))
        answer = await call(rival, endpoint, objects)
        assert answer.status_code < 500, answer.text
        assert not is_refused(answer)
        if row.foreign is not None:
            assert answer.status_code == row.foreign, answer.text
        # What the caller has named itself may be said again.
        text, sent = answer.text, objects.path(endpoint) + str(row.body)
        for name in sorted({*chain(*objects.by_collection.values()), SECRET}, key=len, reverse=True):
            text = text.replace(name, "") if name in sent else text
        assert "hush" not in text
        assert await everything_of(served, "acme") == before


async def everything_of(served: AsgiServer, namespace: str) -> dict[str, Any]:
    tenant = await served.app.platform.tenants.get_tenant(namespace)
    store, client, home = tenant.store, tenant.client, await served.app.platform.tenants.get_default_store()
    runs = await store.list_runs(RunFilter(), limit=100)
    return {
        "runs": runs,
        "histories": await store.get_histories([run.key for run in runs]),
        "approvals": await client.approvals(),
        "schedules": await client.schedules.list(),
        "queues": await client.queues.list(),
        "memory": await client.memory.list(f"{SECRET}-notes"),
        "documents": [await store.documents.list(kind) for kind in ("address", "policy", "webhook")],
        "switches": await store.get_workflow_specs(),
        "keys": [key for key in await home.documents.list("key") if f'"{namespace}"'.encode() in key.data],
        "audit": await store.audit_log.list(),
    }


async def test_the_matrix_has_no_row_for_an_unknown_endpoint():
    assert set(ROWS) - {name_of(endpoint) for endpoint in ENDPOINTS} == set()
