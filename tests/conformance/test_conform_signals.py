"""Signals: never lost, in order, each to one wait, once by their id, of a declared type, and in time."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

import pytest
from conformance_world import World, effect_counts, make_unique_id
from pydantic import BaseModel

from holdfast import Client, RunEnded, RunFailed, RunNotFound, current_run, step, wait_for_signal, workflow
from holdfast.errors import UnreadableRecord
from waits import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@step
async def sig_ready() -> None:
    effect_counts[current_run().id, "ready"] += 1


@workflow
async def sig_gathering(count: int, first: float = 0.0) -> list[Any]:
    if first:
        await asyncio.sleep(first)
    await sig_ready()
    return [await wait_for_signal("item") for _ in range(count)]


async def test_signals_that_come_before_the_wait_are_kept_in_order(world: World) -> None:
    handle = await sig_gathering.options(id=make_unique_id("early")).start(5, 0.2)
    for number in range(5):
        await handle.signal("item", number)
    assert await handle.result() == [0, 1, 2, 3, 4]


async def test_signals_that_come_while_the_run_waits_are_kept_in_order(world: World, client: Client) -> None:
    run = make_unique_id("late")
    handle = await sig_gathering.options(id=run).start(4)
    await wait_until(lambda: effect_counts[run, "ready"])
    for number in range(4):
        await (handle if number % 2 else client.handle(run)).signal("item", {"number": number})
    assert await handle.result() == [{"number": number} for number in range(4)]


async def test_the_same_signal_twice_is_one(world: World, client: Client) -> None:
    handle = await sig_gathering.options(id=make_unique_id("twice")).start(3)
    assert await handle.signal("item", "a", id="click-1") is True
    await handle.signal("item", "a", id="click-1")
    await client.signal(handle.run_id, "item", "not taken", id="click-1")
    await handle.signal("item", "b", id="click-2")
    await handle.signal("item", "c")
    assert await handle.result() == ["a", "b", "c"]


async def test_a_repeated_send_is_reported(world: World) -> None:
    handle = await sig_gathering.options(id=make_unique_id("told")).start(1, 0.3)
    assert await handle.signal("item", "a", id="click") is True
    assert await handle.signal("item", "a", id="click") is False
    assert await handle.result() == ["a"]


class Decision(BaseModel):
    yes: bool
    why: str = ""


@workflow
async def sig_typed() -> list[Any]:
    told: list[Any] = [await wait_for_signal("decision", type=Decision)]
    told.append(await wait_for_signal("pair", type=tuple[int, str]))
    return [isinstance(told[0], Decision), told[0].yes, told[0].why, told[1]]


async def test_a_signal_has_its_declared_type(world: World, client: Client) -> None:
    handle = await sig_typed.options(id=make_unique_id("typed")).start()
    await client.signal(handle.run_id, "decision", {"yes": True, "why": "tests"})
    await client.signal(handle.run_id, "pair", [1, "one"])
    assert await handle.result() == [True, True, "tests", (1, "one")]


async def test_a_signal_of_another_type_fails_the_wait(world: World) -> None:
    handle = await sig_typed.options(id=make_unique_id("unfit")).start()
    await handle.signal("decision", "yes")
    with pytest.raises(RunFailed, match="decision"):
        await handle.result()


@workflow
async def sig_insists() -> list[Any]:
    refused: list[str] = []
    while True:
        try:
            return [len(refused), await wait_for_signal("pair", type=tuple[int, str])]
        except UnreadableRecord as unfit:
            refused.append(str(unfit))
            await sig_ready()


async def test_code_may_catch_that_a_signal_has_another_type(world: World) -> None:
    run = make_unique_id("insists")
    handle = await sig_insists.options(id=run).start()
    for value in ("no pair", [1], [1, "one"]):
        await handle.signal("pair", value)
    assert await handle.result() == [2, (1, "one")]
    assert effect_counts[run, "ready"] == 2


@workflow
async def sig_in_time(seconds: float) -> Any:
    try:
        return await wait_for_signal("answer", timeout=seconds)
    except TimeoutError:
        await sig_ready()
        late = await wait_for_signal("answer")
        return ["too late", late]


async def test_a_wait_has_a_time_out_and_a_late_signal_goes_to_the_next_wait(world: World) -> None:
    run = make_unique_id("in-time")
    handle = await sig_in_time.options(id=run).start(0.1)
    await wait_until(lambda: effect_counts[run, "ready"])
    await handle.signal("answer", 42)
    assert await handle.result() == ["too late", 42]
    assert await _run_answered(make_unique_id("in-time"), 60) == 43


async def _run_answered(run: str, seconds: float) -> Any:
    handle = await sig_in_time.options(id=run).start(seconds)
    await handle.signal("answer", 43)
    return await handle.result()


@workflow
async def sig_several() -> list[Any]:
    first, second = await asyncio.gather(wait_for_signal("a"), wait_for_signal("b"))
    group = await asyncio.gather(wait_for_signal("a"), wait_for_signal("a"))
    return [first, second, *group]


async def test_waits_side_by_side_get_each_their_own(world: World) -> None:
    handle = await sig_several.options(id=make_unique_id("several")).start()
    for name, value in (("b", 1), ("a", 2), ("a", 3), ("a", 4)):
        await handle.signal(name, value)
    assert await handle.result() == [2, 1, 3, 4]


@workflow
async def sig_nothing() -> Any:
    return [await wait_for_signal("nothing")]


async def test_a_signal_without_a_value_is_none(world: World) -> None:
    handle = await sig_nothing.options(id=make_unique_id("nothing")).start()
    await handle.signal("nothing")
    assert await handle.result() == [None]


async def test_signals_to_runs_that_are_not_there_or_have_ended_are_refused(world: World, client: Client) -> None:
    handle = await sig_nothing.options(id=make_unique_id("ended")).start()
    await handle.signal("nothing")
    await handle.result()
    for way in (handle, client.handle(handle.run_id)):
        with pytest.raises(RunEnded, match="it has completed"):
            await way.signal("nothing")
    with pytest.raises(RunNotFound):
        await client.signal(make_unique_id("missing"), "nothing")


@workflow
async def sig_choosing() -> list[Any]:
    told: list[Any] = []
    while len(told) < 3:
        waits = {name: asyncio.create_task(wait_for_signal(name)) for name in ("left", "right")}
        done, _ = await asyncio.wait(waits.values(), return_when=asyncio.FIRST_COMPLETED)
        for name, task in waits.items():
            if task in done:
                told.append([name, task.result()])
            else:
                task.cancel()
    return told


async def test_a_wait_that_is_given_up_loses_no_signal(world: World) -> None:
    handle = await sig_choosing.options(id=make_unique_id("choosing")).start()
    for number, name in enumerate(("right", "left", "right")):
        await handle.signal(name, number)
    assert sorted(await handle.result()) == [["left", 1], ["right", 0], ["right", 2]]


@workflow
async def sig_delayed(child: str) -> list[Any]:
    handle = await sig_gathering.options(id=child, delay=0.6).start(2)
    return await handle.result()


async def test_signals_to_a_run_that_has_not_begun_are_kept_and_hurry_nothing(world: World) -> None:
    for starts in ("by a client", "by a run"):
        run, began = make_unique_id("delayed"), time.monotonic()
        if starts == "by a client":
            handle = await sig_gathering.options(id=run, delay=0.6).start(2)
        else:
            handle = await sig_delayed.options(id=make_unique_id("starter")).start(run)
            await wait_until(partial(_is_stored, world, run))
        child = sig_gathering.get_handle(world.runtime.store_provider, run)
        for number in range(2):
            await child.signal("item", number)
            await asyncio.sleep(0.15)
        assert effect_counts[run, "ready"] == 0, starts
        assert await handle.result() == [0, 1]
        assert time.monotonic() - began >= 0.55, starts


async def _is_stored(world: World, run: str) -> bool:
    try:
        await sig_gathering.get_handle(world.runtime.store_provider, run).info()
    except RunNotFound:
        return False
    return True
