"""Schedules: what a store keeps of them, and how they move forward."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from store_values import Clock, new_worker

from holdfast.admission.usage import BudgetLimits
from holdfast.stores.contract import Store
from holdfast.stores.schedules import Schedule, ScheduleDefinition, get_next_tick

pytestmark = pytest.mark.asyncio

NIGHTLY = ScheduleDefinition("nightly", "etl", "0 2 * * *", b'{"customer":"acme"}')
FULL = ScheduleDefinition(
    "full", "etl", "every 15 min", b"\x00\xff", "all", 7, "skip", "slow", -3, ("a", "b c"), "talk",
    BudgetLimits(1, 2, 3, 4.5), 5, is_declared_in_code=True, queue_key="acme",
)  # fmt: skip


async def put(store: Store, *new: ScheduleDefinition, **options: Any) -> list[Schedule]:
    return await store.schedules.put(new, **options)


async def test_schedules_are_visible_to_all_processes_in_the_order_of_their_names(store: Store, second_store: Store):
    kept = await put(store, NIGHTLY, FULL)
    assert kept == [Schedule(NIGHTLY, 1_000_000.0, 1_000_000.0), Schedule(FULL, 1_000_000.0, 1_000_000.0)]
    assert await second_store.schedules.list() == [kept[1], kept[0]]
    assert await second_store.schedules.list(["nightly", "none"]) == [kept[0]]
    assert await second_store.schedules.list([]) == []
    assert await put(store) == []


async def test_another_timing_starts_over_and_other_changes_keep_fired_up_to(store: Store, clock: Clock):
    await put(store, NIGHTLY)
    assert await store.schedules.advance(
        "nightly", 1_000_000.0, 1_000_800.0, run_id="nightly@x", skipped_at=1_000_700.0
    )
    await store.schedules.pause("nightly")
    clock.advance(5_000.0)
    changed = replace(NIGHTLY, inputs=b"{}", workflow="mail", is_declared_in_code=True)
    [kept] = await put(store, changed)
    assert kept == Schedule(changed, 1_000_000.0, 1_000_800.0, 1_000_000.0, "nightly@x", 1_000_700.0)
    [kept] = await put(store, replace(changed, timing="0 3 * * *"))
    assert (kept.fired_up_to, kept.created_at, kept.paused_at) == (1_005_000.0, 1_000_000.0, 1_000_000.0)
    clock.advance(-4_000.0)  # another machine's clock: what is settled never goes back
    [kept] = await put(store, replace(changed, timing="0 4 * * *"))
    assert kept.fired_up_to == 1_005_000.0


async def test_an_existing_schedule_stays_without_replace(store: Store, second_store: Store):
    [first] = await put(store, NIGHTLY)
    assert await put(second_store, replace(NIGHTLY, timing="@daily"), replace=False) == [first]
    assert await store.schedules.list() == [first]


async def test_concurrent_puts_of_the_same_schedule_agree(store: Store, second_store: Store):
    wanted = [replace(NIGHTLY, priority=number) for number in range(6)]
    kept = await asyncio.gather(
        *(put(store if number % 2 else second_store, new, replace=False) for number, new in enumerate(wanted))
    )
    [one] = await store.schedules.list()
    assert kept == [[one]] * 6


async def test_of_many_processes_that_advance_the_same_tick_one_succeeds(store: Store, second_store: Store):
    await put(store, NIGHTLY)
    tries = [
        (store if number % 2 else second_store).schedules.advance(
            "nightly", 1_000_000.0, 1_000_100.0, run_id=f"r{number}"
        )
        for number in range(8)
    ]
    done = await asyncio.gather(*tries)
    assert sum(done) == 1
    [kept] = await store.schedules.list()
    assert (kept.fired_up_to, kept.last_run) == (1_000_100.0, f"r{done.index(True)}")


async def test_fired_up_to_never_decreases_and_omitted_fields_stay(store: Store):
    await put(store, NIGHTLY)
    assert await store.schedules.advance("nightly", 1_000_000.0, 1_000_100.0, run_id="r1", skipped_at=1_000_050.0)
    assert await store.schedules.advance("nightly", 1_000_100.0, 1_000_000.0)
    [kept] = await store.schedules.list()
    assert (kept.fired_up_to, kept.last_run, kept.last_skipped_at) == (1_000_100.0, "r1", 1_000_050.0)
    assert not await store.schedules.advance("nightly", 1_000_000.0, 1_000_200.0)
    assert not await store.schedules.advance("daily", 1_000_000.0, 1_000_200.0)


async def test_a_pause_is_set_and_lifted_once(store: Store, second_store: Store, clock: Clock):
    await put(store, NIGHTLY)
    clock.advance(3.5)
    assert (await store.schedules.pause("nightly"), await second_store.schedules.pause("nightly")) == (True, False)
    [kept] = await store.schedules.list()
    assert (kept.paused_at, get_next_tick(kept)) == (1_000_003.5, None)
    assert (await second_store.schedules.resume("nightly"), await store.schedules.resume("nightly")) == (True, False)
    [kept] = await store.schedules.list()
    assert (kept.paused_at, get_next_tick(kept)) == (None, 1_044_000.0)
    assert not await store.schedules.pause("none")
    assert not await store.schedules.resume("none")


async def test_a_deleted_schedule_starts_over_when_it_is_created_again(store: Store, second_store: Store, clock: Clock):
    worker = await store.workers.register(new_worker(), 60.0)
    await put(store, NIGHTLY, worker=worker)
    await store.schedules.advance("nightly", 1_000_000.0, 1_000_100.0, run_id="r1")
    assert (await second_store.schedules.delete("nightly"), await store.schedules.delete("nightly")) == (True, False)
    assert await store.schedules.list() == []
    clock.advance(1_000.0)
    assert await put(store, NIGHTLY) == [Schedule(NIGHTLY, 1_001_000.0, 1_001_000.0)]


async def test_a_schedule_is_announced_as_long_as_one_of_its_workers_lives(
    store: Store, clock: Clock, kill_worker: Callable[[int], None]
):
    workers = [await store.workers.register(new_worker(name), 60.0) for name in "abc"]
    for worker in workers:
        [kept] = await put(store, NIGHTLY, worker=worker)
        assert kept.is_announced
    [other] = await put(store, FULL)
    assert not other.is_announced
    await store.workers.retire(workers[2])
    kill_worker(workers[0])
    await store.workers.reap_dead()
    assert [one.is_announced for one in await store.schedules.list()] == [False, True]
    clock.advance(61.0)  # nobody has found it dead yet, but it has not been heard of
    assert [one.is_announced for one in await store.schedules.list()] == [False, False]
    store.workers.renew_lease(workers[1], 60.0)
    assert [one.is_announced for one in await store.schedules.list(["nightly"])] == [True]
