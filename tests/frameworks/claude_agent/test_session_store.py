"""Sessions in a Holdfast store: the SDK's own conformance suite, and what it leaves out."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from claude_agent_sdk.testing import run_session_store_conformance
from claude_agent_sdk.types import SessionKey
from kill_kit import open_store

from holdfast import Client
from holdfast.integrations.claude_agent import HoldfastSessionStore

KEY: SessionKey = {"project_key": "proj", "session_id": "sess"}


@pytest_asyncio.fixture(params=["sqlite", "postgres"])
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Client]:
    with open_store(request.param, tmp_path) as url:
        async with Client(url) as client:
            yield client


@pytest.mark.asyncio
async def test_the_store_passes_the_conformance_suite_of_the_sdk(client: Client):
    numbers = itertools.count()
    await run_session_store_conformance(lambda: HoldfastSessionStore(client.memory, f"sessions-{next(numbers)}"))


@pytest.mark.asyncio
async def test_an_append_that_is_repeated_adds_nothing(client: Client):
    store = HoldfastSessionStore(client.memory)
    entries: list[Any] = [{"type": "user", "uuid": "a"}, {"type": "mode"}]
    await store.append(KEY, entries)
    await store.append(KEY, [*entries, {"type": "user", "uuid": "b"}])
    loaded = await store.load(KEY)
    assert loaded == [*entries, {"type": "mode"}, {"type": "user", "uuid": "b"}]


@pytest.mark.asyncio
async def test_processes_that_append_at_the_same_time_lose_nothing(client: Client):
    stores = [HoldfastSessionStore(client.memory) for _ in range(4)]
    appends = [
        store.append(KEY, [{"type": "x", "uuid": f"{at}-{n}"}]) for n in range(5) for at, store in enumerate(stores)
    ]
    await asyncio.gather(*appends)
    loaded = await stores[0].load(KEY)
    assert loaded is not None
    assert len({entry["uuid"] for entry in loaded}) == 20
    for at in range(4):  # in the order of each process
        own = [entry["uuid"] for entry in loaded if entry["uuid"].startswith(f"{at}-")]
        assert own == [f"{at}-{n}" for n in range(5)]


@pytest.mark.asyncio
async def test_a_long_transcript_with_any_text_comes_back(client: Client):
    store = HoldfastSessionStore(client.memory)
    entries: list[Any] = [
        {"type": "x", "uuid": str(number), "text": "\ud800 \x00 é", "number": 2**70, "float": 0.1}
        for number in range(250)
    ]
    for entry in entries:
        await store.append({**KEY, "project_key": "p" * 500, "subpath": "subagents/" + "a" * 300}, [entry])
    assert await store.load({**KEY, "project_key": "p" * 500, "subpath": "subagents/" + "a" * 300}) == entries
