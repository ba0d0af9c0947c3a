"""Control from outside: cancel, pause and resume, time-outs of a run, retry and fork."""

from __future__ import annotations

import asyncio

import pytest
from conformance_world import World, effect_counts, fails_with, make_unique_id

from holdfast import (
    Client,
    RetryRefused,
    RunCancelled,
    RunEnded,
    RunFailed,
    RunNotFound,
    RunState,
    RunTimedOut,
    SettleRefused,
    StepOutcomeUnknown,
    current_run,
    step,
    uuid4,
    wait_for_signal,
    workflow,
)
from waits import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

healed: set[str] = set()


@step
async def ct_mark(text: str) -> str:
    effect_counts[current_run().id, text] += 1
    return text


@step
async def ct_slow(seconds: float) -> str:
    run = current_run().id
    effect_counts[run, "slow begun"] += 1
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        effect_counts[run, "slow cancelled"] += 1
        raise
    effect_counts[run, "slow done"] += 1
    return "slow"


@workflow
async def ct_cleaning() -> None:
    try:
        await ct_slow(60)
    finally:
        await ct_mark("cleaned up")


async def test_cancel_interrupts_and_lets_the_code_clean_up(world: World, client: Client) -> None:
    run = make_unique_id("cleaning")
    handle = await ct_cleaning.options(id=run).start()
    await wait_until(lambda: effect_counts[run, "slow begun"])
    assert await handle.cancel() is True
    with pytest.raises(RunCancelled, match=run):
        await handle.result()
    await wait_until(lambda: effect_counts[run, "slow cancelled"])
    assert [effect_counts[run, "cleaned up"], effect_counts[run, "slow done"]] == [1, 0]
    assert (await client.get(run)).state is RunState.CANCELLED


@workflow
async def ct_stubborn() -> str:
    try:
        await wait_for_signal("never")
    except asyncio.CancelledError:
        return await ct_mark("went on")
    return "not reached"


async def test_code_that_catches_the_cancellation_goes_on(world: World) -> None:
    run = make_unique_id("stubborn")
    handle = await ct_stubborn.options(id=run).start()
    await asyncio.sleep(0.1)
    await handle.cancel()
    assert await handle.result() == "went on"


async def test_what_has_ended_or_is_not_there_cannot_be_cancelled_paused_or_resumed(
    world: World, client: Client
) -> None:
    run, missing = make_unique_id("ended"), make_unique_id("missing")
    assert await ct_done.options(id=run)() == "done"
    handle = client.handle(run)
    for way in (handle.cancel, handle.pause, handle.resume):
        with pytest.raises(RunEnded):
            await way()
    for change in (client.cancel, client.pause, client.resume):
        with pytest.raises(RunNotFound):
            await change(missing)


@workflow
async def ct_done() -> str:
    return await ct_mark("done")


@workflow
async def ct_pausing() -> list[str]:
    told = [await wait_for_signal("go")]
    told.append(await ct_mark("after"))
    return told


async def test_a_paused_run_keeps_what_comes_and_goes_on_when_it_is_resumed(world: World, client: Client) -> None:
    run = make_unique_id("pausing")
    handle = await ct_pausing.options(id=run).start()
    await wait_until(lambda: _is_active(client, run))
    assert await handle.pause() is True
    await wait_until(lambda: _has_paused(client, run))
    await handle.signal("go", "kept")
    await asyncio.sleep(0.3)
    assert effect_counts[run, "after"] == 0
    assert not (await client.get(run)).state.is_terminal
    assert await client.resume(run) is True
    assert await handle.result() == ["kept", "after"]


async def _has_paused(client: Client, run: str) -> bool:
    info = await client.get(run)
    return info.is_paused and info.state is RunState.WAITING


async def _is_active(client: Client, run: str) -> bool:
    return (await client.get(run)).state in (RunState.WAITING, RunState.RUNNING)


@workflow
async def ct_pausing_steps() -> list[str]:
    return [await ct_slow(0.3), await ct_mark("next")]


