"""A run that has completed is freed at once, and not by the garbage collector.

Collections would take longer than the runs themselves, and until then their arguments and outputs would stay. (Only the
collector frees a run that failed, because its exception refers to its frames, and the task of a parked run.)
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from engine_world import World

from holdfast import Runtime, step, workflow
from holdfast.codec.typed_codec import TypedCodec
from holdfast.core.loop import MAX_CALLBACKS_PER_TURN
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
