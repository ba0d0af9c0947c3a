"""Webhooks when servers are killed, receivers are away, and several servers send at once."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from asgi_server import running_server
from webhook_receiver import Got, Reply, receiving

from free_ports import free_port
from holdfast.server.app import Settings
from holdfast.server.webhooks import sender

pytestmark = pytest.mark.asyncio

SERVER = Path(__file__).with_name("server_process.py")


@asynccontextmanager
async def server(database: Path, port: int) -> AsyncGenerator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(sys.executable, SERVER, f"sqlite:///{database}", str(port))
    try:
        async with asyncio.timeout(30), httpx2.AsyncClient() as http:
            while True:
                try:
                    await http.get(f"http://127.0.0.1:{port}/v1/health")
                    break
                except httpx2.TransportError:
                    await asyncio.sleep(0.05)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def ask(port: int, method: str, path: str, body: Any = None) -> Any:
    async with httpx2.AsyncClient(timeout=30) as http:
        answer = await http.request(method, f"http://127.0.0.1:{port}{path}", json=body)
    assert answer.is_success, answer.text
    return answer.json()


async def ended(port: int, run: str, *states: str) -> list[Any]:
    """The deliveries of a run, when the last one is in one of these states."""
    async with asyncio.timeout(30):
        while True:
            items = (await ask(port, "GET", f"/v1/runs/{run}/deliveries"))["items"]
            if items and items[-1]["state"] in states:
                return items
            await asyncio.sleep(0.05)


async def test_a_request_of_a_killed_server_is_sent_again_with_the_recorded_steps(tmp_path: Path):
    port, database = free_port(), tmp_path / "hooks.db"
    async with receiving() as receiver:

        async def answering(got: Got) -> Reply:
            if got.delivery["number"] > 1:
                return Reply(200, b'"done"')
            await asyncio.sleep(60)
            raise AssertionError("nobody kills the server")

        receiver.answering = answering
        async with server(database, port) as process:
            set_up = await ask(port, "PUT", "/v1/addresses/killed", {"webhook": receiver.url, "lease": 2})
            run = (await ask(port, "POST", "/v1/addresses/killed/send", {"payload": "x"}))["id"]
            first = await receiver.has_got(1)
            step = {"name": "extract", "output": 7}
            await ask(port, "POST", f"/v1/deliveries/{first.delivery['id']}/steps", step)
            process.kill()
            await process.wait()
        async with server(database, port):
            second = await receiver.has_got(2)
            assert (await ended(port, run, "completed"))[0]["state"] == "lost"
        assert (first.delivery["run_id"], second.delivery["run_id"]) == (run, run)
        assert len(receiver.got) == 2
        assert first.delivery["number"] < second.delivery["number"]
        assert [(one["name"], one["output"]) for one in second.delivery["steps"]] == [("extract", 7)]
        assert first.headers["webhook-id"] != second.headers["webhook-id"]
        assert all(got.signed_by(set_up["webhook_secret"]) for got in receiver.got)


async def test_a_receiver_that_is_away_for_a_while_gets_it_when_it_is_back(tmp_path: Path):
    port, receivers = free_port(), free_port()
    async with server(tmp_path / "hooks.db", port):
        hook = {"webhook": f"http://127.0.0.1:{receivers}/", "max_deliveries": 20}
        await ask(port, "PUT", "/v1/addresses/away", hook)
        run = (await ask(port, "POST", "/v1/addresses/away/send", {"payload": "x"}))["id"]
        assert "cannot be connected to" in (await ended(port, run, "returned"))[0]["reason"]
        async with receiving(receivers) as receiver:
            got = await receiver.has_got(1)
            history = await ended(port, run, "completed")
        assert got.delivery["number"] == len(history) > 1
        assert len(receiver.got) == 1


async def test_several_servers_send_each_delivery_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sender, "POLL_INTERVAL_S", 0.02)
    settings = Settings(allowed_webhook_hosts=("127.0.0.1",))
    async with receiving() as receiver, AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(running_server(f"sqlite:///{tmp_path}/hooks.db", settings))
            for _ in range(2)
        ]
        http = servers[0].caller()
        await http.put("/v1/addresses/shared", json={"webhook": receiver.url})
        await asyncio.sleep(0.1)
        runs = {
            (await http.post("/v1/addresses/shared/send", json={"payload": number})).json()["id"]
            for number in range(30)
        }
        await receiver.has_got(30)
        await asyncio.sleep(0.2)
        assert sorted(got.delivery["run_id"] for got in receiver.got) == sorted(runs)


async def test_the_receiver_in_node_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node here")
    monkeypatch.setattr(sender, "POLL_INTERVAL_S", 0.02)
    page = (Path(__file__).parents[2] / "docs" / "webhooks.md").read_text()
    [code] = re.findall(r"^```js\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "receiver.js").write_text(code)
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    async with running_server(settings=Settings(allowed_webhook_hosts=("127.0.0.1",))) as served:
        http = served.caller()
        secret = (await http.put("/v1/addresses/in-node", json={"webhook": url})).json()["webhook_secret"]
        environment = os.environ | {"WEBHOOK_SECRET": secret, "PORT": str(port)}
        process = await asyncio.create_subprocess_exec(node, tmp_path / "receiver.js", env=environment)
        try:
            async with asyncio.timeout(20), httpx2.AsyncClient() as stranger:
                while True:
                    try:
                        forged = await stranger.post(url, json={"payload": {"rows": [1]}})
                        break
                    except httpx2.TransportError:
                        await asyncio.sleep(0.05)
            assert forged.status_code == 401
            sent = await http.post("/v1/addresses/in-node/send", json={"payload": {"rows": [1, 2], "of": "Köln"}})
            client = served.app.platform.tenants.list_open()[0].client
            async with asyncio.timeout(20):
                assert await client.wait(sent.json()["id"]) == {"total": 3}
        finally:
            process.kill()
            await process.wait()
