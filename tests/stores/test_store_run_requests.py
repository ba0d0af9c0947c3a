"""What anybody can ask of a run: to be cancelled, to pause, to go on."""

from __future__ import annotations

import pytest
from store_values import (
    CLAIM_FILTER,
    DONE,
    FENCED,
    REFUSED,
    append,
    claim_run,
    commit_ops,
    finish,
    get_state,
    new_run,
    new_worker,
    park,
    read_run,
    release,
    signal,
    start_claimed_run,
    start_run,
)

from holdfast.core.records import RecordKind
from holdfast.core.states import RunState
from holdfast.stores.claims import RunRequests
from holdfast.stores.contract import Store
from holdfast.stores.operations import CancelRun, CancelState, OpStatus, PauseRun, ResumeRun, StartRun

pytestmark = pytest.mark.asyncio

AT = 1_000_004.0
CANCEL, PAUSE, RESUME = CancelRun("r", AT), PauseRun("r", AT), ResumeRun("r", AT)


async def claimable(store: Store) -> list[str]:
    worker = await store.workers.register(new_worker("looks"), 10.0)
    return [run.id for run in await store.claims.claim(worker, **CLAIM_FILTER, limit=9)]


# Cancelling


async def test_the_holder_of_a_run_gets_a_cancel_request(store: Store, second_store: Store):
    run = await start_claimed_run(store)
    assert await store.claims.get_run_requests(run.owner or 0) == []
    assert await commit_ops(second_store, CANCEL) == [DONE]
    assert await store.claims.get_run_requests(run.owner or 0) == [
        RunRequests(run.key, is_cancel_requested=True, is_pause_requested=False)
    ]
    asked = await read_run(store)
    assert (asked.cancel_state, asked.state, asked.owner) == (CancelState.REQUESTED, RunState.RUNNING, run.owner)


async def test_a_run_can_neither_finish_nor_park_before_a_cancel_is_recorded(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, CANCEL)
    assert await commit_ops(store, finish(run), park(run), park(run, is_pause=True)) == [REFUSED] * 3
    assert await get_state(store) is RunState.RUNNING
    assert await commit_ops(store, append(run, 1, kind=RecordKind.CANCEL)) == [DONE]
    assert (await read_run(store)).cancel_state is CancelState.RECORDED
    assert await store.claims.get_run_requests(run.owner or 0) == []
    assert await commit_ops(store, park(run, 0.0)) == [DONE]
    again = await claim_run(store)
    assert await commit_ops(store, finish(again, RunState.CANCELLED)) == [DONE]
    assert (await read_run(store)).cancel_state is CancelState.RECORDED


async def test_the_order_within_a_batch_decides_between_a_cancel_and_an_end(store: Store):
    one, two = await start_claimed_run(store, "one"), await start_claimed_run(store, "two")
    assert await commit_ops(store, CancelRun("one", AT), finish(one)) == [DONE, REFUSED]
    assert await commit_ops(store, finish(two), CancelRun("two", AT)) == [DONE, OpStatus.ENDED]
    answers = await commit_ops(store, append(one, 1, kind=RecordKind.CANCEL), finish(one, RunState.CANCELLED))
    assert answers == [DONE, DONE]


async def test_a_run_that_cannot_continue_may_end_whatever_is_requested(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, CANCEL)
    assert await commit_ops(store, finish(run, RunState.FAILED, respect_cancel=False)) == [DONE]
    assert await get_state(store) is RunState.FAILED
    assert await commit_ops(store, CANCEL) == [OpStatus.ENDED]


async def test_asking_twice_is_harmless(store: Store):
    run = await start_claimed_run(store)
    assert await commit_ops(store, CANCEL, CANCEL) == [DONE, OpStatus.DUPLICATE]
    record = append(run, 1, kind=RecordKind.CANCEL)
    assert await commit_ops(store, record) == [DONE]
    assert await commit_ops(store, record, CANCEL) == [DONE, OpStatus.DUPLICATE]
    await commit_ops(store, finish(run, RunState.CANCELLED))
    assert await commit_ops(store, CANCEL) == [OpStatus.DUPLICATE]


