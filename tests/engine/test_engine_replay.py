"""Replay in the engine: what was drawn stays drawn, and code that no longer fits leaves its journal alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from engine_world import VirtualClock, World, get_state, read_journal, read_run, wait_for_records, wait_until_parked
from shared_flows import deploy

from holdfast import (
    NonDeterminismError,
    RunFailed,
    now,
    random,
    step,
    uuid4,
    wait_for_signal,
    workflow,
)
from holdfast.errors import UnreadableRecord, WorkflowStuck
from holdfast.stores.operations import ReopenRun
from waits import wait_until

pytestmark = pytest.mark.asyncio


async def test_time_and_chance_are_the_same_after_a_run_was_parked(world: World, clock: VirtualClock):
    @step
    async def save(text: str) -> str:
        return text

    @workflow
    async def flow() -> list[bool]:
        drawn = [str(uuid4()), str(random()), str(now())]
        saved = [await save(text) for text in drawn]
        await wait_for_signal("go")
        return [one == other for one, other in zip(drawn, saved, strict=True)]

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_parked(runtime, clock, handle)
    clock.advance(1_000)
    await handle.signal("go")
    assert await handle.result() == [True, True, True]


async def test_code_that_drifted_fails_the_run_and_corrected_code_continues_from_there(world: World):
    calls: list[str] = []

    @step
    async def extract() -> str:
        calls.append("extract")
        return "rows"

    @step
    async def check() -> None:
        calls.append("check")

    @step
    async def load(rows: str) -> str:
        calls.append("load")
        return f"loaded {rows}"

    async def good() -> str:
        rows = await extract()
        await wait_for_signal("go")
        return await load(rows)

    async def drifted() -> str:
        await check()
        return await good()

    flow = deploy(good)
    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: first._engine._idle_runs)
    await first.close()

    broken = deploy(drifted)
    second = await world.open()
    with pytest.raises(RunFailed) as failed:
        await broken.get_handle(second.store_provider, handle.run_id).result()
    assert isinstance(failed.value.__cause__, NonDeterminismError)
    assert "≠" in str(failed.value.__cause__)
    assert len(await read_journal(second, handle)) == 1
    await second.close()

    deploy(good)
    third = await world.open()
    await third._engine.store.commit([ReopenRun(handle.run_id, third._engine.clock.now())])
    again = flow.get_handle(third.store_provider, handle.run_id)
    await again.signal("go")
    assert await again.result() == "loaded rows"
    assert calls == ["extract", "load"]


async def test_a_record_that_no_longer_fits_its_type_fails_the_run_even_if_that_is_caught(world: World):
    @step(name="count")
    async def count_text() -> str:
        return "three"

    @step(name="count")
    async def count_number() -> int:
        return 3

    async def before() -> str:
        await count_text()
        return await wait_for_signal("go")

    async def after() -> str:
        try:
            await count_number()
        except Exception:
            pass
        return await wait_for_signal("go")

    flow = deploy(before)
    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: first._engine._idle_runs)
    await first.close()
    deploy(after)
    second = await world.open()
    with pytest.raises(RunFailed, match="output of step 'count' cannot be read as `int`") as failed:
        await flow.get_handle(second.store_provider, handle.run_id).result()
    assert isinstance(failed.value.__cause__, UnreadableRecord)
    assert len(await read_journal(second, handle)) == 1


async def test_a_workflow_that_can_never_go_on_fails_at_once_and_says_where(world: World):
    @workflow
    async def flow() -> None:
        await asyncio.Event().wait()

    runtime = await world.open()
    with pytest.raises(RunFailed) as failed:
        await (await runtime.start(flow)).result(timeout=10)
    assert isinstance(failed.value.__cause__, WorkflowStuck)
    assert "test_engine_replay.py" in str(failed.value.__cause__)


async def test_a_signal_without_a_wait_is_kept_while_the_run_is_parked_again(world: World, clock: VirtualClock):
    @workflow
    async def flow() -> list[Any]:
        return [await wait_for_signal("first"), await wait_for_signal("second")]

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_parked(runtime, clock, handle)
    await handle.signal("second", 2)
    await wait_until(lambda: runtime._engine.held_runs.drivers_by_run_id.get(handle.run_id))
    await wait_until_parked(runtime, clock, handle)
    assert await get_state(runtime, handle) == "waiting"
    await handle.signal("first", 1)
    assert await handle.result() == [1, 2]


async def test_signals_race_with_timeouts_without_being_lost(world: World, clock: VirtualClock):
    """Whoever comes first, every signal is seen once, and in order."""

    @workflow
    async def flow(rounds: int) -> list[Any]:
        seen: list[Any] = []
        for _ in range(rounds):
            try:
                seen.append(await wait_for_signal("go", timeout=0.5))
            except TimeoutError:
                seen.append(None)
        while len([one for one in seen if one is not None]) < 20:
            seen.append(await wait_for_signal("go"))
        return [one for one in seen if one is not None]

    runtime = await world.open()
    handle = await runtime.start(flow, 15)
    for n in range(20):
        sending = asyncio.ensure_future(handle.signal("go", n))
        if n % 3:
            await asyncio.sleep(0)
        clock.advance(0.3)
        await sending
    assert await handle.result(timeout=20) == list(range(20))


async def test_a_burst_of_starts_stays_within_what_may_be_in_memory(world: World):
    most = 0

    @step
    async def work(n: int) -> int:
        nonlocal most
        most = max(most, len(runtime._engine.held_runs.drivers))
        await asyncio.sleep(0.002)
        return n

    @workflow
    async def flow(n: int) -> int:
        return await work(n)

    runtime = await world.open(max_concurrency=4)
    handles = await asyncio.gather(*[runtime.start(flow, n) for n in range(30)])
    assert await asyncio.gather(*[handle.result(timeout=20) for handle in handles]) == list(range(30))
    assert most <= 4
    assert (await read_run(runtime, handles[0])).epoch == 1


async def test_anyio_task_groups_in_a_workflow_survive_the_worker(world: World):
    import anyio

    calls: list[str] = []
    hang = True

    @step
    async def work(name: str) -> str:
        calls.append(name)
        if hang and name == "c":
            await asyncio.sleep(60)
        return name

    @step
    async def undo(name: str) -> None:
        calls.append(f"undo {name}")

    @workflow
    async def flow() -> list[str]:
        results: list[str] = []

        async def one(name: str) -> None:
            try:
                results.append(await work(name))
                await anyio.sleep(3600)
            finally:
                with anyio.CancelScope(shield=True):
                    await undo(name)

        async with anyio.create_task_group() as group:
            for name in ("a", "b", "d", "e"):
                group.start_soon(one, name)
            results.append(await work("c"))
            group.cancel_scope.cancel()
        return sorted(results)

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: "c" in calls)
    await wait_for_records(first, handle, 4)
    await world.crash(first)
    hang = False
    second = await world.open()
    assert await flow.get_handle(second.store_provider, handle.run_id).result(timeout=20) == ["a", "b", "c", "d", "e"]
    assert sorted(calls) == sorted(["a", "b", "c", "c", "d", "e", *[f"undo {name}" for name in "abde"]])
