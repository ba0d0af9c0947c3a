"""Listening from Python while servers fall and come back, connections are refused, and functions block."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from live_server import running_live_server

from free_ports import free_port
from holdfast import Client
from holdfast.client.delivery import Delivery
from holdfast.client.http.client import HttpClient
from holdfast.client.sync_listener import SyncDelivery
from holdfast.errors import DeliveryLost
from holdfast.server.app import create_app
from holdfast.server.deliveries import listener_registry

pytestmark = pytest.mark.asyncio


async def test_a_server_that_is_away_for_a_while_costs_no_delivery_and_doubles_no_step(tmp_path: Path):
    url, port = f"sqlite:///{tmp_path}/runs.db", free_port()
    done: Counter[str] = Counter()
    numbers: Counter[int] = Counter()
    away = asyncio.Event()

    async def work(run: str, part: int) -> int:
        done[f"{run} {part}"] += 1
        if sum(done.values()) == 7:
            away.set()  # in the middle of several
        await asyncio.sleep(0.02)
        return part

    async def handler(delivery: Delivery) -> int:
        numbers[delivery.number] += 1
        return sum([await delivery.step(f"part {part}", work, delivery.run_id, part) for part in range(3)])

    client = Client(f"http://127.0.0.1:{port}")
    async with asyncio.timeout(60):
        async with running_live_server(url, port=port):
            runs = [(await client.send("falls", number)).run_id for number in range(8)]
            serving = asyncio.create_task(client.serve("falls", handler, concurrency=3))
            await away.wait()
        await asyncio.sleep(0.5)
        assert not serving.done()
        async with running_live_server(url, port=port):
            assert [await client.wait(run) for run in runs] == [3] * 8
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            await client.close()
    assert set(done.values()) == {1}
    assert len(done) == 24
    assert numbers.total() == 8  # what was on its way when the server stopped was given back, and counted nothing


async def test_503_responses_are_retried():
    """Two of three requests of every kind are refused."""
    app = create_app("memory://")
    request_counts: Counter[str] = Counter()

    async def unreliable(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            kind = scope["path"].rpartition("/")[2]
            request_counts[kind] += 1
            if request_counts[kind] % 3 != 0:
                start = {"type": "http.response.start", "status": 503, "headers": [(b"retry-after", b"0")]}
                await send(start)
                await send({"type": "http.response.body", "body": b""})
                return
        await app(scope, receive, send)

    config = uvicorn.Config(unreliable, port=0, log_config=None, lifespan="on", timeout_graceful_shutdown=3)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve())
    while not server.started:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    calls: Counter[int] = Counter()

    async def handler(delivery: Delivery) -> int:
        return await delivery.step("once", lambda: calls.update([delivery.payload]) or delivery.payload)

    async with asyncio.timeout(60), Client(f"http://127.0.0.1:{port}") as client:
        runs = [(await client.send("refused", number)).run_id for number in range(3)]
        serving = asyncio.create_task(client.serve("refused", handler))
        assert [await client.wait(run) for run in runs] == list(range(3))
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    app.platform.closing.set()
    server.should_exit = True
    await task
    assert calls == dict.fromkeys(range(3), 1)
    assert request_counts["listen"] >= 3
    assert request_counts["steps"] >= 9


async def test_a_function_that_blocks_longer_than_the_lease_loses_nothing_without_a_loop():
    async with asyncio.timeout(60), running_live_server() as server, Client(server.address) as client:
        await client_put(server.address, "blocking", lease=1)
        first, second = (await client.send("blocking", 1)).run_id, (await client.send("blocking", 2)).run_id
        threads: set[str] = set()

        def block(seconds: float) -> str:
            threads.add(threading.current_thread().name)
            time.sleep(seconds)
            return "rested"

        def listen() -> list[Any]:
            seen: list[Any] = []
            for delivery in Client(server.address).listen_sync("blocking", name="thread"):
                with delivery:
                    if delivery.number == 1 and delivery.payload == 2:
                        delivery.ask("Go on?")
                    rested = delivery.step("block", block, 2.2 if delivery.payload == 1 else 0.1)
                    seen.append((delivery.number, rested, delivery.deadline))
                    delivery.complete(delivery.payload)
                if len(seen) == 2:
                    return seen
            return seen

        listening = asyncio.create_task(asyncio.to_thread(listen))
        assert await client.wait(first) == 1
        while not (approvals := await client.approvals(second)):  # noqa: ASYNC110 - it is elsewhere
            await asyncio.sleep(0.02)
        await client.approve(approvals[0].id)
        assert await client.wait(second) == 2
        assert await listening == [(1, "rested", None), (2, "rested", None)]
        assert len(threads) == 1
        assert threads.isdisjoint({"holdfast-listener", "MainThread"})


async def test_blocking_code_learns_afterwards_that_its_run_is_lost(caplog: pytest.LogCaptureFixture):
    async with asyncio.timeout(60), running_live_server() as server, Client(server.address) as client:
        run = (await client.send("lost", "first")).run_id
        begun, cancelled = threading.Event(), threading.Event()

        def block() -> str:
            begun.set()
            assert cancelled.wait(10)
            return "thrown away"

        def listen() -> SyncDelivery:
            for delivery in Client(server.address).listen_sync("lost"):
                with delivery:
                    delivery.step("block", block)
                    pytest.fail("the run was cancelled")
                assert delivery.is_lost
                with pytest.raises(DeliveryLost):
                    delivery.complete()
                return delivery
            raise AssertionError

        listening = asyncio.create_task(asyncio.to_thread(listen))
        await asyncio.to_thread(begun.wait)
        await client.cancel(run)
        cancelled.set()
        with caplog.at_level(logging.WARNING, "holdfast.listeners"):
            assert (await listening).state == "lost"
        assert "the run was cancelled" in caplog.text


async def client_put(address: str, name: str, **settings: Any) -> None:
    async with httpx2.AsyncClient(base_url=address) as http:
        assert (await http.put(f"/v1/addresses/{name}", json=settings)).status_code == 200


async def test_a_dead_listeners_work_goes_to_another_which_continues_at_its_step(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listener_registry, "RECONNECT_GRACE_S", 0.1)
    async with asyncio.timeout(60), running_live_server() as server, Client(server.address) as client:
        calls: list[str] = []
        has_begun, is_elsewhere, is_over = asyncio.Event(), asyncio.Event(), asyncio.Event()
        lost: list[str] = []

        async def handler(delivery: Delivery) -> str:
            await delivery.step("one", lambda: calls.append("one"))
            if delivery.number == 1:
                has_begun.set()
                await die(dying)
                await is_elsewhere.wait()
                try:
                    await delivery.step("two", lambda: calls.append("two"))
                except DeliveryLost as loss:
                    lost.append(loss.reason)
                    is_over.set()
                    raise
            is_elsewhere.set()
            await delivery.step("two", lambda: calls.append("two"))
            return f"{delivery.number}"

        run = (await client.send("heirs")).run_id
        async with Client(server.address) as dying:
            first = asyncio.create_task(dying.serve("heirs", handler))
            await has_begun.wait()
            second = asyncio.create_task(client.serve("heirs", handler))
            assert await client.wait(run) == "2"
            await is_over.wait()
            for task in (first, second):
                task.cancel()
            await asyncio.gather(first, second, return_exceptions=True)
        assert calls[:2] == ["one", "two"]
        assert lost[0] in ("taken-over", "ended")


async def die(client: Client) -> None:
    """Nobody speaks for this client's deliveries any more, and it has not said so: as if its process were dead."""
    assert isinstance(client, HttpClient)
    for listener in client._listeners._listeners:
        assert listener._stream_task is not None
        listener._stream_task.cancel()
        await listener.stop_heartbeats()


async def test_a_listener_cancelled_from_outside_when_its_run_is_lost_stays_cancelled():
    async with asyncio.timeout(60), running_live_server() as server, Client(server.address) as client:
        run = (await client.send("both")).run_id
        held = asyncio.Event()
        left: list[str] = []

        async def listen() -> None:
            async for delivery in client.listen("both"):
                async with delivery:
                    held.set()
                    try:
                        await asyncio.sleep(60)
                    except asyncio.CancelledError:
                        outside.cancel()  # at the very same moment
                        raise
                left.append("the block was left as if nothing had happened")

        outside = asyncio.create_task(listen())
        await held.wait()
        await client.cancel(run)
        await asyncio.gather(outside, return_exceptions=True)
        assert outside.cancelled()
        assert not left


async def test_the_client_imports_neither_tools_nor_models_nor_an_http_library():
    unwanted = ("httpx2", "pydantic_ai", "starlette", "holdfast.tools", "holdfast.agents", "holdfast.server")
    code = (
        f"import sys, holdfast.client.client as _; print(*(one for one in sys.modules if one.startswith({unwanted})))"
    )
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.returncode) == ("", 0), done.stderr
