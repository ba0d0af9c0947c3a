"""Every test here runs on both stores, in a world of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from worlds import VirtualClock, World

from holdfast.authoring.registry import definitions


@pytest.fixture(autouse=True)
def _own_workflows() -> Iterator[None]:
    """Workflows are known by name, and tests like to name theirs alike."""
    before = dict(definitions)
    definitions.clear()
    yield
    definitions.clear()
    definitions.update(before)


@pytest_asyncio.fixture(params=["memory", "sqlite"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    world = World(request.param, tmp_path)
    yield world
    await world.close()


@pytest_asyncio.fixture
async def in_memory(tmp_path: Path) -> AsyncIterator[World]:
    """For what does not depend on the store."""
    world = World("memory", tmp_path)
    yield world
    await world.close()


@pytest.fixture
def clock(request: pytest.FixtureRequest) -> VirtualClock:
    name = "world" if "world" in request.fixturenames else "in_memory"
    return request.getfixturevalue(name).clock
