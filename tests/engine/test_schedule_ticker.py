"""Schedules over engines: who fires when, what is made up for, and that nothing fires twice."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from engine_world import FlakyStore, VirtualClock, World, make_unavailable_error, wait_until_ended, wait_until_quiet

from holdfast import Schedule, step, wait_for_signal, workflow
from holdfast.authoring.registry import definitions
from holdfast.authoring.runtime import Runtime
from holdfast.engine import schedule_ticker
from holdfast.stores.contract import RunFilter
from holdfast.stores.schedules import ScheduleDefinition
from holdfast.testing import Runner
from waits import wait_until

pytestmark = pytest.mark.asyncio

MIDNIGHT = datetime(2026, 11, 15, tzinfo=UTC).timestamp()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch, clock: VirtualClock) -> None:
    """Every change is looked at when it is told; the days begin at midnight."""
    monkeypatch.setattr(schedule_ticker, "MIN_READ_INTERVAL_S", 0.0)
    clock._now = MIDNIGHT


def set_time(at: str | datetime, clock: VirtualClock) -> None:
    """Let time pass until then."""
    moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    clock.set_time(moment.timestamp())


async def list_run_ids(runtime: Runtime) -> list[str]:
    return sorted(run.id for run in await runtime._engine.store.list_runs(RunFilter(), limit=500))


async def assert_runs(runtime: Runtime, *expected: str) -> None:
    """These runs are there, and no others come."""

    async def there() -> bool:
        return set(await list_run_ids(runtime)) >= set(expected)

    await wait_until(there)
    await wait_for_reads(runtime)
    assert await list_run_ids(runtime) == sorted(expected)


async def wait_for_reads(runtime: Runtime) -> None:
    """The runtime has read the schedules again, and has settled what was due."""
    ticker = runtime._engine._ticker
    for _ in range(2):
        before = ticker._last_read_at
        ticker.notify_changed()
        runtime._engine.wake()
        await wait_until(lambda before=before: ticker._last_read_at > before)
        await wait_until_quiet(runtime)


async def get_only_schedule(runtime: Runtime) -> Any:
    [schedule] = await runtime._engine.store.schedules.list()
    return schedule


async def test_each_tick_starts_one_run_with_its_inputs_however_many_workers_there_are(
    world: World, clock: VirtualClock
):
    @workflow(tags=["etl"], queue="slow")
    async def etl(customer: str, when: datetime) -> str:
        return f"{customer} {when.year}"

    Schedule("nightly", etl.options(priority=3, tags=["night"]), "acme", datetime(2026, 1, 1), cron="0 2 * * *")
    runtimes = [await world.open() for _ in range(3)]
    for day in (15, 16):
        set_time(f"2026-11-{day}T02:00:00.3Z", clock)
        for runtime in runtimes:
            await wait_for_reads(runtime)
    await assert_runs(runtimes[0], "nightly@2026-11-15T02:00:00Z", "nightly@2026-11-16T02:00:00Z")
    run = await wait_until_ended(runtimes[0], "nightly@2026-11-16T02:00:00Z")
    assert (run.output, run.queue, run.priority) == (b'"acme 2026"', "slow", 3)
    assert run.tags == ("etl", "night", "schedule:nightly")
    assert (await get_only_schedule(runtimes[1])).last_run == "nightly@2026-11-16T02:00:00Z"


async def test_nothing_fires_before_its_time_or_for_ticks_from_before_it_was_made(world: World, clock: VirtualClock):
    @workflow(schedule=Schedule(every="hour"))
    async def tidy() -> None: ...

    runtime = await world.open()
    await wait_for_reads(runtime)
    set_time("2026-11-15T00:59:59.9Z", clock)
    await wait_for_reads(runtime)
    assert await list_run_ids(runtime) == []
    clock.advance(0.2)
    await assert_runs(runtime, "tidy@2026-11-15T01:00:00Z")


async def test_in_the_night_when_clocks_are_set_back_it_fires_once(world: World, clock: VirtualClock):
    @workflow(schedule=Schedule("berlin", cron="30 2 * * *", zone="Europe/Berlin"))
    async def tidy() -> None: ...

    set_time("2026-10-24T12:00:00Z", clock)
    runtime = await world.open()
    for hour in range(14):  # half past two is at 00:30 and again, by the clock on the wall, at 01:30
        set_time(datetime(2026, 10, 24, 12, 31, tzinfo=UTC) + timedelta(hours=hour), clock)
        await wait_for_reads(runtime)
    await assert_runs(runtime, "berlin@2026-10-25T00:30:00Z")
    set_time("2026-10-26T01:30:01Z", clock)
    await assert_runs(runtime, "berlin@2026-10-25T00:30:00Z", "berlin@2026-10-26T01:30:00Z")


@pytest.mark.parametrize(
    ("policy", "most", "made_up_for"),
    [("skip", 100, []), ("last", 100, [5]), ("all", 100, [1, 2, 3, 4, 5]), ("all", 2, [4, 5])],
)
async def test_missed_ticks_are_caught_up_as_declared(
    world: World, clock: VirtualClock, policy: Any, most: int, made_up_for: list[int]
):
    @workflow(schedule=Schedule(every="hour", catch_up=policy, max_catch_up=most))
    async def tidy() -> None: ...

    runtime = await world.open()
    await runtime.close()
    world._open.remove(runtime)
    set_time("2026-11-15T05:30:00Z", clock)
    runtime = await world.open()
    await wait_for_reads(runtime)
    wanted = [f"tidy@2026-11-15T0{hour}:00:00Z" for hour in made_up_for]
    await assert_runs(runtime, *wanted)
    runs = await runtime._engine.store.list_runs(RunFilter())
    assert [run.id for run in sorted(runs, key=lambda run: run.key)] == wanted, "they start in the order of their ticks"
    set_time("2026-11-15T06:00:01Z", clock)
    await assert_runs(runtime, *wanted, "tidy@2026-11-15T06:00:00Z")


async def test_a_worker_that_dies_before_it_can_settle_a_tick_has_fired_it_all_the_same(
    world: World, clock: VirtualClock
):
    gate = asyncio.Event()

    @step
    async def hold() -> None:
        await gate.wait()

    @workflow(schedule=Schedule(every="hour"))
    async def tidy() -> None:
        await hold()

    victim = await world.open()

    async def never(*_: Any, **__: Any) -> bool:
        await asyncio.get_running_loop().create_future()
        return False

    victim._engine.store.schedules.advance = never  # type: ignore[method-assign]
    set_time("2026-11-15T01:00:01Z", clock)
    await wait_until(lambda: list_run_ids(victim))
    unsettled = (await get_only_schedule(victim)).fired_up_to
    assert unsettled == MIDNIGHT
    if world.kind == "memory":
        del victim._engine.store.schedules.advance  # it is the same object for everybody
    peer = await world.open()
    await world.crash(victim)
    gate.set()
    await assert_runs(peer, "tidy@2026-11-15T01:00:00Z")
    assert (await wait_until_ended(peer, "tidy@2026-11-15T01:00:00Z")).state.value == "completed"
    assert (await get_only_schedule(peer)).fired_up_to == MIDNIGHT + 3600


async def test_a_store_that_fails_for_a_while_delays_a_tick_and_loses_none(world: World, clock: VirtualClock):
    @workflow(schedule=Schedule(every="hour"))
    async def tidy() -> None: ...

    store = FlakyStore(world.store())
    runtime = await world.open(store=store)
    await wait_for_reads(runtime)
    failures = iter(range(3))
    store.fail_before = lambda _: make_unavailable_error() if next(failures, None) is not None else None
    set_time("2026-11-15T01:00:01Z", clock)
    await wait_until(lambda: list_run_ids(runtime))
    assert await list_run_ids(runtime) == ["tidy@2026-11-15T01:00:00Z"]
    assert next(failures, None) is None
    await wait_until_ended(runtime, "tidy@2026-11-15T01:00:00Z")


@pytest.mark.parametrize(("policy", "made_up_for"), [("skip", []), ("last", [3])])
async def test_what_was_missed_while_it_was_paused_is_made_up_for_as_it_says(
    world: World, clock: VirtualClock, policy: Any, made_up_for: list[int]
):
    @workflow(schedule=Schedule(every="hour", catch_up=policy))
    async def tidy() -> None: ...

    runtime = await world.open()
    person = await world.open_store()
    await person.schedules.pause("tidy")
    set_time("2026-11-15T02:30:00Z", clock)
    await runtime.close()
    world._open.remove(runtime)
    runtime = await world.open()  # a deployment: it stays paused
    set_time("2026-11-15T03:30:00Z", clock)
    await wait_for_reads(runtime)
    assert await list_run_ids(runtime) == []
    await person.schedules.resume("tidy")
    wanted = [f"tidy@2026-11-15T0{hour}:00:00Z" for hour in made_up_for]
    await wait_for_reads(runtime)
    await assert_runs(runtime, *wanted)
    set_time("2026-11-15T04:00:01Z", clock)
    await assert_runs(runtime, *wanted, "tidy@2026-11-15T04:00:00Z")


async def test_another_timing_counts_from_when_it_was_announced(world: World, clock: VirtualClock):
    @workflow
    async def tidy() -> None: ...

    Schedule("tidy", tidy, cron="0 1 * * *")
    runtime = await world.open()
    set_time("2026-11-15T00:40:00Z", clock)
    [first] = tidy.definition.schedules.values()
    tidy.definition.schedules["tidy"] = replace(first, timing="*/30 * * * *")
    await wait_for_reads(runtime)
    await assert_runs(runtime)  # not the half hour that passed before
    set_time("2026-11-15T01:30:01Z", clock)
    # One o'clock was missed by more than a minute, as nobody looked then: the newest makes up for it.
    await assert_runs(runtime, "tidy@2026-11-15T01:30:00Z")


async def test_a_worker_that_was_taken_for_dead_does_not_bring_its_old_timing_back(world: World, clock: VirtualClock):
    @workflow(schedule=Schedule(every="hour"))
    async def tidy() -> None: ...

    runtime = await world.open()
    await wait_for_reads(runtime)
    newer = replace((await get_only_schedule(runtime)).definition, timing="every day")
    await (await world.open_store()).schedules.put([newer])
    await runtime._engine.store.workers.retire(runtime.worker_id)
    assert not (await get_only_schedule(runtime)).is_announced
    membership = runtime._engine.membership
    membership._lost_worker_id = runtime.worker_id
    membership._on_declared_dead()
    await wait_until_quiet(runtime)
    await wait_for_reads(runtime)
    schedule = await get_only_schedule(runtime)
    assert (schedule.definition, schedule.is_announced) == (newer, True)


async def test_one_that_is_deleted_fires_no_more(world: World, clock: VirtualClock):
    @workflow(schedule=Schedule(every="hour"))
    async def tidy() -> None: ...

    runtime = await world.open()
    await wait_for_reads(runtime)
    await (await world.open_store()).schedules.delete("tidy")
    set_time("2026-11-15T01:00:01Z", clock)
    await wait_for_reads(runtime)
    assert await list_run_ids(runtime) == []


async def test_schedules_that_another_process_creates_or_changes_are_noticed(world: World, clock: VirtualClock):
    @workflow
    async def tidy(room: str) -> str:
        return room

    runtime = await world.open()
    person = await world.open_store()
    await person.schedules.put([ScheduleDefinition("rooms", "tidy", "every hour", b'{"room":"attic"}')])
    set_time("2026-11-15T01:00:01Z", clock)
    [run_id] = await wait_until(lambda: list_run_ids(runtime))
    assert (await wait_until_ended(runtime, run_id)).output == b'"attic"'


async def test_a_worker_that_does_not_serve_the_workflow_leaves_it_to_others_for_a_moment(
    world: World, clock: VirtualClock
):
    @workflow(schedule=Schedule(every="hour"))
    async def tidy() -> None: ...

    @workflow
    async def other() -> None: ...

    serving = await world.open()
    await serving.close()
    world._open.remove(serving)
    stranger = await world.open(definitions={"other": definitions["other"]})
    await wait_for_reads(stranger)
    set_time("2026-11-15T01:00:00.9Z", clock)
    await wait_for_reads(stranger)
    assert await list_run_ids(stranger) == []
    clock.advance(0.2)
    await assert_runs(stranger, "tidy@2026-11-15T01:00:00Z")
    assert not (await get_only_schedule(stranger)).is_announced
    serving = await world.open()
    assert (await wait_until_ended(serving, "tidy@2026-11-15T01:00:00Z")).state.value == "completed"
    assert (await get_only_schedule(serving)).is_announced


async def test_with_overlap_skip_a_tick_starts_nothing_while_the_run_before_is_under_way(
    world: World, clock: VirtualClock
):
    @workflow(schedule=Schedule(every="hour", overlap="skip"))
    async def tidy() -> None:
        await wait_for_signal("done")

    runtime = await world.open()
    for hour in (1, 2, 3):
        set_time(f"2026-11-15T0{hour}:00:01Z", clock)
        await wait_for_reads(runtime)
    await assert_runs(runtime, "tidy@2026-11-15T01:00:00Z")
    schedule = await get_only_schedule(runtime)
    assert (schedule.last_run, schedule.last_skipped_at) == ("tidy@2026-11-15T01:00:00Z", MIDNIGHT + 3 * 3600)
    assert schedule.fired_up_to == MIDNIGHT + 3 * 3600
    await tidy.get_handle(runtime.store_provider, "tidy@2026-11-15T01:00:00Z").signal("done")
    await wait_until_ended(runtime, "tidy@2026-11-15T01:00:00Z")
    set_time("2026-11-15T04:00:01Z", clock)
    await assert_runs(runtime, "tidy@2026-11-15T01:00:00Z", "tidy@2026-11-15T04:00:00Z")


async def test_while_its_workflow_is_switched_off_ticks_are_missed(
    world: World, clock: VirtualClock, caplog: pytest.LogCaptureFixture
):
    @workflow(schedule=Schedule(every="hour"))
    async def tidy() -> None: ...

    runtime = await world.open()
    person = await world.open_store()
    await person.disabled_workflows.disable("tidy")
    for hour in (1, 2):
        set_time(f"2026-11-15T0{hour}:00:01Z", clock)
        await wait_for_reads(runtime)
    assert await list_run_ids(runtime) == []
    assert sum("schedule 'tidy' does not fire: 'tidy' is disabled" in text for text in caplog.messages) == 1
    await person.disabled_workflows.enable("tidy")
    set_time("2026-11-15T02:20:00Z", clock)
    await assert_runs(runtime, "tidy@2026-11-15T02:00:00Z")


async def test_a_timing_that_cannot_be_read_here_stops_no_other(
    world: World, clock: VirtualClock, caplog: pytest.LogCaptureFixture
):
    @workflow(schedule=Schedule(every="hour"))
    async def tidy() -> None: ...

    runtime = await world.open()
    person = await world.open_store()
    await person.schedules.put(
        [
            ScheduleDefinition("a", "tidy", "0 1 * * * in Mars/Olympus", b"{}"),
            ScheduleDefinition("b", "gone", "every hour", b"{}"),
        ]
    )
    set_time("2026-11-15T01:00:02Z", clock)
    await assert_runs(runtime, "tidy@2026-11-15T01:00:00Z")
    assert "time zone 'Mars/Olympus' is not known" in caplog.text
    assert "no worker has announced a workflow 'gone'" in caplog.text


async def test_a_worker_that_is_closing_starts_nothing_more(world: World, clock: VirtualClock):
    @workflow(schedule=Schedule(every="hour"))
    async def tidy() -> None: ...

    runtime = await world.open()
    await wait_for_reads(runtime)
    runtime._engine.is_draining = True
    set_time("2026-11-15T01:00:02Z", clock)
    assert not runtime._engine._ticker.is_due()
    assert runtime._engine._ticker.get_wait_s(0.2) == 0.2
    await runtime._engine._poller.poll()
    assert await list_run_ids(runtime) == []


async def test_in_a_user_s_test_nothing_is_started_by_itself(clock: VirtualClock, in_memory: World):
    @workflow(schedule=Schedule(every="hour"))
    async def tidy() -> str:
        await asyncio.sleep(3 * 86400)
        return "tidy"

    runner = Runner()
    result = await runner.run(tidy)
    assert result.output == "tidy"
    assert len(runner._world.traces) == 1
