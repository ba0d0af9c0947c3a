"""Following all runs over HTTP: nothing is lost, and nothing comes twice, when the server is away for a while."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from pathlib import Path

import httpx2
import pytest
from live_server import running_live_server

from holdfast import Client, Runtime, step, workflow
from holdfast.errors import InputError
from holdfast.reports.tail import TailEvent

pytestmark = pytest.mark.asyncio


@step
async def counted_over_http(number: int) -> int:
    return number


@workflow(id="over-http-{number}")
async def over_http(number: int) -> int:
    return await counted_over_http(number)


async def test_a_tail_continues_after_a_restart_of_its_server(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    found: list[TailEvent] = []
    follower: Client | None = None

    async def follow(client: Client) -> None:
        async with aclosing(client.tail(workflow="over_http")) as happenings:
            async for one in happenings:
                found.append(one)
                if one.kind == "ended":
                    ends[int(one.run_id.rpartition("-")[2])].set()

    ends = {number: asyncio.Event() for number in (1, 2, 3)}

    async def wait_for_event(number: int) -> None:
        await asyncio.wait_for(ends[number].wait(), 20)

    async with Runtime(url):
        async with running_live_server(url) as server:
            port = int(server.address.rpartition(":")[2])
            follower = Client(server.address)
            following = asyncio.create_task(follow(follower))
            await asyncio.sleep(0.3)
            await over_http(1)
            await wait_for_event(1)
        await over_http(2)  # while nobody serves
        async with running_live_server(url, port=port):
            await over_http(3)
            await wait_for_event(2)
            await wait_for_event(3)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await follower.close()
    of = [(one.run_id, one.kind) for one in found if one.kind != "started"]
    assert sorted(of) == sorted(
        (f"over-http-{number}", kind) for number in (1, 2, 3) for kind in ("created", "step", "ended")
    )


async def test_an_invalid_position_is_refused(tmp_path: Path):
    async with running_live_server(f"sqlite:///{tmp_path / 'runs.db'}") as server, Client(server.address) as client:
        transport = client._transport  # type: ignore[attr-defined]
        with pytest.raises(InputError):
            (await transport.request("GET", "/v1/events", query={"since": "yesterday"})).unwrap()


async def test_a_reader_that_reconnects_with_the_last_event_id_continues_after_it(tmp_path: Path):
    async with (
        running_live_server(f"sqlite:///{tmp_path / 'runs.db'}") as server,
        httpx2.AsyncClient(base_url=server.address) as http,
    ):

        async def first(**headers: str) -> tuple[str, str]:
            """The id of the first event, and from which moment on it says that the stream tells."""
            async with asyncio.timeout(10), http.stream("GET", "/v1/events", headers=headers) as answer:
                assert answer.status_code == 200, await answer.aread()
                id = ""
                async for line in answer.aiter_lines():
                    if line.startswith("id: "):
                        id = line.removeprefix("id: ")
                    if line.startswith("data: "):
                        return id, json.loads(line.removeprefix("data: "))["since"]
            raise AssertionError("nothing was told")

        id, since = await first()
        assert await first(**{"Last-Event-ID": id}) == (id, since)
        refused = await http.get("/v1/events", headers={"Last-Event-ID": "0001-01-01T00:00:00+14:00"})
        assert (refused.status_code, refused.json()["type"]) == (422, "bad-cursor")
