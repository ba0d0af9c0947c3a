"""Every test here runs on several stores, in its own ``World``.

On PostgreSQL it takes five times as long, so by default only the tests that depend most on a store run there; with
``python -m pytest tests/engine --stores all``, all of them do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from pathlib import Path

import postgres_server
import pytest
import pytest_asyncio
from engine_world import VirtualClock, World

from process_state import isolated_definitions

ON_POSTGRES = (
    "test_takeover",
    "test_isolation",
    "test_parked_runs",
    "test_run_approvals",
    "test_child_runs",
    "test_journal_writer",
    "test_late_store_responses",
    "test_unknown_commits",
    "test_limited_queues",
)
"""The modules that always run on PostgreSQL as well."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" in metafunc.fixturenames:
        is_wanted = metafunc.config.getoption("--stores") == "all" or metafunc.module.__name__ in ON_POSTGRES
        postgres = ["postgres"] if is_wanted else []
        metafunc.parametrize("world", ["memory", "sqlite", *postgres], indirect=True)


@pytest.fixture(autouse=True)
def _own_workflows() -> Iterator[None]:
    with isolated_definitions(only=True):
        yield


@pytest_asyncio.fixture
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    with postgres_server.database() if request.param == "postgres" else nullcontext(tmp_path) as place:
        world = World(request.param, place)
        yield world
        await world.close()


@pytest_asyncio.fixture
async def in_memory(tmp_path: Path) -> AsyncIterator[World]:
    """For tests that do not depend on the store."""
    world = World("memory", tmp_path)
    yield world
    await world.close()


@pytest.fixture
def clock(request: pytest.FixtureRequest) -> VirtualClock:
    name = "world" if "world" in request.fixturenames else "in_memory"
    return request.getfixturevalue(name).clock
