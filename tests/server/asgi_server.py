"""A server in the test's own process, asked through ASGI without a network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import httpx2

from holdfast.server.app import App, Settings, create_app
from holdfast.services.api_keys import create_key


@dataclass
class Clock:
    """Time that passes when a test says so."""

    now: float

    def __call__(self) -> float:
        return self.now


@dataclass
class AsgiServer:
    """A running platform, and ways to ask it."""

    app: App
    url: str
    """The store's."""
    _open: list[httpx2.AsyncClient] = field(default_factory=list)

    def caller(self, token: str | None = None, *, remote: str = "127.0.0.1", **headers: str) -> httpx2.AsyncClient:
        """A client at an address that shows this token."""
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        transport = httpx2.ASGITransport(app=self.app, client=(remote, 12345))
        client = httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)
        self._open.append(client)
        return client

    async def key(self, *scopes: str, namespace: str = "default", name: str = "test", **more: Any) -> str:
        """The token of a new key."""
        store = await self.app.platform.tenants.get_default_store()
        now = self.app.platform.settings.now()
        _, token = await create_key(store, name, scopes, namespace, now=now, **more)
        return token

    async def raw(
        self,
        method: str,
        path: bytes,
        headers: Sequence[tuple[str, str]] = (("host", "localhost"),),
        body: Sequence[bytes] = (),
        query: bytes = b"",
        http_version: str = "1.1",
    ) -> tuple[int, dict[str, str], bytes]:
        """What comes of a request that no decent client would make: status, headers and body.

        Parts of the body that the server reads are taken from it, if it is a list.
        """
        parts, sent = (body if isinstance(body, list) else list(body)) or [b""], list[Any]()

        async def receive() -> Any:
            if not parts:
                await asyncio.Event().wait()  # the caller never hangs up
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": http_version,
            "method": method,
            "scheme": "http",
            "path": unquote(path.decode("latin-1")),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
            "client": ("127.0.0.1", 12345),
            "server": ("127.0.0.1", 80),
        }
        await self.app(scope, receive, send)
        response_headers = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], response_headers, b"".join(message.get("body", b"") for message in sent[1:])

    async def close(self) -> None:
        for client in self._open:
            await client.aclose()


@asynccontextmanager
async def running_server(url: str = "memory://", settings: Settings | None = None) -> AsyncGenerator[AsgiServer]:
    """A platform over the store at ``url``."""
    served = AsgiServer(create_app(url, settings=settings), url)
    async with served.app.running():
        try:
            yield served
        finally:
            await served.close()
