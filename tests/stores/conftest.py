"""Every store passes the same suite: a further store is one more line in ``BACKENDS``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from store_values import Clock

from holdfast.stores.contract import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore


@dataclass(frozen=True)
class Backend:
    """How the suite makes a store, sees it from another process, and lets one of its workers die."""

    make: Callable[[Path, Clock], Any]
    again: Callable[[Any, Clock], Any]
    kill: Callable[[Any, int], None]


BACKENDS = {
    "memory": Backend(lambda _, clock: MemoryStore(clock=clock), lambda store, _: store, MemoryStore.kill_worker),
    "sqlite": Backend(
        lambda folder, clock: SqliteStore(folder / "runs.db", clock=clock),
        lambda store, clock: SqliteStore(store.path, clock=clock),
        lambda store, worker: store._locks.drop(store._mine[worker]),
    ),
}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return BACKENDS[request.param]


@pytest_asyncio.fixture
async def store(backend: Backend, tmp_path: Path, clock: Clock) -> AsyncIterator[Store]:
    store = backend.make(tmp_path, clock)
    await store.open()
    yield store
    await store.close()


@pytest_asyncio.fixture
async def elsewhere(backend: Backend, store: Store, clock: Clock) -> AsyncIterator[Store]:
    """The same data, as another process sees it."""
    other = backend.again(store, clock)
    await other.open()
    yield other
    await other.close()


@pytest.fixture
def kill(backend: Backend, store: Store) -> Callable[[int], None]:
    """Lets the process of a worker, registered through ``store``, be gone."""
    return lambda worker: backend.kill(store, worker)
