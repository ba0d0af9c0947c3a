"""A run's story over HTTP: page by page, one record whole, the conversation, the family."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from asgi_server import running_server
from server_worker import running_worker

from holdfast import Agent, RunFailed, step, tool, workflow
from holdfast.core.records import Record, RecordKind
from holdfast.services.wire_values import VALUES_HEADER, from_wire
from holdfast.stores.contract import WorkflowSpec
from holdfast.stores.operations import AppendRecord
from holdfast.stores.workers import NewWorker
from holdfast.testing import ScriptedModel, call

pytestmark = pytest.mark.asyncio


@step
async def story_load(number: int) -> dict[str, Any]:
    return {"number": number, "when": datetime(2030, 1, 2, tzinfo=UTC)}


@step
async def story_large() -> str:
    return "long " * 2_000


@step
async def story_huge() -> str:
    return "x" * 100_000


@workflow(id="story-part-{number}")
async def story_part(number: int) -> int:
    return (await story_load(number))["number"]


@workflow
async def story_whole(number: int) -> int:
    await story_load(number)
    await story_large()
    await story_huge()
    return await story_part(number) + await story_part(number + 1)


@workflow
async def story_fails() -> None:
    raise ValueError("no such thing")


@tool
async def story_tool(word: str) -> str:
    """Look it up."""
    return f"{word} is found"


async def get(http: httpx2.AsyncClient, path: str, status: int = 200, **query: Any) -> Any:
    answer = await http.get(path, params=query)
    assert answer.status_code == status, answer.text
    return answer.json()


story_agent = Agent(
    ScriptedModel([call("story_tool", word="tides"), "They come twice a day."]), name="story_agent", tools=[story_tool]
)


@asynccontextmanager
async def furnished(tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """A completed run with two children, a failed one, and an agent's."""
    async with running_server(f"sqlite:///{tmp_path / 'runs.db'}") as served:
        async with running_worker(served):
            client = (await served.app.platform.tenants.get_tenant("default")).client
            await client.options(id="whole").run("story_whole", 1)
            await client.options(id="agent").run("story_agent", "What of the tides?")
            with pytest.raises(RunFailed):
                await client.options(id="failed").run("story_fails")
        yield served.caller(await served.key("read"))


async def test_a_report_has_everything_about_a_run_and_truncates_large_values(tmp_path: Path):
    async with furnished(tmp_path) as http:
        story = await get(http, "/v1/runs/whole/report")
        assert (story["id"], story["workflow"], story["state"]) == ("whole", "story_whole", "completed")
        assert (story["inputs"], story["output"], story["has_more"]) == ({"number": 1}, 3, False)
        load, large, huge, *parts = story["journal"]
        assert load["output"] == {"number": 1, "when": "2030-01-02T00:00:00Z"}
        assert (load["number"], load["kind"], load["name"], load["is_truncated"]) == (1, "step", "story_load", False)
        assert (large["is_truncated"], large["size"]) == (True, 10_002)
        assert large["output"].startswith("long long")
        assert len(large["output"]) < 2_000
        assert (huge["is_truncated"], huge["size"], huge["output"]) == (True, 100_002, "(97.7 KiB)")
        assert [one["related_run_id"] for one in parts] == ["story-part-1", "story-part-2"]
        assert [one["id"] for one in story["related_runs"]] == ["story-part-1", "story-part-2"]
        assert story["summary"].startswith("Completed in ")
        assert story["summary"].endswith(" with 3 steps, 2 child runs.")
        assert (story["advice"], story["retry"]) == ([], None)
        [worker] = [one for one in story["workers"] if one["record_count"]]
        assert (worker["record_count"], worker["state"], worker["is_alive"]) == (5, "retired", False)
        whole = await get(http, "/v1/runs/whole/report", values="full")
        assert [one["is_truncated"] for one in whole["journal"]] == [False] * 5
        assert whole["journal"][2]["output"] == "x" * 100_000


async def test_a_story_is_read_page_by_page(tmp_path: Path):
    async with furnished(tmp_path) as http:
        seen, after = list[int](), -1
        for more in (True, True, False):
            story = await get(http, "/v1/runs/whole/report", after=after, limit=2)
            seen += [one["seq"] for one in story["journal"]]
            assert (story["has_more"], story["record_count"]) == (more, 5)
            assert story["summary"].endswith(" with 3 steps, 2 child runs.")  # which is of the whole, not of the page
            after = seen[-1]
        assert seen == sorted(seen)
        assert len(seen) == 5
        await get(http, "/v1/runs/whole/report", limit=501, status=422)
        await get(http, "/v1/runs/whole/report", values="some", status=422)


async def test_events_after_a_report_contain_only_what_is_new(tmp_path: Path):
    async with furnished(tmp_path) as http:
        story = await get(http, "/v1/runs/whole/report", limit=1)
        behind = await get(http, "/v1/runs/whole/events", after=story["event_offset"])
        assert [one["kind"] for one in behind["items"]] == ["ended"]


