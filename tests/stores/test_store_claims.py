"""Claims: who gets which run, when, and in which order."""

from __future__ import annotations

from typing import Any

import pytest
from queue_values import make_limits
from store_values import (
    CLAIM_FILTER,
    FLOW,
    append,
    claim_run,
    commit_ops,
    finish,
    new_run,
    new_worker,
    park,
    release,
    save_attempt,
    signal,
    start_claimed_run,
    start_run,
)

from holdfast.core.states import RunState
from holdfast.stores.claims import ClaimedRun, ClaimNext
from holdfast.stores.contract import Store
from holdfast.stores.live_events import DELIVERED
from holdfast.stores.operations import LiveEvent, Op, OpStatus, Run, StartRun
from holdfast.stores.sqlite import SqliteStore

pytestmark = pytest.mark.asyncio


async def ids(store: Store, worker: int, *, limit: int = 99, workflows=(FLOW,), queues=None) -> list[str]:
    return [run.id for run in await store.claims.claim(worker, workflows=workflows, queues=queues, limit=limit)]


async def test_a_claimed_run_is_held_by_the_worker_under_the_next_epoch(store: Store):
    worker = await store.workers.register(new_worker(), 10.0)
    await start_run(store)
    [run] = await store.claims.claim(worker, **CLAIM_FILTER, limit=1)
    assert (run.state, run.epoch, run.owner, run.wake_at) == (RunState.RUNNING, 1, worker, None)
    assert run == await store.get_run("r")
    assert await store.claims.claim(worker, **CLAIM_FILTER, limit=1) == []


async def test_a_claim_that_reads_histories_reads_what_is_there_when_it_is_committed(store: Store):
    worker = await store.workers.register(new_worker(), 10.0)
    await start_run(store)
    await start_run(store, "new")
    [run, _] = await store.claims.claim(worker, **CLAIM_FILTER, limit=2)
    large = append(run, 0, payload=b"x" * 100_000)
    await commit_ops(store, large, append(run, 1), save_attempt(run, 7), signal(), release(run))
    [run] = await store.claims.claim(worker, **CLAIM_FILTER, limit=2)
    taken = await store.claims.take_histories([run.key])
    read = await store.get_histories([run.key])
    assert [len(part) for part in (read[0].records, read[0].attempts, read[0].signals)] == [2, 1, 1]
    if taken is not None:
        assert taken == read
        assert await store.claims.take_histories([run.key]) is None


async def test_histories_of_other_runs_than_the_claimed_ones_cannot_be_taken(store: Store):
    worker = await store.workers.register(new_worker(), 10.0)
    await start_run(store)
    [run] = await store.claims.claim(worker, **CLAIM_FILTER, limit=1)
    assert await store.claims.take_histories([run.key, run.key + 1]) is None


async def test_ended_runs_are_read_and_those_that_do_not_exist_are_named(store: Store):
    first, second = await start_claimed_run(store, "a"), await start_claimed_run(store, "b")
    assert await store.get_ended_runs(["a", "b"]) == ([], set())
    await commit_ops(store, finish(first))
    ended, missing = await store.get_ended_runs(["a", "b", "c", "\ud800"])
    assert ([run.id for run in ended], {*missing}) == (["a"], {"c", "\ud800"})
    assert ended == [await store.get_run("a")]
    await commit_ops(store, finish(second, output=b"y" * 100_000))
    ended, missing = await store.get_ended_runs(["b", "a", "b"])
    assert ({run.id: run for run in ended}, {*missing}) == (
        {"a": await store.get_run("a"), "b": await store.get_run("b")},
        set(),
    )


async def test_the_highest_priority_goes_first_and_then_the_oldest(store: Store):
    worker = await store.workers.register(new_worker(), 10.0)
    for name, priority in [("a", 0), ("b", 5), ("c", -1), ("d", 5), ("e", 0)]:
        await start_run(store, name, priority=priority)
    assert await ids(store, worker, limit=3) == ["b", "d", "a"]
    assert await ids(store, worker) == ["e", "c"]


async def test_the_order_holds_across_workflows_and_over_timers_that_have_come_due(store: Store, clock):
    worker = await store.workers.register(new_worker(), 1e6)
    await start_run(store, "a", workflow="x")
    await start_run(store, "b", workflow="y", priority=1)
    await start_run(store, "c", workflow="x", available_at=clock.now + 10, priority=2)
    await start_run(store, "d", workflow="y", available_at=clock.now + 5)
    await start_run(store, "e", workflow="x")
    clock.advance(20)
    assert await ids(store, worker, workflows=["x", "y"]) == ["c", "b", "a", "d", "e"]


async def test_no_more_than_the_limit_is_taken(store: Store):
    worker = await store.workers.register(new_worker(), 10.0)
    for number in range(5):
        await start_run(store, f"r{number}")
    assert await ids(store, worker, limit=0) == []
    assert await ids(store, worker, limit=2) == ["r0", "r1"]
    assert await ids(store, worker, limit=9) == ["r2", "r3", "r4"]


