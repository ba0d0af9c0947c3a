"""Deaths of workers that held several runs: who is suspected, who is isolated, and whose deaths count."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from store_values import (
    CLAIM_FILTER,
    DONE,
    append,
    claim_run,
    commit_ops,
    finish,
    new_worker,
    park,
    read_run,
    release,
    start_claimed_run,
    start_run,
)

from holdfast.admission.queue_limits import QueueLimits
from holdfast.core.states import RunState
from holdfast.stores import worker_deaths
from holdfast.stores.contract import Store
from holdfast.stores.operations import CancelRun, PauseRun, ReleaseRun, ReopenRun, ResumeRun, Run
from holdfast.stores.queues import NewQueue

pytestmark = pytest.mark.asyncio

AT = 1_000_004.0
Kill = Callable[[int], None]


async def worker(store: Store) -> int:
    return await store.workers.register(new_worker(), 1000.0)


async def hold_together(store: Store, names: str, **fields: object) -> int:
    """A worker that holds several new runs."""
    number = await worker(store)
    for name in names:
        await start_run(store, name, claim_as=number, **fields)
    return number


async def take(store: Store, limit: int = 100, **given: float | None) -> list[Run]:
    """What a new worker is given."""
    return await store.claims.claim(await worker(store), **CLAIM_FILTER, limit=limit, **given)


async def die(store: Store, kill_worker: Kill, number: int) -> Sequence[str]:
    kill_worker(number)
    return (await store.workers.reap_dead()).dead_run_ids


async def isolate(store: Store, kill_worker: Kill, names: str, **fields: object) -> None:
    """Let two workers die with these runs."""
    await die(store, kill_worker, await hold_together(store, names, **fields))
    claimed = await take(store)
    assert {run.id for run in claimed} == set(names)
    await die(store, kill_worker, claimed[0].owner or 0)


def ids(runs: Sequence[Run]) -> list[str]:
    return [run.id for run in runs]


async def test_a_death_of_a_worker_with_several_runs_counts_against_none(store: Store, kill_worker: Kill):
    number = await hold_together(store, "abc", max_deliveries=1)
    assert await die(store, kill_worker, number) == ()
    for name in "abc":
        freed = await read_run(store, name)
        assert (freed.state, freed.delivery_count, freed.suspicion) == (RunState.PENDING, 0, 1)


async def test_a_death_alone_counts(store: Store, kill_worker: Kill):
    run = await start_claimed_run(store, "a")
    await die(store, kill_worker, run.owner or 0)
    freed = await read_run(store, "a")
    assert (freed.delivery_count, freed.suspicion) == (1, 1)


async def test_runs_that_were_parked_or_had_ended_are_no_company(store: Store, kill_worker: Kill, clock):
    number = await worker(store)
    await start_run(store, "a", claim_as=number)
    parked, ended = [await start_run(store, name, claim_as=number) for name in ("parked", "ended")]
    await commit_ops(store, park(parked, clock.now + 99), finish(ended))
    await die(store, kill_worker, number)
    assert (await read_run(store, "a")).delivery_count == 1


async def test_after_the_first_death_all_runs_are_taken_at_once_with_others(store: Store, kill_worker: Kill):
    await die(store, kill_worker, await hold_together(store, "abc"))
    await start_run(store, "new")
    assert ids(await take(store, suspect_delay_s=None)) == ["a", "b", "c", "new"]


async def test_after_the_second_death_few_runs_are_taken_one_by_one_and_nothing_with_them(
    store: Store, kill_worker: Kill
):
    await isolate(store, kill_worker, "abc")
    assert [(await read_run(store, name)).suspicion for name in "abc"] == [worker_deaths.MIN_SOLO_SUSPICION] * 3
    await start_run(store, "new", priority=9)
    assert [ids(await take(store)) for _ in range(5)] == [["a"], ["b"], ["c"], ["new"], []]


async def test_many_are_taken_in_groups_that_become_smaller(store: Store, kill_worker: Kill):
    number = await worker(store)
    for n in range(120):
        await start_run(store, f"r{n:03}", claim_as=number)
    await die(store, kill_worker, number)
    sizes: list[int] = []
    while True:
        claimed = await take(store, limit=200)
        sizes.append(len(claimed))
        if len(claimed) == 1:
            break
        await die(store, kill_worker, claimed[0].owner or 0)
    assert sizes == [120, 50, 10, 1]
    assert (await read_run(store, "r000")).delivery_count == 0


async def test_the_most_suspicious_run_comes_first(store: Store, kill_worker: Kill):
    await isolate(store, kill_worker, "abc")
    [a], [b] = await take(store), await take(store)
    await die(store, kill_worker, b.owner or 0)
    await commit_ops(store, release(a))
    assert ids(await take(store)) == ["b"]


async def test_a_run_that_was_tried_last_before_a_death_is_tried_first_after_it(store: Store, kill_worker: Kill):
    await isolate(store, kill_worker, "abc")
    number = await worker(store)
    for name in "ab":  # one after the other, although the first has not recorded anything
        assert ids(await store.claims.claim(number, **CLAIM_FILTER, limit=9)) == [name]
    await die(store, kill_worker, number)
    assert [ids(await take(store)) for _ in range(3)] == [["b"], ["a"], ["c"]]


async def test_a_worker_that_wants_no_suspects_gets_none(store: Store, kill_worker: Kill, clock):
    await isolate(store, kill_worker, "ab")
    await start_run(store, "new")
    assert ids(await take(store, suspect_delay_s=None)) == ["new"]
    assert ids(await take(store, suspect_delay_s=30.0)) == []
    clock.advance(30.0)
    assert ids(await take(store, suspect_delay_s=30.0)) == ["a"]


async def test_suspects_count_for_the_next_wake_time(store: Store, kill_worker: Kill, clock):
    await isolate(store, kill_worker, "ab")
    asked = {"workflows": CLAIM_FILTER["workflows"], "queues": CLAIM_FILTER["queues"]}
    due = await store.claims.get_next_wake_at(**asked)
    assert due is not None
    assert due <= clock.now
    await take(store)
    await take(store)
    assert await store.claims.get_next_wake_at(**asked) is None


async def test_only_versions_and_queues_that_a_worker_serves_are_taken(store: Store, kill_worker: Kill):
    await isolate(store, kill_worker, "ab", queue="slow")
    number = await worker(store)
    flow = CLAIM_FILTER["workflows"]
    assert await store.claims.claim(number, workflows=["other"], queues=None, limit=9) == []
    assert await store.claims.claim(number, workflows=flow, queues=["default"], limit=9) == []
    assert ids(await store.claims.claim(number, workflows=flow, queues=["slow"], limit=9)) == ["a"]


async def test_a_workflow_that_is_switched_off_gives_no_suspects(store: Store, kill_worker: Kill):
    await isolate(store, kill_worker, "ab")
    await store.disabled_workflows.disable((await read_run(store, "a")).workflow)
    assert await take(store) == []


async def test_the_next_record_clears_a_run(store: Store, kill_worker: Kill):
    await isolate(store, kill_worker, "ab")
    [a] = await take(store)
    assert a.has_worker_deaths
    assert await commit_ops(store, append(a, 1, reset=True)) == [DONE]
    cleared = await read_run(store, "a")
    assert (cleared.delivery_count, cleared.suspicion, cleared.has_worker_deaths) == (0, 0, False)
    await commit_ops(store, release(a))
    assert ids(await take(store, suspect_delay_s=None)) == ["a"]


async def test_a_run_that_parks_is_cleared(store: Store, kill_worker: Kill, clock):
    await isolate(store, kill_worker, "ab")
    [a] = await take(store)
    await commit_ops(store, park(a, clock.now + 1))
    assert (await read_run(store, "a")).suspicion == 0
    clock.advance(2)
    assert ids(await take(store, suspect_delay_s=None)) == ["a"]


async def test_a_person_who_retries_a_dead_run_clears_it(store: Store, kill_worker: Kill):
    await isolate(store, kill_worker, "ab", max_deliveries=1)
    [a] = await take(store)
    assert await die(store, kill_worker, a.owner or 0) == ("a",)
    await commit_ops(store, ReopenRun("a", AT))
    opened = await read_run(store, "a")
    assert (opened.delivery_count, opened.suspicion) == (0, 0)
    assert ids(await take(store, suspect_delay_s=None)) == ["a"]


async def test_a_suspect_stays_one_when_it_is_released_paused_and_cancelled(store: Store, kill_worker: Kill, clock):
    await isolate(store, kill_worker, "ab")
    [a] = await take(store)
    await commit_ops(store, ReleaseRun(a.key, a.epoch, clock.now + 5))
    assert ids(await take(store)) == ["b"]
    assert await take(store) == []
    clock.advance(6)
    await commit_ops(store, PauseRun("a", AT))
    assert await take(store) == []
    await commit_ops(store, ResumeRun("a", AT))
    assert await take(store, suspect_delay_s=None) == []
    await commit_ops(store, CancelRun("a", AT))
    assert await take(store, suspect_delay_s=None) == []
    [a] = await take(store)
    await store.workers.retire(a.owner or 0)
    assert await take(store, suspect_delay_s=None) == []
    assert ids(await take(store)) == ["a"]


async def test_one_bad_run_ends_dead_and_none_of_its_neighbors_does(store: Store, kill_worker: Kill):
    """Whoever holds ``k`` dies; any other run records something as soon as it has been executed for a moment."""
    names = "abcdefghijk"
    number = await hold_together(store, names)
    dead: list[str] = []
    for _ in range(50):
        dead += await die(store, kill_worker, number)
        number = await worker(store)
        while claimed := await store.claims.claim(number, **CLAIM_FILTER, limit=64):
            if any(run.id == "k" for run in claimed):
                break
            await commit_ops(store, *(append(run, run.epoch, reset=True) for run in claimed))
        else:
            break
    assert dead == ["k"]
    assert {name: (await read_run(store, name)).delivery_count for name in names} == dict.fromkeys(names, 0) | {"k": 3}


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_suspect_in_a_limited_queue_needs_a_slot(store: Store, kill_worker: Kill, concurrency: int):
    await isolate(store, kill_worker, "ab")
    await store.queues.declare([NewQueue("default", QueueLimits(concurrency))])
    [a] = await take(store)
    assert ids(await take(store)) == ["b"][: concurrency - 1]
    await commit_ops(store, finish(a))
    assert ids(await take(store)) == ["b"][concurrency - 1 :]


async def test_a_suspect_stays_one_when_its_queue_has_limits_no_more(store: Store, kill_worker: Kill):
    await isolate(store, kill_worker, "ab")
    await store.queues.declare([NewQueue("default", QueueLimits(5))])
    await store.queues.declare([NewQueue("default", None)])
    assert await take(store, suspect_delay_s=None) == []
    assert ids(await take(store)) == ["a"]


async def test_a_paused_queue_gives_no_suspects(store: Store, kill_worker: Kill):
    await isolate(store, kill_worker, "ab")
    await store.queues.pause("default")
    assert await take(store) == []
    await store.queues.resume("default")
    assert ids(await take(store)) == ["a"]


async def test_a_suspect_with_a_cancel_request_needs_no_slot(store: Store, kill_worker: Kill):
    await isolate(store, kill_worker, "ab")
    await store.queues.declare([NewQueue("default", QueueLimits(1))])
    await take(store)
    await commit_ops(store, CancelRun("b", AT))
    assert ids(await take(store)) == ["b"]


async def test_a_delivery_given_back_with_an_error_counts_and_raises_no_suspicion(store: Store, kill_worker: Kill):
    await isolate(store, kill_worker, "ab")
    [a] = await take(store)
    await commit_ops(store, ReleaseRun(a.key, a.epoch, error=b"{}"))
    freed = await read_run(store, "a")
    assert (freed.delivery_count, freed.suspicion) == (1, worker_deaths.MIN_SOLO_SUSPICION)
    again = await claim_run(store)
    assert again.id == "a"


async def test_the_error_of_a_dead_run_says_why_its_deaths_count(store: Store, kill_worker: Kill):
    run = await start_claimed_run(store, "a", max_deliveries=1)
    await die(store, kill_worker, run.owner or 0)
    assert b"the worker of run 'a' died once while this was the only run it held" in (
        (await read_run(store, "a")).error or b""
    )


@pytest.mark.parametrize(
    ("suspicion", "held", "raised"),
    [
        (0, 1, 1),
        (0, 1000, 1),
        (1, 1, 4),
        (1, 11, 4),
        (1, 20, 3),
        (1, 99, 3),
        (1, 100, 2),
        (2, 50, 3),
        (3, 10, 4),
        (4, 2, 5),
    ],
)
async def test_suspicion_rises_by_as_much_as_makes_groups_smaller(suspicion: int, held: int, raised: int):
    assert worker_deaths.raise_suspicion(suspicion, held) == raised
