"""Every store passes the same suite: a further store is one more line in ``BACKENDS``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import postgres_server
import pytest
import pytest_asyncio
from store_values import Clock

from holdfast.codec import AesEncryption
from holdfast.stores.contract import Store
from holdfast.stores.encrypted import EncryptedStore
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres import PgStore
from holdfast.stores.postgres.workers import compute_lock_class
from holdfast.stores.sqlite import SqliteStore


@dataclass(frozen=True)
class Backend:
    """How the suite makes a store, sees it from another process, and lets one of its workers die."""

    make: Callable[[Path, Clock], Any]
    again: Callable[[Any, Clock], Any]
    kill_worker: Callable[[Any, int], None]
    place: Callable[[Path], AbstractContextManager[Any]] = nullcontext
    """Where it is, as ``make`` wants to know it."""
    slower: int = 1
    """How many times as long a story takes on it: so much fewer of them are told."""


def let_go(store: PgStore, worker: int) -> None:
    """Lose a worker's lock for good, as if its process were gone."""
    store.session._wanted_locks.discard(worker)
    store.session._held_locks.discard(worker)
    unlock = "SELECT pg_advisory_unlock(%s::int4, %s::int4)"
    assert store.session.run_blocking(lambda db: db.query(unlock, (compute_lock_class(store.schema), worker))) == [
        (True,)
    ]
    store.writer.run_blocking(partial(store.workers.unlock_from_writer, worker))


ENCRYPTION = AesEncryption(bytes(range(32)))

BACKENDS = {
    "memory": Backend(
        lambda _, clock: MemoryStore(clock=clock), lambda store, _: store, MemoryStore.simulate_worker_death
    ),
    "sqlite": Backend(
        lambda folder, clock: SqliteStore(folder / "runs.db", clock=clock),
        lambda store, clock: SqliteStore(store.path, clock=clock),
        lambda store, worker: store.workers._locks.release(store.workers._own_workers[worker]),
    ),
    "encrypted": Backend(
        lambda folder, clock: EncryptedStore(SqliteStore(folder / "runs.db", clock=clock), ENCRYPTION),
        lambda store, clock: EncryptedStore(SqliteStore(store.inner.path, clock=clock), ENCRYPTION),
        lambda store, worker: store.inner.workers._locks.release(store.inner.workers._own_workers[worker]),
    ),
    "postgres": Backend(
        lambda url, clock: PgStore(url, clock=clock, poll_interval_s=0.0),
        lambda store, clock: PgStore(store._libpq_url, clock=clock, poll_interval_s=0.0),
        let_go,
        lambda _: postgres_server.database(),
        slower=5,
    ),
}


ENCRYPTED_IN = {
    f"test_store_{part}"
    for part in (
        "approvals", "deduplication", "deliveries", "erasure", "forks", "journal", "live_events", "reopened_runs",
        "restoration", "retention", "run_lifecycle", "run_links", "run_requests", "schedules", "server_data",
        "settlement",
    )
}  # fmt: skip
"""The modules whose tests also run on an encrypted store: those about values, and not about searching in them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the tests that would take time and show nothing new about encrypted values."""
    items[:] = [item for item in items if _backend_of(item) != "encrypted" or item.module.__name__ in ENCRYPTED_IN]


def _backend_of(item: Any) -> str | None:
    return item.callspec.params.get("backend") if hasattr(item, "callspec") else None


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def backends() -> dict[str, Backend]:
    """All of them, for a test that needs more than one."""
    return BACKENDS


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return BACKENDS[request.param]


@pytest_asyncio.fixture
async def store(backend: Backend, tmp_path: Path, clock: Clock) -> AsyncIterator[Store]:
    with backend.place(tmp_path) as place:
        store = backend.make(place, clock)
        await store.open()
        yield store
        await store.close()


@pytest_asyncio.fixture
async def second_store(backend: Backend, store: Store, clock: Clock) -> AsyncIterator[Store]:
    """The same data, as another process sees it."""
    other = backend.again(store, clock)
    await other.open()
    yield other
    await other.close()


@pytest.fixture
def kill_worker(backend: Backend, store: Store) -> Callable[[int], None]:
    """Lets the process of a worker, registered through ``store``, be gone."""
    return lambda worker: backend.kill_worker(store, worker)
