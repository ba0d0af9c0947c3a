"""Deliveries: workers of which only the lease tells whether they live, and runs that no engine executes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from queue_values import claim_ids, declare_limited_queue, get_queue, start_queued_runs
from store_values import (
    CLAIM_FILTER,
    DONE,
    FENCED,
    FLOW,
    Clock,
    append,
    claim_run,
    commit_ops,
    finish,
    get_state,
    list_signals,
    new_run,
    new_worker,
    park,
    read_run,
    reserve,
    start_child,
    start_claimed_run,
    start_run,
)

from holdfast.admission.usage import BudgetLimits
from holdfast.codec.recorded_errors import decode_error, encode_error
from holdfast.core.states import RunState
from holdfast.errors import RunTimedOut
from holdfast.stores.approvals import ApprovalFilter, ApprovalRequest, RequestApproval
from holdfast.stores.archives import ArchivedRun
from holdfast.stores.contract import Store
from holdfast.stores.leases import LeaseWindow
from holdfast.stores.live_events import STARTED
from holdfast.stores.operations import (
    AppendLiveEvents,
    CancelRun,
    CancelState,
    LiveEvent,
    OpStatus,
    PauseRun,
    ReleaseRun,
    ReopenRun,
    Run,
    StartRun,
)
from holdfast.stores.postgres import PgStore
from holdfast.stores.retention import PruneRequest
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.workers import LISTENER_RETENTION_S, ReapResult

pytestmark = pytest.mark.asyncio

AT = 1_000_009.0
ERROR = encode_error(ValueError("the handler failed"))
CANCELLED, DEAD, FAILED, PENDING, RUNNING = (
    RunState.CANCELLED, RunState.DEAD, RunState.FAILED, RunState.PENDING, RunState.RUNNING,
)  # fmt: skip


async def listen(store: Store, lease: float = 10.0, name: str = "handler", **fields: Any) -> int:
    """A new worker by lease."""
    return await store.workers.register(new_worker(name, host="10.0.0.7", pid=0, is_listener=True, **fields), lease)


async def take(store: Store, run_id: str = "r", *, listener: int | None = None, **fields: Any) -> Run:
    """A new run by delivery, held by a worker by lease."""
    listener = await listen(store) if listener is None else listener
    await start_run(store, run_id, is_delivery=True, **fields)
    [run] = await store.claims.claim(listener, **CLAIM_FILTER, limit=1)
    assert run.id == run_id
    return run


# Workers by lease


async def test_a_listener_lives_by_its_lease_and_is_reaped_only_on_request(
    store: Store, second_store: Store, clock: Clock
):
    run = await take(store)
    [listener] = await second_store.list_workers()
    assert (listener.is_listener, listener.state, listener.host) == (True, "live", "10.0.0.7")
    clock.advance(10.5)
    assert await second_store.workers.reap_dead() == ReapResult()
    assert await store.workers.reap_dead(listener.id, include_listeners=True) == ReapResult()
    assert await commit_ops(store, append(run, 0)) == [DONE], "nobody has taken it away"
    assert await second_store.workers.reap_dead(include_listeners=True) == ReapResult((listener.id,), 1, ())
    assert await second_store.workers.reap_dead(include_listeners=True) == ReapResult()
    assert await commit_ops(store, append(run, 1)) == [FENCED]
    taken = await read_run(store)
    assert (taken.state, taken.delivery_count, taken.owner) == (PENDING, 1, None)


async def test_any_process_renews_a_listener_however_long_ago_its_lease_expired(
    store: Store, second_store: Store, clock: Clock
):
    listener = await listen(store)
    clock.advance(500)
    assert await second_store.workers.renew_listener_lease(listener, 20.0)
    [worker] = await store.list_workers()
    assert (worker.lease_expires_at, worker.heartbeat_at) == (clock.now + 20, clock.now)
    clock.advance(19)
    assert await store.workers.reap_dead(include_listeners=True) == ReapResult()
    assert await store.workers.renew_listener_lease(listener, 1.0), "a connection that broke has less time to come back"
    clock.advance(1.5)
    for asked in (store, second_store):
        assert (await asked.workers.reap_dead(include_listeners=True)).worker_ids in ((listener,), ())
    assert not await store.workers.renew_listener_lease(listener, 20.0)
    assert not await second_store.workers.renew_listener_lease(listener + 100, 20.0)


async def test_a_lease_counts_from_when_there_was_a_server_to_renew_it(store: Store, second_store: Store, clock: Clock):
    run = await take(store)
    clock.advance(3600)
    began = clock.now
    assert (
        await second_store.workers.reap_dead(window=LeaseWindow(began, clock.now), include_listeners=True)
        == ReapResult()
    )
    clock.advance(9.5)
    assert (
        await second_store.workers.reap_dead(window=LeaseWindow(began, clock.now), include_listeners=True)
        == ReapResult()
    )
    clock.advance(1)
    assert await second_store.workers.reap_dead(
        window=LeaseWindow(began, clock.now), include_listeners=True
    ) == ReapResult((run.owner or 0,), 1, ())


async def test_a_worker_with_a_process_is_not_renewed_by_others(store: Store, second_store: Store, clock: Clock):
    worker = await store.workers.register(new_worker(), 10.0)
    assert not await second_store.workers.renew_listener_lease(worker, 100.0)
    clock.advance(10.5)
    assert (await second_store.workers.reap_dead(include_listeners=True)).worker_ids == (worker,)


async def test_a_worker_by_lease_may_be_retired_by_any_process(store: Store, second_store: Store):
    run = await take(store)
    await second_store.workers.retire(run.owner or 0)
    freed = await read_run(store)
    assert (freed.state, freed.delivery_count) == (PENDING, 0)
    assert not await store.workers.renew_listener_lease(run.owner or 0, 10.0)
    assert await store.claims.claim(run.owner or 0, **CLAIM_FILTER, limit=1) == []


async def test_hundreds_of_them_do_not_disturb_the_worker_of_the_process_that_speaks_for_them(
    store: Store, second_store: Store, clock: Clock, kill_worker: Callable[[int], None]
):
    own = await start_claimed_run(store)
    listeners = [await listen(store, 1.0) for _ in range(200)]
    if isinstance(store, SqliteStore):
        assert len([*store.workers._locks.folder.iterdir()]) == 1
    if isinstance(store, PgStore):
        assert store.session._held_locks == {own.owner}
    clock.advance(2.0)
    assert await second_store.workers.reap_dead() == ReapResult()
    assert store.workers.renew_lease(own.owner or 0, 10.0)
    reaped = await second_store.workers.reap_dead(include_listeners=True)
    assert (sorted(reaped.worker_ids), reaped.released_count) == (listeners, 0)
    assert (await read_run(store)).owner == own.owner
    kill_worker(own.owner or 0)
    assert (await second_store.workers.reap_dead()).worker_ids == (own.owner,), (
        "and its lock still tells when it is gone"
    )


@pytest.mark.parametrize("backend", ["sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("leave", ["close", "abandon"])
async def test_a_server_that_stops_does_not_retire_its_listeners(store: Store, second_store: Store, leave: str):
    run = await take(store)
    if leave == "close":
        await store.close()
    else:
        await asyncio.to_thread(store.abandon)
    assert await second_store.workers.reap_dead(include_listeners=True) == ReapResult()
    assert await second_store.workers.renew_listener_lease(run.owner or 0, 10.0)
    assert await commit_ops(second_store, append(run, 0)) == [DONE]


async def test_the_error_of_a_run_that_was_lost_too_often_names_a_listener(store: Store, clock: Clock):
    run = await take(store, max_deliveries=1)
    clock.advance(11)
    assert (await store.workers.reap_dead(include_listeners=True)).dead_run_ids == ("r",)
    told = json.loads((await read_run(store)).error or b"")
    assert told["worker"] == "listener handler at 10.0.0.7"
    assert await commit_ops(store, append(run, 0)) == [FENCED]


async def test_old_listeners_are_deleted_once_no_run_can_have_been_theirs(store: Store, clock: Clock):
    """Their numbers are never used again."""
    process = await store.workers.register(new_worker(), 1.0)
    retired, dead, live = await listen(store), await listen(store, 1.0), await listen(store, 1e9)
    await start_run(store, is_delivery=True, created_at=clock.now + 50)
    await store.workers.retire(retired)
    clock.advance(60)
    await store.workers.reap_dead(include_listeners=True)
    later = await take(store, "later", created_at=clock.now, priority=1)
    await commit_ops(store, finish(later))
    clock.advance(LISTENER_RETENTION_S + 50)
    await store.workers.reap_dead(include_listeners=True)
    everybody = [process, retired, dead, live, later.owner]

    async def known() -> list[int | None]:
        await store.retention.sweep()
        return [worker.id for worker in await store.list_workers([number for number in everybody if number])]

    assert await known() == [process, live, later.owner], "the last one may have recorded something"
    await commit_ops(store, CancelRun("r", AT))
    await store.retention.prune(
        PruneRequest(
            finished_before=clock.now, states=frozenset({CANCELLED, RunState.COMPLETED}), include_unclaimed=True
        )
    )
    assert await known() == [live], "no run is left that could name the others"
    assert await listen(store) not in everybody


# Cancelling


async def parent_of(store: Store, **fields: Any) -> tuple[Run, Run]:
    """A run that waits, parked, for one by delivery, and that one, held by a listener."""
    parent = await start_claimed_run(store, "p", workflow="main", lease=1e9)
    await commit_ops(
        store, start_child(parent, "c", is_delivery=True, **fields), park(parent, None, awaited_positions=(0,))
    )
    return parent, await claim_run(store, await listen(store, 1e9))


@pytest.mark.parametrize("state", ["pending", "held", "parked", "paused", "given back"])
async def test_a_run_by_delivery_is_cancelled_at_once(store: Store, second_store: Store, state: str):
    parent, run = await parent_of(store)
    if state == "pending":
        await commit_ops(store, finish(run))
        [run] = [answer.run for answer in await commit_ops(store, StartRun(new_run("d", is_delivery=True)))]
    elif state == "parked":
        await commit_ops(store, park(run, None, "go"))
    elif state == "paused":
        await commit_ops(store, PauseRun(run.id, AT))
    elif state == "given back":
        await commit_ops(store, ReleaseRun(run.key, run.epoch))
    assert await commit_ops(second_store, CancelRun(run.id, AT)) == [DONE]
    ended = await read_run(store, run.id)
    assert (ended.state, ended.owner, ended.finished_at, ended.paused_at) == (CANCELLED, None, AT, None)
    assert (ended.wake_at, ended.waits_for, ended.error, ended.cancel_state) == (
        None,
        "",
        None,
        CancelState.REQUESTED,
    )
    assert await commit_ops(store, append(run, 0), finish(run), park(run)) == [FENCED] * 3
    assert await commit_ops(store, CancelRun(run.id, AT)) == [OpStatus.DUPLICATE]
    if state != "pending":
        assert [(sent.name, sent.position) for sent in await list_signals(store, parent)] == [("cancelled", 0)]
        assert (await read_run(store, "p")).wake_at is not None
    assert await commit_ops(store, ReopenRun(run.id, AT)) == [DONE]
    assert (await read_run(store, run.id)).cancel_state is CancelState.NONE


async def test_a_run_of_an_engine_is_still_cancelled_by_its_holder(store: Store):
    run = await start_claimed_run(store)
    assert await commit_ops(store, CancelRun("r", AT)) == [DONE]
    assert await get_state(store) is RUNNING
    assert len(await store.claims.get_run_requests(run.owner or 0)) == 1


@pytest.mark.parametrize("how", ["cancelled", "late", "given up"])
async def test_ending_a_held_run_cleans_up_after_it(store: Store, clock: Clock, how: str):
    run = await take(store, budget=BudgetLimits(tokens=100), deadline=clock.now + 5, max_deliveries=1)
    answers = await commit_ops(
        store,
        reserve(run, 0, tokens=90),
        RequestApproval(run.key, run.epoch, 1, "q", ApprovalRequest("may it?"), AT),
        AppendLiveEvents(run.key, run.epoch, (LiveEvent(0, "1", 0, STARTED, b"{}", AT),)),
    )
    assert answers == [DONE] * 3
    if how == "cancelled":
        await commit_ops(store, CancelRun("r", AT))
    elif how == "late":
        clock.advance(5)
        assert await store.claims.expire_runs() == ["r"]
    else:
        await commit_ops(store, ReleaseRun(run.key, run.epoch, error=ERROR))
    assert await store.list_approvals(ApprovalFilter()) == []
    found = await store.get_run_updates("r", -1, 0)
    assert found is not None
    assert [notice.kind for _, notice in found.live_events] == ["requested"]
    assert await commit_ops(store, ReopenRun("r", AT)) == [DONE]
    again = await claim_run(store, run.owner)
    assert await commit_ops(store, reserve(again, 0, tokens=90)) == [DONE], "what was reserved is free again"


@pytest.mark.parametrize("how", ["cancelled", "late", "given up", "given back"])
async def test_ending_a_held_run_frees_its_slot(store: Store, second_store: Store, clock: Clock, how: str):
    worker = await declare_limited_queue(store, 1)
    await start_queued_runs(store, "a", is_delivery=True, deadline=clock.now + 5, max_deliveries=1, dedup_key="same")
    await start_queued_runs(store, "b")
    [run] = await store.claims.claim(worker, **CLAIM_FILTER, limit=9)
    assert await claim_ids(second_store, worker) == []
    if how == "cancelled":
        await commit_ops(second_store, CancelRun("a", AT))
    elif how == "late":
        clock.advance(5)
        assert await second_store.claims.expire_runs() == ["a"]
    elif how == "given up":
        await commit_ops(second_store, ReleaseRun(run.key, run.epoch, error=ERROR))
    else:
        await commit_ops(second_store, ReleaseRun(run.key, run.epoch, clock.now + 60))
    assert await claim_ids(second_store, worker) == ["b"]
    assert (await get_queue(store)).running_count == 1
    if how != "given back":
        await start_queued_runs(store, "new", dedup_key="same")
        assert (await read_run(store, "new")).id == "new", "its key is free, too"


# Deadlines


async def test_runs_by_delivery_end_when_their_deadline_has_passed(store: Store, second_store: Store, clock: Clock):
    parent, run = await parent_of(store, deadline=clock.now + 5)
    assert await second_store.claims.expire_runs() == []
    clock.advance(5)
    assert await second_store.claims.expire_runs() == ["c"]
    assert await second_store.claims.expire_runs() == []
    ended = await read_run(store, "c")
    assert (ended.state, ended.owner, ended.finished_at) == (FAILED, None, clock.now)
    assert isinstance(decode_error(ended.error or b"", ()), RunTimedOut)
    assert await commit_ops(store, append(run, 0), finish(run)) == [FENCED, FENCED]
    [end] = await list_signals(store, parent)
    assert (end.name, end.position, end.payload) == ("failed", 0, ended.error)
    assert await commit_ops(store, ReopenRun("c", AT)) == [DONE]
    assert (await read_run(store, "c")).deadline is None
    assert await store.claims.expire_runs() == [], "who retries it has all the time in the world"


async def test_the_longest_overdue_go_first_whatever_they_wait_for(store: Store, clock: Clock):
    parked = await take(store, "parked", deadline=clock.now + 3)
    await commit_ops(store, park(parked, None, "go"))
    await start_run(store, "paused", is_delivery=True, deadline=clock.now + 1)
    await commit_ops(store, PauseRun("paused", AT))
    await start_run(store, "later", is_delivery=True, deadline=clock.now + 2, available_at=clock.now + 99)
    await start_run(store, "same", is_delivery=True, deadline=clock.now + 2)
    await start_run(store, "endless", is_delivery=True)
    await start_run(store, "early", is_delivery=True, deadline=clock.now + 100)
    await start_run(store, "executed", deadline=clock.now + 1)
    clock.advance(10)
    assert await store.claims.expire_runs(3) == ["paused", "later", "same"]
    assert await store.claims.expire_runs(3) == ["parked"]
    assert await store.claims.expire_runs(3) == []


async def test_one_that_waits_for_another_may_end_with_it(store: Store, clock: Clock):
    """Whichever ends first, the other is told or not told as ever."""
    parent = await take(store, "p", deadline=clock.now + 2, listener=await listen(store, 1e9))
    await commit_ops(store, start_child(parent, "c", 0, is_delivery=True, deadline=clock.now + 1))
    await commit_ops(store, start_child(parent, "d", 1, is_delivery=True, deadline=clock.now + 3))
    await commit_ops(store, park(parent, None, awaited_positions=(0, 1)))
    clock.advance(9)
    assert await store.claims.expire_runs() == ["c", "p", "d"]
    assert [(sent.name, sent.position) for sent in await list_signals(store, parent)] == [("failed", 0)]
    assert [await get_state(store, name) for name in "pcd"] == [FAILED] * 3


async def test_a_run_that_is_still_being_restored_does_not_end(store: Store, clock: Clock):
    """Else whoever waits for it would not be told."""
    await start_run(store, "r", is_delivery=True, deadline=clock.now + 1)
    run = await read_run(store)
    archived = ArchivedRun(run)
    await commit_ops(store, CancelRun("r", AT))
    assert (await store.retention.prune(PruneRequest(run_ids=("r",), finished_before=2e6))).run_ids == ("r",)
    await store.retention.sweep()
    clock.advance(9)
    assert await store.archives.restore(archived)
    assert await store.claims.expire_runs() == []
    await store.archives.activate(archived)
    assert (await read_run(store)).is_delivery
    assert await store.claims.expire_runs() == ["r"]


# Giving back


async def test_a_run_is_given_back_for_later(store: Store, second_store: Store, clock: Clock):
    run = await take(store)
    assert await commit_ops(store, ReleaseRun(run.key, run.epoch, clock.now + 30)) == [DONE]
    later = await read_run(second_store)
    assert (later.state, later.wake_at, later.delivery_count, later.owner) == (PENDING, clock.now + 30, 0, None)
    assert await second_store.claims.get_next_wake_at(**CLAIM_FILTER) == clock.now + 30
    assert await second_store.claims.claim(run.owner or 0, **CLAIM_FILTER, limit=1) == []
    clock.advance(30)
    assert (await claim_run(second_store, run.owner)).epoch == 2


async def test_a_run_that_is_paused_meanwhile_waits_until_it_is_resumed(store: Store, clock: Clock):
    run = await take(store)
    await commit_ops(store, PauseRun("r", AT), ReleaseRun(run.key, run.epoch, clock.now + 30, ERROR))
    clock.advance(60)
    assert await store.claims.claim(run.owner or 0, **CLAIM_FILTER, limit=1) == []
    paused = await read_run(store)
    assert (paused.state, paused.paused_at, paused.delivery_count) == (PENDING, AT, 1)


@pytest.mark.parametrize("delay", [None, -5.0, 5.0])
async def test_a_holder_that_has_failed_counts_and_the_last_one_ends_the_run(
    store: Store, second_store: Store, clock: Clock, delay: float | None
):
    parent, run = await parent_of(store, max_deliveries=3)
    for count in (1, 2):
        wake_at = None if delay is None else clock.now + delay
        assert await commit_ops(second_store, ReleaseRun(run.key, run.epoch, wake_at, ERROR)) == [DONE]
        freed = await read_run(store, "c")
        assert (freed.state, freed.delivery_count, freed.error) == (PENDING, count, None)
        assert freed.wake_at == (clock.now if wake_at is None else wake_at)
        clock.advance(5)
        run = await claim_run(store, run.owner)
    assert await commit_ops(second_store, ReleaseRun(run.key, run.epoch, None, ERROR)) == [DONE]
    assert await commit_ops(second_store, ReleaseRun(run.key, run.epoch, None, ERROR)) == [FENCED]
    dead = await read_run(store, "c")
    assert (dead.state, dead.delivery_count, dead.error, dead.finished_at) == (DEAD, 3, ERROR, clock.now)
    [end] = await list_signals(store, parent)
    assert (end.name, end.payload) == ("dead", ERROR)
    assert await commit_ops(store, ReopenRun("c", AT)) == [DONE]
    assert (await read_run(store, "c")).delivery_count == 0


async def test_a_record_sets_the_count_back_also_in_the_same_commit(store: Store):
    run = await take(store, max_deliveries=2)
    await commit_ops(store, ReleaseRun(run.key, run.epoch, None, ERROR))
    run = await claim_run(store, run.owner)
    assert run.delivery_count == 1
    await commit_ops(store, append(run, 0, reset=True), ReleaseRun(run.key, run.epoch, None, ERROR))
    freed = await read_run(store)
    assert (freed.state, freed.delivery_count) == (PENDING, 1)


async def test_an_error_may_be_large(store: Store):
    run = await take(store, max_deliveries=1)
    error = encode_error(ValueError("x" * 200_000))
    await commit_ops(store, ReleaseRun(run.key, run.epoch, None, error))
    assert (await read_run(store)).error == error
    await store.retention.sweep()
    assert (await read_run(store)).error == error


async def test_every_read_of_a_run_says_whether_it_is_a_delivery(store: Store, second_store: Store):
    run = await take(store)
    told = [run, await read_run(second_store), *await second_store.get_runs(["r"])]
    [started] = await commit_ops(second_store, StartRun(new_run("r", is_delivery=True)))
    assert [one.is_delivery for one in (*told, started.run)] == [True] * 4
    assert not (await start_run(store, "plain", workflow=FLOW)).is_delivery