async def test_a_step_in_flight_ends_and_nothing_else_begins_while_a_run_is_paused(
    world: World, client: Client
) -> None:
    run = make_unique_id("pausing")
    handle = await ct_pausing_steps.options(id=run).start()
    await wait_until(lambda: effect_counts[run, "slow begun"])
    await client.pause(run)
    await wait_until(lambda: effect_counts[run, "slow done"])
    await asyncio.sleep(0.3)
    assert effect_counts[run, "next"] == 0
    await client.resume(run)
    assert await handle.result() == ["slow", "next"]
    assert effect_counts[run, "slow begun"] == 1


async def test_a_paused_run_can_be_cancelled(world: World, client: Client) -> None:
    run = make_unique_id("pausing")
    handle = await ct_pausing.options(id=run).start()
    await client.pause(run)
    await client.cancel(run)
    with pytest.raises(RunCancelled):
        await handle.result()


@workflow(timeout=1)
async def ct_limited() -> None:
    try:
        await asyncio.sleep(60)
    finally:
        await ct_mark("cleaned up")


async def test_a_run_that_passes_its_own_time_out_fails(world: World) -> None:
    run = make_unique_id("limited")
    with fails_with(RunTimedOut, run):
        await ct_limited.options(id=run)()
    assert effect_counts[run, "cleaned up"] == 1


@step
async def ct_fragile(name: str) -> str:
    effect_counts[current_run().id, name] += 1
    if current_run().id not in healed:
        raise ConnectionError(f"{name} is down")
    return name


@workflow
async def ct_mending() -> list[str]:
    return [await ct_mark("before"), await ct_fragile("line"), await ct_mark("after"), str(uuid4())]


async def test_a_failed_run_goes_on_from_where_it_went_wrong(world: World, client: Client) -> None:
    run = make_unique_id("mending")
    with fails_with(ConnectionError):
        await ct_mending.options(id=run)()
    for _ in range(2):  # it may fail again
        await client.retry(run)
        with pytest.raises(RunFailed, match="line is down"):
            await client.wait(run)
    healed.add(run)
    await client.retry(run)
    assert (await client.wait(run))[:3] == ["before", "line", "after"]
    assert [effect_counts[run, name] for name in ("before", "line", "after")] == [1, 4, 1]


@workflow
async def ct_part(name: str) -> str:
    return await ct_fragile(name)


@workflow
async def ct_whole(child: str) -> list[str]:
    return [await ct_mark("before"), await ct_part.options(id=child)("part")]


async def test_a_retry_takes_the_failed_child_with_it(world: World, client: Client) -> None:
    run, child = make_unique_id("whole"), make_unique_id("child")
    with pytest.raises(RunFailed):
        await ct_whole.options(id=run)(child)
    healed.update({run, child})
    await client.retry(run)
    assert await client.wait(run, timeout=20) == ["before", "part"]
    assert [effect_counts[run, "before"], effect_counts[child, "part"]] == [1, 2]


@step(effect="once")
async def ct_pay() -> str:
    effect_counts[current_run().id, "paid"] += 1
    if current_run().id not in healed:
        raise ConnectionError("no answer")
    return "paid"


@workflow
async def ct_paying() -> str:
    return await ct_pay()


async def test_a_retry_runs_a_once_step_again_only_on_request(world: World, client: Client) -> None:
    run = make_unique_id("paying")
    with fails_with(ConnectionError):
        await ct_paying.options(id=run)()
    healed.add(run)
    with pytest.raises(RetryRefused, match="once"):
        await client.retry(run)
    assert effect_counts[run, "paid"] == 1
    await client.retry(run, run_again=True)
    assert await client.wait(run) == "paid"


@step(effect="once")
async def ct_wire(amount: int) -> int:
    effect_counts[current_run().id, "wired"] += 1
    if current_run().id not in healed:
        raise StepOutcomeUnknown("the line broke", "ct_wire")  # as if its worker had died
    return amount


@workflow
async def ct_wiring() -> list[int]:
    await ct_mark("noted")
    return [await ct_wire(7), await ct_wire(8)]


