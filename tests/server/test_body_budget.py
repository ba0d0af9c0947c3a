"""Bodies of requests have a budget of memory: of each caller, and of all."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from asgi_server import AsgiServer, running_server

from holdfast.server.app import Settings
from holdfast.server.http.body_budget import MAX_BODIES, MAX_BODIES_PER_CALLER
from holdfast.services.problems import Problem

pytestmark = pytest.mark.asyncio

LARGEST = 1000


class Unfinished:
    """A request whose body goes on until the test ends it."""

    def __init__(self, served: AsgiServer, token: str, size: int) -> None:
        self._first: bytes | None = b'{"payload": "' + b"a" * (size - 13)
        self._end = asyncio.Event()
        self.answer: list[Any] = []
        self.is_read = asyncio.Event()
        self.task = asyncio.create_task(served.app(self._scope(token), self._receive, self._send))

    def _scope(self, token: str) -> dict[str, Any]:
        headers = {"host": "localhost", "content-type": "application/json", "authorization": f"Bearer {token}"}
        return {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/v1/addresses/jobs/send",
            "raw_path": b"/v1/addresses/jobs/send",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }

    async def _receive(self) -> Any:
        if self._first is not None:
            first, self._first = self._first, None
            return {"type": "http.request", "body": first, "more_body": True}
        self.is_read.set()
        await self._end.wait()
        return {"type": "http.request", "body": b'"}', "more_body": False}

    async def _send(self, message: Any) -> None:
        self.answer.append(message)

    async def status(self) -> int:
        """How it is answered, once it is all there."""
        self._end.set()
        await self.task
        return self.answer[0]["status"]

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.answer[0]["headers"]}


async def begun(served: AsgiServer, token: str, size: int = LARGEST - 10) -> Unfinished:
    request = Unfinished(served, token, size)
    reading = asyncio.create_task(request.is_read.wait())
    await asyncio.wait([request.task, reading], return_when=asyncio.FIRST_COMPLETED)
    reading.cancel()
    return request


async def test_unfinished_bodies_of_a_key_have_a_budget_and_others_are_served_meanwhile():
    async with running_server(settings=Settings(max_body_bytes=LARGEST)) as served:
        greedy, other = await served.key("submit"), await served.key("submit")
        held = [await begun(served, greedy) for _ in range(MAX_BODIES_PER_CALLER)]
        refused = await begun(served, greedy)
        assert await refused.status() == 429
        assert json.loads(refused.answer[1]["body"])["type"] == "too-many-bytes"
        assert int(refused.headers["retry-after"]) >= 1
        assert await (await begun(served, other)).status() == 201
        assert [await one.status() for one in held] == [201] * MAX_BODIES_PER_CALLER
        assert await (await begun(served, greedy)).status() == 201


async def test_bodies_of_all_keys_have_a_budget():
    async with running_server(settings=Settings(max_body_bytes=LARGEST)) as served:
        keys = [await served.key("submit") for _ in range(MAX_BODIES + 1)]
        held = [await begun(served, key) for key in keys[:MAX_BODIES]]
        refused = await begun(served, keys[-1])
        assert await refused.status() == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert await held.pop().status() == 201
        assert await (await begun(served, keys[-1])).status() == 201
        for one in held:
            await one.status()


async def test_small_bodies_are_read_while_large_ones_of_others_take_the_whole_budget():
    async with running_server(settings=Settings(max_body_bytes=1024 * LARGEST)) as served:
        greedy = [await served.key("submit") for _ in range(MAX_BODIES)]
        other = await served.key("submit")
        held = [await begun(served, key, 1024 * LARGEST - 10) for key in greedy]
        held.append(await begun(served, greedy[0], (MAX_BODIES + 1) * LARGEST))  # and the beginnings that do not count
        assert await (await begun(served, other, 2 * LARGEST)).status() == 503
        answer = await served.caller(other).post("/v1/addresses/jobs/send", json={"payload": "a" * (LARGEST // 2)})
        assert answer.status_code == 201
        for one in held:
            assert await one.status() == 201
        assert served.app.platform.body_budget._used_bytes == 0


async def test_the_budget_is_free_again_however_a_request_ends():
    async with running_server(settings=Settings(max_body_bytes=LARGEST)) as served:
        key = await served.key("submit")
        for _ in range(3 * MAX_BODIES_PER_CALLER):
            request = await begun(served, key)
            request.task.cancel()
            await asyncio.gather(request.task, return_exceptions=True)
        answer = await served.caller(key).post("/v1/addresses/jobs/send", json={"payload": "a" * (LARGEST - 100)})
        assert answer.status_code == 201
        with served.app.platform.body_budget.open_reservation("anybody") as room:
            room.extend(MAX_BODIES_PER_CALLER * LARGEST)
            with pytest.raises(Problem):
                room.extend(1)
