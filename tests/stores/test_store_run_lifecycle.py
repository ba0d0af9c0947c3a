"""A run's life: starting, joining, finishing, parking, signals, releasing, reopening."""

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

from holdfast.core.records import RecordKind, Signal
from holdfast.core.states import RunState
from holdfast.stores.contract import Store
from holdfast.stores.operations import OpStatus, ReopenRun, StartResult, StartRun

pytestmark = pytest.mark.asyncio


# Starting


async def test_a_started_run_is_pending_and_has_all_that_it_was_given(store: Store, clock):
    new = new_run(
        "etl-acme", queue="slow", priority=3, deadline=2_000_000.0, max_deliveries=5, tags=("a", "ü\"'"),
        python_version="3.11", inputs=b"\x00\x01", available_at=1_000_060.0,
    )  # fmt: skip
    [answer] = await commit_ops(store, StartRun(new))
    assert answer.is_new
    run = answer.run
    assert run == await store.get_run("etl-acme")
    assert (run.state, run.epoch, run.owner, run.delivery_count) == (RunState.PENDING, 0, None, 0)
    for name in (
        "id",
        "workflow",
        "queue",
        "priority",
        "deadline",
        "max_deliveries",
        "tags",
        "python_version",
        "inputs",
    ):
        assert getattr(run, name) == getattr(new, name)
    assert (run.digest, run.seed, run.created_at, run.wake_at) == (new.digest, new.seed, new.created_at, 1_000_060.0)
    assert (run.output, run.error, run.finished_at, run.waits_for, run.starter) == (None, None, None, "", None)


async def test_a_run_can_be_started_and_held_in_one_write(store: Store):
    worker = await store.workers.register(new_worker(), 10.0)
    [answer] = await commit_ops(store, StartRun(new_run(starter=worker), claim_as=worker))
    assert answer.is_new
    assert (answer.run.state, answer.run.epoch, answer.run.owner) == (RunState.RUNNING, 1, worker)
    assert answer.run == await store.get_run("r")
    assert await commit_ops(store, append(answer.run, 1)) == [DONE]


async def test_starting_under_a_taken_id_answers_with_the_run_that_is_there(store: Store):
    run = await start_claimed_run(store, inputs=b"old")
    [answer] = await commit_ops(store, StartRun(new_run(inputs=b"new", seed=b"another")))
    assert answer == StartResult(run, is_new=False)
    assert (await read_run(store)).inputs == b"old"


async def test_repeating_a_start_with_its_seed_is_answered_as_created(store: Store):
    worker = await store.workers.register(new_worker(), 10.0)
    op = StartRun(new_run(has_generated_id=True, starter=worker), claim_as=worker, join_orphan=True)
    [first] = await commit_ops(store, op)
    [again] = await commit_ops(store, op)
    assert again == first
    assert again.is_new


async def test_two_starts_of_one_id_in_one_batch_make_one_run(store: Store):
    first, second = await commit_ops(store, StartRun(new_run(seed=b"a")), StartRun(new_run(seed=b"b")))
    assert (first.is_new, second.is_new) == (True, False)
    assert second.run.key == first.run.key


async def test_two_processes_that_start_one_id_make_one_run(store: Store, second_store: Store):
    [first] = await commit_ops(store, StartRun(new_run(seed=b"a")))
    [second] = await commit_ops(second_store, StartRun(new_run(seed=b"b")))
    assert (first.is_new, second.is_new) == (True, False)
    assert second.run == first.run


async def test_keys_rise_in_the_order_of_starting(store: Store):
    keys = [(await start_run(store, name)).key for name in "zay"]
    assert keys == sorted(set(keys))


async def test_a_worker_that_is_not_live_gets_no_run_to_hold(store: Store):
    worker = await store.workers.register(new_worker(), 10.0)
    await store.workers.retire(worker)
    run = await start_run(store, claim_as=worker)
    assert (run.state, run.owner, run.epoch) == (RunState.PENDING, None, 0)
    assert (await claim_run(store)).id == "r"


# Orphans


async def orphan(store: Store, kill_worker, run_id: str = "lost", **fields) -> int:
    """A worker that starts a run without an id of its own, and dies."""
    starter = await store.workers.register(new_worker("starter"), 10.0)
    await start_run(store, run_id, claim_as=starter, starter=starter, has_generated_id=True, **fields)
    kill_worker(starter)
    await store.workers.reap_dead()
    return starter


