"""The results of many runs over one stream, and clients that wait for many runs."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from live_server import LiveServer, running_live_server

from holdfast import Client, RunFailed, RunNotFound
from holdfast.client.delivery import Delivery
from holdfast.client.http.transport import Transport
from holdfast.server.http.request import Request
from holdfast.server.http.response import Response
from waits import wait_until

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def serving(client: Client):
    async def handler(delivery: Delivery) -> Any:
        if delivery.payload == "fail":
            await delivery.fail("no luck", retry=False)
        return delivery.payload

    task = asyncio.create_task(client.serve("work", handler))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def read_results(server: LiveServer, ids: list[str]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    async with (
        httpx2.AsyncClient(base_url=server.address, timeout=30) as http,
        http.stream("POST", "/v1/runs/results", json={"ids": ids}) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        kind = ""
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                found.append((kind, json.loads(line.removeprefix("data: "))))
    return found


async def test_the_stream_has_each_result_once_and_ends():
    async with running_live_server() as server, Client(server.address) as client, asyncio.timeout(30):
        before = (await client.send("work", 0)).run_id
        async with serving(client):
            await client.wait(before)
        runs = [(await client.send("work", payload)).run_id for payload in (1, "fail", 2)]
        reading = asyncio.create_task(read_results(server, [before, *runs, "nothing", before]))
        async with serving(client):
            found = await reading
        results = {data["run_id"]: data for kind, data in found if kind == "result"}
        assert len(found) == 5
        assert {run_id: data["state"] for run_id, data in results.items()} == {
            before: "completed", runs[0]: "completed", runs[1]: "failed", runs[2]: "completed",
        }  # fmt: skip
        assert [results[run]["output"] for run in (before, runs[0], runs[2])] == [0, 1, 2]
        assert results[runs[1]]["error"]["message"] == "no luck"
        [problem] = [data for kind, data in found if kind == "problem"]
        assert (problem["type"], problem["status"], problem["run_id"]) == ("run-not-found", 404, "nothing")
        assert results[runs[0]] == (await _get_result(server, runs[0]))


async def _get_result(server: LiveServer, run: str) -> Any:
    async with httpx2.AsyncClient(base_url=server.address) as http:
        return (await http.get(f"/v1/runs/{run}/result")).json()


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counts: Counter[str] = Counter()
    request, stream = Transport.request, Transport.stream

    async def count_request(self: Transport, method: str, path: str, **more: Any) -> Any:
        counts["poll"] += path.endswith("/result")
        return await request(self, method, path, **more)

    def count_stream(self: Transport, path: str, **more: Any) -> Any:
        counts["stream"] += path.endswith("/results")
        return stream(self, path, **more)

    monkeypatch.setattr(Transport, "request", count_request)
    monkeypatch.setattr(Transport, "stream", count_stream)
    return counts


async def test_calls_that_wait_at_the_same_moment_share_a_request(requests: Counter[str]):
    async with running_live_server() as server, Client(server.address) as client, asyncio.timeout(30):
        runs = [(await client.send("work", number)).run_id for number in range(20)]
        failing = (await client.send("work", "fail")).run_id
        async with serving(client):
            *found, error, missing = await asyncio.gather(
                *(client.wait(run) for run in [*runs, runs[0], failing, "nothing"]), return_exceptions=True
            )
            assert found == [*range(20), 0]
            assert isinstance(error, RunFailed)
            assert isinstance(missing, RunNotFound)
            assert requests == {"stream": 1, "poll": 0}
            assert await client.wait(runs[3]) == 3
            assert requests == {"stream": 1, "poll": 1}


async def test_a_call_that_gives_up_does_not_disturb_the_others(requests: Counter[str]):
    async with running_live_server() as server, Client(server.address) as client, asyncio.timeout(30):
        runs = [(await client.send("work", number)).run_id for number in range(3)]
        waiting = [asyncio.create_task(client.wait(run)) for run in runs]
        with pytest.raises(TimeoutError):
            await client.wait((await client.send("work", 9)).run_id, timeout=0.05)
        waiting[0].cancel()
        async with serving(client):
            assert await asyncio.gather(*waiting[1:]) == [1, 2]
        assert waiting[0].cancelled()
        idle = [(await client.send("idle", number)).run_id for number in range(3)]
        count = requests["stream"]
        given_up = [asyncio.create_task(client.wait(run)) for run in idle]
        await wait_until(lambda: requests["stream"] > count)
        for task in given_up:
            task.cancel()
        await asyncio.gather(*given_up, return_exceptions=True)


async def test_a_stream_continues_after_a_restart_of_the_server(tmp_path: Any, requests: Counter[str]):
    url = f"sqlite:///{tmp_path}/runs.db"
    async with asyncio.timeout(30):
        async with running_live_server(url) as server:
            port = int(server.address.rpartition(":")[2])
            client = Client(server.address)
            runs = [(await client.send("work", number)).run_id for number in range(4)]
            waiting = [asyncio.create_task(client.wait(run)) for run in runs]
            await wait_until(lambda: requests["stream"])
        async with running_live_server(url, port=port), serving(client):
            assert await asyncio.gather(*waiting) == list(range(4))
        await client.close()


@pytest.mark.parametrize("status", [405, 429])
async def test_without_such_a_stream_each_call_is_a_long_poll(
    requests: Counter[str], monkeypatch: pytest.MonkeyPatch, status: int
):
    async with running_live_server() as server, Client(server.address) as client, asyncio.timeout(30):
        app, handle = server.app, server.app._handle_request

        async def refuse(request: Request) -> Response:
            return Response(b"", status) if request.path == "/v1/runs/results" else await handle(request)

        monkeypatch.setattr(app, "_handle_request", refuse)
        runs = [(await client.send("work", number)).run_id for number in range(3)]
        async with serving(client):
            assert await asyncio.gather(*map(client.wait, runs)) == [0, 1, 2]
            assert requests == {"stream": 1, "poll": 3}
            assert await asyncio.gather(*map(client.wait, runs)) == [0, 1, 2]
            assert requests["stream"] == (1 if status == 405 else 2)
