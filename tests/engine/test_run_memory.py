"""A run that has completed or is parked is freed at once, and not by the garbage collector.

Collections would take longer than the runs themselves, and until then their arguments and outputs would stay. The same
goes for a run that is parked while its code waits for a command. (Only the collector frees a run that
failed, because its exception refers to its frames, and one that is parked in ``gather``.)
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest
from engine_world import HeldCommits, VirtualClock, World, wait_until_parked

import holdfast
from holdfast import Runtime, current_step, program, step, workflow
from holdfast.codec.typed_codec import TypedCodec
from holdfast.core.loop import MAX_CALLBACKS_PER_TURN
from holdfast.engine.program_context import find_program
from holdfast.engine.step_context import StepContext
from holdfast.integrations import (
    AnswerCodec,
    ModelAnswer,
    ModelInput,
    record_model_stream,
    record_model_stream_sync,
    record_tool_call,
    record_tool_call_sync,
)
from holdfast.stores.operations import AppendRecord
from waits import wait_until

pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def watch_driver(runtime: Runtime, run_id: str) -> list[weakref.ref[Any]]:
    driver = runtime._engine.held_runs.drivers_by_run_id[run_id]
    return [weakref.ref(driver), weakref.ref(driver.execution), weakref.ref(driver.execution.loop)]


class Event:
    """What a model streams."""


class EventCodec(AnswerCodec[list[Event]]):
    def dump(self, answer: list[Event]) -> Any:
        return len(answer)

    def load(self, data: Any) -> list[Event]:
        return [Event() for _ in range(data)]

    def describe(self, answer: list[Event]) -> ModelAnswer:
        return ModelAnswer()


@step
async def echo(value: str) -> str:
    await asyncio.sleep(0)
    return value


async def test_a_run_that_has_completed_is_freed(world: World):
    @workflow
    async def completes() -> str:
        await asyncio.gather(*[echo(str(number)) for number in range(5)])
        return await echo("last")

    runtime = await world.open()
    handle = await runtime.start(completes)
    watched = watch_driver(runtime, handle.run_id)
    assert await handle.result() == "last"
    await wait_until(lambda: not any(one() for one in watched))


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_program_that_has_completed_is_freed(world: World, is_async: bool):
    watched: list[weakref.ref[Any]] = []

    def watch() -> None:
        found = find_program()
        assert found is not None
        execution = found.run.execution
        watched.extend([weakref.ref(found.run), weakref.ref(execution), weakref.ref(execution.loop)])

    @program(name="async")
    async def makes_calls() -> str:
        watch()
        return await record_tool_call("echo", {}, partial(echo, "value"))

    @program(name="plain")
    def makes_plain_calls() -> str:
        watch()
        return record_tool_call_sync("echo", {}, lambda: "value")

    runtime = await world.open()
    handle = await runtime.start(makes_calls if is_async else makes_plain_calls)
    assert await handle.result() == "value"
    await wait_until(lambda: not any(one() for one in watched))


async def test_a_task_of_a_program_is_freed_when_it_has_ended(world: World):
    """With everything in its context, which for a task of a framework may be a whole conversation."""
    is_freed: list[bool] = []

    async def make_call() -> weakref.ref[Any]:
        await record_tool_call("echo", {}, partial(echo, "value"))
        return weakref.ref(asyncio.current_task())

    @program
    async def makes_call_in_task() -> None:
        task = await asyncio.create_task(make_call())
        await asyncio.sleep(0)
        is_freed.append(task() is None)

    runtime = await world.open()
    await (await runtime.start(makes_call_in_task)).result()
    assert is_freed == [True]


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_answer_of_a_model_is_freed_with_its_stream(world: World, is_async: bool):
    events: list[weakref.ref[Any]] = []
    is_freed: list[bool] = []

    def make_event() -> Event:
        event = Event()
        events.append(weakref.ref(event))
        return event

    async def stream() -> AsyncIterator[Event]:
        yield make_event()

    @program(name="async stream")
    async def streams() -> None:
        async for _ in record_model_stream(ModelInput("model", []), EventCodec(), stream):
            pass
        del _
        is_freed.append(events[0]() is None)

    @program(name="plain stream")
    def streams_plainly() -> None:
        for _ in record_model_stream_sync(ModelInput("model", []), EventCodec(), lambda: iter([make_event()])):
            pass
        del _
        is_freed.append(events[0]() is None)

    runtime = await world.open()
    await (await runtime.start(streams if is_async else streams_plainly)).result()
    assert is_freed == [True]


async def test_a_parked_run_is_freed(world: World, clock: VirtualClock):
    @workflow
    async def waits() -> str:
        await echo("first")
        return await holdfast.wait_for_signal("go")

    runtime = await world.open()
    handle = await runtime.start(waits)
    watched = watch_driver(runtime, handle.run_id)
    await wait_until_parked(runtime, clock, handle)
    await wait_until(lambda: not any(one() for one in watched))


async def test_a_step_is_freed_while_its_record_is_on_its_way_to_the_store(world: World):
    contexts: list[weakref.ref[StepContext]] = []

    @step
    async def note_context() -> str:
        contexts.append(weakref.ref(current_step()))
        return "done"

    @workflow
    async def notes_context() -> str:
        return await note_context()

    store = HeldCommits(await world.open_store(), AppendRecord)
    runtime = await world.open(store=store)
    handle = await runtime.start(notes_context)
    await asyncio.wait_for(store.reached.wait(), 10)
    await wait_until(lambda: contexts[0]() is None)
    store.release.set()
    assert await handle.result() == "done"


async def test_an_outcome_that_waits_for_its_turn_is_decoded_once(world: World, monkeypatch: pytest.MonkeyPatch):
    """Two outcomes of one commit: the second is in the inbox while the workflow continues after the first."""

    @step
    async def number(value: int) -> list[int]:
        return [value]

    async def be_busy_after(value: int) -> list[int]:
        result = await number(value)
        for _ in range(2 * MAX_CALLBACKS_PER_TURN):
            await asyncio.sleep(0)
        return result

    @workflow
    async def two_at_once() -> list[list[int]]:
        return await asyncio.gather(be_busy_after(1), number(2))

    decoded: list[bytes] = []
    real = TypedCodec.decode

    def decode(self: TypedCodec, data: bytes, subject: str) -> Any:
        if "step 'number'" in subject:
            decoded.append(data)
        return real(self, data, subject)

    monkeypatch.setattr(TypedCodec, "decode", decode)
    runtime = await world.open()
    assert await (await runtime.start(two_at_once)).result() == [[1], [2]]
    assert not decoded, "both values were decoded when they were encoded"
