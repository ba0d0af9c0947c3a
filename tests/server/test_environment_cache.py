"""What a server remembers of the workers: for a moment, and not if it is known to have changed."""

from __future__ import annotations

from typing import Any

import pytest
from asgi_server import running_server

from holdfast.server.caches import environment_cache
from holdfast.stores.contract import Store
from holdfast.stores.workers import NewWorker

pytestmark = pytest.mark.asyncio


async def register_worker(store: Store) -> int:
    worker = NewWorker(name="w", host="elsewhere", pid=1, workflows=("jobs",), is_listener=True)
    return await store.workers.register(worker, 1000.0)


async def test_the_workers_are_read_once_for_many_requests(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(environment_cache, "CACHE_TTL_S", 1000.0)
    async with running_server() as served:
        http, counts = served.caller(), [0]
        store = (await served.app.platform.tenants.get_tenant("default")).store
        list_workers = store.list_workers

        async def count_and_list(*args: Any) -> Any:
            counts[0] += 1
            return await list_workers(*args)

        monkeypatch.setattr(store, "list_workers", count_and_list)
        run = (await http.post("/v1/addresses/jobs/send", json={"payload": 1})).json()["id"]
        for _ in range(5):
            assert "nobody listens" in (await http.get(f"/v1/runs/{run}")).json()["stall_advice"]
        assert counts == [1]
        # A worker that holds a run is known at once.
        await register_worker(store)
        claim = (await http.post("/v1/addresses/jobs/claim", json={"name": "one"})).json()
        counts[0] = 0
        assert (await http.get(f"/v1/runs/{run}")).json()["is_claimed"]
        assert counts == [1]
        assert claim["run_id"] == run


async def test_what_is_disabled_through_the_server_is_known_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(environment_cache, "CACHE_TTL_S", 1000.0)
    async with running_server() as served:
        http = served.caller()
        run = (await http.post("/v1/addresses/jobs/send", json={"payload": 1})).json()["id"]
        assert "nobody listens" in (await http.get(f"/v1/runs/{run}")).json()["stall_advice"]
        assert (await http.post("/v1/agents/jobs/disable", json={})).status_code == 200
        assert "is disabled" in (await http.get(f"/v1/runs/{run}")).json()["stall_advice"]


async def test_a_worker_that_started_is_known_after_a_moment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(environment_cache, "CACHE_TTL_S", 0.0)
    async with running_server() as served:
        http = served.caller()
        run = (await http.post("/v1/addresses/jobs/send", json={"payload": 1})).json()["id"]
        assert "nobody listens" in (await http.get(f"/v1/runs/{run}")).json()["stall_advice"]
        await register_worker((await served.app.platform.tenants.get_tenant("default")).store)
        assert (await http.get(f"/v1/runs/{run}")).json()["stall_advice"] is None