async def test_a_run_that_was_never_claimed_is_cancelled_at_once(store: Store):
    await start_run(store)
    assert await commit_ops(store, CANCEL) == [DONE]
    ended = await read_run(store)
    assert (ended.state, ended.finished_at, ended.wake_at, ended.error) == (RunState.CANCELLED, AT, None, None)
    assert await claimable(store) == []
    assert await store.claims.get_next_wake_at(**CLAIM_FILTER) is None
    assert await commit_ops(store, CANCEL) == [OpStatus.DUPLICATE]


async def test_a_run_that_was_released_is_cancelled_by_its_next_holder(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, release(run), CANCEL)
    again = await claim_run(store)
    assert (again.state, again.cancel_state) == (RunState.RUNNING, CancelState.REQUESTED)


async def test_a_cancel_wakes_a_parked_run(store: Store, clock):
    run = await start_claimed_run(store)
    await commit_ops(store, park(run, clock.now + 1000, "go"), CANCEL)
    assert (await read_run(store)).wake_at == clock.now
    assert await claimable(store) == ["r"]


async def test_a_cancel_can_be_limited_to_the_run_that_the_caller_started(store: Store):
    run = await start_claimed_run(store)
    assert await commit_ops(store, CancelRun("r", AT, seed=b"another")) == [REFUSED]
    assert (await read_run(store)).cancel_state is CancelState.NONE
    assert await commit_ops(store, CancelRun("r", AT, seed=run.seed)) == [DONE]


async def test_a_run_can_be_started_and_cancelled_in_the_same_commit(store: Store):
    """As by a parent that starts a run and gives it up at once: both are written together."""
    worker = await store.workers.register(new_worker(), 10.0)
    first = new_run("r", seed=b"mine")
    begun = StartRun(new_run("s", seed=b"mine"), claim_as=worker)
    answers = await store.commit(
        [
            StartRun(first),
            CancelRun("r", AT, b"another"),
            CancelRun("r", AT, b"mine"),
            begun,
            CancelRun("s", AT, b"mine"),
        ]
    )
    assert [answers[1], answers[2], answers[4]] == [REFUSED, DONE, DONE]
    assert await get_state(store, "r") is RunState.CANCELLED
    assert (await read_run(store, "s")).cancel_state is CancelState.REQUESTED


async def test_there_is_nothing_to_ask_of_a_run_that_ended_or_never_was(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, finish(run))
    assert await commit_ops(store, CANCEL, PAUSE, RESUME) == [OpStatus.ENDED] * 3
    nobody = [CancelRun("nobody", AT), PauseRun("nobody", AT), ResumeRun("nobody", AT)]
    assert await commit_ops(store, *nobody) == [OpStatus.UNKNOWN_RUN] * 3


# Pausing


async def test_a_pending_run_is_paused_at_once_and_resumed(store: Store, clock):
    await start_run(store)
    assert await commit_ops(store, PAUSE) == [DONE]
    assert (await read_run(store)).paused_at == AT
    assert await claimable(store) == []
    assert await store.claims.get_next_wake_at(**CLAIM_FILTER) is None
    assert await commit_ops(store, PAUSE) == [OpStatus.DUPLICATE]
    assert await commit_ops(store, RESUME) == [DONE]
    assert (await read_run(store)).paused_at is None
    assert await commit_ops(store, RESUME) == [OpStatus.DUPLICATE]
    assert await claimable(store) == ["r"]


async def test_a_run_that_was_started_for_later_is_not_early_for_having_been_paused(store: Store, clock):
    await start_run(store, available_at=clock.now + 60)
    await commit_ops(store, PAUSE, RESUME)
    assert await store.claims.get_next_wake_at(**CLAIM_FILTER) == clock.now + 60
    await commit_ops(store, PAUSE)
    clock.advance(61)
    assert await claimable(store) == []
    await commit_ops(store, RESUME)
    assert await claimable(store) == ["r"]