async def test_an_unknown_outcome_can_be_settled(world: World, client: Client) -> None:
    run = make_unique_id("wiring")
    with fails_with(StepOutcomeUnknown):
        await ct_wiring.options(id=run)()
    with pytest.raises(SettleRefused, match=r"step 1 .* is known.*: step 2"):
        await client.settle(run, 1, 1)
    await client.settle(run, 2, "seven")
    with fails_with(StepOutcomeUnknown, "settled with a value that it cannot have returned"):
        await ct_wiring.get_handle(world.runtime.store_provider, run).result(20)
    await client.settle(run, 2, 700)
    with fails_with(StepOutcomeUnknown, "the line broke"):
        await ct_wiring.get_handle(world.runtime.store_provider, run).result(20)
    assert effect_counts[run, "wired"] == 2, "the second one"
    healed.add(run)
    await client.settle(run, "ct_wire", happened=False)
    assert await client.wait(run, timeout=20) == [700, 8]
    assert (effect_counts[run, "wired"], effect_counts[run, "noted"]) == (3, 1)
    with pytest.raises(SettleRefused, match="was settled before, and the run is completed"):
        await client.settle(run, 2, 1)


@step
async def ct_unbook(output: str) -> None:
    pass


@step(compensate=ct_unbook)
async def ct_book() -> str:
    return "booked"


@workflow
async def ct_undone() -> None:
    await ct_book()
    await ct_fragile("line")


async def test_what_cannot_be_retried_is_refused(world: World, client: Client) -> None:
    run, done = make_unique_id("undone"), make_unique_id("done")
    with pytest.raises(RunFailed):
        await ct_undone.options(id=run)()
    await ct_done.options(id=done)()
    with pytest.raises(RetryRefused, match="undone"):
        await client.retry(run)
    with pytest.raises(RetryRefused, match="completed"):
        await client.retry(done)
    with pytest.raises(RunNotFound):
        await client.retry(make_unique_id("missing"))


async def test_a_cancelled_run_can_be_retried(world: World, client: Client) -> None:
    run = make_unique_id("cancelled")
    handle = await ct_pausing.options(id=run).start()
    await wait_until(lambda: _is_active(client, run))
    await client.cancel(run)
    with pytest.raises(RunCancelled):
        await handle.result()
    await client.retry(run)
    await client.signal(run, "go", "again")
    assert await client.wait(run, timeout=20) == ["again", "after"]


@workflow
async def ct_trip() -> list[str]:
    return [await ct_mark("room"), await wait_for_signal("how"), await ct_mark("left")]


async def test_a_fork_shares_what_was_recorded_before_a_step(world: World, client: Client) -> None:
    run = make_unique_id("trip")
    handle = await ct_trip.options(id=run).start()
    await handle.signal("how", "by train")
    assert await handle.result() == ["room", "by train", "left"]
    other = await client.fork(run, at="how", with_output="by plane", id=make_unique_id("fork"))
    assert await other.result(20) == ["room", "by plane", "left"]
    assert [effect_counts[other.run_id, name] for name in ("room", "left")] == [0, 1]
    assert (await client.get(other.run_id)).forked_from == run
    again = await client.fork(run, at=1)
    await again.signal("how", "on foot")
    assert await again.result(20) == ["room", "on foot", "left"]
    assert [effect_counts[again.run_id, name] for name in ("room", "left")] == [1, 1]
    whole = await client.fork(run)
    assert await whole.result(20) == ["room", "by train", "left"]
    assert effect_counts[whole.run_id, "left"] == 0
    assert await handle.result() == ["room", "by train", "left"]


async def test_a_fork_of_nothing_is_refused(world: World, client: Client) -> None:
    with pytest.raises(RunNotFound):
        await client.fork(make_unique_id("missing"))


async def test_a_retry_gives_a_running_run_no_second_life(world: World, client: Client) -> None:
    run = make_unique_id("running")
    handle = await ct_pausing.options(id=run).start()
    with pytest.raises(RetryRefused):
        await client.retry(run)
    await handle.signal("go", "on")
    assert await handle.result() == ["on", "after"]
