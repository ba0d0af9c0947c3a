"""Every scenario runs unchanged on SQLite, on PostgreSQL and on Temporal, through the public API alone.

The scenarios of a module share a runtime on each backend. What a backend cannot do stands in ``EXCLUDED``: the scenario
runs there all the same, and must fail with a ``UsageError`` that names the backend; if it does not, the test fails.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import postgres_server
import pytest
import pytest_asyncio
from conformance_world import BACKENDS, EXCLUDED, World, list_served_workflows, list_workflows
from history_checks import check_runs_since

import temporal_server
from holdfast import Client, Runtime, UsageError

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            backend = item.callspec.params.get("backend", "")
            if reason := EXCLUDED.get(item.originalname, {}).get(backend):
                refusal = pytest.RaisesExc(UsageError, match=f"(?i){backend}")
                item.add_marker(pytest.mark.xfail(raises=refusal, strict=True, reason=reason))


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def url(backend: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if backend == "temporal":
        yield temporal_server.fresh_url()
    elif backend == "postgres":
        with postgres_server.database() as url:
            yield url
    else:
        yield f"sqlite:///{tmp_path_factory.mktemp('conformance')}/runs.db"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(backend: str, url: str, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with Runtime(url, workflows=list_served_workflows(request.module)) as runtime:
        yield World(backend, url, runtime)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(url: str) -> AsyncIterator[Client]:
    async with Client(url) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def _check_histories(backend: str, world: World, request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """On Temporal, what a run has recorded is read from its history once more: see ``history_checks``."""
    began = time.time()
    yield
    if backend == "temporal":
        await check_runs_since(world.url, began, list_workflows(request.module), list_served_workflows(request.module))