async def test_one_claim_takes_one_run_for_each_worker_that_lives(store: Store):
    workers = [await store.workers.register(new_worker(f"w{number}"), 10.0) for number in range(4)]
    await store.workers.retire(workers[1])
    for number in range(5):
        await start_run(store, f"r{number}")
    runs = await store.claims.claim_each([workers[0], *workers[2:]], workflows=[FLOW])
    assert [(run.id, run.owner, run.epoch) for run in runs] == [
        ("r0", workers[0], 1), ("r1", workers[2], 1), ("r2", workers[3], 1),
    ]  # fmt: skip
    assert runs == [await store.get_run(run.id) for run in runs]
    assert await store.claims.claim_each([workers[1]], workflows=[FLOW]) == []
    # The same worker may wait twice, and there may be more workers than runs.
    rest = await store.claims.claim_each([workers[3], workers[3], workers[0]], workflows=[FLOW])
    assert [(run.id, run.owner) for run in rest] == [("r3", workers[3]), ("r4", workers[3])]
    assert await store.claims.claim_each(workers, workflows=[FLOW]) == []
    assert await store.claims.claim_each([], workflows=[FLOW]) == []


async def test_a_claim_for_several_workers_appends_an_event_to_each_run_that_it_takes(store: Store):
    if not store.claims.appends_events:
        pytest.skip("this store does not append events with a claim")
    workers = [await store.workers.register(new_worker(f"w{number}"), 10.0) for number in range(3)]
    for number in range(2):
        await start_run(store, f"r{number}")

    def make_event(run: Run) -> LiveEvent:
        return LiveEvent(-1, "delivered", run.epoch, DELIVERED, f"to {run.owner}".encode(), store.now())

    runs = await store.claims.claim_each(workers, workflows=[FLOW], make_event=make_event)
    assert [run.id for run in runs] == ["r0", "r1"]
    for run in runs:
        updates = await store.get_run_updates(run.id, -1, 0)
        assert updates is not None
        [(_, event)] = updates.live_events
        assert event == make_event(run)._replace(at=event.at)


def make_delivered_event(run: Run) -> LiveEvent:
    return LiveEvent(-1, "delivered", run.epoch, DELIVERED, f"to {run.owner}".encode(), 1_000_000.0)


async def commit_and_claim(store: Store, op: Op, worker: int) -> tuple[Any, ClaimedRun | None]:
    answer, claimed = await store.commit_and_claim([op, ClaimNext(worker, FLOW, make_delivered_event)])
    assert claimed is None or isinstance(claimed, ClaimedRun)
    return answer, claimed


async def test_a_commit_that_ends_a_run_may_claim_the_next_one(store: Store):
    held = await start_claimed_run(store, "held")
    assert held.owner is not None
    await start_run(store, "low", priority=-1)
    await start_run(store, "first")
    await commit_ops(store, signal("first"))
    answer, claimed = await commit_and_claim(store, finish(held), held.owner)
    assert answer is OpStatus.DONE
    if not isinstance(store, SqliteStore):
        assert claimed is None
        return
    assert claimed is not None
    assert (claimed.run.id, claimed.run.epoch, claimed.is_new) == ("first", 1, False)
    assert claimed.run == await store.get_run("first")
    updates = await store.get_run_updates("first", -1, 0)
    assert updates is not None
    assert [event for _, event in updates.live_events] == [make_delivered_event(claimed.run)]
    # A repeat ends nothing, and claims nothing.
    assert await commit_and_claim(store, finish(held), held.owner) == (OpStatus.DONE_NOTIFIED, None)
    _, last = await commit_and_claim(store, finish(claimed.run), held.owner)
    assert last is not None
    assert (last.run.id, last.is_new) == ("low", True)
    assert await commit_and_claim(store, finish(last.run), held.owner) == (OpStatus.DONE, None)


async def test_a_commit_claims_nothing_for_a_run_that_is_lost_or_a_worker_that_is_gone(store: Store):
    lost, held = await start_claimed_run(store, "lost"), await start_claimed_run(store, "held")
    assert lost.owner is not None
    assert held.owner is not None
    await commit_ops(store, release(lost))
    assert await commit_and_claim(store, finish(lost), lost.owner) == (OpStatus.FENCED, None)
    await store.workers.retire(lost.owner)
    assert await commit_and_claim(store, finish(held), lost.owner) == (OpStatus.DONE, None)
    run = await store.get_run("lost")
    assert run is not None
    assert run.state is RunState.PENDING


@pytest.mark.parametrize("obstacle", ["disabled workflow", "limited queue", "timer"])
async def test_a_commit_leaves_claims_that_are_not_simple_to_others(store: Store, clock, obstacle: str):
    held = await start_claimed_run(store, "held")
    assert held.owner is not None
    await start_run(store, "next", priority=-1)
    if obstacle == "disabled workflow":
        await store.disabled_workflows.disable(FLOW)
    elif obstacle == "limited queue":
        await store.queues.set_limits("narrow", make_limits(1))
    else:
        await start_run(store, "delayed", available_at=store.now() + 5)
        clock.advance(6)
    assert await commit_and_claim(store, finish(held), held.owner) == (OpStatus.DONE, None)