async def test_a_parked_run_sleeps_through_signals_and_timers_while_it_is_paused(store: Store, clock):
    run = await start_claimed_run(store)
    await commit_ops(store, park(run, clock.now + 5, "go"), PAUSE, signal())
    clock.advance(10)
    assert await claimable(store) == []
    assert await commit_ops(store, RESUME) == [DONE]
    resumed = await read_run(store)
    assert (resumed.state, resumed.wake_at) == (RunState.WAITING, clock.now)
    assert await claimable(store) == ["r"]


async def test_the_holder_of_a_run_gets_a_pause_request_and_parks_it(store: Store, clock):
    run = await start_claimed_run(store)
    await commit_ops(store, PAUSE)
    assert await store.claims.get_run_requests(run.owner or 0) == [
        RunRequests(run.key, is_cancel_requested=False, is_pause_requested=True)
    ]
    await commit_ops(store, signal())
    assert await commit_ops(store, park(run, clock.now, "go", is_pause=True)) == [DONE]
    assert (await read_run(store)).state is RunState.WAITING
    assert await store.claims.get_run_requests(run.owner or 0) == []
    assert await claimable(store) == []
    await commit_ops(store, RESUME)
    assert await claimable(store) == ["r"]


async def test_a_pause_that_was_lifted_is_not_carried_out(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, PAUSE, RESUME)
    assert await store.claims.get_run_requests(run.owner or 0) == []
    assert await commit_ops(store, park(run, None, is_pause=True)) == [REFUSED]
    assert await get_state(store) is RunState.RUNNING


@pytest.mark.parametrize("how", ["parks", "is released", "is handed over", "dies"])
async def test_a_paused_run_is_not_claimable_however_its_holder_leaves_it(store: Store, kill_worker, clock, how: str):
    run = await start_claimed_run(store)
    await commit_ops(store, PAUSE)
    match how:
        case "parks":
            assert await commit_ops(store, park(run, clock.now)) == [DONE]
        case "is released":
            assert await commit_ops(store, release(run)) == [DONE]
        case "is handed over":
            await store.workers.retire(run.owner or 0)
        case _:
            kill_worker(run.owner)
            assert (await store.workers.reap_dead()).released_count == 1
    assert (await read_run(store)).paused_at == AT
    assert await store.claims.get_next_wake_at(**CLAIM_FILTER) is None
    assert await claimable(store) == []
    await commit_ops(store, RESUME)
    assert await claimable(store) == ["r"]


async def test_a_cancel_lifts_a_pause(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, park(run), PAUSE)
    assert await commit_ops(store, CANCEL) == [DONE]
    assert ((await read_run(store)).paused_at, (await read_run(store)).cancel_state) == (None, CancelState.REQUESTED)
    assert await claimable(store) == ["r"]


async def test_a_pause_after_a_cancel_is_lifted_by_asking_again(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, release(run), CANCEL, PAUSE)
    assert await claimable(store) == []
    assert await commit_ops(store, CANCEL) == [DONE]
    assert await claimable(store) == ["r"]


async def test_a_run_that_ends_on_its_way_to_a_pause_has_ended(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, PAUSE)
    assert await commit_ops(store, finish(run)) == [DONE]
    assert (await read_run(store)).paused_at is None
    assert await commit_ops(store, RESUME) == [OpStatus.ENDED]


async def test_a_park_for_a_pause_is_fenced_and_repeated_like_any_other(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, PAUSE)
    op = park(run, None, is_pause=True)
    assert await commit_ops(store, op) == [DONE]
    assert await commit_ops(store, op) == [DONE]
    await commit_ops(store, RESUME)
    await claim_run(store)
    assert await commit_ops(store, op) == [FENCED]


async def test_requests_go_to_the_holder_of_the_run(store: Store):
    one, two = await start_claimed_run(store, "one"), await start_claimed_run(store, "two")
    await commit_ops(store, CancelRun("one", AT), PauseRun("one", AT), PauseRun("two", AT))
    assert await store.claims.get_run_requests(one.owner or 0) == [
        RunRequests(one.key, is_cancel_requested=True, is_pause_requested=True)
    ]
    assert await store.claims.get_run_requests(two.owner or 0) == [
        RunRequests(two.key, is_cancel_requested=False, is_pause_requested=True)
    ]
    await commit_ops(store, release(one))
    assert await store.claims.get_run_requests(one.owner or 0) == []
