"""Undoing: what was recorded is undone when the run fails, times out or is cancelled, the last step first."""

from __future__ import annotations

import asyncio

import pytest
from conformance_world import World, effect_counts, fails_with, make_unique_id

from holdfast import (
    CompensationFailed,
    RunCancelled,
    RunTimedOut,
    StepFailed,
    current_run,
    step,
    wait_for_signal,
    workflow,
)
from waits import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

undone: dict[str, list[str]] = {}


@step(retries=2, backoff=0.001)
async def un_cancel(booking: str, hotel: str) -> None:
    run = current_run().id
    effect_counts[run, booking] += 1
    if effect_counts[run, booking] == 1 and "flaky" in hotel:
        raise ConnectionError("again")
    undone.setdefault(run, []).append(booking)


@step(compensate=un_cancel)
async def un_book(hotel: str) -> str:
    effect_counts[current_run().id, f"booked {hotel}"] += 1
    return f"room at {hotel}"


@step
async def un_broken() -> None:
    raise LookupError("no seat")


@workflow
async def un_failing() -> None:
    await asyncio.gather(un_book("a"), un_book("flaky b"))
    await un_book("c")
    await un_broken()


async def test_a_failure_undoes_what_was_done_the_last_first(world: World) -> None:
    run = make_unique_id("failing")
    with fails_with(LookupError, "no seat"):
        await un_failing.options(id=run)()
    assert undone[run][0] == "room at c"
    assert sorted(undone[run]) == ["room at a", "room at c", "room at flaky b"]


@workflow
async def un_catching() -> str:
    await un_book("kept")
    try:
        await un_broken()
    except LookupError:
        return "caught"
    return "not reached"


async def test_a_failure_that_is_caught_undoes_nothing(world: World) -> None:
    run = make_unique_id("catching")
    assert await un_catching.options(id=run)() == "caught"
    assert run not in undone


@step
async def un_ready() -> None:
    effect_counts[current_run().id, "ready"] += 1


@workflow
async def un_waiting() -> None:
    await un_book("first")
    await un_book("second")
    await un_ready()
    await wait_for_signal("never")


async def test_a_cancelled_run_is_undone(world: World) -> None:
    run = make_unique_id("waiting")
    handle = await un_waiting.options(id=run).start()
    await wait_until(lambda: effect_counts[run, "ready"])
    assert await handle.cancel() is True
    with pytest.raises(RunCancelled):
        await handle.result()
    await wait_until(lambda: len(undone.get(run, ())) == 2)
    assert undone[run] == ["room at second", "room at first"]


@workflow(timeout=1.5)
async def un_timed() -> None:
    await un_book("late")
    await asyncio.sleep(60)


async def test_a_run_that_takes_too_long_is_undone(world: World) -> None:
    run = make_unique_id("timed")
    with fails_with(RunTimedOut):
        await un_timed.options(id=run)()
    assert undone[run] == ["room at late"]


@step
async def un_stuck(booking: str) -> None:
    effect_counts[current_run().id, "tried"] += 1
    raise PermissionError("cannot be undone")


@step(compensate=un_stuck)
async def un_final() -> str:
    return "signed"


@workflow
async def un_stopping() -> None:
    await un_book("before")
    await un_final()
    await un_broken()


async def test_a_failed_compensation_stops_the_others_and_is_reported(world: World) -> None:
    run = make_unique_id("stopping")
    with fails_with(CompensationFailed, "un_stuck"):
        await un_stopping.options(id=run)()
    assert effect_counts[run, "tried"] == 1
    assert run not in undone


@step(compensate=un_cancel)
async def un_slow_book(hotel: str) -> str:
    try:
        await asyncio.sleep(0.3)
    except asyncio.CancelledError:
        effect_counts[current_run().id, "interrupted"] += 1
        raise
    return f"room at {hotel}"


@workflow
async def un_interrupted() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(un_slow_book("slow"))
        await un_book("quick")
        group.create_task(un_broken())


async def test_a_step_that_was_interrupted_is_not_undone(world: World) -> None:
    run = make_unique_id("interrupted")
    with fails_with(StepFailed, "ExceptionGroup"):
        await un_interrupted.options(id=run)()
    assert undone[run] == ["room at quick"]
    assert effect_counts[run, "interrupted"] == 1
