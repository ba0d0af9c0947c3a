"""Workers: leases, retiring, and what a death does to the runs that were held."""

from __future__ import annotations

import asyncio

import pytest
from store_values import (
    ALL,
    DONE,
    FENCED,
    a_worker,
    append,
    claim_one,
    do,
    finish,
    hold,
    note,
    park,
    row,
    start,
    state_of,
)

from holdfast.codec.faults import decode_error
from holdfast.core.states import RunState
from holdfast.errors import RunDead
from holdfast.stores.contract import Reaped, Store, WorkflowSpec

pytestmark = pytest.mark.asyncio


async def test_a_registered_worker_is_live_for_its_lease(store: Store, elsewhere: Store, clock):
    number = await store.register_worker(a_worker("x", queues=("slow",), workflows=("a", "b")), 10.0)
    [worker] = await elsewhere.workers()
    assert (worker.id, worker.name, worker.host, worker.pid, worker.state) == (number, "x", "host", 7, "live")
    assert (worker.workflows, worker.queues) == (("a", "b"), ("slow",))
    assert (worker.started_at, worker.lease_until) == (clock.now, clock.now + 10)


async def test_a_worker_says_when_it_was_last_heard_of(store: Store, elsewhere: Store, clock):
    number = await store.register_worker(a_worker(), 10.0)
    registered = clock.now
    assert [worker.beat_at for worker in await elsewhere.workers()] == [registered]
    clock.advance(3.0)
    assert store.renew_lease(number, 10.0)
    [worker] = await elsewhere.workers()
    assert (worker.started_at, worker.beat_at, worker.lease_until) == (registered, clock.now, clock.now + 10)


async def test_workers_get_distinct_ids_and_may_serve_all_queues(store: Store):
    first, second = await store.register_worker(a_worker(), 1.0), await store.register_worker(a_worker(), 1.0)
    assert first != second
    assert [worker.queues for worker in await store.workers()] == [None, None]


async def test_a_renewed_lease_keeps_a_worker_alive(store: Store, elsewhere: Store, clock):
    worker = await store.register_worker(a_worker(), 10.0)
    for _ in range(3):
        clock.advance(8)
        assert await asyncio.to_thread(store.renew_lease, worker, 10.0)
        assert await elsewhere.reap() == Reaped()
    assert (await elsewhere.workers())[0].lease_until == clock.now + 10


async def test_a_worker_whose_lease_has_passed_is_dead(store: Store, elsewhere: Store, clock):
    run = await hold(store)
    clock.advance(10)
    assert await elsewhere.reap() == Reaped()
    clock.advance(0.5)
    assert await elsewhere.reap() == Reaped((run.owner or 0,), 1, ())
    assert not store.renew_lease(run.owner or 0, 10.0)
    assert await elsewhere.reap() == Reaped()


async def test_a_worker_whose_process_is_gone_is_dead_at_once(store: Store, elsewhere: Store, kill):
    run = await hold(store)
    assert await elsewhere.reap() == Reaped()
    kill(run.owner)
    assert (await elsewhere.reap()).workers == (run.owner,)
    assert await elsewhere.reap() == Reaped()


async def test_a_worker_never_reaps_itself(store: Store, clock, kill):
    worker = await store.register_worker(a_worker(), 10.0)
    clock.advance(100)
    kill(worker)
    assert await store.reap(worker) == Reaped()
    assert (await store.reap()).workers == (worker,)


async def test_a_death_frees_the_runs_that_were_held_and_counts_a_delivery(store: Store, kill, clock):
    worker = await store.register_worker(a_worker(), 10.0)
    held = await start(store, "held", claim_as=worker)
    parked = await start(store, "parked", claim_as=worker)
    ended = await start(store, "ended", claim_as=worker)
    await start(store, "pending")
    await do(store, park(parked, clock.now + 99), finish(ended))
    kill(worker)
    assert (await store.reap()).released == 1
    freed = await row(store, "held")
    assert (freed.state, freed.owner, freed.deliveries, freed.epoch) == (RunState.PENDING, None, 1, held.epoch)
    assert freed.wake_at == clock.now
    assert [(await row(store, name)).deliveries for name in ("parked", "ended", "pending")] == [0, 0, 0]
    assert await state_of(store, "parked") is RunState.WAITING


