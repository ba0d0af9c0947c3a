"""Connections for clients' reads: a slow read does not delay the others, and there are never too many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from postgres_server import database

from holdfast.stores.contract import RunFilter
from holdfast.stores.postgres import PgStore
from holdfast.stores.postgres.store import MAX_CLIENT_READ_CONNECTIONS

pytestmark = pytest.mark.asyncio

GATE = 1
"""The number of an advisory lock that keeps slow reads from ending."""
WAIT = "SELECT pg_advisory_lock_shared(1), pg_advisory_unlock_shared(1), pg_backend_pid()"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with database() as url:
        yield url


@pytest_asyncio.fixture
async def store(url: str) -> AsyncIterator[PgStore]:
    store = PgStore(url, poll_interval_s=0)
    await store.open()
    await store.write(lambda db: db.query("SELECT pg_advisory_lock(%s)", (GATE,)))
    yield store
    await store.close()


def start_slow_read(store: PgStore) -> asyncio.Task[int]:
    return asyncio.ensure_future(store.read_for_client(lambda db: db.query(WAIT)[0][2]))


async def open_gate(store: PgStore) -> None:
    await store.write(lambda db: db.query("SELECT pg_advisory_unlock(%s)", (GATE,)))


async def test_a_slow_list_does_not_delay_other_reads(store: PgStore):
    slow = [start_slow_read(store) for _ in range(MAX_CLIENT_READ_CONNECTIONS - 1)]
    await asyncio.sleep(0)
    async with asyncio.timeout(4):  # less than the time after which the server ends a wait for a lock
        for _ in range(3):
            assert await store.list_runs(RunFilter()) == []
            assert await store.count_runs() == {}
    assert not any(read.done() for read in slow)
    await open_gate(store)
    assert len(set(await asyncio.gather(*slow))) == len(slow)  # a connection for each


async def test_reads_share_a_limited_number_of_connections(store: PgStore):
    reads = [start_slow_read(store) for _ in range(3 * MAX_CLIENT_READ_CONNECTIONS)]
    await asyncio.sleep(0)
    await open_gate(store)
    assert len(set(await asyncio.gather(*reads))) == MAX_CLIENT_READ_CONNECTIONS


async def test_reads_one_after_the_other_use_one_connection(store: PgStore):
    await open_gate(store)
    assert len({await start_slow_read(store) for _ in range(5)}) == 1
