"""A store over a real Temporal server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from temporal_stores import opened_store

from holdfast.stores.temporal.store import TemporalStore


@pytest_asyncio.fixture
async def store() -> AsyncIterator[TemporalStore]:
    """One that is open."""
    opened = await opened_store()
    yield opened
    await opened.close()
