"""A fleet on PostgreSQL: each worker watches its neighbors, and the cost of that does not grow with the fleet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from postgres_server import database
from store_values import new_worker

from holdfast.stores.leases import LeaseWindow
from holdfast.stores.postgres import PgStore
from holdfast.stores.postgres import workers as workers_module
from holdfast.stores.postgres.adapters import IntArray
from holdfast.stores.postgres.workers import NEIGHBOR_COUNT
from waits import wait_until

pytestmark = pytest.mark.asyncio

FLEET = 12
FOREVER = LeaseWindow(0.0, 0.0)
"""No lease counts: only locks tell."""


@pytest.fixture
def url() -> Iterator[str]:
    with database() as url:
        yield url


@pytest_asyncio.fixture
async def fleet(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[tuple[PgStore, int]]]:
    """Workers in the order of their ids, each with a store of its own that looks when it is told to."""
    monkeypatch.setattr(workers_module, "MIN_DEATH_RECHECK_DELAY_S", 0.01)
    opened = []
    for _ in range(FLEET):
        store = PgStore(url, poll_interval_s=1e9)
        await store.open()
        opened.append((store, await store.workers.register(new_worker(), 1e6)))
    stores = [store for store, _ in opened]
    yield opened
    for store in stores:
        await store.close()


async def die(*stores: PgStore) -> None:
    """Let the sessions end that hold the workers' locks, and have no others."""
    for store in stores:
        store.session.close()
        store.writer.close()
    held = (
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid::int8 = ANY(%s::bigint[]) "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    workers = [worker for store in stores for worker in store.workers._own_workers]
    locks = IntArray([*workers, *(2**32 - worker for worker in workers)])
    await wait_until(lambda: stores[0].read(lambda db: db.query(held, (locks,)) == [(0,)]), "the locks are free")


async def poll_and_reap(store: PgStore, worker: int) -> set[int]:
    """The workers that are declared dead after one poll."""
    await store.workers._poll(worker)
    return set((await store.workers.reap_dead(worker, FOREVER)).worker_ids)


async def test_a_poll_takes_the_locks_of_neighbors_only(fleet: list[tuple[PgStore, int]]):
    store, worker = fleet[-2]
    ids = [id for _, id in fleet]
    tried = await store.read(
        lambda db: db.query(f"SELECT id FROM ({store.workers.statements.neighbors}) w", {"me": worker})
    )  # the last one, and the first two
    assert sorted(id for (id,) in tried) == sorted([ids[-1], *ids[: NEIGHBOR_COUNT - 1]])
    assert "pg_locks" not in store.workers.statements.poll


@pytest.mark.parametrize(
    "dead", [[3], [0], [FLEET - 1], [2, 3, 4, 5, 6, 7], [0, 1, FLEET - 2, FLEET - 1], range(1, FLEET)]
)
async def test_any_death_is_noticed_at_the_next_poll(fleet: list[tuple[PgStore, int]], dead: list[int]):
    gone = {fleet[at][1] for at in dead}
    await die(*(fleet[at][0] for at in dead))
    found: set[int] = set()
    for at, (store, worker) in enumerate(fleet):
        if at not in dead:
            found |= await poll_and_reap(store, worker)
    assert found == gone


async def test_polls_do_not_keep_a_worker_from_its_lock(fleet: list[tuple[PgStore, int]]):
    """A poll takes a free lock for a moment only; a worker that was cut off has it again soon."""
    (victim, worker), *others = fleet
    before = victim.session._backend_pid
    await others[0][0].read(lambda db: db.query("SELECT pg_terminate_backend(%s::int4)", (before,)))
    async with asyncio.timeout(10):
        while victim.session._backend_pid == before or worker not in victim.session._held_locks:
            await asyncio.gather(*(store.workers._poll(id) for store, id in others))
    assert [await poll_and_reap(store, id) for store, id in others] == [set()] * len(others)


@pytest.mark.parametrize("lost", ["session", "writer"])
async def test_a_worker_that_loses_one_of_its_connections_is_not_dead(fleet: list[tuple[PgStore, int]], lost: str):
    (victim, _), *others = fleet
    getattr(victim, lost).close()
    assert [await poll_and_reap(store, id) for store, id in others] == [set()] * len(others)


async def test_a_new_connection_that_writes_takes_the_second_lock_again(fleet: list[tuple[PgStore, int]]):
    (victim, _), (store, worker), *_ = fleet
    pid = await victim.write(lambda db: db.query("SELECT pg_backend_pid()"))
    await store.read(lambda db: db.query("SELECT pg_terminate_backend(%s::int4, 5000)", pid[0]))
    assert pid != await victim.write(lambda db: db.query("SELECT pg_backend_pid()"))
    victim.session.close()
    assert await poll_and_reap(store, worker) == set()


async def test_a_process_that_lost_its_own_session_takes_no_free_lock_for_a_death(fleet: list[tuple[PgStore, int]]):
    (store, worker), (victim, dead), *_ = fleet
    before = store.session._backend_pid
    await victim.read(lambda db: db.query("SELECT pg_terminate_backend(%s::int4, 5000)", (before,)))
    await wait_until(lambda: store.session._backend_pid != before and worker in store.session._held_locks)
    await wait_until(lambda: store.cut_off_at > 0)
    await die(victim)
    assert await poll_and_reap(store, worker) == set()
    store.cut_off_at -= workers_module.REJOIN_GRACE_S  # as if that time had passed
    assert await poll_and_reap(store, worker) == {dead}


async def test_a_new_worker_knows_the_dead_even_if_another_check_of_it_has_just_begun(
    fleet: list[tuple[PgStore, int]], monkeypatch: pytest.MonkeyPatch
):
    """Before its first start: else a script that was killed and run again would not join the run it has left."""
    (store, worker), (victim, dead), *_ = fleet
    monkeypatch.setattr(workers_module, "MIN_DEATH_RECHECK_DELAY_S", 1.0)
    await die(victim)
    store.workers.check_deaths()
    await wait_until(lambda: store.workers._checked_at)  # it has looked once, and will look again in a second
    monkeypatch.setattr(workers_module, "MIN_DEATH_RECHECK_DELAY_S", 0.01)
    assert (await store.workers.reap_dead(worker, FOREVER)).worker_ids == (dead,)


async def test_a_death_is_found_without_a_poll(fleet: list[tuple[PgStore, int]]):
    """Polls are a billion seconds apart here: the leader, or whoever leads next, notices."""
    for at in (3, 0):  # the first one leads
        victim, dead = fleet[at]
        await die(victim)
        found: set[int] = set()
        async with asyncio.timeout(10):
            while dead not in found:
                reaped = [await store.workers.reap_dead(id, FOREVER) for store, id in fleet if store is not victim]
                found.update(id for one in reaped for id in one.worker_ids)
                await asyncio.sleep(0.01)
        del fleet[at]


async def test_a_follower_of_runs_is_seen(fleet: list[tuple[PgStore, int]]):
    (follower, _), (store, worker), *_ = fleet
    await store.workers._poll(worker)
    assert not store.notifier.is_followed
    await follower._set_following(True)
    await store.workers._poll(worker)
    assert store.notifier.is_followed


async def test_a_new_follower_is_seen_without_a_poll(fleet: list[tuple[PgStore, int]]):
    (follower, _), (store, worker), *_ = fleet
    await store.workers._poll(worker)
    assert not store.notifier.is_followed
    assert await follower._set_following(True)  # it reads again, since it may have missed something until now
    await wait_until(lambda: store.notifier.is_followed)
    assert not await follower._set_following(True)
