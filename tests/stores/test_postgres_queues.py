"""Queues with limits on PostgreSQL: concurrent claims, how many round trips they take, and older workers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

pytest.importorskip("psycopg")

from postgres_server import database
from queue_values import QUEUE, claim_ids, declare_limited_queue, make_limits, start_queued_runs
from store_values import (
    CLAIM_FILTER,
    FENCED,
    FLOW,
    Clock,
    commit_ops,
    finish,
    get_state,
    new_run,
    new_worker,
    park,
    read_run,
    release,
    start_run,
)

from holdfast.core.states import RunState
from holdfast.stores.operations import CancelRun, ReleaseRun, StartRun
from holdfast.stores.postgres import PgStore
from holdfast.stores.postgres.database import PgDatabase
from holdfast.stores.queues import NewQueue
from holdfast.stores.sql.queue_settings import BATCH_SIZE

pytestmark = pytest.mark.asyncio


@pytest.fixture
def url() -> Iterator[str]:
    with database() as url:
        yield url


@pytest_asyncio.fixture
async def store(url: str) -> AsyncIterator[PgStore]:
    store = PgStore(url, clock=Clock(), poll_interval_s=0.0)
    await store.open()
    yield store
    await store.close()


@pytest_asyncio.fixture
async def fleet(store: PgStore) -> AsyncIterator[list[PgStore]]:
    """Four stores on the same data, like four processes."""
    others = [PgStore(store._libpq_url, clock=store._given_clock, poll_interval_s=0.0) for _ in range(3)]
    for other in others:
        await other.open()
    yield [store, *others]
    for other in others:
        await other.close()


def trips_of(db: PgDatabase) -> list[list[str]]:
    """The first words of what is sent from now on, trip by trip."""
    seen: list[list[str]] = []
    make = db._pipeline.run_nonblocking  # ``run`` calls it, too

    def counted(sent: Any) -> Any:
        seen.append([one.statement.split()[0] for one in sent])
        return make(sent)

    db._pipeline.run_nonblocking = counted  # type: ignore[method-assign]
    return seen


async def trips(store: PgStore) -> list[list[str]]:
    return trips_of(await store.write(lambda db: db))  # type: ignore[arg-type,return-value]


async def test_possible_limits_cost_a_claim_and_a_start_no_round_trip(store: PgStore):
    worker = await store.workers.register(new_worker(), 10.0)
    counted = await trips(store)
    await commit_ops(store, StartRun(new_run("r", queue_key="acme")))
    assert len(counted) == 1
    counted.clear()
    assert await claim_ids(store, worker) == ["r"]
    assert len(counted) == 2


async def test_runs_that_many_callers_read_at_once_are_read_together(store: PgStore):
    await commit_ops(store, *(StartRun(new_run(f"r{n}")) for n in range(20)))
    counted = trips_of(await store.read(lambda db: db))  # type: ignore[arg-type]
    found = await asyncio.gather(*(store.get_run(f"r{n % 21}") for n in range(40)))
    assert [None if run is None else run.id for run in found] == [
        None if n % 21 == 20 else f"r{n % 21}" for n in range(40)
    ]
    assert len(counted) == 2


async def test_a_claim_from_limited_queues_takes_two_more_round_trips_and_the_first_one_two_more(store: PgStore):
    worker = await declare_limited_queue(store, 5, "9/min")
    counted = await trips(store)
    await start_queued_runs(store, "a")
    assert len(counted) == 3  # the first trip assumed that the queue has no limits
    counted.clear()
    assert await claim_ids(store, worker) == ["a"]
    assert len(counted) == 6  # it has begun as an ordinary one, and was rolled back
    counted.clear()
    await start_queued_runs(store, "b")
    assert len(counted) == 2
    counted.clear()
    assert await claim_ids(store, worker) == ["b"]
    assert len(counted) == 4
    await store.queues.set_limits(QUEUE, make_limits(5, "9/min", key_rates=("1/min",)))
    await start_queued_runs(store, "acme/1", "acme/2")
    counted.clear()
    assert await claim_ids(store, worker) == ["acme/1"]
    assert len(counted) == 5


async def test_concurrent_claims_never_exceed_a_limit(fleet: list[PgStore]):
    """Workers take runs as quickly as they can, and end them once it was looked from outside what is executed."""
    store = fleet[0]
    await store.queues.declare([NewQueue(QUEUE, make_limits(6, "40/hour", key_concurrency=2, key_rates=("15/hour",)))])
    for key in ("acme", "beta", "other"):
        await commit_ops(store, *(StartRun(new_run(f"{key}/{n}", queue=QUEUE, queue_key=key)) for n in range(30)))
    most, begun, over, looked = Counter[str](), Counter[str](), asyncio.Event(), asyncio.Event()

    async def work(mine: PgStore) -> None:
        worker = await mine.workers.register(new_worker(), 1e6)
        idle = 0
        while idle < 20:
            runs = await mine.claims.claim(worker, **CLAIM_FILTER, limit=3)
            idle = 0 if runs else idle + 1
            begun.update(run.queue_key for run in runs)
            for _ in range(2 if runs else 0):  # the first look to end may have begun before the claim
                await looked.wait()
                await asyncio.sleep(0)
            await commit_ops(mine, *(finish(run) for run in runs))

    executed = "SELECT queue_key, count(*) FROM holdfast.runs WHERE state = 'running' GROUP BY queue_key"

    async def look() -> None:
        while not over.is_set():
            now = dict(await store.read_for_client(lambda db: db.query(executed)))
            for key, count in [*now.items(), ("", sum(now.values()))]:
                most[key] = max(most[key], count)
            looked.set()  # whoever waits goes on
            looked.clear()

    watcher = asyncio.create_task(look())
    await asyncio.gather(*map(work, fleet))
    over.set()
    await watcher
    assert begun.total() == 40, "the rate of the queue"
    assert set(begun) == {"acme", "beta", "other"}
    assert max(begun.values()) <= 15, "the rate of a key"
    assert 0 < most[""] <= 6
    assert all(count <= 2 for key, count in most.items() if key), most


async def test_concurrent_starts_with_one_dedup_key_start_one_run(fleet: list[PgStore]):
    async def begin(mine: PgStore, number: int) -> str:
        [answer] = await commit_ops(mine, StartRun(new_run(f"r{number}", dedup_key="same")))
        return answer.run.id

    started = await asyncio.gather(*(begin(mine, n) for n, mine in enumerate(fleet * 5)))
    assert len(set(started)) == 1


async def test_no_run_is_forgotten_when_a_queue_loses_its_limits(fleet: list[PgStore]):
    store, other, *_ = fleet
    worker = await store.workers.register(new_worker(), 1e6)
    for turn in range(5):
        await store.queues.pause(QUEUE)
        names = [f"r{turn}-{n}" for n in range(20)]
        starts = asyncio.gather(*(start_run(other, name, queue=QUEUE) for name in names))
        await store.queues.resume(QUEUE)
        await starts
        assert await store.queues.list() == []
        assert sorted(await claim_ids(store, worker)) == sorted(names)


async def test_a_long_backlog_becomes_limited_and_free_again_in_pieces(store: PgStore):
    many = BATCH_SIZE * 2 + 10
    await commit_ops(store, *(StartRun(new_run(f"r{n}", queue=QUEUE, queue_key="acme")) for n in range(many)))
    worker = await declare_limited_queue(store, 1)
    ready = "SELECT ready_state, due_state, count(*), max(turn) FROM holdfast.runs GROUP BY ready_state, due_state"
    assert await store.read(lambda db: db.query(ready)) == [(2, 2, many, many - 1)]
    assert await claim_ids(store, worker) == ["r0"]
    await store.queues.declare([NewQueue("another", make_limits(1))])
    await store.queues.set_limits(QUEUE, make_limits(key_concurrency=1))
    assert await claim_ids(store, worker) == []
    declared = "UPDATE holdfast.queues SET declared_limits = NULL WHERE name = 'llm'"
    await store.write(lambda db: db.execute(declared))
    assert await store.queues.set_limits(QUEUE, None)
    assert [queue.name for queue in await store.queues.list()] == ["another"]
    assert await store.read(lambda db: db.query(f"{ready} ORDER BY ready_state")) == [
        (1, 1, many - 1, 0),
        (None, 1, 1, 0),
    ]


@pytest.mark.parametrize("gives_up", [finish, release, park], ids=["finish", "release", "park"])
async def test_a_freed_slot_notifies_the_others(store: PgStore, gives_up: Any):
    worker = await declare_limited_queue(store, 1)
    await start_queued_runs(store, "a", "b")
    [run] = await store.claims.claim(worker, **CLAIM_FILTER, limit=9)
    await start_run(store, "free")
    [free] = await store.claims.claim(worker, **CLAIM_FILTER, limit=9)
    assert (run.is_limited, free.is_limited) == (True, False)
    told: list[str] = []
    store.session.notify = told.append  # type: ignore[method-assign]
    await commit_ops(store, finish(free))
    assert "holdfast:work" not in told
    await commit_ops(store, gives_up(run))
    assert "holdfast:work" in told


async def test_a_slot_taken_through_another_server_can_be_freed_through_this_one(fleet: list[PgStore]):
    here, there, *_ = fleet
    worker = await declare_limited_queue(here, 1)
    await start_queued_runs(here, "a", "b", is_delivery=True)
    [run] = await here.claims.claim(worker, **CLAIM_FILTER, limit=9)
    assert await there.get_run("a") == run
    told: list[str] = []
    there.session.notify = told.append  # type: ignore[method-assign]
    await commit_ops(there, finish(run))
    assert "holdfast:work" in told


async def test_concurrent_servers_end_an_overdue_run_once(fleet: list[PgStore]):
    """While its holder finishes some of it, and cancels are asked for."""
    here = fleet[0]
    worker, late = await here.workers.register(new_worker(), 1e9), here.now() - 1
    names = [f"d{number}" for number in range(120)]
    await commit_ops(here, *[StartRun(new_run(name, is_delivery=True, deadline=late)) for name in names])
    runs = await here.claims.claim(worker, **CLAIM_FILTER, limit=80)

    async def expires(store: PgStore) -> list[str]:
        found: list[str] = []
        while some := await store.claims.expire_runs(7):
            found += some
        return found

    ended, answers, *others = await asyncio.gather(
        expires(fleet[1]),
        asyncio.gather(*[commit_ops(here, finish(run)) for run in runs[::4]]),
        expires(fleet[2]),
        expires(fleet[3]),
        *[commit_ops(fleet[1], CancelRun(name, late)) for name in names[80::5]],
    )
    ended = [*ended, *others[0], *others[1]]
    assert len(ended) == len(set(ended))
    finished = [run.id for run, [answer] in zip(runs[::4], answers, strict=True) if answer is not FENCED]
    states = {name: await get_state(here, name) for name in names}
    assert [name for name in names if states[name] == "failed"] == sorted(ended, key=names.index)
    assert [name for name in names if states[name] == "completed"] == finished
    assert set(states.values()) <= {"failed", "completed", "cancelled"}


async def test_a_release_that_counts_takes_no_more_round_trips(store: PgStore):
    worker = await store.workers.register(new_worker(), 10.0)
    for name, most in (("a", 3), ("b", 1)):
        await start_run(store, name, is_delivery=True, max_deliveries=most)
    runs = await store.claims.claim(worker, **CLAIM_FILTER, limit=9)
    counted = await trips(store)
    for run, left in zip(runs, ("pending", "dead"), strict=True):
        counted.clear()
        await commit_ops(store, ReleaseRun(run.key, run.epoch, error=b"{}"))
        assert len(counted) == 2
        assert await get_state(store, run.id) == left
    counted.clear()
    assert await store.claims.expire_runs() == []
    assert counted == [], "there is nothing to write"


# Older workers


OLD_START = (
    "INSERT INTO holdfast.runs (key, id, workflow, queue, state, epoch, owner, starter, delivery_count, "
    "max_deliveries, "
    "ready_state, wake_at, waits_for, priority, deadline, result_claim, cancel_state, python_version, created_at, "
    "clock_started_at, parent, "
    "forked_from, rewind_points, digest, seed, tags, inputs, session, previous_run, has_budget, version) SELECT "
    "nextval('holdfast.run_keys'), %s, %s, 'llm', 'pending', 0, NULL, NULL, 0, 3, 1, 5, '', 0, NULL, 0, '', '', 1, 1, "
    "'', '', '[]', '', '', '[]', '1', '', '', 0, ''"
)
OLD_END = (
    "UPDATE holdfast.runs SET state = 'completed', output = '1', finished_at = 9, owner = NULL, ready_state = NULL, "
    "wake_at = NULL, paused_at = NULL WHERE id = %s"
)


async def test_an_older_worker_continues_next_to_limited_queues(store: PgStore):
    worker = await declare_limited_queue(store, 1)
    await start_queued_runs(store, "a", dedup_key="same")
    await store.write(lambda db: db.execute(OLD_START, ("old", FLOW)))
    assert sorted(await claim_ids(store, worker)) == ["a", "old"]  # it knows of no limits
    assert not (await read_run(store, "old")).is_limited
    await store.write(lambda db: db.execute(OLD_END, ("a",)))
    await start_queued_runs(store, "b", dedup_key="same")  # that it does not know of keys, either, is in nobody's way
    assert await claim_ids(store, worker) == ["b"]
    assert (await read_run(store, "a")).state is RunState.COMPLETED
