"""Stores over a real Temporal server, and what to wait for."""

from __future__ import annotations

import temporal_server
from holdfast.codec import Encryption
from holdfast.errors import StoreError
from holdfast.stores.temporal.store import TemporalStore
from holdfast.stores.temporal.targets import parse_target
from waits import wait_until


async def opened_store(query: str = "", *, encryption: Encryption | None = None) -> TemporalStore:
    """A store, once the server is ready for it."""
    store = TemporalStore(parse_target(temporal_server.url(query)), encryption=encryption)

    async def is_open() -> bool:
        try:
            await store.open()
        except StoreError:
            return False
        return True

    await wait_until(is_open)
    return store
