"""A server in the test's own process, asked through ASGI without a network."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2

from holdfast.server.app import App, Settings, create_app
from holdfast.server.keys import create_key


@dataclass
class Served:
    """A running platform, and ways to ask it."""

    app: App
    url: str
    """The store's."""
    _open: list[httpx2.AsyncClient] = field(default_factory=list)

    def caller(self, token: str | None = None, **headers: str) -> httpx2.AsyncClient:
        """A client that shows this token."""
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        transport = httpx2.ASGITransport(app=self.app)
        client = httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)
        self._open.append(client)
        return client

    async def key(self, *scopes: str, namespace: str = "default", name: str = "test", **more: Any) -> str:
        """The token of a new key."""
        store = await self.app.platform.tenants.home()
        now = self.app.platform.settings.now()
        _, token = await create_key(store, name, scopes, namespace, now=now, **more)
        return token

    async def close(self) -> None:
        for client in self._open:
            await client.aclose()


@asynccontextmanager
async def serving(url: str = "memory://", settings: Settings | None = None) -> AsyncGenerator[Served]:
    """A platform over the store at ``url``."""
    served = Served(create_app(url, settings=settings), url)
    async with served.app.running():
        try:
            yield served
        finally:
            await served.close()
