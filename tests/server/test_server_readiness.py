"""Whether a server is ready, as its probe reports it from another thread."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.server import uvicorn_server
from holdfast.server.app import create_app
from holdfast.server.uvicorn_server import ServerReadiness, UvicornServer

pytestmark = pytest.mark.asyncio


async def test_a_server_is_ready_while_its_store_responds_and_nobody_stops_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(uvicorn_server, "STORE_CHECK_INTERVAL_S", 0)
    app = create_app("memory://")
    async with app.running():
        server = UvicornServer(app)
        readiness = ServerReadiness(server, app, asyncio.get_running_loop())
        assert await asyncio.to_thread(readiness.get_reason) == ""

        async def fail() -> None:
            raise StoreUnavailable("it is away")

        with monkeypatch.context() as patch:
            patch.setattr(app.platform, "check_store", fail)
            assert await asyncio.to_thread(readiness.get_reason) == "its store does not respond"

        with monkeypatch.context() as patch:
            patch.setattr(app.platform, "check_store", asyncio.Event().wait)
            patch.setattr(uvicorn_server, "STORE_CHECK_TIMEOUT_S", 0.01)
            assert await asyncio.to_thread(readiness.get_reason) == "its store does not respond"

        assert await asyncio.to_thread(readiness.get_reason) == ""
        server.stop()
        assert await asyncio.to_thread(readiness.get_reason) == "it is stopping"


async def test_the_store_is_not_asked_by_every_probe(monkeypatch: pytest.MonkeyPatch):
    app = create_app("memory://")
    async with app.running():
        count = 0

        async def check() -> None:
            nonlocal count
            count += 1

        monkeypatch.setattr(app.platform, "check_store", check)
        readiness = ServerReadiness(UvicornServer(app), app, asyncio.get_running_loop())
        for _ in range(3):
            await asyncio.to_thread(readiness.get_reason)
        assert count == 1