async def test_a_run_that_is_started_as_claimed_gets_the_event_of_its_claim(store: Store):
    worker = await store.workers.register(new_worker(), 10.0)
    event = LiveEvent(-1, "delivered", 1, DELIVERED, b"{}", 1_000_000.0)
    for run_id, claim_as in (("claimed", worker), ("not live", worker + 99)):
        await commit_ops(store, StartRun(new_run(run_id), claim_as=claim_as, claim_event=event))
    events = {run_id: await store.get_run_updates(run_id, -1, 0) for run_id in ("claimed", "not live")}
    assert [[event for _, event in one.live_events] for one in events.values() if one is not None] == [[event], []]


async def test_only_the_given_workflows_are_claimed(store: Store):
    worker = await store.workers.register(new_worker(), 10.0)
    await start_run(store, "mine")
    await start_run(store, "foreign", workflow="other")
    assert await ids(store, worker, workflows=[]) == []
    assert await ids(store, worker) == ["mine"]
    assert await ids(store, worker, workflows={"other", FLOW}) == ["foreign"]


async def test_only_the_given_queues_are_served(store: Store):
    worker = await store.workers.register(new_worker(), 10.0)
    for queue in ("default", "slow", "gpu"):
        await start_run(store, f"on-{queue}", queue=queue)
    assert await ids(store, worker, queues=[]) == []
    assert await ids(store, worker, queues=["slow"]) == ["on-slow"]
    assert await ids(store, worker, queues=None) == ["on-default", "on-gpu"]


async def test_a_delayed_run_is_not_claimed_before_its_time(store: Store, clock):
    worker = await store.workers.register(new_worker(), 10.0)
    await start_run(store, available_at=clock.now + 5)
    assert await ids(store, worker) == []
    assert await store.claims.get_next_wake_at(**CLAIM_FILTER) == clock.now + 5
    clock.advance(5)
    assert await ids(store, worker) == ["r"]


async def test_next_wake_is_the_earliest_time_of_the_served_runs(store: Store, clock):
    worker = await store.workers.register(new_worker(), 10.0)
    assert await store.claims.get_next_wake_at(**CLAIM_FILTER) is None
    await start_run(store, "late", available_at=clock.now + 50)
    await start_run(store, "soon", available_at=clock.now + 20, queue="slow")
    await start_run(store, "foreign", available_at=clock.now + 1, workflow="other")
    assert await store.claims.get_next_wake_at(workflows=[FLOW], queues=None) == clock.now + 20
    assert await store.claims.get_next_wake_at(workflows=[FLOW], queues=["default"]) == clock.now + 50
    assert await store.claims.get_next_wake_at(workflows=[FLOW, "other"], queues=None) == clock.now + 1
    assert await store.claims.get_next_wake_at(workflows=[FLOW], queues=["none"]) is None
    assert await store.claims.get_next_wake_at(workflows=[], queues=None) is None
    due = await start_run(store, "now")
    assert await store.claims.get_next_wake_at(**CLAIM_FILTER) == due.wake_at
    assert due.wake_at is not None
    assert due.wake_at <= clock.now
    await store.claims.claim(worker, **CLAIM_FILTER, limit=1)
    assert await store.claims.get_next_wake_at(**CLAIM_FILTER) == clock.now + 20


async def test_a_run_parked_until_a_time_in_the_past_is_due_at_once(store: Store, clock):
    run = await start_claimed_run(store)
    await commit_ops(store, park(run, clock.now - 100))
    assert await store.claims.get_next_wake_at(**CLAIM_FILTER) == clock.now - 100
    assert (await claim_run(store, run.owner)).epoch == 2


async def test_two_workers_never_get_the_same_run(store: Store, second_store: Store):
    for number in range(20):
        await start_run(store, f"r{number:02}")
    here, there = (
        await store.workers.register(new_worker(), 10.0),
        await second_store.workers.register(new_worker(), 10.0),
    )
    taken: list[str] = []
    while got := await ids(store, here, limit=3) + await ids(second_store, there, limit=2):
        taken += got
    assert sorted(taken) == [f"r{number:02}" for number in range(20)]


async def test_a_worker_that_is_not_live_claims_nothing(store: Store, clock):
    await start_run(store)
    retired, dead = [await store.workers.register(new_worker(), 10.0) for _ in range(2)]
    await store.workers.retire(retired)
    clock.advance(11)
    await store.workers.reap_dead()
    for worker in (retired, dead, 999):
        assert await ids(store, worker) == []


async def test_the_epoch_rises_with_every_claim_and_with_nothing_else(store: Store, clock):
    run = await start_claimed_run(store)
    epochs = [run.epoch]
    for seq in range(1, 4):
        await commit_ops(store, append(run, seq), park(run, clock.now) if seq % 2 else release(run))
        assert (await store.get_run("r")).epoch == run.epoch  # type: ignore[union-attr]
        run = await claim_run(store, run.owner)
        epochs.append(run.epoch)
    assert epochs == [1, 2, 3, 4]
