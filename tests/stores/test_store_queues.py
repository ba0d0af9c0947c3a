"""Queues with limits: who is let through, when, and in which order."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest
from queue_values import QUEUE, claim_ids, declare_limited_queue, get_next_wake, start_queued_runs
from store_values import (
    CLAIM_FILTER,
    FLOW,
    Clock,
    append,
    commit_ops,
    finish,
    get_state,
    new_run,
    new_worker,
    park,
    read_run,
    release,
    signal,
    start_run,
)

from holdfast.admission.usage import Usage
from holdfast.core.states import RunState
from holdfast.stores.contract import Store
from holdfast.stores.operations import CancelRun, ForkRun, OpStatus, PauseRun, ReopenRun, ResumeRun, StartResult
from holdfast.stores.sqlite import SqliteStore

pytestmark = pytest.mark.asyncio


async def ends(store: Store, *names: str) -> None:
    answers = await commit_ops(store, *[finish(await read_run(store, name)) for name in names])
    assert answers == [OpStatus.DONE] * len(names)


# Places


async def test_no_more_runs_are_taken_than_the_queue_has_places(store: Store, second_store: Store):
    worker = await declare_limited_queue(store, 2)
    await start_queued_runs(store, "a", "b", "c", "d")
    assert await claim_ids(store, worker, limit=1) == ["a"]
    assert await claim_ids(store, worker) == ["b"]
    other = await second_store.workers.register(new_worker(), 1e6)
    assert await claim_ids(second_store, other) == []
    assert (await read_run(store, "a")).is_limited
    await ends(store, "a")
    assert await claim_ids(second_store, other) == ["c"]
    await ends(store, "b", "c")
    assert await claim_ids(store, worker) == ["d"]


async def test_a_start_in_a_limited_queue_is_not_claimed_by_its_starter(store: Store):
    worker = await declare_limited_queue(store, 1)
    run = await start_run(store, "a", queue=QUEUE, claim_as=worker)
    assert (run.state, run.epoch, run.owner, run.is_limited) == (RunState.PENDING, 0, None, True)
    assert run == await read_run(store, "a")
    other = await start_run(store, "b", claim_as=worker)
    assert (other.state, other.is_limited) == (RunState.RUNNING, False)


async def test_a_full_queue_does_not_block_other_queues(store: Store):
    worker = await declare_limited_queue(store, 1)
    await start_queued_runs(store, "a", "b", "c")
    await start_run(store, "free-1")
    await start_run(store, "free-2", priority=-1)
    assert await claim_ids(store, worker) == ["a", "free-1", "free-2"]


async def test_limited_queues_and_others_are_served_in_the_order_of_priority_and_age(store: Store):
    worker = await declare_limited_queue(store, 10)
    await declare_limited_queue(store, 10, name="slow")
    await start_queued_runs(store, "a", "b")
    await start_run(store, "free")
    await start_queued_runs(store, "c", queue="slow", priority=2)
    await start_queued_runs(store, "d", queue="slow")
    await start_queued_runs(store, "e", priority=1)
    await start_run(store, "first", priority=3)
    assert await claim_ids(store, worker, limit=3) == ["first", "c", "e"]
    assert await claim_ids(store, worker, limit=9) == ["a", "b", "free", "d"]


async def test_only_the_queues_and_versions_that_a_worker_serves_are_taken(store: Store):
    worker = await declare_limited_queue(store, 2)
    await start_queued_runs(store, "old-1", "old-2", version="1")
    await start_queued_runs(store, "new", version="2")
    assert await claim_ids(store, worker, queues=["default"], workflows=[f"{FLOW}@1", f"{FLOW}@2"]) == []
    assert await claim_ids(store, worker, queues=[QUEUE], workflows=[FLOW]) == []
    assert await get_next_wake(store, workflows=[f"{FLOW}@3"]) is None
    assert await claim_ids(store, worker, queues=[QUEUE], workflows=[f"{FLOW}@2"]) == ["new"]
    assert await claim_ids(store, worker, workflows=[f"{FLOW}@1", f"{FLOW}@2"]) == ["old-1"]
    assert await get_next_wake(store, workflows=[f"{FLOW}@1"]) is None


async def test_a_disabled_workflow_does_not_block_others(store: Store):
    worker = await declare_limited_queue(store, 1)
    await start_queued_runs(store, "off", workflow="mail", priority=9)
    await start_queued_runs(store, "on")
    await store.disabled_workflows.disable("mail")
    assert await claim_ids(store, worker, workflows=[FLOW, "mail"]) == ["on"]
    await ends(store, "on")
    assert await get_next_wake(store, workflows=[FLOW, "mail"]) is None
    await store.disabled_workflows.enable("mail")
    assert await claim_ids(store, worker, workflows=[FLOW, "mail"]) == ["off"]


async def test_a_parked_run_frees_its_slot_and_needs_one_again(store: Store, clock: Clock):
    worker = await declare_limited_queue(store, 1)
    await start_queued_runs(store, "a", "b", "c")
    [a] = await store.claims.claim(worker, **CLAIM_FILTER, limit=9)
    assert await commit_ops(store, park(a, clock.now + 5, "go")) == [OpStatus.DONE]
    assert await claim_ids(store, worker) == ["b"]
    clock.advance(5)
    assert await claim_ids(store, worker) == []
    assert await get_next_wake(store) is None
    await commit_ops(store, signal("a"))
    assert await get_next_wake(store) is None
    await ends(store, "b")
    assert await get_next_wake(store) == clock.now
    assert await claim_ids(store, worker) == ["a"]  # what has begun goes first
    await ends(store, "a")
    assert await claim_ids(store, worker) == ["c"]


async def test_releasing_a_run_frees_its_slot(store: Store, kill_worker: Callable[[int], None]):
    worker = await declare_limited_queue(store, 1)
    await start_queued_runs(store, "a", "b", priority=0)
    await start_queued_runs(store, "c", priority=9)
    assert await claim_ids(store, worker) == ["c"]
    await commit_ops(store, release(await read_run(store, "c")))
    assert await claim_ids(store, worker) == ["c"]
    await store.workers.retire(worker)
    doomed = await store.workers.register(new_worker(), 1e6)
    assert await claim_ids(store, doomed) == ["c"]
    kill_worker(doomed)
    heir = await store.workers.register(new_worker(), 1e6)
    assert (await store.workers.reap_dead(heir)).released_count == 1
    assert await claim_ids(store, heir) == ["c"]
    await ends(store, "c")
    assert await claim_ids(store, heir) == ["a"]


async def test_a_dead_run_frees_its_slot(store: Store, kill_worker: Callable[[int], None]):
    worker = await declare_limited_queue(store, 1)
    await start_queued_runs(store, "a", max_deliveries=1)
    await start_queued_runs(store, "b")
    assert await claim_ids(store, worker) == ["a"]
    kill_worker(worker)
    heir = await store.workers.register(new_worker(), 1e6)
    assert (await store.workers.reap_dead(heir)).dead_run_ids == ("a",)
    assert await claim_ids(store, heir) == ["b"]


async def test_a_cancel_requested_run_needs_no_slot(store: Store, clock: Clock):
    worker = await declare_limited_queue(store, 1, "1/min")
    await start_queued_runs(store, "a", "b", "c")
    [a] = await store.claims.claim(worker, **CLAIM_FILTER, limit=9)
    await commit_ops(store, park(a, None, "go"))
    assert await claim_ids(store, worker) == []
    clock.advance(60)
    assert await claim_ids(store, worker) == ["b"]
    assert await commit_ops(store, CancelRun("a", clock.now), CancelRun("c", clock.now)) == [OpStatus.DONE] * 2
    assert await get_state(store, "c") is RunState.CANCELLED  # nobody has ever claimed it
    assert await get_next_wake(store) == clock.now
    assert await claim_ids(store, worker) == ["a"]
    await store.workers.retire(worker)
    heir = await store.workers.register(new_worker(), 1e6)
    assert "a" in await claim_ids(store, heir)


async def test_paused_runs_have_no_slot_and_do_not_block_others(store: Store, clock: Clock):
    worker = await declare_limited_queue(store, 1)
    await start_queued_runs(store, "a", "b")
    assert await commit_ops(store, PauseRun("a", clock.now)) == [OpStatus.DONE]
    [b] = await store.claims.claim(worker, **CLAIM_FILTER, limit=9)
    assert b.id == "b"
    assert await commit_ops(store, PauseRun("b", clock.now), ResumeRun("a", clock.now)) == [OpStatus.DONE] * 2
    assert await claim_ids(store, worker) == []  # it is on its way to be parked
    assert await commit_ops(store, park(b, None, is_pause=True)) == [OpStatus.DONE]
    assert await claim_ids(store, worker) == ["a"]
    assert await commit_ops(store, ResumeRun("b", clock.now)) == [OpStatus.DONE]
    assert await get_next_wake(store) is None
    assert await claim_ids(store, worker) == []
    await ends(store, "a")
    assert await claim_ids(store, worker) == ["b"]


async def test_a_retried_run_needs_a_slot_and_goes_before_unstarted_runs(store: Store, clock: Clock):
    worker = await declare_limited_queue(store, 1, "2/min")
    await start_queued_runs(store, "a", "b")
    [a] = await store.claims.claim(worker, **CLAIM_FILTER, limit=9)
    await commit_ops(store, finish(a, RunState.FAILED))
    assert await claim_ids(store, worker) == ["b"]
    await start_queued_runs(store, "c")
    assert await commit_ops(store, ReopenRun("a", clock.now)) == [OpStatus.DONE]
    assert (await read_run(store, "a")).is_limited
    assert await claim_ids(store, worker) == []
    await ends(store, "b")
    assert await claim_ids(store, worker) == ["a"]  # it has begun before: the rate is used up
    await ends(store, "a")
    assert await claim_ids(store, worker) == []


async def test_a_fork_waits_like_a_new_run(store: Store, clock: Clock):
    worker = await declare_limited_queue(store, 1, "1/min", key_concurrency=1)
    await start_queued_runs(store, "acme/1")
    [source] = await store.claims.claim(worker, **CLAIM_FILTER, limit=9)
    await commit_ops(store, append(source, 0))
    forked = replace(new_run("fork"), queue=QUEUE, queue_key="acme", forked_from=source.id)
    [answer] = await commit_ops(store, ForkRun(source.id, forked, 1))
    assert isinstance(answer, StartResult)
    assert (answer.run.queue_key, answer.run.is_limited) == ("acme", True)
    await ends(store, "acme/1")
    assert await claim_ids(store, worker) == []
    clock.advance(60)
    assert await claim_ids(store, worker) == ["fork"]


# Rates


async def test_no_more_runs_begin_in_any_window_than_the_rate_allows(store: Store, clock: Clock):
    worker = await declare_limited_queue(store, None, "3/min")
    await start_queued_runs(store, *"abcdefg")
    assert await claim_ids(store, worker, limit=2) == ["a", "b"]
    clock.advance(30)
    assert await claim_ids(store, worker) == ["c"]
    assert await claim_ids(store, worker) == []
    assert await get_next_wake(store) == clock.now + 30
    clock.advance(29.5)
    assert await claim_ids(store, worker) == []
    clock.advance(0.5)
    assert await claim_ids(store, worker) == ["d", "e"]
    assert await get_next_wake(store) == clock.now + 30


async def test_going_on_is_no_new_beginning(store: Store, clock: Clock):
    worker = await declare_limited_queue(store, None, "1/min")
    await start_queued_runs(store, "a", "b")
    [a] = await store.claims.claim(worker, **CLAIM_FILTER, limit=9)
    await commit_ops(store, park(a, clock.now + 5))
    assert await get_next_wake(store) == clock.now + 5
    clock.advance(5)
    assert await claim_ids(store, worker) == ["a"]
    await store.workers.retire(worker)
    heir = await store.workers.register(new_worker(), 1e6)
    assert await claim_ids(store, heir) == ["a"]
    assert await get_next_wake(store) == clock.now + 55


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
async def test_a_claim_that_had_to_wait_counts_from_when_it_was_let_through(store: SqliteStore, clock: Clock):
    worker = await declare_limited_queue(store, None, "1/min")
    await start_queued_runs(store, "a", "b")
    with closing(sqlite3.connect(store.path, isolation_level=None)) as somebody:
        somebody.execute("BEGIN IMMEDIATE")
        claiming = asyncio.create_task(claim_ids(store, worker))
        await asyncio.sleep(0.1)
        clock.advance(10)
        somebody.execute("ROLLBACK")
        assert await claiming == ["a"]
    assert await get_next_wake(store) == clock.now + 60


async def test_several_rates_all_count(store: Store, clock: Clock):
    worker = await declare_limited_queue(store, None, "2/s", "3/min")
    await start_queued_runs(store, *"abcde")
    assert await claim_ids(store, worker) == ["a", "b"]
    assert await get_next_wake(store) == clock.now + 1
    clock.advance(1)
    assert await claim_ids(store, worker) == ["c"]
    assert await get_next_wake(store) == clock.now + 59


async def test_tokens_are_charged_with_the_record_and_once(store: Store, clock: Clock):
    worker = await declare_limited_queue(store, None, "100 tokens/min", key_rates=("40 tokens/min",))
    await start_queued_runs(store, "acme/1", "acme/2", "acme/3", "other/1", "other/2", "third/1")
    await commit_ops(
        store, PauseRun("acme/2", clock.now), PauseRun("other/1", clock.now), PauseRun("other/2", clock.now)
    )
    [acme, third] = await store.claims.claim(worker, **CLAIM_FILTER, limit=2)
    assert (acme.id, third.id) == ("acme/1", "third/1")  # they are taken before anything is known
    op = append(acme, 0, used=Usage(calls=1, input_tokens=30, output_tokens=10))
    assert await commit_ops(store, op, op) == [OpStatus.DONE] * 2
    assert await commit_ops(store, op) == [OpStatus.DONE]
    await commit_ops(
        store, ResumeRun("acme/2", clock.now), ResumeRun("other/1", clock.now), ResumeRun("other/2", clock.now)
    )
    clock.advance(10)
    assert await claim_ids(store, worker, limit=1) == ["other/1"]  # acme has used up its own
    await commit_ops(store, append(third, 0, used=Usage(calls=1, input_tokens=260)))
    assert await claim_ids(store, worker) == []
    # 360 were charged, of which 60 fit after those of acme: 200 are paid in two more windows.
    assert await get_next_wake(store) == clock.now + 60 + 60 + 50
    clock.advance(60 + 60 + 50)
    assert await claim_ids(store, worker) == ["acme/2", "other/2", "acme/3"]


# Keys


async def test_a_key_has_no_more_places_than_it_may(store: Store):
    worker = await declare_limited_queue(store, 4, key_concurrency=2)
    await start_queued_runs(store, "acme/1", "acme/2", "acme/3", "acme/4")
    await start_queued_runs(store, "x", "y", "z", "other/1", "other/2")
    assert sorted(await claim_ids(store, worker)) == ["acme/1", "acme/2", "other/1", "x"]
    await ends(store, "acme/1")
    assert await claim_ids(store, worker) == ["y"]  # runs without a key have one together
    assert await get_next_wake(store) is None
    await ends(store, "other/1")
    assert await claim_ids(store, worker) == ["other/2"]
    await ends(store, "acme/2")
    assert await claim_ids(store, worker) == ["acme/3"]
    await ends(store, "other/2")
    assert await claim_ids(store, worker) == ["acme/4"]
    await ends(store, "acme/3")
    assert await get_next_wake(store) is None
    await ends(store, "x")
    assert await claim_ids(store, worker) == ["z"]


async def test_a_key_at_its_limit_is_skipped_however_many_runs_it_has(store: Store):
    worker = await declare_limited_queue(store, None, key_concurrency=1)
    await start_queued_runs(store, *[f"acme/{number}" for number in range(60)], priority=5)
    await start_queued_runs(store, "other/1")
    assert await claim_ids(store, worker, limit=2) == ["acme/0", "other/1"]
    assert await claim_ids(store, worker, limit=2) == []
    assert await get_next_wake(store) is None
    await ends(store, "acme/0")
    assert await claim_ids(store, worker, limit=2) == ["acme/1"]


async def test_each_key_has_a_rate_of_its_own(store: Store, clock: Clock):
    worker = await declare_limited_queue(store, None, "3/min", key_rates=("1/min",))
    await start_queued_runs(store, "acme/1", "acme/2", "other/1")
    assert await claim_ids(store, worker) == ["acme/1", "other/1"]
    assert await get_next_wake(store) == clock.now + 60
    clock.advance(20)
    await start_queued_runs(store, "third/1", "third/2", "fourth/1")
    assert await get_next_wake(store) == clock.now
    assert await claim_ids(store, worker) == ["third/1"]
    assert await get_next_wake(store) == clock.now + 40
    clock.advance(40)
    assert sorted(await claim_ids(store, worker)) == ["acme/2", "fourth/1"]
    assert await get_next_wake(store) == clock.now + 20


async def test_a_parked_run_of_a_full_key_waits_for_a_slot(store: Store, clock: Clock):
    worker = await declare_limited_queue(store, None, key_concurrency=1)
    await start_queued_runs(store, "acme/1", "acme/2", "other/1")
    [first, other] = await store.claims.claim(worker, **CLAIM_FILTER, limit=9)
    assert (first.id, other.id) == ("acme/1", "other/1")
    await commit_ops(store, park(first, clock.now + 1))
    assert await claim_ids(store, worker) == ["acme/2"]
    clock.advance(1)
    assert await claim_ids(store, worker) == []
    assert await get_next_wake(store) is None
    await ends(store, "acme/2")
    assert await claim_ids(store, worker) == ["acme/1"]


# Order


async def test_keys_take_turns_and_a_late_key_starts_at_the_current_turn(store: Store):
    worker = await declare_limited_queue(store, 1)
    await start_queued_runs(store, *[f"acme/{number}" for number in range(100)])
    order: list[str] = []
    for turn in range(12):
        if turn == 6:
            await start_queued_runs(store, "late/0")
        if turn == 8:
            await start_queued_runs(store, "third/0", "third/1", "third/2")
        order += await claim_ids(store, worker, limit=1)
        await ends(store, order[-1])
    assert order[:6] == [f"acme/{number}" for number in range(6)]
    assert order[6:8] == ["late/0", "acme/6"]
    assert sorted(order[8:]) == ["acme/7", "acme/8", "third/0", "third/1"]


async def test_keys_that_are_there_from_the_beginning_take_turns(store: Store):
    worker = await declare_limited_queue(store, 10)
    await start_queued_runs(store, "a/1", "a/2", "a/3", "b/1", "b/2", "c/1")
    assert await claim_ids(store, worker) == ["a/1", "b/1", "c/1", "a/2", "b/2", "a/3"]


async def test_priority_goes_before_turns(store: Store):
    worker = await declare_limited_queue(store, 1)
    await start_queued_runs(store, "a/1", "a/2")
    await start_queued_runs(store, "b/1")
    await start_queued_runs(store, "a/3", "a/4", priority=1)
    order: list[str] = []
    for turn in range(5):
        if turn == 3:
            await start_queued_runs(
                store, "late/1"
            )  # it must not wait for what has a turn before that of the urgent ones
        order += await claim_ids(store, worker, limit=1)
        await ends(store, order[-1])
    assert order == ["a/3", "a/4", "a/1", "b/1", "late/1"]


async def test_runs_of_one_priority_do_not_change_the_turns_of_another(store: Store):
    worker = await declare_limited_queue(store, 1)
    await start_queued_runs(store, *[f"acme/{number}" for number in range(50)])
    await start_queued_runs(store, "acme/urgent", priority=5)
    order = await claim_ids(store, worker, limit=1)
    await ends(store, order[-1])
    await start_queued_runs(store, "late/0")
    for _ in range(2):
        order += await claim_ids(store, worker, limit=1)
        await ends(store, order[-1])
    assert order == ["acme/urgent", "acme/0", "late/0"]


async def test_a_delayed_run_waits_for_its_time_and_then_for_a_slot(store: Store, clock: Clock):
    worker = await declare_limited_queue(store, 1)
    await start_queued_runs(store, "later", available_at=clock.now + 5, priority=9)
    assert await get_next_wake(store) == clock.now + 5
    await start_queued_runs(store, "now")
    assert await get_next_wake(store) == clock.now
    assert await claim_ids(store, worker) == ["now"]
    clock.advance(5)
    assert await claim_ids(store, worker) == []
    assert await get_next_wake(store) is None
    await ends(store, "now")
    assert await claim_ids(store, worker) == ["later"]
