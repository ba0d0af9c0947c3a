"""What is kept of limited queues: who decides on the limits, pauses, what is told of them, and what is archived."""

from __future__ import annotations

from dataclasses import replace

import pytest
from queue_values import (
    QUEUE,
    claim_ids,
    declare_limited_queue,
    get_next_wake,
    get_queue,
    make_limits,
    start_queued_runs,
)
from store_values import CLAIM_FILTER, Clock, commit_ops, finish, new_worker, park, read_run, release, start_run

from holdfast.admission.queue_limits import QueueLimits
from holdfast.core.states import RunState
from holdfast.stores.archives import ArchivedRun
from holdfast.stores.contract import Store
from holdfast.stores.operations import CancelRun, OpStatus, PauseRun, ReopenRun
from holdfast.stores.queues import MAX_LISTED_KEYS, NewQueue, QueueKeyStatus, QueueStatus

pytestmark = pytest.mark.asyncio


async def test_announced_limits_hold_until_others_are_announced(store: Store, second_store: Store):
    assert await store.queues.list() == []
    every = make_limits(3, "10/min", "500 tokens/hour", key_concurrency=1, key_rates=("2/s",))
    await store.queues.declare([NewQueue("b", every), NewQueue("a", make_limits(1))])
    assert await second_store.queues.list() == [
        QueueStatus("a", make_limits(1), make_limits(1), False, None),
        QueueStatus("b", every, every, False, None),
    ]
    assert await store.queues.list(["b", "none"]) == [QueueStatus("b", every, every, False, None)]
    await second_store.queues.declare([NewQueue("a", make_limits(2))])
    assert (await get_queue(store, "a")).limits == make_limits(2)


async def test_limits_set_by_hand_stay_until_they_are_taken_back(store: Store):
    worker = await declare_limited_queue(store, 1)
    await start_queued_runs(store, "a", "b", "c")
    assert await claim_ids(store, worker) == ["a"]
    assert await store.queues.set_limits(QUEUE, None) is False
    assert await store.queues.set_limits(QUEUE, make_limits(2)) is True
    assert await store.queues.set_limits(QUEUE, make_limits(2)) is False
    assert await claim_ids(store, worker) == ["b"]
    await store.queues.declare([NewQueue(QUEUE, make_limits(9))])
    assert await claim_ids(store, worker) == []
    assert await get_queue(store) == QueueStatus(
        QUEUE, make_limits(2), make_limits(9), True, None, 2, 1, 0.0, (QueueKeyStatus("", 2, 1),)
    )
    assert await store.queues.set_limits(QUEUE, None) is True
    assert await claim_ids(store, worker) == ["c"]
    assert not (await get_queue(store)).is_overridden


async def test_higher_limits_admit_runs_that_were_throttled(store: Store, clock: Clock):
    worker = await declare_limited_queue(store, None, "1/min", key_concurrency=1, key_rates=("1/hour",))
    await start_queued_runs(store, "acme/1", "acme/2", "acme/3", "other/1", "other/2")
    assert await claim_ids(store, worker) == ["acme/1"]
    clock.advance(60)
    assert await claim_ids(store, worker) == ["other/1"]
    assert await claim_ids(store, worker) == []
    assert await get_next_wake(store) is None
    await store.queues.set_limits(QUEUE, make_limits(None, "3/min", key_concurrency=2, key_rates=("2/hour",)))
    assert await claim_ids(store, worker) == ["acme/2", "other/2"]  # the minute before goes on counting
    await store.queues.set_limits(QUEUE, make_limits(None, key_concurrency=2))
    assert await get_next_wake(store) is None
    await store.queues.set_limits(QUEUE, QueueLimits())
    assert await get_next_wake(store) == clock.now
    assert await claim_ids(store, worker) == ["acme/3"]


async def test_lower_limits_hold_for_later_claims(store: Store):
    worker = await declare_limited_queue(store, 3)
    await start_queued_runs(store, *"abcd")
    assert await claim_ids(store, worker) == ["a", "b", "c"]
    await store.queues.declare([NewQueue(QUEUE, make_limits(1))])
    await commit_ops(store, finish(await read_run(store, "a")), finish(await read_run(store, "b")))
    assert await get_next_wake(store) is None
    assert await claim_ids(store, worker) == []
    await commit_ops(store, finish(await read_run(store, "c")))
    assert await claim_ids(store, worker) == ["d"]