async def join(store: Store, run_id: str = "new", **fields) -> StartResult:
    """A worker that comes after and starts a run with equal inputs."""
    me = await store.workers.register(new_worker("me"), 10.0)
    new = new_run(run_id, has_generated_id=True, starter=me, **fields)
    [answer] = await commit_ops(store, StartRun(new, claim_as=me, join_orphan=True))
    return answer


async def test_an_orphan_with_equal_inputs_is_joined_instead_of_starting_anew(store: Store, kill_worker):
    await orphan(store, kill_worker)
    answer = await join(store)
    assert (answer.run.id, answer.is_new) == ("lost", False)
    assert answer.run.state is RunState.PENDING
    assert answer.run == await store.get_run("lost")
    assert await store.get_run("new") is None


async def test_an_orphan_is_joined_once(store: Store, kill_worker):
    await orphan(store, kill_worker)
    assert (await join(store, "one")).run.id == "lost"
    assert (await join(store, "two")).run.id == "two"


async def test_the_oldest_orphan_is_joined_first(store: Store, kill_worker):
    await orphan(store, kill_worker, "z-first")
    await orphan(store, kill_worker, "a-second")
    assert [(await join(store, name)).run.id for name in ("x", "y", "z")] == ["z-first", "a-second", "z"]


async def test_a_run_whose_starter_retired_is_an_orphan_too(store: Store):
    starter = await store.workers.register(new_worker(), 10.0)
    await start_run(store, "left", starter=starter, has_generated_id=True)
    await store.workers.retire(starter)
    assert (await join(store)).run.id == "left"


async def test_a_retried_run_is_an_orphan_again_when_its_starter_is_dead(store: Store):
    starter = await store.workers.register(new_worker(), 10.0)
    run = await start_run(store, "retried", claim_as=starter, starter=starter, has_generated_id=True)
    await commit_ops(store, finish(run, RunState.FAILED))
    assert (await join(store, "too-early")).run.id == "too-early"
    await commit_ops(store, ReopenRun("retried", 1_000_004.0))
    await store.workers.retire(starter)
    assert (await join(store)).run.id == "retried"


@pytest.mark.parametrize(
    "fields", [{"digest": b"other"}, {"workflow": "other"}, {"has_generated_id": False}, {"starter": None}], ids=str
)
async def test_a_run_that_differs_is_not_joined(store: Store, kill_worker, fields):
    starter = await store.workers.register(new_worker("starter"), 10.0)
    await start_run(store, "lost", **{"starter": starter, "has_generated_id": True, **fields})
    kill_worker(starter)
    await store.workers.reap_dead()
    assert (await join(store)).run.id == "new"


async def test_a_run_of_a_live_starter_is_not_joined(store: Store):
    starter = await store.workers.register(new_worker("starter"), 10.0)
    await start_run(store, "mine", starter=starter, has_generated_id=True)
    assert (await join(store)).run.id == "new"


async def test_an_ended_orphan_is_not_joined(store: Store):
    starter = await store.workers.register(new_worker("starter"), 10.0)
    run = await start_run(store, "ended", claim_as=starter, starter=starter, has_generated_id=True)
    await commit_ops(store, finish(run))
    await store.workers.retire(starter)
    assert (await join(store)).run.id == "new"


async def test_a_result_after_the_starters_death_goes_to_the_next_caller(store: Store, kill_worker):
    await orphan(store, kill_worker)
    run = await claim_run(store)
    await commit_ops(store, finish(run))
    answer = await join(store, "one")
    assert (answer.run.id, answer.is_new, answer.run.state) == ("lost", False, RunState.COMPLETED)
    assert (await join(store, "two")).run.id == "two"


async def test_a_result_after_the_starter_retired_is_not_reserved_for_a_caller(store: Store):
    starter = await store.workers.register(new_worker("starter"), 10.0)
    await start_run(store, "left", starter=starter, has_generated_id=True)
    await store.workers.retire(starter)
    await commit_ops(store, finish(await claim_run(store)))
    assert (await join(store)).run.id == "new"


async def test_a_start_that_does_not_ask_for_orphans_makes_a_new_run(store: Store, kill_worker):
    await orphan(store, kill_worker)
    assert (await start_run(store, "new", has_generated_id=True)).id == "new"


