"""Workflow code that blocks the process: it is named, then stopped, and the worker lives on."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from engine_world import World
from shared_flows import define_calling

from holdfast import RunFailed, step, workflow
from holdfast.engine import heartbeat
from holdfast.engine.clock import SystemClock
from holdfast.errors import WorkflowNeverYields

pytestmark = pytest.mark.asyncio

HERE = Path(__file__)


def line_of(marker: str) -> int:
    [number] = [n for n, line in enumerate(HERE.read_text().splitlines(), 1) if line.endswith(f"# {marker}")]
    return number


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "CHECK_INTERVAL_S", 0.02)
    monkeypatch.setattr(heartbeat, "WARN_AFTER_S", 0.05)


async def test_workflow_code_that_blocks_is_stopped_and_the_worker_continues(
    world: World, caplog: pytest.LogCaptureFixture
):
    @step
    async def fine(n: int) -> int:
        await asyncio.sleep(0.01)
        return n

    @workflow
    async def blocks() -> None:
        await fine(0)
        until = time.monotonic() + 30
        while time.monotonic() < until:
            pass  # blocks here

    @workflow
    async def other(n: int) -> int:
        return await fine(n) + await fine(1)

    runtime = await world.open(interrupt_after_s=0.2, clock=SystemClock())
    bad = await runtime.start(blocks)
    good = [await runtime.start(other, n) for n in range(5)]
    with pytest.raises(RunFailed) as failed:
        await bad.result(timeout=15)
    assert isinstance(failed.value.__cause__, WorkflowNeverYields)
    told = str(failed.value.__cause__)
    assert "blocked its process for 0.2 s" in told
    assert f"{HERE}:" in told
    assert "in blocks" in told
    assert "do this in a step" in told
    assert [await handle.result(timeout=15) for handle in good] == [1, 2, 3, 4, 5]
    warnings = [record.getMessage() for record in caplog.records if "has blocked this process" in record.getMessage()]
    assert len(warnings) == 1
    assert bad.run_id in warnings[0]


async def test_a_broad_except_does_not_save_workflow_code_that_blocks(in_memory: World):
    @workflow
    async def blocks() -> str:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            try:
                time.sleep(0.001)
            except Exception:
                pass
        return "never"

    runtime = await in_memory.open(interrupt_after_s=0.2, clock=SystemClock())
    with pytest.raises(RunFailed, match="blocked its process"):
        await (await runtime.start(blocks)).result(timeout=15)


async def test_workflow_code_that_catches_the_interruption_fails_all_the_same(in_memory: World):
    @workflow
    async def blocks() -> str:
        until = time.monotonic() + 30
        try:
            while time.monotonic() < until:
                pass
        except BaseException:
            return "caught it"
        return "never"

    runtime = await in_memory.open(interrupt_after_s=0.2, clock=SystemClock())
    with pytest.raises(RunFailed, match="blocked its process"):
        await (await runtime.start(blocks)).result(timeout=15)


async def test_code_that_blocks_in_a_finally_while_its_run_leaves_does_not_hang_the_worker(in_memory: World):
    """Leaving memory is no turn of the workflow: nothing interrupts it, but it ends."""

    @workflow
    async def flow() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            time.sleep(0.1)

    runtime = await in_memory.open(interrupt_after_s=0.2, clock=SystemClock())
    await runtime.start(flow)
    await asyncio.sleep(0.01)
    await runtime.close()


@pytest.mark.parametrize("length", [0.15, 0.19, 0.2, 0.21, 0.22, 0.23, 0.25])
async def test_an_interruption_that_comes_too_late_hits_no_other_run(in_memory: World, length: float):
    """Code that ends about when it would be interrupted: the run ends one way or the other, and the rest goes on."""

    @workflow
    async def nearly() -> str:
        until = time.monotonic() + length
        while time.monotonic() < until:
            pass
        return "just in time"

    @workflow
    async def other() -> str:
        await asyncio.sleep(0.001)
        return "fine"

    runtime = await in_memory.open(interrupt_after_s=0.2, clock=SystemClock())
    handle = await runtime.start(nearly)
    try:
        ended = await handle.result(timeout=15)
    except RunFailed as failed:
        ended = str(failed)
    assert "just in time" in ended or "blocked its process" in ended
    assert await (await runtime.start(other)).result(timeout=15) == "fine"


async def test_a_turn_that_ends_while_the_heartbeat_looks_at_it_is_not_interrupted(
    in_memory: World, monkeypatch: pytest.MonkeyPatch
):
    looks, left = threading.Event(), threading.Event()
    find = heartbeat.locate_user_code
    asked = 0

    def hold(frame: Any) -> str:
        nonlocal asked
        asked += 1
        if asked == 2:  # the first is for the warning
            looks.set()
            left.wait(15)
        return find(frame)

    monkeypatch.setattr(heartbeat, "locate_user_code", hold)

    @step
    async def after() -> str:
        left.set()  # engine code has had its turn meanwhile, and goes on
        return "done"

    @workflow
    async def slow() -> str:
        looks.wait(15)
        return await after()

    @workflow
    async def other(n: int) -> int:
        await asyncio.sleep(0.001)
        return n

    runtime = await in_memory.open(interrupt_after_s=0.2, clock=SystemClock())
    handle = await runtime.start(slow)
    assert await handle.result(timeout=15) == "done"
    others = [await runtime.start(other, n) for n in range(20)]
    assert [await one.result(timeout=15) for one in others] == list(range(20))
    assert asked == 2


async def test_a_step_may_take_its_time(in_memory: World):
    @step
    def slow() -> str:
        time.sleep(0.4)
        return "slow"

    flow = define_calling(slow)

    runtime = await in_memory.open(interrupt_after_s=0.2, clock=SystemClock())
    assert await (await runtime.start(flow)).result(timeout=15) == "slow"
