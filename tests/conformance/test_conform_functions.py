"""Workflow functions: steps, and all of asyncio's structures between them."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from conformance_world import World, effect_counts, fails_with, make_unique_id, only_workflows

import holdfast
from holdfast import current_run, current_step, map, now, step, workflow

pytestmark = pytest.mark.asyncio(loop_scope="module")


@step
async def fn_add(a: int, b: int) -> int:
    return a + b


@step
def fn_plain(text: str) -> tuple[str, bool]:
    return text.upper(), threading.current_thread() is threading.main_thread()


@step
async def fn_slow(seconds: float, value: str) -> str:
    run = current_run().id
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        effect_counts[run, f"cancelled {value}"] += 1
        raise
    effect_counts[run, f"done {value}"] += 1
    return value


@step
async def fn_broken(text: str) -> str:
    raise LookupError(text)


@workflow
async def fn_sequence(start: int) -> list[Any]:
    total = start
    for number in range(3):
        total = await fn_add(total, number)
    return [total, await fn_plain("text"), current_run().workflow]


async def test_steps_async_and_plain_one_after_the_other(world: World) -> None:
    result = await fn_sequence.options(id=make_unique_id("sequence"))(10)
    assert result == [13, ("TEXT", False), "fn_sequence"]


@workflow
async def fn_gathering() -> list[Any]:
    ordered = await asyncio.gather(*(fn_slow(0.03 * (3 - n), str(n)) for n in range(3)))
    mixed = await asyncio.gather(fn_add(1, 1), fn_broken("gone"), return_exceptions=True)
    return [ordered, mixed[0], repr(mixed[1])]


async def test_gather_keeps_the_order_and_hands_out_exceptions(world: World) -> None:
    assert await fn_gathering.options(new=True)() == [["0", "1", "2"], 2, "LookupError('gone')"]


@workflow
async def fn_grouping() -> list[str]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(fn_slow(0.01, name)) for name in "ab"]
    told = [task.result() for task in tasks]
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fn_slow(60, "long"))
            await fn_slow(0.05, "short")
            group.create_task(fn_broken("in a group"))
    except* LookupError as failures:
        told.append(repr(failures.exceptions[0]))
    return told


async def test_a_task_group_cancels_the_others_when_one_fails(world: World) -> None:
    run = make_unique_id("grouping")
    assert await fn_grouping.options(id=run)() == ["a", "b", "LookupError('in a group')"]
    assert effect_counts[run, "cancelled long"] == 1
    assert effect_counts[run, "done long"] == 0


@workflow
async def fn_waiting() -> list[Any]:
    quick, slow = (asyncio.create_task(fn_slow(seconds, value)) for seconds, value in ((0.01, "quick"), (60, "slow")))
    done, pending = await asyncio.wait([quick, slow], return_when=asyncio.FIRST_COMPLETED)
    slow.cancel()
    try:
        await slow
    except asyncio.CancelledError:
        pass
    in_turn = [await one for one in asyncio.as_completed([fn_slow(0.2, "second"), fn_slow(0.01, "first")])]
    return [[task.result() for task in done], len(pending), slow.cancelled(), in_turn]


async def test_wait_as_completed_and_a_task_that_is_cancelled(world: World) -> None:
    run = make_unique_id("waiting")
    assert await fn_waiting.options(id=run)() == [["quick"], 1, True, ["first", "second"]]
    assert effect_counts[run, "cancelled slow"] == 1


@workflow
async def fn_in_time() -> list[str]:
    told: list[str] = []
    try:
        async with asyncio.timeout(0.05):
            await fn_slow(60, "step")
    except TimeoutError:
        told.append("step")
    try:
        await asyncio.wait_for(asyncio.sleep(60), 0.05)
    except TimeoutError:
        told.append("sleep")
    async with asyncio.timeout(60):
        told.append(await fn_slow(0.0, "in time"))
    return told


async def test_a_time_out_around_a_step_and_around_a_timer(world: World) -> None:
    run = make_unique_id("in-time")
    assert await fn_in_time.options(id=run)() == ["step", "sleep", "in time"]
    assert effect_counts[run, "done step"] == 0


@workflow
async def fn_sleeping(seconds: float) -> float:
    before = now()
    await asyncio.sleep(seconds)
    return (now() - before).total_seconds()


async def test_sleep_is_a_durable_timer_and_now_shows_that_it_has_ended(world: World) -> None:
    began = time.monotonic()
    told = await fn_sleeping.options(new=True)(0.15)
    assert 0.15 <= told < 10
    assert time.monotonic() - began >= 0.14


@workflow
async def fn_meeting() -> list[Any]:
    there, queue, lock = asyncio.Event(), asyncio.Queue[int](maxsize=1), asyncio.Lock()
    few = asyncio.Semaphore(2)
    log: list[Any] = []

    async def producer() -> None:
        for number in range(3):
            await queue.put(await fn_add(number, 100))
        there.set()

    async def consumer() -> None:
        while len(log) < 3:
            async with few:
                log.append(await queue.get())

    async def careful(name: str) -> None:
        async with lock:
            await fn_slow(0.01, name)
            log.append(name)

    work = [asyncio.create_task(one) for one in (producer(), consumer())]
    await there.wait()
    await asyncio.gather(*work)
    await asyncio.gather(careful("a"), careful("b"))
    return log


async def test_events_queues_locks_and_semaphores_between_tasks(world: World) -> None:
    assert await fn_meeting.options(new=True)() == [100, 101, 102, "a", "b"]


at_work = 0
most_at_work = 0


@step
async def fn_item(item: int) -> int:
    global at_work, most_at_work
    at_work += 1
    most_at_work = max(most_at_work, at_work)
    await asyncio.sleep(0.01)
    at_work -= 1
    if item == 99:
        raise ValueError("item 99")
    return item * item


@workflow
async def fn_mapping(count: int) -> list[int]:
    return await map(fn_item, range(count), max_concurrency=3)


@workflow
async def fn_mapping_badly() -> list[int]:
    return await map(fn_item, [1, 99, 2], max_concurrency=1)


async def test_map_keeps_the_order_and_its_bound(world: World) -> None:
    global most_at_work
    most_at_work = 0
    assert await fn_mapping.options(new=True)(12) == [n * n for n in range(12)]
    assert 1 < most_at_work <= 3
    with fails_with(ValueError, "item 99"):
        await fn_mapping_badly.options(new=True)()


@step
async def fn_note(value: str) -> str:
    return value


@workflow
async def fn_drawing() -> list[str]:
    first = [str(holdfast.uuid4()), str(holdfast.random()), now().isoformat()]
    noted = await fn_note(" ".join(first))
    second = [str(holdfast.uuid4()), str(holdfast.random())]
    return [noted, " ".join(first), *second, current_run().id]


async def test_chance_and_time_are_the_runs_own(world: World) -> None:
    run = make_unique_id("drawing")
    [one, other] = [await fn_drawing.options(id=name)() for name in (run, make_unique_id("drawing"))]
    assert one[0] == one[1]
    assert one[-1] == run
    assert len({*one[0].split()[:2], *one[2:4], *other[0].split()[:2], *other[2:4]}) == 8


@step
async def fn_key() -> list[Any]:
    me = current_step()
    return [me.name, me.run_id, me.attempt, me.idempotency_key, me.workflow]


@workflow
async def fn_who() -> list[Any]:
    return [await fn_key(), await fn_key()]


async def test_a_step_knows_itself_and_has_a_key_of_its_own(world: World) -> None:
    run = make_unique_id("who")
    one, other = await fn_who.options(id=run)()
    assert one[:3] == ["fn_key", run, 1]
    assert one[4] == "fn_who"
    assert one[3] != other[3]


@workflow
async def fn_forbidden() -> str:
    try:
        await asyncio.to_thread(time.sleep, 0)
    except BaseException:
        return "caught"
    return "done"


async def test_what_only_a_step_may_do_fails_the_run_even_if_it_is_caught(world: World) -> None:
    with fails_with(holdfast.ForbiddenInWorkflow):
        await fn_forbidden.options(new=True)()


@workflow
async def fn_endless_wait() -> None:
    await asyncio.Event().wait()


async def test_code_that_nothing_can_wake_is_an_error(world: World) -> None:
    with pytest.raises(holdfast.RunFailed, match="fn_endless_wait"):
        await fn_endless_wait.options(new=True)()


class FnError(Exception):
    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@workflow
async def fn_failing() -> None:
    raise FnError("no such thing", 7)


async def test_a_failure_of_the_workflow_has_its_class_and_what_it_holds(world: World) -> None:
    with pytest.raises(holdfast.RunFailed, match="no such thing") as failed:
        await fn_failing.options(new=True)()
    cause = failed.value.__cause__
    assert isinstance(cause, FnError)
    assert (cause.code, failed.value.state) == (7, "failed")


async def test_a_result_for_code_without_an_event_loop(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", world.url)
    with only_workflows(fn_gathering):
        assert (await asyncio.to_thread(fn_gathering.options(new=True).run_sync))[1] == 2
