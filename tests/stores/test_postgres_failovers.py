"""A primary is demoted without ending its connections: none of a store's connections stays with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("psycopg")

from postgres_standby import ReplicatedServers
from store_values import get_state, start_run

from holdfast.core.states import RunState
from holdfast.errors import StoreError
from holdfast.stores.postgres import PgStore
from waits import wait_until

pytestmark = pytest.mark.asyncio


@pytest.fixture
def servers() -> Iterator[ReplicatedServers]:
    servers = ReplicatedServers(synchronous=False)
    yield servers
    servers.remove()


async def test_all_connections_leave_a_primary_that_refuses_writes(servers: ReplicatedServers):
    store = PgStore(servers.url)
    await store.open()
    await start_run(store, "before")
    assert await get_state(store, "before") is RunState.PENDING
    assert await store.read_for_client(lambda db: db.query("SELECT 1")) == [(1,)]

    servers.primary.set_read_only(True)
    servers.standby.promote()

    async def is_started() -> bool:
        try:
            await start_run(store, "after")
        except StoreError:
            return False
        return True

    await wait_until(is_started)
    for reading in (lambda db: db.query("SELECT inet_server_port()"),) * 2:  # the first one brings the news
        for read in (store.read, store.read_for_client):
            await read(reading)
    assert await store.read(reading) == await store.read_for_client(reading) == [(servers.standby.port,)]
    assert await store.session.run(reading) == [(servers.standby.port,)]
    assert await get_state(store, "after") is RunState.PENDING
    await store.close()
