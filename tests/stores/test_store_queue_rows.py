"""What is kept of limited queues: who decides on the limits, pauses, what is told of them, and what is archived."""

from __future__ import annotations

from dataclasses import replace

import pytest
from queue_values import QUEUE, fill, ids, kept, limited, limits, wake
from store_values import ALL, Clock, a_worker, do, finish, park, release, row, start

from holdfast.admission.queue_limits import QueueLimits
from holdfast.core.states import RunState
from holdfast.stores.archives import ArchivedRun
from holdfast.stores.contract import Store
from holdfast.stores.operations import CancelRun, OpStatus, PauseRun, ReopenRun
from holdfast.stores.queues import MAX_LISTED_KEYS, NewQueue, QueueKeyStatus, QueueStatus

pytestmark = pytest.mark.asyncio


async def test_what_code_announces_holds_until_it_announces_something_else(store: Store, elsewhere: Store):
    assert await store.list_queues() == []
    every = limits(3, "10/min", "500 tokens/hour", key_concurrency=1, key_rates=("2/s",))
    await store.declare_queues([NewQueue("b", every), NewQueue("a", limits(1))])
    assert await elsewhere.list_queues() == [
        QueueStatus("a", limits(1), limits(1), False, None),
        QueueStatus("b", every, every, False, None),
    ]
    assert await store.list_queues(["b", "none"]) == [QueueStatus("b", every, every, False, None)]
    await elsewhere.declare_queues([NewQueue("a", limits(2))])
    assert (await kept(store, "a")).limits == limits(2)


async def test_limits_set_by_hand_stay_until_they_are_taken_back(store: Store):
    worker = await limited(store, 1)
    await fill(store, "a", "b", "c")
    assert await ids(store, worker) == ["a"]
    assert await store.set_queue_limits(QUEUE, None) is False
    assert await store.set_queue_limits(QUEUE, limits(2)) is True
    assert await store.set_queue_limits(QUEUE, limits(2)) is False
    assert await ids(store, worker) == ["b"]
    await store.declare_queues([NewQueue(QUEUE, limits(9))])
    assert await ids(store, worker) == []
    assert await kept(store) == QueueStatus(
        QUEUE, limits(2), limits(9), True, None, 2, 1, 0.0, (QueueKeyStatus("", 2, 1),)
    )
    assert await store.set_queue_limits(QUEUE, None) is True
    assert await ids(store, worker) == ["c"]
    assert not (await kept(store)).is_overridden


async def test_higher_limits_let_through_what_was_passed_over(store: Store, clock: Clock):
    worker = await limited(store, None, "1/min", key_concurrency=1, key_rates=("1/hour",))
    await fill(store, "acme/1", "acme/2", "acme/3", "other/1", "other/2")
    assert await ids(store, worker) == ["acme/1"]
    clock.advance(60)
    assert await ids(store, worker) == ["other/1"]
    assert await ids(store, worker) == []
    assert await wake(store) is None
    await store.set_queue_limits(QUEUE, limits(None, "3/min", key_concurrency=2, key_rates=("2/hour",)))
    assert await ids(store, worker) == ["acme/2", "other/2"]  # the minute before goes on counting
    await store.set_queue_limits(QUEUE, limits(None, key_concurrency=2))
    assert await wake(store) is None
    await store.set_queue_limits(QUEUE, QueueLimits())
    assert await wake(store) == clock.now
    assert await ids(store, worker) == ["acme/3"]


async def test_lower_limits_hold_for_what_comes_next(store: Store):
    worker = await limited(store, 3)
    await fill(store, *"abcd")
    assert await ids(store, worker) == ["a", "b", "c"]
    await store.declare_queues([NewQueue(QUEUE, limits(1))])
    await do(store, finish(await row(store, "a")), finish(await row(store, "b")))
    assert await wake(store) is None
    assert await ids(store, worker) == []
    await do(store, finish(await row(store, "c")))
    assert await ids(store, worker) == ["d"]


async def test_a_queue_that_has_runs_already_gets_limits(store: Store, clock: Clock):
    worker = await store.register_worker(a_worker(), 1e6)
    running = await start(store, "acme/0", queue=QUEUE, queue_key="acme", claim_as=worker)
    assert not running.is_limited
    await fill(store, "acme/1", "acme/2", "other/1")
    await start(store, "parked", queue=QUEUE, claim_as=worker)
    await do(store, park(await row(store, "parked"), clock.now + 5))
    await store.declare_queues([NewQueue(QUEUE, limits(3, key_concurrency=2))])
    assert all([(await row(store, name)).is_limited for name in ("acme/0", "acme/1", "parked")])
    assert sorted(await ids(store, worker)) == ["acme/1", "other/1"]
    clock.advance(5)
    assert await ids(store, worker) == []
    assert await wake(store) is None
    await do(store, finish(running))
    assert await ids(store, worker) == ["parked"]
    await do(store, finish(await row(store, "other/1")))
    assert await ids(store, worker) == ["acme/2"]


async def test_a_run_that_is_to_be_cancelled_needs_no_place_in_a_queue_that_gets_limits(store: Store, clock: Clock):
    worker = await store.register_worker(a_worker(), 1e6)
    for name in ("a", "b"):
        await start(store, name, queue=QUEUE, claim_as=worker)
    await do(store, release(await row(store, "b")), CancelRun("b", clock.now))
    await store.set_queue_limits(QUEUE, limits(1))
    assert await ids(store, worker) == ["b"]