async def test_a_queue_that_has_runs_already_gets_limits(store: Store, clock: Clock):
    worker = await store.workers.register(new_worker(), 1e6)
    running = await start_run(store, "acme/0", queue=QUEUE, queue_key="acme", claim_as=worker)
    assert not running.is_limited
    await start_queued_runs(store, "acme/1", "acme/2", "other/1")
    await start_run(store, "parked", queue=QUEUE, claim_as=worker)
    await commit_ops(store, park(await read_run(store, "parked"), clock.now + 5))
    await store.queues.declare([NewQueue(QUEUE, make_limits(3, key_concurrency=2))])
    assert all([(await read_run(store, name)).is_limited for name in ("acme/0", "acme/1", "parked")])
    assert sorted(await claim_ids(store, worker)) == ["acme/1", "other/1"]
    clock.advance(5)
    assert await claim_ids(store, worker) == []
    assert await get_next_wake(store) is None
    await commit_ops(store, finish(running))
    assert await claim_ids(store, worker) == ["parked"]
    await commit_ops(store, finish(await read_run(store, "other/1")))
    assert await claim_ids(store, worker) == ["acme/2"]


async def test_a_cancel_requested_run_needs_no_slot_in_a_queue_that_gets_limits(store: Store, clock: Clock):
    worker = await store.workers.register(new_worker(), 1e6)
    for name in ("a", "b"):
        await start_run(store, name, queue=QUEUE, claim_as=worker)
    await commit_ops(store, release(await read_run(store, "b")), CancelRun("b", clock.now))
    await store.queues.set_limits(QUEUE, make_limits(1))
    assert await claim_ids(store, worker) == ["b"]


async def test_a_queue_without_limits_and_pause_is_forgotten_and_lets_everything_through(store: Store):
    worker = await store.workers.register(new_worker(), 1e6)
    await store.queues.set_limits(QUEUE, make_limits(1, key_concurrency=1))
    await start_queued_runs(store, "a/1", "a/2", "a/3", "b/1")
    assert await claim_ids(store, worker) == ["a/1"]
    assert await store.queues.pause(QUEUE)
    assert await store.queues.set_limits(QUEUE, None)
    assert (await get_queue(store)).limits == QueueLimits()
    assert await claim_ids(store, worker) == []
    assert await store.queues.resume(QUEUE)
    assert await store.queues.list() == []
    assert not any([(await read_run(store, name)).is_limited for name in ("a/1", "a/2", "b/1")])
    assert await get_next_wake(store) == store.now()
    assert await claim_ids(store, worker) == ["a/2", "a/3", "b/1"]  # by their age
    direct = await start_run(store, "direct", queue=QUEUE, claim_as=worker)
    assert (direct.state, direct.is_limited) == (RunState.RUNNING, False)


async def test_a_run_that_ended_under_limits_is_reopened_under_the_current_ones(store: Store, clock: Clock):
    worker = await store.workers.register(new_worker(), 1e6)
    await store.queues.set_limits(QUEUE, make_limits(1))
    await start_queued_runs(store, "a", "b")
    [a] = await store.claims.claim(worker, **CLAIM_FILTER, limit=9)
    await commit_ops(store, finish(a, RunState.FAILED))
    await store.queues.set_limits(QUEUE, None)
    await commit_ops(store, ReopenRun("a", clock.now))
    assert not (await read_run(store, "a")).is_limited
    assert await claim_ids(store, worker) == ["a", "b"]
    await commit_ops(
        store, finish(await read_run(store, "a"), RunState.FAILED), finish(await read_run(store, "b"), RunState.FAILED)
    )
    await store.queues.set_limits(QUEUE, make_limits(1))
    await commit_ops(store, ReopenRun("a", clock.now), ReopenRun("b", clock.now))
    assert await claim_ids(store, worker) == ["a"]
    assert (await get_queue(store)).waiting_count == 1


