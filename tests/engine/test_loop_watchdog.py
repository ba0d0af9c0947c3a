"""An event loop that is blocked: it is named who blocks it, more and more rarely, until the worker gives up."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from engine_world import World

from holdfast import step, workflow
from holdfast.engine import heartbeat
from holdfast.engine.clock import SystemClock
from holdfast.engine.heartbeat import Heartbeat
from holdfast.engine.loop_watchdog import MAX_POLL_GAP_S, LoopWatchdog
from waits import wait_until

pytestmark = pytest.mark.asyncio


class Clock:
    """Time that moves when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def poll_for(watch: LoopWatchdog, clock: Clock, seconds: float, *, is_workflow: bool = False) -> None:
    """Look twice a second, while the loop runs nothing."""
    for _ in range(round(seconds * 2)):
        clock.now += 0.5
        watch.poll(is_workflow=is_workflow)


async def test_a_loop_that_answers_is_not_blocked(clock: Clock, caplog: pytest.LogCaptureFixture):
    watch = LoopWatchdog(max_blocked_s=2.0, now=clock)
    for _ in range(100):
        poll_for(watch, clock, 0.5)
        await asyncio.sleep(0)
    assert not watch.is_stuck
    assert caplog.records == []


async def test_warnings_become_rarer_and_the_loop_is_stuck_after_the_bound(
    clock: Clock, caplog: pytest.LogCaptureFixture
):
    watch = LoopWatchdog(max_blocked_s=60.0, now=clock)
    poll_for(watch, clock, 60.0)
    assert not watch.is_stuck
    poll_for(watch, clock, 1.0)
    assert watch.is_stuck
    told = [record.getMessage() for record in caplog.records]
    assert [line for line in told if "has blocked the event loop" in line] == [
        line for line in told if any(f"for {seconds} s, and nothing" in line for seconds in (1, 4, 16))
    ]
    assert len(told) == 4
    assert "no longer renews its lease" in told[-1]
    poll_for(watch, clock, 10.0)
    assert "for 64 s, and nothing" in caplog.records[-1].getMessage()


async def test_a_loop_that_does_not_run_is_not_blocked_but_stuck_all_the_same(
    clock: Clock, caplog: pytest.LogCaptureFixture
):
    async def make() -> LoopWatchdog:
        return LoopWatchdog(max_blocked_s=60.0, now=clock)

    def look_between_two_calls() -> None:
        loop = asyncio.new_event_loop()
        watch = loop.run_until_complete(make())
        poll_for(watch, clock, 50.0)
        loop.run_until_complete(asyncio.sleep(0))
        poll_for(watch, clock, 0.5)
        assert caplog.records == []
        poll_for(watch, clock, 61.0)
        assert watch.is_stuck
        loop.close()

    await asyncio.to_thread(look_between_two_calls)
    [told] = [record.getMessage() for record in caplog.records]
    assert told.startswith("the event loop has not run for 60 s: this worker no longer renews its lease")


async def test_a_loop_that_runs_again_is_not_stuck_any_more(clock: Clock, caplog: pytest.LogCaptureFixture):
    watch = LoopWatchdog(max_blocked_s=5.0, now=clock)
    poll_for(watch, clock, 10.0)
    assert watch.is_stuck
    await asyncio.sleep(0)
    watch.poll()
    assert not watch.is_stuck
    assert "runs again" in caplog.records[-1].getMessage()


async def test_a_process_that_stood_still_as_a_whole_was_not_blocked(clock: Clock):
    watch = LoopWatchdog(max_blocked_s=60.0, now=clock)
    watch.poll()
    clock.now += 3600.0
    watch.poll()
    assert not watch.is_stuck
    poll_for(watch, clock, 60.0 - MAX_POLL_GAP_S - 1.0)
    assert not watch.is_stuck


async def test_workflow_code_is_named_by_others_but_counts(clock: Clock, caplog: pytest.LogCaptureFixture):
    watch = LoopWatchdog(max_blocked_s=5.0, now=clock)
    poll_for(watch, clock, 6.0, is_workflow=True)
    assert watch.is_stuck
    assert len(caplog.records) == 1


async def test_a_stuck_worker_does_not_renew_its_lease_until_its_loop_runs_again(clock: Clock):
    renewed: list[float] = []
    stuck: list[float] = []

    def renew() -> bool:
        renewed.append(clock.now)
        return True

    beating = Heartbeat(
        lease_s=3.0,
        renew=renew,
        on_lost=lambda: None,
        interrupt=lambda turn, place: False,
        watchdog=LoopWatchdog(max_blocked_s=5.0, on_stuck=lambda: stuck.append(clock.now), now=clock),
        now=clock,
    )

    def beat_for(seconds: float) -> None:
        for _ in range(round(seconds * 2)):
            clock.now += 0.5
            beating.beat()

    began = clock.now
    beat_for(20.0)
    assert renewed
    assert renewed[-1] - began < 6.0
    assert len(stuck) == 1
    renewed.clear()
    await asyncio.sleep(0)
    beat_for(1.0)
    assert len(renewed) == 1


async def test_the_lease_is_renewed_although_looking_at_the_loop_fails(clock: Clock, caplog: pytest.LogCaptureFixture):
    """The stack of another thread is read while it changes. An error there must not end the heartbeat."""
    renewed: list[float] = []

    def renew() -> bool:
        renewed.append(clock.now)
        return True

    class Broken(LoopWatchdog):
        def poll(self, *, is_workflow: bool = False) -> None:
            raise RuntimeError("a defect")

    beating = Heartbeat(
        lease_s=3.0,
        renew=renew,
        on_lost=lambda: None,
        interrupt=lambda turn, place: False,
        watchdog=Broken(now=clock),
        now=clock,
    )
    for _ in range(4):
        clock.now += 0.5
        beating.beat()
    assert len(renewed) == 2
    assert "a defect" in caplog.text


@pytest.mark.parametrize("in_task", [False, True], ids=["in the step's own task", "in a task of the step"])
async def test_the_step_that_blocks_is_named_with_the_place(
    in_memory: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, in_task: bool
):
    if in_task and not hasattr(asyncio.Task, "get_context"):
        pytest.skip("Python 3.11 does not tell the context of a task")
    monkeypatch.setattr(heartbeat, "CHECK_INTERVAL_S", 0.02)
    monkeypatch.setattr("holdfast.engine.loop_watchdog.WARN_AFTER_S", 0.05)
    released = threading.Event()

    async def block() -> None:
        released.wait(10)

    @step
    async def stubborn() -> None:
        await (asyncio.create_task(block()) if in_task else block())

    @workflow(id="bad")
    async def flow() -> None:
        await stubborn()

    def seen() -> list[str]:
        return [one.getMessage() for one in caplog.records if "has blocked the event loop" in one.getMessage()]

    def release_when_told() -> None:
        for _ in range(500):
            if seen():
                break
            time.sleep(0.01)
        released.set()

    runtime = await in_memory.open(clock=SystemClock())
    releasing = asyncio.create_task(asyncio.to_thread(release_when_told))
    handle = await runtime.start(flow)
    await handle.result(timeout=20)
    await releasing
    [told, *_] = seen()
    assert told.startswith("step 'stubborn' of run 'bad' has blocked the event loop")
    assert "asyncio.to_thread" in told
    assert f"{__file__}:" in told
    assert "in block" in told
    await wait_until(lambda: "the event loop runs again" in caplog.text)
