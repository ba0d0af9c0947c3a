"""What a client shares with the store that it connects to: its clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from holdfast.client.store_connections import StoreConnection
from holdfast.services.run_control import cancel_run, pause_run, send_signal
from holdfast.stores.memory.store import MemoryStore
from holdfast.stores.operations import NewRun, StartRun

STORE_TIME = 1000.0
"""Not the time of this machine."""


async def finished_at(store: MemoryStore) -> float | None:
    run = await store.get_run("r")
    assert run is not None
    return run.finished_at


async def paused_at(store: MemoryStore) -> float | None:
    run = await store.get_run("r")
    assert run is not None
    return run.paused_at


async def sent_at(store: MemoryStore) -> float | None:
    run = await store.get_run("r")
    assert run is not None
    [history] = await store.get_histories([run.key])
    return history.signals[0].sent_at


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("change", "recorded"),
    [
        (lambda connection: cancel_run(connection, "r"), finished_at),
        (lambda connection: pause_run(connection, "r"), paused_at),
        (lambda connection: send_signal(connection, "r", "go", None, None), sent_at),
    ],
    ids=["cancel", "pause", "signal"],
)
async def test_the_first_change_through_a_connection_is_recorded_with_the_stores_time(
    change: Callable[[StoreConnection], Awaitable[bool]], recorded: Callable[[MemoryStore], Awaitable[float | None]]
):
    store = MemoryStore(clock=lambda: STORE_TIME)
    await store.open()
    await store.commit([StartRun(NewRun("r", "flow", b"{}", b"d", b"s", STORE_TIME))])
    assert await change(StoreConnection("memory:", lambda _: store))
    assert await recorded(store) == STORE_TIME
    await store.close()