async def test_a_paused_queue_admits_no_run(store: Store, second_store: Store, clock: Clock):
    worker = await declare_limited_queue(store, 3)
    await start_queued_runs(store, "a", "b")
    [a] = await store.claims.claim(worker, **CLAIM_FILTER, limit=1)
    assert await store.queues.resume(QUEUE) is False
    assert await store.queues.pause(QUEUE) is True
    paused_at = clock.now
    clock.advance(1)
    assert await second_store.queues.pause(QUEUE) is False
    assert (await get_queue(store)).paused_at == paused_at
    await commit_ops(store, park(a, None, "go"), CancelRun("a", clock.now))
    assert await get_next_wake(store) is None
    assert await claim_ids(store, worker) == []
    fresh = await start_run(store, "c", queue=QUEUE, claim_as=worker)
    assert fresh.state is RunState.PENDING
    assert await second_store.queues.resume(QUEUE) is True
    assert await claim_ids(store, worker) == ["a", "b", "c"]
    await store.queues.pause("unheard-of")
    await start_run(store, "d", queue="unheard-of", claim_as=worker)
    assert await claim_ids(store, worker) == []
    await store.queues.resume("unheard-of")
    assert [queue.name for queue in await store.queues.list()] == [QUEUE]


async def test_the_status_of_a_queue(store: Store, clock: Clock):
    worker = await declare_limited_queue(store, 4, "5/min", key_concurrency=2)
    await start_queued_runs(store, *[f"acme/{number}" for number in range(5)])
    await start_queued_runs(store, "other/1", "x")
    assert len(await claim_ids(store, worker)) == 4
    await commit_ops(store, PauseRun("acme/4", clock.now), park(await read_run(store, "other/1"), clock.now + 9))
    await start_queued_runs(store, "later", available_at=clock.now + 5)
    told = await get_queue(store)
    assert (told.running_count, told.waiting_count, told.next_start_at) == (3, 2, 0.0)
    assert told.keys == (QueueKeyStatus("acme", 2, 2), QueueKeyStatus("", 1, 0))
    assert await claim_ids(store, worker) == []  # acme has its two, and the others wait for their time
    clock.advance(5)
    assert await claim_ids(store, worker) == ["later"]
    told = await get_queue(store)
    assert (told.running_count, told.waiting_count, told.next_start_at) == (4, 2, clock.now + 55)
    clock.advance(55)
    assert ((await get_queue(store)).next_start_at, (await get_queue(store)).waiting_count) == (0.0, 3)


async def test_a_status_lists_the_keys_with_the_most_runs(store: Store):
    await declare_limited_queue(store, 1)
    await start_queued_runs(store, *[f"k{number:02}/1" for number in range(MAX_LISTED_KEYS + 5)])
    await start_queued_runs(store, "k24/2")
    told = await get_queue(store)
    assert told.waiting_count == MAX_LISTED_KEYS + 6
    assert [one.key for one in told.keys] == ["k24", *[f"k{number:02}" for number in range(MAX_LISTED_KEYS - 1)]]


async def test_an_archived_run_comes_under_the_limits_of_its_queue_here(store: Store, clock: Clock):
    worker = await declare_limited_queue(store, 1)
    await start_queued_runs(store, "acme/1")
    source = await read_run(store, "acme/1")
    was_running = replace(source, id="acme/2", state=RunState.RUNNING, epoch=3, owner=7, wake_at=None, is_limited=False)
    elsewhere_free = replace(source, id="free", queue="default", is_limited=True)
    archives = [ArchivedRun(was_running), ArchivedRun(elsewhere_free)]
    for archived in archives:
        assert await store.archives.restore(archived)
    restored = await read_run(store, "acme/2")
    assert (restored.queue_key, restored.is_limited) == ("acme", True)
    assert not (await read_run(store, "free")).is_limited
    assert await claim_ids(store, worker, queues=[QUEUE]) == ["acme/1"]
    for archived in archives:
        await store.archives.activate(archived)
    assert await claim_ids(store, worker) == ["free"]
    assert await commit_ops(store, finish(await read_run(store, "acme/1"))) == [OpStatus.DONE]
    assert await claim_ids(store, worker) == ["acme/2"]
