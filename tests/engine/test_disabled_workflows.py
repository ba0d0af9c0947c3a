"""The switch: a workflow that is switched off stands still everywhere, and goes on with its record kept."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from engine_world import (
    HeldCommits,
    VirtualClock,
    World,
    describe_journal,
    get_state,
    read_journal,
    read_run,
    wait_for_state,
    wait_until_ended,
    wait_until_parked,
    wait_until_quiet,
)
from shared_flows import define_calling, define_cleaning_up, define_waiting

from holdfast import (
    Client,
    RunCancelled,
    RunFailed,
    WorkflowDisabled,
    current_step,
    step,
    workflow,
)
from holdfast.services.forks import fork_run
from holdfast.services.run_control import retry_run
from holdfast.stores.operations import ReleaseRun, SaveAttempt
from waits import wait_until

pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


class Bench:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.go = asyncio.Event()
        """Lets what is slow end."""
        bench = self

        @step
        async def work(name: str) -> str:
            bench.log.append(name)
            if name == "slow":
                try:
                    await bench.go.wait()
                except asyncio.CancelledError:
                    bench.log.append("interrupted")
                    raise
            return name.upper()

        self.work = work


async def test_a_running_run_stops_at_the_next_record_and_continues_when_enabled(world: World):
    bench = Bench()

    @workflow
    async def flow() -> list[str]:
        return [await bench.work("a"), await bench.work("slow"), await bench.work("b")]

    runtime = await world.open()
    switch = await world.open_store()
    handle = await runtime.start(flow)
    await wait_until(lambda: "slow" in bench.log)
    assert await switch.disabled_workflows.disable("flow")
    assert not await switch.disabled_workflows.disable("flow")
    await wait_until(lambda: all(driver.is_disabled for driver in runtime._engine.held_runs.list_drivers()))
    assert await get_state(runtime, handle) == "running"  # what is in flight is paid for, and ends
    bench.go.set()
    await wait_for_state(runtime, handle, "pending")
    await asyncio.sleep(0.05)
    assert not runtime._engine.held_runs.drivers
    assert await describe_journal(runtime, handle) == ["step work", "step work"]
    assert await switch.disabled_workflows.enable("flow")
    assert not await switch.disabled_workflows.enable("flow")
    assert await handle.result() == ["A", "SLOW", "B"]
    assert bench.log == ["a", "slow", "b"]
    assert (await read_run(runtime, handle)).delivery_count == 0


async def test_switched_on_again_before_the_step_in_flight_has_ended(world: World):
    bench = Bench()

    @workflow
    async def flow() -> list[str]:
        return [await bench.work("slow"), await bench.work("b")]

    runtime = await world.open()
    switch = await world.open_store()
    handle = await runtime.start(flow)
    await wait_until(lambda: "slow" in bench.log)
    [driver] = runtime._engine.held_runs.list_drivers()
    await switch.disabled_workflows.disable("flow")
    await wait_until(lambda: driver.is_disabled)
    await switch.disabled_workflows.enable("flow")
    await wait_until(lambda: not driver.is_disabled)
    bench.go.set()
    assert await handle.result() == ["SLOW", "B"]
    assert bench.log == ["slow", "b"]
    assert (await read_run(runtime, handle)).epoch == 1  # it was never given back


async def test_a_cancel_interrupts_what_a_run_that_is_to_stand_still_is_doing(world: World):
    bench = Bench()

    @workflow
    async def flow() -> None:
        try:
            await bench.work("slow")
        finally:
            await bench.work("after")

    runtime = await world.open()
    switch = await world.open_store()
    handle = await runtime.start(flow)
    await wait_until(lambda: "slow" in bench.log)
    await switch.disabled_workflows.disable("flow")
    await wait_until(lambda: all(driver.is_disabled for driver in runtime._engine.held_runs.list_drivers()))
    assert await handle.cancel()
    await wait_for_state(runtime, handle, "pending")
    await wait_until(lambda: bench.log == ["slow", "interrupted"])
    assert await describe_journal(runtime, handle) == ["cancel cancel"]
    await switch.disabled_workflows.enable("flow")
    with pytest.raises(RunCancelled):
        await handle.result()
    assert bench.log == ["slow", "interrupted", "after"]


@pytest.mark.parametrize("moment", ["at work", "between attempts"])
async def test_no_further_attempt_is_made_and_none_is_forgotten(world: World, clock: VirtualClock, moment: str):
    bench = Bench()
    attempts: list[int] = []

    pause = clock.sleep
    waiting = asyncio.Event()

    async def for_ever(seconds: float) -> None:
        if seconds >= 3:
            waiting.set()
            await asyncio.sleep(60)
        await pause(seconds)

    clock.sleep = for_ever  # type: ignore[method-assign]

    @step(retries=5, backoff=3, max_backoff=3)
    async def failing() -> str:
        attempts.append(current_step().attempt)
        if len(attempts) == 1 and moment == "at work":
            await bench.go.wait()
        if len(attempts) < 3:
            raise OSError("not now")
        return "at last"

    flow = define_calling(failing)

    runtime = await world.open()
    switch = await world.open_store()
    handle = await runtime.start(flow)
    await wait_until(lambda: attempts)
    if moment == "between attempts":
        await waiting.wait()
    await switch.disabled_workflows.disable("flow")
    await wait_until(lambda: all(driver.is_disabled for driver in runtime._engine.held_runs.list_drivers()))
    bench.go.set()
    await wait_for_state(runtime, handle, "pending")
    await asyncio.sleep(0.05)
    assert attempts == [1]
    clock.sleep = pause  # type: ignore[method-assign]
    await switch.disabled_workflows.enable("flow")
    assert await handle.result() == "at last"
    assert attempts == [1, 2, 3]


async def test_no_run_is_started(world: World):
    bench = Bench()

    @workflow(id="run-{n}")
    async def flow(n: int) -> str:
        return await bench.work("a")

    runtime = await world.open()
    assert await (await runtime.start(flow, 1)).result() == "A"
    switch = await world.open_store()
    await switch.disabled_workflows.disable("flow")
    with pytest.raises(WorkflowDisabled, match=r"'flow' is disabled: run 'run-2' was not started"):
        await runtime.start(flow, 2)
    assert await runtime._engine.store.get_run("run-2") is None
    assert await (await runtime.start(flow, 1)).result() == "A"  # what is there is found
    with pytest.raises(WorkflowDisabled, match="was not forked"):
        await fork_run(switch, "run-1", at=1)
    await switch.disabled_workflows.enable("flow")
    assert await (await runtime.start(flow, 2)).result() == "A"


async def test_a_client_switches_and_is_refused_as_well(world: World):
    if world.kind == "memory":
        pytest.skip("a client in another process cannot see it")

    flow = define_waiting()

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs)
    async with Client(world.url) as client:
        assert [await client.disable("flow"), await client.disable("flow")] == [True, False]
        await wait_for_state(runtime, handle, "pending")
        with pytest.raises(WorkflowDisabled):
            await client.start("flow")
        assert await client.signal(handle.run_id, "go", 1)
        assert [await client.enable("flow"), await client.enable("flow")] == [True, False]
        assert await client.wait(handle.run_id, timeout=10) == 1


async def test_a_parked_run_is_not_woken_by_time_or_signals(world: World, clock: VirtualClock):
    by_signal = define_waiting("by_signal")

    @workflow
    async def by_time() -> str:
        await asyncio.sleep(100)
        return "slept"

    runtime = await world.open()
    switch = await world.open_store()
    one, two = await runtime.start(by_signal), await runtime.start(by_time)
    await wait_until_parked(runtime, clock, one)
    await wait_until_unloaded(runtime, two)
    for name in ("by_signal", "by_time"):
        await switch.disabled_workflows.disable(name)
    await one.signal("go", 1)
    clock.advance(200)
    await asyncio.sleep(0.05)
    await wait_until_quiet(runtime)
    assert [await get_state(runtime, one), await get_state(runtime, two)] == ["waiting", "waiting"]
    assert await read_journal(runtime, one) == await read_journal(runtime, two) == []
    for name in ("by_signal", "by_time"):
        await switch.disabled_workflows.enable(name)
    assert [await one.result(), await two.result()] == [1, "slept"]


async def wait_until_unloaded(runtime: Any, handle: Any) -> None:
    await wait_until(lambda: handle.run_id not in runtime._engine.held_runs.drivers_by_run_id)
    assert await get_state(runtime, handle) == "waiting"


async def test_other_workflows_are_not_affected(world: World):
    off = define_waiting("off")

    on = define_waiting("on")

    runtime = await world.open()
    switch = await world.open_store()
    stopped, going = await runtime.start(off), await runtime.start(on)
    await wait_until(lambda: len(runtime._engine._idle_runs) == 2)
    await switch.disabled_workflows.disable("off")
    await wait_for_state(runtime, stopped, "pending")
    for handle in (stopped, going):
        await handle.signal("go", 1)
    assert await going.result() == 1
    assert (await read_run(runtime, going)).epoch == 1
    assert await (await start_with_signal(runtime, on)).result() == 2
    assert await get_state(runtime, stopped) == "pending"


async def start_with_signal(runtime: Any, flow: Any) -> Any:
    handle = await runtime.start(flow)
    await handle.signal("go", 2)
    return handle


async def test_all_engines_stop(world: World):
    flow = define_waiting()

    engines = [await world.open() for _ in range(3)]
    handles = [await engine.start(flow) for engine in engines]
    for engine in engines:
        await wait_until(lambda engine=engine: engine._engine._idle_runs)
    switch = await world.open_store()
    await switch.disabled_workflows.disable("flow")
    for handle in handles:
        await wait_for_state(engines[0], handle, "pending")
    await switch.disabled_workflows.enable("flow")
    for n, handle in enumerate(handles):
        await handle.signal("go", n)
        assert await handle.result() == n


async def test_a_child_of_a_workflow_that_is_switched_off_is_an_error_that_a_retry_takes_back(world: World):
    seen: list[str] = []

    @workflow
    async def child() -> str:
        return "child"

    @workflow
    async def parent(how: str) -> str:
        try:
            return await (child() if how == "called" else (await child.start()).result())
        except WorkflowDisabled as error:
            seen.append(str(error))
            raise

    runtime = await world.open()
    switch = await world.open_store()
    await switch.disabled_workflows.disable("child")
    handles = [await runtime.start(parent.options(id=how), how) for how in ("called", "started")]
    for handle in handles:
        with pytest.raises(RunFailed, match="WorkflowDisabled"):
            await handle.result()
    assert all("'child' is disabled" in one for one in seen)
    assert await runtime._engine.store.get_run("called:child-1") is None
    await switch.disabled_workflows.enable("child")
    for handle in handles:
        await retry_run(runtime.store_provider, handle.run_id)
        assert await handle.result() == "child"


async def test_a_parent_waits_while_its_child_is_disabled(world: World):
    bench = Bench()

    @workflow
    async def child() -> str:
        return await bench.work("slow") + await bench.work("b")

    parent = define_calling(child, "parent")

    runtime = await world.open()
    switch = await world.open_store()
    handle = await runtime.start(parent.options(id="p"))
    await wait_until(lambda: bench.log)
    await switch.disabled_workflows.disable("child")
    await wait_until(lambda: any(driver.is_disabled for driver in runtime._engine.held_runs.list_drivers()))
    bench.go.set()
    await wait_for_state(runtime, "p:child-1", "pending")
    assert await get_state(runtime, handle) in ("running", "waiting")
    await switch.disabled_workflows.enable("child")
    assert await handle.result() == "SLOWB"
    assert bench.log == ["slow", "b"]


async def test_children_of_a_disabled_parent_continue(world: World):
    child = define_waiting("child")

    parent = define_calling(child, "parent")

    runtime = await world.open()
    switch = await world.open_store()
    handle = await runtime.start(parent.options(id="p"))
    await wait_until(lambda: len(runtime._engine._idle_runs) == 2)
    await switch.disabled_workflows.disable("parent")
    await wait_for_state(runtime, handle, "pending")
    kid = child.get_handle(runtime.store_provider, "p:child-1")
    assert not (await read_run(runtime, kid)).state.is_terminal
    await kid.signal("go", 1)
    assert await kid.result() == 1
    assert await get_state(runtime, handle) == "pending"
    await switch.disabled_workflows.enable("parent")
    assert await handle.result() == 1


async def test_requests_to_a_disabled_run_are_handled_when_it_is_enabled(world: World):
    log: list[str] = []
    flow = define_cleaning_up(log)

    runtime = await world.open()
    switch = await world.open_store()
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs)
    await switch.disabled_workflows.disable("flow")
    await wait_for_state(runtime, handle, "pending")
    assert await handle.cancel()
    await asyncio.sleep(0.05)
    assert (await get_state(runtime, handle), log) == ("pending", [])
    await switch.disabled_workflows.enable("flow")
    with pytest.raises(RunCancelled):
        await handle.result()
    assert log == ["cleaned up"]


async def test_compensation_stops_as_well(world: World):
    bench = Bench()

    @step(compensate=lambda: bench.log.append("undone"))
    async def booked() -> None: ...

    @step(compensate=bench.work.definition.function)
    async def slow_to_undo(name: str) -> None: ...

    @workflow
    async def flow() -> None:
        await booked()
        await slow_to_undo("slow")
        raise ValueError("no")

    runtime = await world.open()
    switch = await world.open_store()
    handle = await runtime.start(flow)
    await wait_until(lambda: bench.log)
    await switch.disabled_workflows.disable("flow")
    await wait_until(lambda: all(driver.is_disabled for driver in runtime._engine.held_runs.list_drivers()))
    bench.go.set()
    await wait_for_state(runtime, handle, "pending")
    assert bench.log == ["slow"]
    await switch.disabled_workflows.enable("flow")
    await wait_until_ended(runtime, handle)
    assert bench.log == ["slow", "undone"]


async def test_a_once_step_in_flight_ends_and_is_recorded(world: World):
    calls: list[str] = []
    go = asyncio.Event()

    @step(effect="once")
    async def pay() -> str:
        calls.append("pay")
        await go.wait()
        return "paid"

    flow = define_calling(pay)

    runtime = await world.open()
    switch = await world.open_store()
    handle = await runtime.start(flow)
    await wait_until(lambda: calls)
    await switch.disabled_workflows.disable("flow")
    await wait_until(lambda: all(driver.is_disabled for driver in runtime._engine.held_runs.list_drivers()))
    go.set()
    await wait_until_ended(runtime, handle)  # nothing more was to be begun
    assert await handle.result() == "paid"
    assert calls == ["pay"]


async def test_a_once_step_that_was_about_to_begin_does_not_and_is_not_in_doubt(world: World):
    calls: list[str] = []

    @step(effect="once")
    async def pay() -> str:
        calls.append("pay")
        return "paid"

    flow = define_calling(pay)

    store = HeldCommits(world.store(), lambda op: isinstance(op, SaveAttempt) and op.attempt.intent)
    runtime = await world.open(store=store)
    switch = await world.open_store()
    handle = await runtime.start(flow)
    await store.reached.wait()
    await switch.disabled_workflows.disable("flow")
    await wait_until(lambda: all(driver.is_disabled for driver in runtime._engine.held_runs.list_drivers()))
    store.release.set()
    await wait_for_state(runtime, handle, "pending")
    assert not calls
    await switch.disabled_workflows.enable("flow")
    assert await handle.result() == "paid"
    assert calls == ["pay"]


async def test_switched_on_again_before_the_run_is_given_back(world: World):
    bench = Bench()

    @workflow
    async def flow() -> str:
        first = await bench.work("slow")
        return first + await bench.work("b")

    store = HeldCommits(world.store(), ReleaseRun)
    runtime = await world.open(store=store)
    switch = await world.open_store()
    handle = await runtime.start(flow)
    await wait_until(lambda: bench.log)
    await switch.disabled_workflows.disable("flow")
    await wait_until(lambda: all(driver.is_disabled for driver in runtime._engine.held_runs.list_drivers()))
    bench.go.set()
    await store.reached.wait()
    await switch.disabled_workflows.enable("flow")
    await asyncio.sleep(0.1)  # the engine has looked, and the run was not free yet
    store.release.set()
    assert await handle.result() == "SLOWB"


async def test_a_worker_that_comes_later_finds_it_switched_off(world: World):
    bench = Bench()

    @workflow
    async def flow() -> str:
        return await bench.work("a")

    elsewhere = await world.open(queues=["other"])
    handle = await elsewhere.start(flow)
    switch = await world.open_store()
    await switch.disabled_workflows.disable("flow")
    assert list(await switch.disabled_workflows.get_all()) == ["flow"]
    await world.open()
    await asyncio.sleep(0.05)
    assert (await get_state(elsewhere, handle), bench.log) == ("pending", [])
    await switch.disabled_workflows.enable("flow")
    assert await handle.result() == "A"
    assert dict(await switch.disabled_workflows.get_all()) == {}


@pytest.mark.parametrize(("effect", "has_failed"), [("idempotent", False), ("idempotent", True), ("once", False)])
async def test_a_step_that_waits_for_the_lease_does_not_begin_when_its_workflow_is_switched_off(
    world: World, monkeypatch: pytest.MonkeyPatch, effect: Any, has_failed: bool
):
    """A worker that stood still must renew its lease before it begins anything, and hears of the switch meanwhile."""
    made: list[int] = []
    holds_lease = has_failed

    @step(effect=effect, retries=int(has_failed), backoff=0.01)
    async def work() -> str:
        nonlocal holds_lease
        made.append(current_step().attempt)
        if has_failed and len(made) == 1:
            holds_lease = False
            raise ConnectionError("once more")
        return "done"

    flow = define_calling(work)

    runtime = await world.open()
    switch = await world.open_store()
    monkeypatch.setattr(runtime._engine.membership, "has_lease", lambda: holds_lease)
    handle = await runtime.start(flow)
    driver = await wait_until(lambda: runtime._engine.held_runs.drivers_by_run_id.get(handle.run_id))
    await wait_until(lambda: len(made) == has_failed and driver.steps.has_running_attempt)
    await switch.disabled_workflows.disable("flow")
    await wait_until(lambda: driver.is_disabled)
    before = list(made)
    holds_lease = True
    await wait_for_state(runtime, handle, "pending")
    assert made == before
    await switch.disabled_workflows.enable("flow")
    assert await handle.result(timeout=10) == "done"
    assert made == [*before, len(before) + 1]
