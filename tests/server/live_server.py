"""A server in the test's own process, on a port of its own: for streams, and for clients that need a network."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from holdfast.server.app import App, Settings, create_app
from holdfast.server.uvicorn_server import UvicornServer


@dataclass
class LiveServer:
    """A server on a port."""

    app: App
    address: str
    """As in ``http://127.0.0.1:54321``."""

    @asynccontextmanager
    async def stream(self, path: str, **params: Any) -> AsyncGenerator[AsyncGenerator[tuple[str, Any]]]:
        """The events of a stream, each with its name."""
        async with (
            httpx2.AsyncClient(base_url=self.address, timeout=30) as client,
            client.stream("GET", path, params=params) as answer,
        ):
            assert answer.status_code == 200, await answer.aread()
            yield _events(answer)


async def _events(answer: httpx2.Response) -> AsyncGenerator[tuple[str, Any]]:
    name = ""
    async for line in answer.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


@asynccontextmanager
async def running_live_server(
    url: str = "memory://", settings: Settings | None = None, port: int = 0, **more: Any
) -> AsyncGenerator[LiveServer]:
    """A server over the store at ``url``."""
    app = create_app(url, settings=settings)
    started, listening = asyncio.Event(), socket.create_server(("127.0.0.1", port))
    server = UvicornServer(app, on_started=started.set, grace_s=3, **more)
    async with app.running():
        task = asyncio.create_task(server._serve([listening]))  # `serve` would take the process's signal handlers
        await started.wait()
        try:
            yield LiveServer(app, f"http://127.0.0.1:{listening.getsockname()[1]}")
        finally:
            app.platform.closing.set()
            server.should_exit = True
            await task
            # A process that has ended has no connections. This one goes on, and a connection that was in the middle of
            # an answer when the server gave up waiting would be served by it, and told that it is stopping, for ever.
            for connection in list(server.server_state.connections):
                connection.transport.abort()