# Finishing


@pytest.mark.parametrize("state", [RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED, RunState.DEAD])
async def test_a_finished_run_has_its_outcome_and_no_owner(store: Store, state: RunState):
    run = await start_claimed_run(store)
    op = finish(run, state)
    assert await commit_ops(store, append(run, 1), op) == [DONE, DONE]
    ended = await read_run(store)
    assert (ended.state, ended.output, ended.error, ended.finished_at) == (state, op.output, op.error, op.at)
    assert (ended.owner, ended.wake_at) == (None, None)


async def test_a_run_ends_once(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, finish(run))
    assert await commit_ops(store, finish(run, RunState.FAILED)) == [FENCED]
    assert await get_state(store) is RunState.COMPLETED


async def test_a_finish_is_not_taken_for_a_repeat_when_reaping_has_ended_the_run(store: Store, kill_worker):
    run = await start_claimed_run(store, max_deliveries=1)
    kill_worker(run.owner)
    await store.workers.reap_dead()
    assert await commit_ops(store, finish(run)) == [FENCED]
    assert await get_state(store) is RunState.DEAD


async def test_an_ended_run_is_not_claimed(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, finish(run))
    assert await store.claims.claim(run.owner or 0, **CLAIM_FILTER, limit=9) == []
    assert await store.claims.get_next_wake_at(**CLAIM_FILTER) is None


# Parking and signals


async def test_a_parked_run_waits_for_its_time(store: Store, clock):
    run = await start_claimed_run(store)
    assert await commit_ops(store, park(run, clock.now + 60)) == [DONE]
    parked = await read_run(store)
    assert (parked.state, parked.owner, parked.wake_at) == (RunState.WAITING, None, clock.now + 60)
    assert parked.waits_for == "waits for approval"
    assert await store.claims.claim(run.owner or 0, **CLAIM_FILTER, limit=1) == []
    clock.advance(60)
    woken = await claim_run(store, run.owner)
    assert (woken.state, woken.epoch, woken.waits_for, woken.wake_at) == (RunState.RUNNING, 2, "", None)


async def test_a_run_parked_for_a_signal_only_is_woken_by_nothing_else(store: Store, clock):
    run = await start_claimed_run(store)
    await commit_ops(store, park(run, None, "go"))
    clock.advance(1e9)
    assert await store.claims.get_next_wake_at(**CLAIM_FILTER) is None
    assert await store.claims.claim(run.owner or 0, **CLAIM_FILTER, limit=1) == []


async def test_a_signal_makes_a_parked_run_claimable_at_once(store: Store, second_store: Store, clock):
    run = await start_claimed_run(store)
    await commit_ops(store, park(run, clock.now + 1000, "go"))
    assert await commit_ops(second_store, signal(payload=b"42")) == [DONE]
    woken = await read_run(store)
    assert (woken.state, woken.wake_at, woken.waits_for) == (RunState.WAITING, clock.now, "waits for approval")
    await claim_run(store, run.owner)
    [history] = await store.get_histories([run.key])
    assert [(s.name, s.payload, s.sent_at) for s in history.signals] == [("go", b"42", 1_000_003.0)]


async def test_parking_is_refused_when_an_awaited_signal_is_there(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, signal(name="go"))
    assert await commit_ops(store, park(run, None, "stop", "go")) == [REFUSED]
    assert await get_state(store) is RunState.RUNNING
    assert await commit_ops(store, append(run, 1)) == [DONE]
    assert await commit_ops(store, park(run, None, "stop")) == [DONE]


async def test_parking_sees_the_signals_sent_and_consumed_in_its_own_batch(store: Store):
    run = await start_claimed_run(store)
    assert await commit_ops(store, signal(), park(run, None, "go")) == [DONE, REFUSED]
    [(_, sent)] = (await store.claims.get_new_signals(run.owner or 0, 0)).signals
    answers = await commit_ops(
        store, append(run, 1, kind=RecordKind.SIGNAL, consume=sent.id), park(run, None, "go"), signal()
    )
    assert answers == [DONE, DONE, DONE]
    assert (await claim_run(store, run.owner)).id == "r"