async def test_a_queue_without_limits_and_pause_is_forgotten_and_lets_everything_through(store: Store):
    worker = await store.register_worker(a_worker(), 1e6)
    await store.set_queue_limits(QUEUE, limits(1, key_concurrency=1))
    await fill(store, "a/1", "a/2", "a/3", "b/1")
    assert await ids(store, worker) == ["a/1"]
    assert await store.pause_queue(QUEUE)
    assert await store.set_queue_limits(QUEUE, None)
    assert (await kept(store)).limits == QueueLimits()
    assert await ids(store, worker) == []
    assert await store.resume_queue(QUEUE)
    assert await store.list_queues() == []
    assert not any([(await row(store, name)).is_limited for name in ("a/1", "a/2", "b/1")])
    assert await wake(store) == store.now()
    assert await ids(store, worker) == ["a/2", "a/3", "b/1"]  # by their age
    direct = await start(store, "direct", queue=QUEUE, claim_as=worker)
    assert (direct.state, direct.is_limited) == (RunState.RUNNING, False)


async def test_a_run_that_ended_under_limits_is_reopened_under_those_that_hold_then(store: Store, clock: Clock):
    worker = await store.register_worker(a_worker(), 1e6)
    await store.set_queue_limits(QUEUE, limits(1))
    await fill(store, "a", "b")
    [a] = await store.claim_runs(worker, **ALL, limit=9)
    await do(store, finish(a, RunState.FAILED))
    await store.set_queue_limits(QUEUE, None)
    await do(store, ReopenRun("a", clock.now))
    assert not (await row(store, "a")).is_limited
    assert await ids(store, worker) == ["a", "b"]
    await do(store, finish(await row(store, "a"), RunState.FAILED), finish(await row(store, "b"), RunState.FAILED))
    await store.set_queue_limits(QUEUE, limits(1))
    await do(store, ReopenRun("a", clock.now), ReopenRun("b", clock.now))
    assert await ids(store, worker) == ["a"]
    assert (await kept(store)).waiting_count == 1


async def test_a_paused_queue_lets_nobody_through(store: Store, elsewhere: Store, clock: Clock):
    worker = await limited(store, 3)
    await fill(store, "a", "b")
    [a] = await store.claim_runs(worker, **ALL, limit=1)
    assert await store.resume_queue(QUEUE) is False
    assert await store.pause_queue(QUEUE) is True
    paused_at = clock.now
    clock.advance(1)
    assert await elsewhere.pause_queue(QUEUE) is False
    assert (await kept(store)).paused_at == paused_at
    await do(store, park(a, None, "go"), CancelRun("a", clock.now))
    assert await wake(store) is None
    assert await ids(store, worker) == []
    fresh = await start(store, "c", queue=QUEUE, claim_as=worker)
    assert fresh.state is RunState.PENDING
    assert await elsewhere.resume_queue(QUEUE) is True
    assert await ids(store, worker) == ["a", "b", "c"]
    await store.pause_queue("unheard-of")
    await start(store, "d", queue="unheard-of", claim_as=worker)
    assert await ids(store, worker) == []
    await store.resume_queue("unheard-of")
    assert [queue.name for queue in await store.list_queues()] == [QUEUE]


async def test_what_is_told_of_a_queue(store: Store, clock: Clock):
    worker = await limited(store, 4, "5/min", key_concurrency=2)
    await fill(store, *[f"acme/{number}" for number in range(5)])
    await fill(store, "other/1", "x")
    assert len(await ids(store, worker)) == 4
    await do(store, PauseRun("acme/4", clock.now), park(await row(store, "other/1"), clock.now + 9))
    await fill(store, "later", available_at=clock.now + 5)
    told = await kept(store)
    assert (told.running_count, told.waiting_count, told.next_start_at) == (3, 2, 0.0)
    assert told.keys == (QueueKeyStatus("acme", 2, 2), QueueKeyStatus("", 1, 0))
    assert await ids(store, worker) == []  # acme has its two, and the others wait for their time
    clock.advance(5)
    assert await ids(store, worker) == ["later"]
    told = await kept(store)
    assert (told.running_count, told.waiting_count, told.next_start_at) == (4, 2, clock.now + 55)
    clock.advance(55)
    assert ((await kept(store)).next_start_at, (await kept(store)).waiting_count) == (0.0, 3)


async def test_of_many_keys_those_with_most_are_told(store: Store):
    await limited(store, 1)
    await fill(store, *[f"k{number:02}/1" for number in range(MAX_LISTED_KEYS + 5)])
    await fill(store, "k24/2")
    told = await kept(store)
    assert told.waiting_count == MAX_LISTED_KEYS + 6
    assert [one.key for one in told.keys] == ["k24", *[f"k{number:02}" for number in range(MAX_LISTED_KEYS - 1)]]


async def test_an_archived_run_comes_under_the_limits_of_its_queue_here(store: Store, clock: Clock):
    worker = await limited(store, 1)
    await fill(store, "acme/1")
    source = await row(store, "acme/1")
    was_running = replace(source, id="acme/2", state=RunState.RUNNING, epoch=3, owner=7, wake_at=None, is_limited=False)
    elsewhere_free = replace(source, id="free", queue="default", is_limited=True)
    archives = [ArchivedRun(was_running), ArchivedRun(elsewhere_free)]
    for archived in archives:
        assert await store.restore_run(archived)
    restored = await row(store, "acme/2")
    assert (restored.queue_key, restored.is_limited) == ("acme", True)
    assert not (await row(store, "free")).is_limited
    assert await ids(store, worker, queues=[QUEUE]) == ["acme/1"]
    for archived in archives:
        await store.activate_run(archived)
    assert await ids(store, worker) == ["free"]
    assert await do(store, finish(await row(store, "acme/1"))) == [OpStatus.DONE]
    assert await ids(store, worker) == ["acme/2"]
