"""A server with a worker beside it, in the test's own process, for pages that change something."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
from accessibility import violations
from live_server import running_live_server

from holdfast import Client
from holdfast.authoring.registry import definitions
from holdfast.authoring.runtime import Runtime
from holdfast.engine.journal_engine import JournalEngine
from holdfast.stores.contract import Store


@dataclass
class Stage:
    """A server, and whoever executes the runs of its store."""

    address: str
    store: Store
    client: Client
    """Over the store itself."""
    http: httpx2.AsyncClient

    async def open(self, page: Any, where: str, token: str | None = None) -> None:
        """The page at a place behind the ``#``, once it is there; with a key, if one is given."""
        if token is not None:
            await page.add_init_script(f"sessionStorage.setItem('holdfast-key', '{token}')")
        await page.goto(f"{self.address}/#/{where}")
        await page.get_by_role("complementary").get_by_text("live", exact=True).wait_for()

    async def key(self, *scopes: str) -> str:
        """The token of a new key; from the first one on, everything needs one."""
        if "authorization" not in self.http.headers:
            self.http.headers["authorization"] = f"Bearer {await self._made('admin')}"
        return await self._made(*scopes)

    async def _made(self, *scopes: str) -> str:
        answer = await self.http.post("/v1/keys", json={"name": f"the {scopes[0]} key", "scopes": list(scopes)})
        return answer.json()["token"]


@asynccontextmanager
async def staged(*workflows: str) -> AsyncGenerator[Stage]:
    """A server over a store in memory, and a worker that serves these."""
    async with running_live_server() as server:
        tenant = await server.app.platform.tenants.get_tenant("default")
        store = tenant.store
        runtime = Runtime("memory://")
        runtime._engine.thread_pool.stop()
        runtime._engine = JournalEngine(store, {name: definitions[name] for name in workflows})
        async with runtime, httpx2.AsyncClient(base_url=server.address, timeout=30) as http:
            yield Stage(server.address, store, tenant.client, http)


async def check_looks(page: Any, of: Sequence[str] = ("light", "dark", "phone")) -> None:
    """Nobody is left out: in light, in dark and on a phone, where nothing may stand beside the screen."""
    for look in of:
        await page.emulate_media(color_scheme="dark" if look == "dark" else "light")
        if look == "phone":
            await page.set_viewport_size({"width": 390, "height": 844})
        found = await violations(page)
        assert not found, f"{look}: {found}"
        wide = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{look}: the page is {wide} pixels wider than the screen"
