"""How everything is in a few numbers, and being told when to look again: once for all who read."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any

import httpx2
import pytest
from asgi_server import AsgiServer, Clock, running_server
from live_server import running_live_server
from server_worker import running_worker

from holdfast import wait_for_signal, workflow
from holdfast.server.app import Settings
from holdfast.server.background import overview_feed
from holdfast.server.endpoints import runs
from holdfast.services import health
from holdfast.stores.contract import WorkflowSpec
from holdfast.stores.memory.server_data import MemoryDailyUsage
from holdfast.stores.memory.store import MemoryStore

pytestmark = pytest.mark.asyncio


@workflow
async def overviewed(name: str) -> str:
    if name == "bad":
        raise ValueError("no such name")
    return await wait_for_signal("go") if name == "patient" else name


async def start(served: AsgiServer, name: str, wait: str) -> None:
    caller = served.caller()
    run = (await caller.post("/v1/runs", json={"workflow": "overviewed", "id": name, "args": [name]})).json()
    for _ in range(500):
        if (await caller.get(f"/v1/runs/{run['id']}")).json()["state"] == wait:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{name} is not {wait}")


async def test_the_overview_counts_runs_by_state_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(overview_feed, "MAX_COUNTED_RUNS", 2)
    monkeypatch.setattr(health, "MAX_COUNTED_RUNS", 2)
    async with running_server() as served, running_worker(served):
        for name, state in {"a": "completed", "b": "completed", "c": "completed", "bad": "failed"}.items():
            await start(served, name, state)
        await start(served, "patient", "waiting")
        caller = served.caller()
        overview = (await caller.get("/v1/overview")).json()
        assert overview["runs"]["completed"] == {"count": 2, "has_more": True}
        assert overview["runs"]["failed"] == {"count": 1, "has_more": False}
        assert overview["runs"]["waiting"] == {"count": 1, "has_more": False}
        assert (overview["workers"], overview["approvals"], overview["dead"], overview["disabled"]) == (1, 0, 0, [])
        agent = (await caller.get("/v1/agents/overviewed")).json()
        assert (agent["run_counts"]["completed"], agent["capped_states"], agent["parameters"]) == (
            2,
            ["completed"],
            ["name"],
        )
        await caller.post("/v1/agents/overviewed/disable")
        assert (await caller.get("/v1/overview")).json()["disabled"] == ["overviewed"]


async def test_many_readers_share_one_read_of_the_overview(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(overview_feed, "MIN_INTERVAL_S", 0.5)
    monkeypatch.setattr(overview_feed, "POLL_INTERVAL_S", 60.0)
    counted: list[int | None] = []
    count_runs = MemoryStore.count_runs

    async def counting(self: MemoryDailyUsage, max_ended: int | None = None) -> Any:
        counted.append(max_ended)
        return await count_runs(self, max_ended)

    monkeypatch.setattr(MemoryStore, "count_runs", counting)
    async with running_live_server() as server, AsyncExitStack() as readers:
        streams = [await readers.enter_async_context(server.stream("/v1/changes")) for _ in range(5)]
        first = [await anext(stream) for stream in streams]
        assert {name for name, _ in first} == {"changed"}
        assert len(counted) == 1
        tenant = await server.app.platform.tenants.get_tenant("default")
        await tenant.store.disabled_workflows.disable(
            "something"
        )  # as a request would: that is not told by the store itself
        tenant.overview_feed.notify()
        updates = [await anext(stream) for stream in streams]
        assert all(overview["disabled"] == ["something"] for _, overview in updates)
        assert len(counted) == 2


async def test_a_change_over_http_reaches_the_followers_of_the_overview():
    async with running_live_server() as server, server.stream("/v1/changes") as stream:
        assert (await anext(stream))[1]["disabled"] == []
        async with httpx2.AsyncClient(base_url=server.address) as http:
            await http.post("/v1/agents/something/disable", json={"allow_unknown": True})
        assert (await anext(stream))[1]["disabled"] == ["something"]


async def test_the_overview_is_no_longer_read_after_the_last_follower_leaves():
    async with running_live_server() as server:
        async with server.stream("/v1/changes") as stream:
            await anext(stream)
            feed = server.app.platform.tenants.list_open()[0].overview_feed
            assert feed._reader is not None
        for _ in range(500):
            if feed._reader is None:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("somebody still looks")


async def test_a_list_says_how_far_back_it_has_searched(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runs, "MAX_RUNS_SCANNED", 2)
    async with running_server() as served, running_worker(served):
        await start(served, "bad", "failed")
        for name in ("b", "c", "d", "e"):
            await start(served, name, "completed")
        caller = served.caller()
        pages: list[dict[str, Any]] = []
        cursor: dict[str, str] = {}
        while not pages or pages[-1]["next"] is not None:
            query = {"text": "no such name", "workflow": "overviewed", **cursor}
            pages.append((await caller.get("/v1/runs", params=query)).json())
            cursor = {"cursor": pages[-1]["next"]}
        found = [[one["id"] for one in page["items"]] for page in pages]
        assert found == [[], [], ["bad"]]
        times = [datetime.fromisoformat(page["searched_until"]) for page in pages[:-1]]
        assert times == sorted(times, reverse=True)
        assert pages[-1]["searched_until"] is None


async def test_a_usage_report_counts_the_runs_of_each_day():
    clock = Clock(1_800_000_000.0)
    async with running_server(settings=Settings(clock=clock)) as served:
        store = (await served.app.platform.tenants.get_tenant("default")).store
        await store.announce_workflows([WorkflowSpec("overviewed", ("name",))])
        await start(served, "a", "pending")
        clock.now += 86400
        await start(served, "b", "pending")
        report = (
            await served.caller().get("/v1/usage", params={"since": "2027-01-10", "workflow": "overviewed"})
        ).json()
        assert [(one["day"], one["run_count"]) for one in report["daily_runs"]] == [
            ("2027-01-15", 1),
            ("2027-01-16", 1),
        ]