async def test_one_record_is_returned_without_truncation(tmp_path: Path):
    async with furnished(tmp_path) as http:
        huge = await get(http, "/v1/runs/whole/records/2")
        assert (huge["seq"], huge["is_truncated"], huge["output"]) == (2, False, "x" * 100_000)
        tagged = await http.get("/v1/runs/whole/records/0", headers={VALUES_HEADER: "tagged"})
        assert from_wire(tagged.json()["output"]) == {"number": 1, "when": datetime(2030, 1, 2, tzinfo=UTC)}
        for seq in ("99", "-1", "one", "9" * 40):
            problem = await get(http, f"/v1/runs/whole/records/{seq}", status=404)
            assert problem["type"] == "record-not-found"
        assert (await get(http, "/v1/runs/nobody/records/0", status=404))["type"] == "run-not-found"


async def test_a_failed_run_comes_with_its_error_and_what_to_do(tmp_path: Path):
    async with furnished(tmp_path) as http:
        story = await get(http, "/v1/runs/failed/report")
        assert story["error"]["type"] == "builtins.ValueError"
        assert "story_fails" in story["error"]["traceback"]
        assert story["summary"].startswith("Failed after ")
        assert story["summary"].endswith(": ValueError: no such thing.")
        assert story["retry"]["is_possible"]
        assert [one["action"] for one in story["advice"]] == ["retry"]


async def test_a_conversation_is_that_of_an_agent_and_empty_for_others(tmp_path: Path):
    async with furnished(tmp_path) as http:
        messages = (await get(http, "/v1/runs/agent/conversation"))["items"]
        assert [one["role"] for one in messages] == ["user", "model", "tool", "model"]
        assert messages[2]["content"] == "tides is found"
        assert messages[3]["text"] == "They come twice a day."
        assert (await get(http, "/v1/runs/whole/conversation"))["items"] == []
        assert (await get(http, "/v1/runs/nobody/conversation", status=404))["type"] == "run-not-found"
        story = await get(http, "/v1/runs/agent/report")
        assert story["is_agent"]
        assert "2 model calls" in story["summary"]


async def test_a_run_tree_starts_at_its_topmost_run(tmp_path: Path):
    async with furnished(tmp_path) as http:
        families = [await get(http, f"/v1/runs/{id}/tree") for id in ("whole", "story-part-2")]
        assert families[0] == families[1]
        assert (families[0]["root"], families[0]["has_more"]) == ("whole", False)
        runs = [(one["id"], one["parent"], one["state"]) for one in families[0]["items"]]
        assert runs == [
            ("whole", None, "completed"),
            ("story-part-1", "whole", "completed"),
            ("story-part-2", "whole", "completed"),
        ]
        agent = (await get(http, "/v1/runs/agent/tree"))["items"][0]
        assert agent["usage"]["calls"] == 2
        assert set(agent["usage"]) >= {"input_tokens", "output_tokens", "usd"}


@pytest.mark.parametrize("url", ["memory://", "sqlite:///runs.db"])
async def test_a_page_of_a_long_journal_does_not_read_the_rest(url: str, monkeypatch: pytest.MonkeyPatch):
    """The records of the page and a few more are all that a store is asked for."""
    async with running_server(url) as served:
        tenant = await served.app.platform.tenants.get_tenant("default")
        store = tenant.store
        await store.announce_workflows([WorkflowSpec("story_long", ("n",))])
        run = await tenant.client.options(id="long").start("story_long", 1)
        worker = await store.workers.register(NewWorker("test", "test", 1, ("story_long",)), 60.0)
        [held] = await store.claims.claim(worker, workflows=["story_long"], queues=None, limit=1)
        records = [
            Record(seq, RecordKind.STEP, seq, "count", True, b"1", 1.0, 1.0, 1, worker, 1) for seq in range(3_000)
        ]
        await store.commit([AppendRecord(held.key, record) for record in records])
        positions = list[int]()
        if url != "memory://":  # which has them at hand anyway

            async def no_histories(*_: object) -> None:
                raise AssertionError("the whole journal was read")

            monkeypatch.setattr(store, "get_histories", no_histories)
            get_run_updates = store.get_run_updates

            async def feed(run_id: str, after_seq: int, after_event_id: int, limit: int = 1000) -> Any:
                positions.append(limit)
                return await get_run_updates(run_id, after_seq, after_event_id, limit)

            monkeypatch.setattr(store, "get_run_updates", feed)
        http = served.caller(await served.key("read"))
        story = await get(http, f"/v1/runs/{run.run_id}/report", after=1_499)
        assert (len(story["journal"]), story["journal"][0]["seq"], story["has_more"]) == (500, 1_500, True)
        assert story["record_count"] == 3_000
        assert sum(positions) <= 500
