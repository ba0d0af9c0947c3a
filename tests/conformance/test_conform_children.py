"""Workflows in workflows: awaited, started, joined, failing, and cancelled with their caller."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conformance_world import World, effect_counts, fails_with, make_unique_id

from holdfast import (
    Client,
    RunCancelled,
    RunFailed,
    RunState,
    current_run,
    now,
    step,
    wait_for_signal,
    workflow,
)
from waits import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@step
async def ch_load(part: int) -> int:
    effect_counts[current_run().id, "loaded"] += 1
    if part == 3:
        raise ValueError("part 3 is broken")
    return part * 10


@workflow(queue="ch-parts")
async def ch_part(part: int) -> int:
    return await ch_load(part)


@workflow
async def ch_whole() -> list[Any]:
    done: list[Any] = list(await asyncio.gather(*(ch_part(part) for part in range(3))))
    try:
        await ch_part(3)
    except RunFailed as failed:
        done.append([repr(failed.__cause__), failed.state])
    later = await ch_part.start(5)
    return [*done, await later.result(), later.run_id]


async def test_children_are_awaited_started_and_their_failures_are_theirs(world: World, client: Client) -> None:
    run = make_unique_id("whole")
    told = await ch_whole.options(id=run)()
    assert told == [0, 10, 20, ["ValueError('part 3 is broken')", "failed"], 50, told[-1]]
    child = await client.get(told[-1])
    assert (child.parent, child.workflow, child.queue, child.state) == (run, "ch_part", "ch-parts", "completed")
    assert len(await wait_until(lambda: _find_five_children(client, run))) == 5


async def _find_five_children(client: Client, run: str) -> list[Any] | None:
    found = await client.list(parent=run)
    return found if len(found) == 5 else None


@workflow(id="ch-shared-{key}")
async def ch_shared(key: str) -> str:
    effect_counts[key, "shared"] += 0 if current_run().is_replaying else 1
    return await wait_for_signal("go")


@workflow
async def ch_joining(key: str) -> str:
    return await ch_shared(key)


async def test_a_run_that_is_there_is_joined(world: World) -> None:
    key = make_unique_id("key")
    there = await ch_shared.start(key)
    first, second = [await ch_joining.options(id=make_unique_id("joining")).start(key) for _ in range(2)]
    await asyncio.sleep(0.1)
    await there.signal("go", "shared")
    assert [await one.result() for one in (first, second, there)] == ["shared"] * 3
    assert (
        await ch_joining.options(id=make_unique_id("joining"))(key) == "shared"
    )  # it has ended, and its result is there


@workflow
async def ch_named(name: str) -> list[str]:
    handle = await ch_part.options(id=name, tags=["named"]).start(1)
    return [handle.run_id, str(await handle.result())]


async def test_a_child_has_the_id_and_the_tags_it_is_given(world: World, client: Client) -> None:
    name = make_unique_id("child")
    assert await ch_named.options(id=make_unique_id("named"))(name) == [name, "10"]
    assert (await client.get(name)).tags == ("named",)


@step
async def ch_hold() -> None:
    try:
        effect_counts[current_run().id, "holding"] += 1
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        effect_counts[current_run().id, "let go"] += 1
        raise


@workflow
async def ch_holding() -> None:
    await ch_hold()


@workflow
async def ch_caller(awaited: str, started: str) -> None:
    await ch_holding.options(id=started).start()
    await ch_holding.options(id=awaited)()


async def test_a_cancelled_caller_cancels_the_child_that_it_awaits_and_no_other(world: World, client: Client) -> None:
    awaited, started = make_unique_id("awaited"), make_unique_id("started")
    handle = await ch_caller.options(id=make_unique_id("caller")).start(awaited, started)
    await wait_until(lambda: effect_counts[awaited, "holding"] and effect_counts[started, "holding"])
    await handle.cancel()
    with pytest.raises(RunCancelled):
        await handle.result()
    with pytest.raises(RunCancelled):
        await client.wait(awaited, timeout=20)
    assert effect_counts[awaited, "let go"] == 1
    assert (await client.get(started)).state in (RunState.RUNNING, RunState.WAITING)
    await client.cancel(started)
    with pytest.raises(RunCancelled):
        await client.wait(started, timeout=20)


@step
async def ch_until_held(child: str) -> None:
    await wait_until(lambda: effect_counts[child, "holding"])


@workflow
async def ch_impatient(child: str) -> str:
    async def lose_patience(limit: asyncio.Timeout) -> None:
        await ch_until_held(child)  # a child that has not been started by then would never be
        limit.reschedule(asyncio.get_running_loop().time() + 0.1)

    try:
        async with asyncio.timeout(None) as limit:
            losing = asyncio.create_task(lose_patience(limit))
            await ch_holding.options(id=child)()
    except TimeoutError:
        await losing
        return "gave up"
    return "not reached"


async def test_a_time_out_around_a_child_cancels_it(world: World, client: Client) -> None:
    child = make_unique_id("child")
    assert await ch_impatient.options(id=make_unique_id("impatient"))(child) == "gave up"
    with pytest.raises(RunCancelled):
        await client.wait(child, timeout=20)


@workflow
async def ch_cancelling(child: str) -> str:
    handle = await ch_holding.options(id=child).start()
    await ch_until_held(child)
    await handle.cancel()
    try:
        await handle.result()
    except RunCancelled as cancelled:
        return f"{cancelled.run_id} {cancelled.state}"
    return "not reached"


async def test_a_handle_of_a_child_can_cancel_it(world: World) -> None:
    child = make_unique_id("child")
    assert await ch_cancelling.options(id=make_unique_id("cancelling"))(child) == f"{child} cancelled"


@workflow
async def ch_listener() -> Any:
    return await wait_for_signal("word")


@workflow
async def ch_speaking(child: str) -> Any:
    handle = await ch_listener.options(id=child).start()
    await handle.signal("word", {"said": (1, 2)})
    return await handle.result()


async def test_a_handle_of_a_child_can_signal_it(world: World) -> None:
    assert await ch_speaking.options(id=make_unique_id("speaking"))(make_unique_id("child")) == {"said": (1, 2)}


@workflow
async def ch_failing(child: str) -> None:
    await ch_part.options(id=child)(3)


async def test_a_failure_of_a_child_that_nobody_catches_fails_its_caller(world: World) -> None:
    child = make_unique_id("child")
    with fails_with(RunFailed, child):
        await ch_failing.options(id=make_unique_id("failing"))(child)


@workflow
async def ch_delayed(child: str) -> list[float]:
    handle = await ch_clock.options(id=child, delay=0.4).start()
    before = now().timestamp()
    return [before, await handle.result()]


@workflow
async def ch_clock() -> float:
    return await ch_time()


@step
async def ch_time() -> float:
    return now().timestamp()


async def test_a_child_begins_after_its_delay(world: World) -> None:
    before, then = await ch_delayed.options(id=make_unique_id("delayed"))(make_unique_id("child"))
    assert then - before >= 0.3


@workflow
async def ch_in_another_queue(child: str) -> int:
    return await ch_part.options(id=child, queue="ch-elsewhere")(2)


async def test_a_child_in_another_queue_is_served_as_well(world: World) -> None:
    assert await ch_in_another_queue.options(id=make_unique_id("elsewhere"))(make_unique_id("child")) == 20
