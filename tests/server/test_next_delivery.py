"""The next delivery in the response to ``complete``, and runs that are delivered as they are sent."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest
from live_server import LiveServer, running_live_server

from holdfast import Client
from holdfast.client.delivery import Delivery
from holdfast.client.http.listener import HttpListener
from holdfast.client.http.transport import ServerResponse, Transport
from holdfast.server.deliveries import dispatcher
from holdfast.server.deliveries.dispatcher import Dispatcher
from waits import wait_until

pytestmark = pytest.mark.asyncio

LISTEN = "/v1/addresses/next/listen"


async def post(server: LiveServer, path: str, body: Any = None) -> Any:
    async with httpx2.AsyncClient(base_url=server.address, timeout=30) as client:
        answer = await client.post(path, json={} if body is None else body)
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


async def send(server: LiveServer, *payloads: Any) -> list[str]:
    sent = [await post(server, "/v1/addresses/next/send", {"payload": payload}) for payload in payloads]
    return [run["id"] for run in sent]


async def complete(server: LiveServer, delivery: Any) -> Any:
    body = {"output": delivery["payload"], "next": "stream"}
    return (await post(server, f"/v1/deliveries/{delivery['id']}/complete", body))["delivery"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


async def test_the_response_to_complete_has_the_next_delivery_of_the_stream(url: str):
    async with running_live_server(url) as server, asyncio.timeout(20):
        runs = await send(server, *range(3))
        async with server.stream(LISTEN, name="box") as events:
            assert (await anext(events))[1]["can_take_next"] is True
            delivery = (await anext(events))[1]
            payloads = [delivery["payload"]]
            while (delivery := await complete(server, delivery)) is not None:
                payloads.append(delivery["payload"])
                assert (delivery["number"], delivery["steps"]) == (1, [])
            assert payloads == [0, 1, 2]
            # The stream has counted along: it reports the last end, and delivers what comes later.
            assert (await anext(events))[0] == "ended"
            await send(server, 3)
            kind, delivery = await anext(events)
            assert (kind, delivery["payload"]) == ("delivery", 3)
        async with httpx2.AsyncClient(base_url=server.address) as http:
            for run in runs:
                [one] = (await http.get(f"/v1/runs/{run}/deliveries")).json()["items"]
                assert (one["listener_name"], one["state"]) == ("box", "completed")


async def test_a_listener_never_gets_more_than_it_can_hold(url: str):
    async with running_live_server(url) as server, asyncio.timeout(20):
        await send(server, *range(6))
        async with server.stream(LISTEN, max_active=2) as events:
            await anext(events)
            first, second = [(await anext(events))[1] for _ in range(2)]
            third, fourth = await asyncio.gather(complete(server, first), complete(server, second))
            assert {third["payload"], fourth["payload"]} == {2, 3}
            nothing = asyncio.ensure_future(anext(events))
            await asyncio.wait([nothing], timeout=0.2)
            assert not nothing.done()
            await post(server, f"/v1/deliveries/{third['id']}/complete")
            assert (await nothing)[0] == "ended"
            assert (await anext(events))[1]["payload"] == 4


async def test_without_a_stream_there_is_no_next_delivery(url: str):
    async with running_live_server(url) as server, asyncio.timeout(20):
        await send(server, *range(2))
        delivery = await post(server, "/v1/addresses/next/claim")
        assert await complete(server, delivery) is None
        assert (await post(server, "/v1/addresses/next/claim"))["payload"] == 1


async def test_a_delivery_that_is_lost_takes_no_other_one(url: str):
    async with running_live_server(url) as server, asyncio.timeout(20):
        [first, _] = await send(server, *range(2))
        async with server.stream(LISTEN) as events:
            await anext(events)
            delivery = (await anext(events))[1]
            await post(server, f"/v1/runs/{first}/cancel")
            async with httpx2.AsyncClient(base_url=server.address) as http:
                answer = await http.post(f"/v1/deliveries/{delivery['id']}/complete", json={"next": "stream"})
            assert answer.status_code == 409
            while (event := await anext(events))[0] != "delivery":
                pass
            assert event[1]["payload"] == 1


async def test_a_listener_whose_response_is_lost_gets_the_delivery_over_its_stream(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    lost: list[str] = []
    send_once = Transport._send_once

    async def lose_one(self: Transport, method: str, url: str, *args: Any) -> ServerResponse:
        response = await send_once(self, method, url, *args)
        if url.endswith("/complete") and response.data["delivery"] is not None and not lost:
            lost.append(response.data["delivery"]["run_id"])
            return await send_once(self, method, url, *args)
        return response

    def forget(self: ServerResponse) -> bool:
        return bool(lost)

    monkeypatch.setattr(Transport, "_send_once", lose_one)
    numbers: Counter[int] = Counter()

    async def handler(delivery: Delivery) -> int:
        numbers[delivery.number] += 1
        return delivery.payload

    request = Transport.request

    async def mark_unconfirmed(self: Transport, method: str, path: str, **more: Any) -> ServerResponse:
        lost_before = len(lost)
        response = await request(self, method, path, **more)
        is_repeat = len(lost) > lost_before
        return ServerResponse(response.status, response.data, response.error, has_unconfirmed_attempt=is_repeat)

    monkeypatch.setattr(Transport, "request", mark_unconfirmed)
    async with running_live_server(url) as server, Client(server.address) as client, asyncio.timeout(20):
        runs = await send(server, *range(5))
        serving = asyncio.create_task(client.serve("next", handler))
        assert await asyncio.gather(*map(client.wait, runs)) == list(range(5))
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    assert len(lost) == 1
    assert numbers == {1: 5}


async def test_a_listener_that_leaves_releases_what_it_has_just_been_given(url: str, monkeypatch: pytest.MonkeyPatch):
    accept = HttpListener._accept_next

    async def accept_late(self: HttpListener, data: Any, *, is_repeat: bool) -> None:
        await self.pause()
        await accept(self, data, is_repeat=is_repeat)

    monkeypatch.setattr(HttpListener, "_accept_next", accept_late)
    async with running_live_server(url) as server, Client(server.address) as client, asyncio.timeout(20):
        [_, second] = await send(server, *range(2))
        async for delivery in client.listen("next"):
            async with delivery:
                await delivery.complete()
            break
        run = await client.get(second)
        assert run.state == "pending"


# Delivered as they are sent


async def test_a_run_is_delivered_in_the_commit_that_starts_it(url: str, monkeypatch: pytest.MonkeyPatch):
    async with running_live_server(url) as server, asyncio.timeout(20), server.stream(LISTEN, name="box") as events:
        await anext(events)
        tenant = await server.app.platform.tenants.get_tenant("default")
        await wait_until(lambda: tenant.dispatcher.has_nothing_due("next"))  # it has looked for work once
        monkeypatch.setattr(Dispatcher, "_claim", None)  # nothing else is claimed
        sent = await post(server, "/v1/addresses/next/send", {"payload": 7})
        assert sent["state"] == "running"
        assert (await anext(events))[1]["payload"] == 7
        async with httpx2.AsyncClient(base_url=server.address) as http:
            [one] = (await http.get(f"/v1/runs/{sent['id']}/deliveries")).json()["items"]
        assert (one["listener_name"], one["state"], one["number"]) == ("box", "claimed", 1)


async def test_a_run_that_is_sent_does_not_overtake_one_that_waits(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dispatcher, "MIN_POLL_GAP_S", 3600.0)
    async with running_live_server(url) as server, asyncio.timeout(20):
        [old] = await send(server, "old")
        async with server.stream(LISTEN) as events:
            await anext(events)
            await send(server, "new")
            delivery = (await anext(events))[1]
            assert (delivery["run_id"], delivery["payload"]) == (old, "old")
            assert (await complete(server, delivery))["payload"] == "new"


async def test_a_run_with_a_delay_or_in_a_limited_queue_is_not_delivered_as_it_is_sent(url: str):
    async with running_live_server(url) as server, asyncio.timeout(20), server.stream(LISTEN) as events:
        await anext(events)
        delayed = await post(server, "/v1/addresses/next/send", {"delay": 3600})
        limited = await post(server, "/v1/addresses/next/send", {"queue": {"name": "one", "concurrency": 1}})
        assert (delayed["state"], limited["state"]) == ("pending", "pending")
        assert (await anext(events))[1]["run_id"] == limited["id"]


async def test_a_start_that_fails_leaves_its_listener_in_line(url: str, monkeypatch: pytest.MonkeyPatch):
    async with running_live_server(url) as server, asyncio.timeout(20), server.stream(LISTEN) as events:
        await anext(events)
        taken = await post(server, "/v1/addresses/next/send", {"id": "same", "payload": 1})
        delivery = (await anext(events))[1]
        assert delivery["run_id"] == taken["id"]
        assert await complete(server, delivery) is None
        assert (await anext(events))[0] == "ended"
        async with httpx2.AsyncClient(base_url=server.address) as http:
            answer = await http.post("/v1/addresses/next/send", json={"id": "same", "payload": 2})
            assert answer.status_code == 409
        await send(server, 3)
        assert (await anext(events))[1]["payload"] == 3
