"""Workers: leases, retiring, and what a death does to the runs that were held."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from store_values import (
    CLAIM_FILTER,
    DONE,
    FENCED,
    append,
    claim_run,
    commit_ops,
    finish,
    get_state,
    list_signals,
    new_worker,
    park,
    read_run,
    save_attempt,
    signal,
    start_child,
    start_claimed_run,
    start_run,
)

from holdfast.codec.recorded_errors import decode_error
from holdfast.core.states import RunState
from holdfast.errors import RunDead
from holdfast.stores.contract import Store, WorkflowSpec
from holdfast.stores.leases import LeaseWindow
from holdfast.stores.operations import CancelRun, PauseRun, ResumeRun
from holdfast.stores.retention import PruneRequest
from holdfast.stores.workers import WORKER_RETENTION_S, ReapResult

pytestmark = pytest.mark.asyncio


async def test_a_registered_worker_is_live_for_its_lease(store: Store, second_store: Store, clock):
    number = await store.workers.register(new_worker("x", queues=("slow",), workflows=("a", "b")), 10.0)
    [worker] = await second_store.list_workers()
    assert (worker.id, worker.name, worker.host, worker.pid, worker.state) == (number, "x", "host", 7, "live")
    assert (worker.workflows, worker.queues) == (("a", "b"), ("slow",))
    assert (worker.started_at, worker.lease_expires_at) == (clock.now, clock.now + 10)


async def test_a_worker_has_the_time_of_its_last_heartbeat(store: Store, second_store: Store, clock):
    number = await store.workers.register(new_worker(), 10.0)
    registered = clock.now
    assert [worker.heartbeat_at for worker in await second_store.list_workers()] == [registered]
    clock.advance(3.0)
    assert store.workers.renew_lease(number, 10.0)
    [worker] = await second_store.list_workers()
    assert (worker.started_at, worker.heartbeat_at, worker.lease_expires_at) == (registered, clock.now, clock.now + 10)


async def test_workers_get_distinct_ids_and_may_serve_all_queues(store: Store):
    first, second = await store.workers.register(new_worker(), 1.0), await store.workers.register(new_worker(), 1.0)
    assert first != second
    assert [worker.queues for worker in await store.list_workers()] == [None, None]


async def test_a_renewed_lease_keeps_a_worker_alive(store: Store, second_store: Store, clock):
    worker = await store.workers.register(new_worker(), 10.0)
    for _ in range(3):
        clock.advance(8)
        assert await asyncio.to_thread(store.workers.renew_lease, worker, 10.0)
        assert await second_store.workers.reap_dead() == ReapResult()
    assert (await second_store.list_workers())[0].lease_expires_at == clock.now + 10


async def test_a_worker_whose_lease_has_passed_is_dead(store: Store, second_store: Store, clock):
    run = await start_claimed_run(store)
    clock.advance(10)
    assert await second_store.workers.reap_dead() == ReapResult()
    clock.advance(0.5)
    assert await second_store.workers.reap_dead() == ReapResult((run.owner or 0,), 1, ())
    assert not store.workers.renew_lease(run.owner or 0, 10.0)
    assert await second_store.workers.reap_dead() == ReapResult()


async def test_a_lease_runs_only_while_the_observer_could_reach_the_store(store: Store, second_store: Store, clock):
    """The store was away for an hour: nobody could renew, and nobody is dead for that."""
    run = await start_claimed_run(store)
    clock.advance(3600)
    back = clock.now
    for seconds in (0, 9.5):
        clock.advance(seconds)
        assert await second_store.workers.reap_dead(None, LeaseWindow(back, clock.now)) == ReapResult()
    assert await asyncio.to_thread(store.workers.renew_lease, run.owner or 0, 10.0)
    clock.advance(9.5)
    assert await second_store.workers.reap_dead(None, LeaseWindow(back, clock.now)) == ReapResult()
    clock.advance(1)
    assert await second_store.workers.reap_dead(None, LeaseWindow(back, clock.now)) == ReapResult(
        (run.owner or 0,), 1, ()
    )


async def test_a_clock_that_was_set_forward_meanwhile_makes_no_lease_pass(store: Store, second_store: Store, clock):
    await start_claimed_run(store)
    window = LeaseWindow(0.0, clock.now)
    clock.advance(60)
    assert await second_store.workers.reap_dead(None, window) == ReapResult()


async def test_a_worker_without_a_process_is_dead_whatever_its_lease_says(
    store: Store, second_store: Store, clock, kill_worker
):
    run = await start_claimed_run(store)
    kill_worker(run.owner)
    assert (await second_store.workers.reap_dead(None, LeaseWindow(clock.now, clock.now))).worker_ids == (run.owner,)


async def test_a_worker_without_a_process_is_dead_at_once(store: Store, second_store: Store, kill_worker):
    run = await start_claimed_run(store)
    assert await second_store.workers.reap_dead() == ReapResult()
    kill_worker(run.owner)
    assert (await second_store.workers.reap_dead()).worker_ids == (run.owner,)
    assert await second_store.workers.reap_dead() == ReapResult()


async def test_a_worker_never_reaps_itself(store: Store, clock, kill_worker):
    worker = await store.workers.register(new_worker(), 10.0)
    clock.advance(100)
    kill_worker(worker)
    assert await store.workers.reap_dead(worker) == ReapResult()
    assert (await store.workers.reap_dead()).worker_ids == (worker,)


async def test_a_death_frees_the_runs_that_were_held_and_counts_a_delivery(store: Store, kill_worker, clock):
    worker = await store.workers.register(new_worker(), 10.0)
    held = await start_run(store, "held", claim_as=worker)
    parked = await start_run(store, "parked", claim_as=worker)
    ended = await start_run(store, "ended", claim_as=worker)
    await start_run(store, "pending")
    await commit_ops(store, park(parked, clock.now + 99), finish(ended))
    kill_worker(worker)
    assert (await store.workers.reap_dead()).released_count == 1
    freed = await read_run(store, "held")
    assert (freed.state, freed.owner, freed.delivery_count, freed.epoch) == (RunState.PENDING, None, 1, held.epoch)
    assert freed.wake_at == clock.now
    assert [(await read_run(store, name)).delivery_count for name in ("parked", "ended", "pending")] == [0, 0, 0]
    assert await get_state(store, "parked") is RunState.WAITING


async def test_a_zombie_cannot_write_after_its_run_was_freed_nor_after_it_was_taken_over(store: Store, kill_worker):
    run = await start_claimed_run(store)
    kill_worker(run.owner)
    await store.workers.reap_dead()
    assert await commit_ops(store, append(run, 1)) == [FENCED]
    assert await commit_ops(store, append(run, 1), save_attempt(run, 1), park(run), finish(run)) == [FENCED] * 4
    successor = await claim_run(store)
    assert await commit_ops(store, append(run, 1)) == [FENCED]
    assert await commit_ops(store, append(successor, 1)) == [DONE]


async def test_a_run_that_takes_its_worker_down_too_often_is_dead(store: Store, kill_worker, clock):
    run = await start_claimed_run(store, max_deliveries=3)
    for delivery in (1, 2):
        kill_worker(run.owner)
        assert (await store.workers.reap_dead()).released_count == 1
        run = await claim_run(store)
        assert run.delivery_count == delivery
    kill_worker(run.owner)
    assert (await store.workers.reap_dead()).dead_run_ids == ("r",)
    dead = await read_run(store)
    assert (dead.state, dead.delivery_count, dead.owner, dead.finished_at) == (RunState.DEAD, 3, None, clock.now)
    error = decode_error(dead.error or b"", ())
    assert isinstance(error, RunDead)
    assert (error.run_id, error.state) == ("r", "dead")
    for words in ("died 3 times while this was the only run it held", "host:7", "holdfast retry r"):
        assert words in str(error)
    assert await store.claims.claim(run.owner or 0, **CLAIM_FILTER, limit=1) == []


async def test_progress_between_deaths_starts_the_count_again(store: Store, kill_worker):
    run = await start_claimed_run(store, max_deliveries=2)
    for seq in range(1, 5):
        await commit_ops(store, append(run, seq, reset=True))
        kill_worker(run.owner)
        assert (await store.workers.reap_dead()).dead_run_ids == ()
        run = await claim_run(store)
        assert run.delivery_count == 1


async def test_retiring_gives_runs_back_without_counting(store: Store, clock):
    run = await start_claimed_run(store)
    await store.workers.retire(run.owner or 0)
    back = await read_run(store)
    assert (back.state, back.owner, back.delivery_count, back.wake_at) == (RunState.PENDING, None, 0, clock.now)
    assert await commit_ops(store, append(run, 1)) == [FENCED]
    assert not store.workers.renew_lease(run.owner or 0, 10.0)
    assert await store.workers.reap_dead() == ReapResult()


async def test_a_worker_that_holds_a_run_does_not_retire_as_idle(store: Store):
    run = await start_claimed_run(store)
    assert not await store.workers.retire(run.owner or 0, only_if_idle=True)
    assert (await read_run(store)).owner == run.owner
    assert await commit_ops(store, finish(run)) == [DONE]
    assert await store.workers.retire(run.owner or 0, only_if_idle=True)
    assert not store.workers.renew_lease(run.owner or 0, 10.0)
    assert await store.workers.retire(run.owner or 0, only_if_idle=True), "it has retired"


async def test_retiring_twice_or_after_death_changes_nothing(store: Store, kill_worker):
    run = await start_claimed_run(store)
    kill_worker(run.owner)
    await store.workers.reap_dead()
    successor = await claim_run(store)
    await store.workers.retire(run.owner or 0)
    await store.workers.retire(run.owner or 0)
    assert (await read_run(store)).owner == successor.owner


async def test_list_workers_has_live_workers_and_those_of_unfinished_runs(store: Store):
    gone, starter, live = [await store.workers.register(new_worker(name), 10.0) for name in ("gone", "starter", "live")]
    run = await start_run(store, claim_as=live, starter=starter)
    await store.workers.retire(gone)
    await store.workers.retire(starter)
    assert [(w.id, w.state) for w in await store.list_workers()] == [(starter, "retired"), (live, "live")]
    await commit_ops(store, finish(run))
    assert [w.id for w in await store.list_workers()] == [live]
    assert [w.id for w in await store.list_workers([gone, 999])] == [gone, live]


async def test_several_dead_workers_are_reaped_together(store: Store, clock):
    runs = [await start_claimed_run(store, name, max_deliveries=1 if name == "b" else 3) for name in "abc"]
    clock.advance(11)
    reaped = await store.workers.reap_dead()
    assert sorted(reaped.worker_ids) == sorted(run.owner or 0 for run in runs)
    assert (reaped.released_count, reaped.dead_run_ids) == (2, ("b",))


async def test_a_worker_that_announces_workflows_can_execute_them_from_then_on(store: Store, second_store: Store):
    worker = await store.workers.register(new_worker(workflows=("a",)), 10.0)
    await store.announce_workflows([WorkflowSpec("b", ()), WorkflowSpec("a", ())], worker)
    await store.announce_workflows([WorkflowSpec("c", ())], worker)
    await store.announce_workflows([WorkflowSpec("d", ())])
    assert (await second_store.list_workers())[0].workflows == ("a", "b", "c")
    assert sorted(await second_store.get_workflow_specs()) == ["a", "b", "c", "d"]


# Workers that are gone


async def test_workers_are_known_as_long_as_a_run_may_name_them(store: Store, clock):
    """Their numbers are never used again."""
    early = await store.workers.register(new_worker("early"), 10.0)
    dead = await store.workers.register(new_worker("dead"), 10.0)
    await store.workers.retire(early)
    clock.advance(2 * WORKER_RETENTION_S)
    await store.workers.reap_dead()
    executed = await store.workers.register(new_worker("executed"), 10.0)
    run = await start_run(store, claim_as=executed, created_at=clock.now)
    await commit_ops(store, append(run, 0), finish(run, at=clock.now))
    await store.workers.retire(executed)
    live = await store.workers.register(new_worker("live"), 1e9)
    everybody = [early, dead, executed, live]

    async def known() -> list[int]:
        await store.retention.sweep()
        return [worker.id for worker in await store.list_workers(everybody)]

    assert await known() == [executed, live], "the others were gone before any run was there"
    clock.advance(10 * WORKER_RETENTION_S)
    assert await known() == [executed, live], "a report still names the worker that executed the run"
    await store.retention.prune(PruneRequest(finished_before=clock.now))
    assert await known() == [live]
    assert await store.workers.register(new_worker(), 10.0) not in everybody


async def test_a_worker_that_started_an_unfinished_run_is_known(store: Store, clock):
    starter = await store.workers.register(new_worker(), 10.0)
    await start_run(
        store, starter=starter, has_generated_id=True, created_at=clock.now + 5 * WORKER_RETENTION_S
    )  # by a wrong clock
    clock.advance(10 * WORKER_RETENTION_S)
    await store.workers.reap_dead()
    await store.retention.sweep()
    assert [(worker.id, worker.state) for worker in await store.list_workers()] == [(starter, "dead")]


# What was parked with something in its mailbox


async def leave(store: Store, worker: int, how: str, clock: Any) -> None:
    if how == "retires":
        await store.workers.retire(worker)
    else:
        clock.advance(11)
        assert worker in (await store.workers.reap_dead()).worker_ids


@pytest.mark.parametrize("how", ["retires", "dies"])
async def test_a_run_parked_with_unread_mail_is_claimable_once_more_when_its_parker_is_gone(
    store: Store, clock: Any, how: str
):
    run = await start_claimed_run(store)
    await commit_ops(store, signal(name="old name"), park(run, None, "new name"))
    assert (await read_run(store)).wake_at is None
    await leave(store, run.owner or 0, how, clock)
    again = await claim_run(store)
    assert (again.id, again.delivery_count, again.epoch) == (run.id, 0, run.epoch + 1)
    await commit_ops(store, park(again, None, "new name"))
    other = await store.workers.register(new_worker("unconcerned"), 10.0)
    await store.workers.retire(other)
    assert (await read_run(store)).wake_at is None
    await leave(store, again.owner or 0, how, clock)
    assert (await read_run(store)).wake_at is not None


@pytest.mark.parametrize("how", ["retires", "dies"])
async def test_a_run_parked_with_an_empty_mailbox_stays_asleep_when_its_parker_is_gone(
    store: Store, clock: Any, how: str
):
    runs = [await start_claimed_run(store, f"r{n}") for n in range(3)]
    await commit_ops(store, signal("r1", "old name"), park(runs[0], None, "go"), park(runs[1], None, "go"))
    await commit_ops(store, signal("r2", "go"), append(runs[2], 0, consume=None))
    [sent] = await list_signals(store, runs[2])
    await commit_ops(store, append(runs[2], 1, consume=sent.id), park(runs[2], None, "go"))
    if how == "dies":
        clock.advance(11)
        await store.workers.reap_dead()
    for run in runs:
        await store.workers.retire(run.owner or 0)
    assert [(await read_run(store, f"r{n}")).wake_at is None for n in range(3)] == [True, False, True]


async def test_the_end_of_a_run_that_the_code_does_not_wait_for_counts_as_unread(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, start_child(run, "c", 0, claim_as=run.owner))
    await commit_ops(store, finish(await read_run(store, "c")), park(run, None, "go"))
    assert (await read_run(store)).wake_at is None
    await store.workers.retire(run.owner or 0)
    assert (await read_run(store)).wake_at is not None


async def test_a_paused_or_ended_run_is_not_woken_when_its_parker_is_gone(store: Store):
    paused, ended = await start_claimed_run(store, "p"), await start_claimed_run(store, "e")
    await commit_ops(store, signal("p", "old"), signal("e", "old"), park(paused, None, "go"), park(ended, None, "go"))
    await commit_ops(store, PauseRun("p", 1_000_001.0), CancelRun("e", 1_000_001.0))
    again = await claim_run(store)
    assert again.id == "e"
    await commit_ops(store, finish(again, RunState.CANCELLED))
    for run in (paused, ended):
        await store.workers.retire(run.owner or 0)
    assert ((await read_run(store, "p")).wake_at, (await read_run(store, "e")).wake_at) == (None, None)
    await commit_ops(store, ResumeRun("p", 1_000_002.0))
    assert (await claim_run(store)).id == "p"


async def test_a_run_by_delivery_is_not_delivered_again_because_its_listener_left(store: Store):
    """Of a webhook, a listener is there for a single request: it would be sent again and again."""
    run = await start_claimed_run(store, is_delivery=True)
    await commit_ops(store, signal(name="old name"), park(run, None, "new name"))
    await store.workers.retire(run.owner or 0)
    assert (await read_run(store)).wake_at is None