async def test_a_zombie_cannot_write_after_its_run_was_freed_nor_after_it_was_taken_over(store: Store, kill):
    run = await hold(store)
    kill(run.owner)
    await store.reap()
    assert await do(store, append(run, 1)) == [FENCED]
    assert await do(store, append(run, 1), note(run, 1), park(run), finish(run)) == [FENCED] * 4
    successor = await claim_one(store)
    assert await do(store, append(run, 1)) == [FENCED]
    assert await do(store, append(successor, 1)) == [DONE]


async def test_a_run_that_takes_its_worker_down_too_often_is_dead(store: Store, kill, clock):
    run = await hold(store, max_deliveries=3)
    for delivery in (1, 2):
        kill(run.owner)
        assert (await store.reap()).released == 1
        run = await claim_one(store)
        assert run.deliveries == delivery
    kill(run.owner)
    assert (await store.reap()).dead == ("r",)
    dead = await row(store)
    assert (dead.state, dead.deliveries, dead.owner, dead.finished_at) == (RunState.DEAD, 3, None, clock.now)
    error = decode_error(dead.error or b"", ())
    assert isinstance(error, RunDead)
    assert (error.run_id, error.state) == ("r", "dead")
    for words in ("3 times in a row", "host:7", "holdfast retry r"):
        assert words in str(error)
    assert await store.claim(run.owner or 0, **ALL, limit=1) == []


async def test_progress_between_deaths_starts_the_count_again(store: Store, kill):
    run = await hold(store, max_deliveries=2)
    for seq in range(1, 5):
        await do(store, append(run, seq, reset=True))
        kill(run.owner)
        assert (await store.reap()).dead == ()
        run = await claim_one(store)
        assert run.deliveries == 1


async def test_retiring_gives_runs_back_without_counting(store: Store, clock):
    run = await hold(store)
    await store.retire_worker(run.owner or 0)
    back = await row(store)
    assert (back.state, back.owner, back.deliveries, back.wake_at) == (RunState.PENDING, None, 0, clock.now)
    assert await do(store, append(run, 1)) == [FENCED]
    assert not store.renew_lease(run.owner or 0, 10.0)
    assert await store.reap() == Reaped()


async def test_retiring_twice_or_after_death_changes_nothing(store: Store, kill):
    run = await hold(store)
    kill(run.owner)
    await store.reap()
    successor = await claim_one(store)
    await store.retire_worker(run.owner or 0)
    await store.retire_worker(run.owner or 0)
    assert (await row(store)).owner == successor.owner


async def test_workers_lists_the_live_and_those_that_unfinished_runs_refer_to(store: Store):
    gone, starter, live = [await store.register_worker(a_worker(name), 10.0) for name in ("gone", "starter", "live")]
    run = await start(store, claim_as=live, starter=starter)
    await store.retire_worker(gone)
    await store.retire_worker(starter)
    assert [(w.id, w.state) for w in await store.workers()] == [(starter, "retired"), (live, "live")]
    await do(store, finish(run))
    assert [w.id for w in await store.workers()] == [live]
    assert [w.id for w in await store.workers([gone, 999])] == [gone, live]


async def test_several_dead_workers_are_reaped_together(store: Store, clock):
    runs = [await hold(store, name, max_deliveries=1 if name == "b" else 3) for name in "abc"]
    clock.advance(11)
    reaped = await store.reap()
    assert sorted(reaped.workers) == sorted(run.owner or 0 for run in runs)
    assert (reaped.released, reaped.dead) == (2, ("b",))


async def test_a_worker_that_announces_workflows_can_execute_them_from_then_on(store: Store, elsewhere: Store):
    worker = await store.register_worker(a_worker(workflows=("a",)), 10.0)
    await store.publish([WorkflowSpec("b", ()), WorkflowSpec("a", ())], worker)
    await store.publish([WorkflowSpec("c", ())], worker)
    await store.publish([WorkflowSpec("d", ())])
    assert (await elsewhere.workers())[0].workflows == ("a", "b", "c")
    assert sorted(await elsewhere.specs()) == ["a", "b", "c", "d"]
