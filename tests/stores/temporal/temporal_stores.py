"""Stores over a real Temporal server, and what to wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import temporal_server
from holdfast.codec import Encryption
from holdfast.errors import StoreError
from holdfast.stores.temporal.store import TemporalStore
from holdfast.stores.temporal.targets import parse_target


async def opened_store(query: str = "", *, encryption: Encryption | None = None) -> TemporalStore:
    """A store, once the server is ready for it."""
    store = TemporalStore(parse_target(temporal_server.url(query)), encryption=encryption)

    async def is_open() -> bool:
        try:
            await store.open()
        except StoreError:
            return False
        return True

    await until(is_open, 30.0)
    return store


async def until(holds: Callable[[], Awaitable[object]], seconds: float = 10.0) -> None:
    """Wait until something is so: lists learn of it a moment later."""
    async with asyncio.timeout(seconds):
        while not await holds():  # noqa: ASYNC110
            await asyncio.sleep(0.03)
