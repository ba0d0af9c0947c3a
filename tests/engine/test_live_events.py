"""What is told of steps in flight: when it is written, when not, and that nothing waits for it."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from engine_world import FlakyStore, World, make_unavailable_error, wait_until_parked, wait_until_quiet
from shared_flows import define_calling, define_waiting

from holdfast import Runtime, current_step, step, wait_for_signal, workflow
from holdfast.engine.live_events import FLUSH_INTERVAL_S
from holdfast.engine.step_context import get_step_executor
from holdfast.reports.report_reader import read_report
from holdfast.reports.types import SkippedStep
from holdfast.stores.live_events import STARTED, TEXT
from holdfast.stores.operations import AppendLiveEvents, AppendRecord, LiveEvent
from waits import wait_until

pytestmark = pytest.mark.asyncio


class Stage:
    """A step that says what the test lets it say, and ends when it is told to."""

    def __init__(self) -> None:
        self.me: Any = None
        self.end = asyncio.Event()
        self.failures = 0

    async def play(self) -> str:
        self.me = current_step()
        if self.failures:
            self.failures -= 1
            raise ConnectionError("not now")
        await self.end.wait()
        return "played"

    async def begins(self) -> Any:
        return await wait_until(lambda: self.me)


async def read_live_events(runtime: Runtime, run_id: str) -> list[LiveEvent]:
    feed = await runtime._engine.store.get_run_updates(run_id, -1, 0)
    assert feed is not None
    return [event for _, event in feed.live_events]


def list_texts(live_events: list[LiveEvent]) -> list[tuple[str, int, Any]]:
    return [(one.stream, one.number, json.loads(one.data)) for one in live_events if one.kind == TEXT]


def ops(store: FlakyStore, kind: type) -> list[Any]:
    return [op for commit in store.commits for op in commit if isinstance(op, kind)]


async def open_with(world: World) -> tuple[Runtime, FlakyStore]:
    store = FlakyStore(world.store())
    return await world.open(store=store), store


async def pass_time(world: World, runtime: Runtime) -> None:
    """Let the next notices be written."""
    world.clock.advance(FLUSH_INTERVAL_S)
    await wait_for_writer(runtime)


async def wait_for_writer(runtime: Runtime) -> None:
    await asyncio.sleep(0)
    await wait_until(lambda: not runtime._engine.writer.is_busy)


async def test_a_step_that_is_recorded_first_costs_nothing(world: World):
    stage = Stage()

    @step
    async def quick() -> str:
        current_step().publish_text("a word")
        return await stage.play()

    telling_quick = define_calling(quick, "telling_quick")

    runtime, store = await open_with(world)
    handle = await runtime.start(telling_quick)
    await stage.begins()
    stage.end.set()
    assert await handle.result() == "played"
    world.clock.advance(10 * FLUSH_INTERVAL_S)
    await wait_until_quiet(runtime)
    assert ops(store, AppendLiveEvents) == []
    [append] = ops(store, AppendRecord)
    assert not append.clear_live_events
    assert len(store.commits) == 3, "its start, its record and its end"


async def test_pieces_are_put_together_and_the_record_deletes_them(world: World):
    stage = Stage()

    @step
    async def talk(about: str) -> str:
        return await stage.play()

    @workflow
    async def telling_talk() -> str:
        return await talk("rain")

    runtime, store = await open_with(world)
    handle = await runtime.start(telling_talk)
    me = await stage.begins()
    for piece in ("It ", "may ", "rain"):
        me.publish_text(piece)
    await pass_time(world, runtime)
    begun, text = await read_live_events(runtime, handle.run_id)
    assert (begun.position, begun.stream, begun.kind) == (0, "1.1.0", STARTED)
    assert json.loads(begun.data) == {"name": "talk", "kind": "step", "arguments": "about='rain'", "attempt": 1}
    assert (text.stream, text.number, json.loads(text.data)) == ("1.1.0", 0, "It may rain")
    me.publish_text(" soon")
    await pass_time(world, runtime)
    assert list_texts(await read_live_events(runtime, handle.run_id))[1:] == [("1.1.0", 11, " soon")]
    assert len(ops(store, AppendLiveEvents)) == 2
    await pass_time(world, runtime)
    assert len(ops(store, AppendLiveEvents)) == 2, "nothing new, nothing told"
    stage.end.set()
    await handle.result()
    assert await read_live_events(runtime, handle.run_id) == []
    [append] = ops(store, AppendRecord)
    assert append.clear_live_events


async def test_a_step_has_a_live_event_after_it_has_been_in_flight_for_a_while(world: World):
    first, second = Stage(), Stage()

    @step
    async def early() -> str:
        return await first.play()

    @step
    async def late() -> str:
        return await second.play()

    @workflow
    async def telling_in_turn() -> list[str]:
        begun = asyncio.create_task(early())
        await wait_for_signal("go")
        return [await late(), await begun]

    runtime, _ = await open_with(world)
    handle = await runtime.start(telling_in_turn)
    await first.begins()
    world.clock.advance(0.9 * FLUSH_INTERVAL_S)
    await handle.signal("go")
    await second.begins()

    async def told() -> list[str]:
        return [json.loads(one.data)["name"] for one in await read_live_events(runtime, handle.run_id)]

    world.clock.advance(0.1 * FLUSH_INTERVAL_S)
    await wait_for_writer(runtime)
    assert await told() == ["early"]
    await pass_time(world, runtime)
    assert await told() == ["early", "late"]
    first.end.set()
    second.end.set()
    await handle.result()


async def test_nothing_waits_for_live_events(world: World):
    """A commit of notices that hangs keeps neither the step nor the next one."""
    stage = Stage()

    @step
    async def talk() -> str:
        return await stage.play()

    telling_on = define_calling(talk, "telling_on")

    runtime, store = await open_with(world)
    handle = await runtime.start(telling_on)
    me = await stage.begins()
    held = asyncio.Event()

    async def hold(ops: Any) -> None:
        if any(isinstance(op, AppendLiveEvents) for op in ops):
            await held.wait()

    store.before_commit = hold
    me.publish_text("one")
    world.clock.advance(FLUSH_INTERVAL_S)
    await wait_until(lambda: runtime._engine.writer.is_busy)
    for number in range(1000):
        me.publish_text(f" {number}")
        world.clock.advance(FLUSH_INTERVAL_S)
        await asyncio.sleep(0)
    held.set()
    await wait_for_writer(runtime)
    await pass_time(world, runtime)
    told = list_texts(await read_live_events(runtime, handle.run_id))
    assert len(told) == 2, "as long as the store stands still, the pieces gather"
    assert "".join(text for _, _, text in told) == "one" + "".join(f" {number}" for number in range(1000))
    stage.end.set()
    await handle.result()


async def test_a_store_that_fails_loses_no_text(world: World):
    stage = Stage()

    @step
    async def talk() -> str:
        return await stage.play()

    telling_again = define_calling(talk, "telling_again")

    runtime, store = await open_with(world)
    handle = await runtime.start(telling_again)
    me = await stage.begins()
    failures = iter([True, True, False])
    store.fail_before = lambda ops: make_unavailable_error() if next(failures, False) else None
    me.publish_text("one")
    world.clock.advance(FLUSH_INTERVAL_S)
    await wait_for_writer(runtime)
    me.publish_text(" two")
    await pass_time(world, runtime)
    assert list_texts(await read_live_events(runtime, handle.run_id)) == [("1.1.0", 0, "one"), ("1.1.0", 3, " two")]
    stage.end.set()
    await handle.result()


async def test_another_attempt_and_another_request_are_parts_of_their_own(world: World):
    stage = Stage()
    stage.failures = 1
    began: list[Any] = []
    executors: list[Any] = []

    @step(retries=1, backoff=60)
    async def talk() -> str:
        me = current_step()
        began.append(me)
        executors.append(get_step_executor())
        me.publish_text(f"attempt {me.attempt}")
        return await stage.play()

    telling_twice = define_calling(talk, "telling_twice")

    runtime, _ = await open_with(world)
    handle = await runtime.start(telling_twice)
    await wait_until(lambda: len(began) == 2)
    await pass_time(world, runtime)
    told = await read_live_events(runtime, handle.run_id)
    assert list_texts(told) == [("1.2.0", 0, "attempt 2")], "what a failed attempt had not told yet is void"
    assert [json.loads(one.data)["attempt"] for one in told if one.kind == STARTED] == [2]
    began[0].publish_text("too late")  # of an attempt that is over
    hear = executors[1].get_text_appender(began[1], 1)
    hear("the other model")
    await pass_time(world, runtime)
    assert list_texts(await read_live_events(runtime, handle.run_id))[1:] == [("1.2.1", 0, "the other model")]
    stage.end.set()
    await handle.result()


async def test_the_next_worker_writes_its_own_part_and_deletes_earlier_live_events(world: World):
    stage = Stage()

    @step
    async def talk() -> str:
        return await stage.play()

    telling_over = define_calling(talk, "telling_over")

    first = await world.open()
    handle = await first.start(telling_over)
    (await stage.begins()).publish_text("from the first")
    await pass_time(world, first)
    stage.me = None
    await world.crash(first)
    second, store = await open_with(world)
    await stage.begins()
    assert list_texts(await read_live_events(second, handle.run_id)) == [("1.1.0", 0, "from the first")]
    stage.end.set()
    await second.store_provider.wait_for_end(handle.run_id)
    [append] = ops(store, AppendRecord)
    assert append.clear_live_events, "although the second has told nothing itself"


async def test_a_worker_that_has_lost_the_run_learns_it_from_its_notices(world: World):
    stage = Stage()

    @step
    async def talk() -> str:
        return await stage.play()

    telling_lost = define_calling(talk, "telling_lost")

    first = await world.open()
    handle = await first.start(telling_lost)
    me = await stage.begins()
    driver = first._engine.held_runs.drivers_by_run_id[handle.run_id]
    await world.kill(first)
    second = await world.open()
    await wait_until(lambda: handle.run_id in second._engine.held_runs.drivers_by_run_id)
    me.publish_text("from a zombie")
    world.clock.advance(FLUSH_INTERVAL_S)
    await wait_until(lambda: driver.is_closed)
    await pass_time(world, second)
    assert list_texts(await read_live_events(second, handle.run_id)) == []
    stage.end.set()
    await second.store_provider.wait_for_end(handle.run_id)


async def test_a_step_may_tell_from_a_thread(world: World):
    begun, end = threading.Event(), threading.Event()

    @step
    def talk() -> str:
        current_step().publish_text("from ")
        current_step().publish_text("a thread")
        begun.set()
        end.wait(20)
        return "played"

    telling_plain = define_calling(talk, "telling_plain")

    runtime, _ = await open_with(world)
    handle = await runtime.start(telling_plain)
    await wait_until(begun.is_set)
    await asyncio.sleep(0)
    await pass_time(world, runtime)
    assert list_texts(await read_live_events(runtime, handle.run_id)) == [("1.1.0", 0, "from a thread")]
    end.set()
    await handle.result()


async def test_a_run_that_waits_for_another_writes_that_once_before_it_leaves_memory(world: World):
    told_child = define_waiting("told_child")

    @workflow
    async def telling_parent() -> str:
        return await told_child.options(id="the-told-child")()

    runtime, store = await open_with(world)
    handle = await runtime.start(telling_parent)
    await wait_until_parked(runtime, world.clock, handle)
    [begun] = await read_live_events(runtime, handle.run_id)
    assert (begun.stream, begun.kind) == ("child", STARTED)
    assert json.loads(begun.data) == {"name": "told_child", "kind": "child", "run_id": "the-told-child"}
    await (await runtime.start(told_child.options(id="the-told-child"))).signal("go", "gone")
    assert await handle.result() == "gone"
    assert await read_live_events(runtime, handle.run_id) == []
    assert sum(one.stream == "child" for op in ops(store, AppendLiveEvents) for one in op.events) == 1


async def test_the_timer_does_not_run_when_there_is_nothing_to_tell(in_memory: World):
    @step
    async def quick() -> None: ...

    @workflow
    async def telling_nothing() -> None:
        await quick()
        await wait_for_signal("never")

    runtime = await in_memory.open()
    handle = await runtime.start(telling_nothing)
    driver = await wait_until(lambda: runtime._engine.held_runs.drivers_by_run_id.get(handle.run_id))
    await wait_until(lambda: driver in runtime._engine._idle_runs)
    assert runtime._engine.live_events._flush_timer is None


async def test_an_ended_run_keeps_which_steps_it_skipped_in_every_store(world: World):
    @workflow(id="skipping-{amount}")
    class Skipping:
        @step(1)
        async def check(self, amount: int) -> int:
            return amount

        @step(2, depends_on=1, when=lambda check: check > 100)
        async def review(self, check: int) -> str:
            return "reviewed"

        @step(3, depends_on=1)
        async def ship(self, check: int) -> str:
            return "shipped"

    runtime = await world.open()
    store = runtime._engine.store
    for amount, skipped in ((5, (SkippedStep(2, "review", 2),)), (500, ())):
        await (await runtime.start(Skipping, amount=amount)).result()
        assert (await read_report(store, f"skipping-{amount}")).skipped_steps == skipped
        assert (await read_report(store, f"skipping-{amount}", after=0, limit=1)).skipped_steps == skipped