async def test_a_park_is_fenced_like_any_write_and_its_repeat_is_done(store: Store, clock):
    run = await start_claimed_run(store)
    assert await commit_ops(store, park(run, clock.now)) == [DONE]
    await commit_ops(store, signal())
    assert await commit_ops(store, park(run, clock.now, "go")) == [DONE]
    await claim_run(store, run.owner)
    assert await commit_ops(store, park(run)) == [FENCED]


async def test_signals_to_a_held_run_reach_its_holder_in_order(store: Store, second_store: Store):
    run, other = await start_claimed_run(store), await start_claimed_run(store, "other")
    await commit_ops(second_store, signal(payload=b"1"), signal("other", payload=b"x"), signal(payload=b"2"))
    found = await store.claims.get_new_signals(run.owner or 0, 0)
    assert [(key, s.payload) for key, s in found.signals] == [(run.key, b"1"), (run.key, b"2")]
    assert all(type(s) is Signal for _, s in found.signals)
    assert [s.payload for _, s in (await store.claims.get_new_signals(other.owner or 0, 0)).signals] == [b"x"]
    await commit_ops(second_store, signal(payload=b"3"))
    again = await store.claims.get_new_signals(run.owner or 0, found.cursor)
    assert [s.payload for _, s in again.signals][-1] == b"3"
    last = await store.claims.get_new_signals(run.owner or 0, again.cursor)
    assert set(last.signals) <= set(again.signals)  # what was told may be told again


async def test_a_consumed_signal_is_deleted_and_ids_are_never_reused(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, signal())
    [(_, first)] = (await store.claims.get_new_signals(run.owner or 0, 0)).signals
    await commit_ops(store, append(run, 1, kind=RecordKind.SIGNAL, consume=first.id))
    [history] = await store.get_histories([run.key])
    assert history.signals == []
    await commit_ops(store, signal())
    [(_, second)] = (await store.claims.get_new_signals(run.owner or 0, 0)).signals
    assert second.id > first.id


async def test_a_fenced_record_consumes_nothing(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, signal())
    [(_, sent)] = (await store.claims.get_new_signals(run.owner or 0, 0)).signals
    await commit_ops(store, release(run))
    assert await commit_ops(store, append(run, 1, kind=RecordKind.SIGNAL, consume=sent.id)) == [FENCED]
    [history] = await store.get_histories([run.key])
    assert len(history.signals) == 1


async def test_a_deduplicated_signal_is_delivered_once_even_after_it_was_consumed(store: Store):
    run = await start_claimed_run(store)
    assert await commit_ops(store, signal(dedup="k"), signal(dedup="k")) == [DONE, OpStatus.DUPLICATE]
    [(_, sent)] = (await store.claims.get_new_signals(run.owner or 0, 0)).signals
    await commit_ops(store, append(run, 1, kind=RecordKind.SIGNAL, consume=sent.id))
    assert await commit_ops(store, signal(dedup="k")) == [OpStatus.DUPLICATE]
    assert await commit_ops(store, signal(dedup="other")) == [DONE]
    await commit_ops(store, finish(run))
    assert await commit_ops(store, signal(dedup="k")) == [OpStatus.DUPLICATE]
    assert await commit_ops(store, signal(dedup="third")) == [OpStatus.ENDED]


async def test_deduplication_keys_belong_to_their_run(store: Store):
    await start_claimed_run(store, "a")
    await start_claimed_run(store, "b")
    assert await commit_ops(store, signal("a", dedup="k"), signal("b", dedup="k")) == [DONE, DONE]


async def test_a_signal_to_a_run_that_ended_or_never_was_is_answered_so(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, finish(run))
    assert await commit_ops(store, signal("r"), signal("nobody")) == [OpStatus.ENDED, OpStatus.UNKNOWN_RUN]


async def test_a_run_can_be_started_and_signalled_in_one_batch(store: Store):
    [started, sent] = await commit_ops(store, StartRun(new_run()), signal())
    assert sent is DONE
    [history] = await store.get_histories([started.run.key])
    assert len(history.signals) == 1


# Releasing


async def test_a_released_run_is_claimable_at_once_and_counts_no_delivery(store: Store, clock):
    run = await start_claimed_run(store)
    assert await commit_ops(store, release(run)) == [DONE]
    released = await read_run(store)
    assert (released.state, released.owner, released.delivery_count) == (RunState.PENDING, None, 0)
    again = await claim_run(store)
    assert (again.id, again.epoch, again.delivery_count) == ("r", 2, 0)
