"""``patched`` in the engine: what is recorded when, what is begun when, and what a death, a retry or a fork leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from engine_world import (
    FlakyStore,
    VirtualClock,
    World,
    describe_journal,
    read_journal,
    read_run,
    wait_until_ended,
    wait_until_parked,
    wait_until_quiet,
)
from shared_flows import define_waiting, deploy

from holdfast import StepOutcomeUnknown, patched, step, wait_for_signal, workflow
from holdfast.core.records import RecordKind
from holdfast.services.forks import fork_run
from holdfast.services.run_control import retry_run
from holdfast.stores.operations import AppendRecord, FinishRun, Op
from waits import wait_until

pytestmark = pytest.mark.asyncio

log: list[str] = []
broken: set[str] = set()


@pytest.fixture(autouse=True)
def _nothing_done_yet() -> None:
    log.clear()
    broken.clear()


@step
async def work(name: str) -> str:
    log.append(name)
    if name in broken:
        raise ConnectionError(f"{name} is down")
    return name


@step(effect="once")
async def pay(name: str) -> str:
    log.append(name)
    await asyncio.sleep(1_000)
    return name


def has(ops: Sequence[Op], kind: RecordKind) -> bool:
    return any(isinstance(op, AppendRecord) and op.record.kind is kind for op in ops)


# Recording


async def test_nothing_is_begun_before_the_record_of_the_patch_is_durable(world: World):
    store = FlakyStore(world.store())
    let_through = asyncio.Event()

    async def hold(ops: Sequence[Op]) -> None:
        if has(ops, RecordKind.PATCH):
            await let_through.wait()

    store.before_commit = hold

    @workflow
    async def child() -> str:
        return await work("child")

    @deploy
    async def flow() -> Any:
        first = await work("before")
        if patched("new"):
            return await asyncio.gather(work("cents"), child(), wait_for_signal("go"))
        return first

    runtime = await world.open(store=store)
    handle = await runtime.start(flow)
    await handle.signal("go", 1)
    await wait_until(
        lambda: not runtime._engine.held_runs.drivers_by_run_id[handle.run_id].execution.patches.is_durable
    )
    for _ in range(50):
        await asyncio.sleep(0)
    begun, recorded = list(log), await describe_journal(runtime, handle)
    let_through.set()
    assert (begun, recorded) == (["before"], ["step work"])
    assert await handle.result() == ["cents", "child", 1]
    assert (await describe_journal(runtime, handle))[:2] == ["step work", "patch new"]


async def test_a_process_that_dies_before_the_record_is_durable_has_decided_nothing(world: World):
    store = FlakyStore(world.store())
    dead = asyncio.Event()

    async def hold(ops: Sequence[Op]) -> None:
        if has(ops, RecordKind.PATCH):
            dead.set()
            await asyncio.Event().wait()

    store.before_commit = hold

    async def new() -> str:
        return await work("cents" if patched("new") else "euros")

    async def old() -> str:
        return await work("euros")

    first = await world.open(store=store)
    handle = await first.start(deploy(new))
    await dead.wait()
    await world.crash(first)
    flow = deploy(old)  # the deploy was taken back meanwhile
    second = await world.open()
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == "euros"
    assert log == ["euros"]


async def test_all_calls_of_a_name_share_one_record(world: World):
    @deploy
    async def flow() -> Any:
        async def branch(n: int) -> tuple[bool, bool]:
            before = patched("new")
            await work(f"{n}")
            return before, patched("new")

        return [await asyncio.gather(*[branch(n) for n in range(5)]), patched("new"), patched("other")]

    runtime = await world.open()
    handle = await runtime.start(flow)
    assert await handle.result() == [[(True, True)] * 5, True, True]
    recorded = await describe_journal(runtime, handle)
    assert [one for one in recorded if one.startswith("patch")] == ["patch new", "patch other"]
    assert recorded[0] == "patch new"


async def test_a_run_ends_after_what_it_decided_last_is_recorded(world: World):
    store = FlakyStore(world.store())

    @deploy
    async def flow() -> bool:
        return patched("at the end")

    runtime = await world.open(store=store)
    handle = await runtime.start(flow)
    assert await handle.result() is True
    assert await describe_journal(runtime, handle) == ["patch at the end"]
    [patch] = [at for at, ops in enumerate(store.commits) if has(ops, RecordKind.PATCH)]
    [end] = [at for at, ops in enumerate(store.commits) if any(isinstance(op, FinishRun) for op in ops)]
    assert patch < end


async def test_code_that_does_not_fit_records_no_patch(world: World, clock: VirtualClock):
    asked: list[bool] = []

    @step
    async def different() -> None:
        pass

    async def old() -> None:
        await asyncio.gather(work("a"), work("b"))
        await wait_for_signal("go")

    async def drifted() -> None:
        async def branch() -> None:
            await work("a")
            asked.append(patched("new"))

        await asyncio.gather(branch(), different())

    first = await world.open()
    handle = await first.start(deploy(old))
    await wait_until_parked(first, clock, handle, 2)
    await first.close()
    flow = deploy(drifted)
    second = await world.open()
    await flow.get_handle(second.store_provider, handle.run_id).signal("go")
    run = await wait_until_ended(second, handle.run_id)
    assert b"NonDeterminismError" in (run.error or b"")
    assert asked == [True]
    assert await describe_journal(second, handle.run_id) == ["step work", "step work"]


async def test_code_that_does_something_forbidden_records_no_patch(world: World):
    @deploy
    async def flow() -> None:
        await work("a")
        patched("new")
        asyncio.get_running_loop().run_in_executor(None, print)

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_ended(runtime, handle)
    assert await describe_journal(runtime, handle) == ["step work"]


async def test_a_run_that_is_to_be_paused_records_what_it_decided_and_begins_nothing(world: World):
    gate = asyncio.Event()

    @step
    async def slow() -> None:
        await gate.wait()

    @deploy
    async def flow() -> str:
        await slow()
        return await work("cents" if patched("new") else "euros")

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine.in_flight_count)
    await handle.pause()
    await wait_until(lambda: runtime._engine.held_runs.drivers_by_run_id[handle.run_id]._is_pausing)
    gate.set()
    await wait_until(lambda: handle.run_id not in runtime._engine.held_runs.drivers_by_run_id)
    assert await describe_journal(runtime, handle) == ["step slow", "patch new"]
    assert log == []
    await handle.resume()
    assert await handle.result() == "cents"


# Runs of old code


async def old_order(go: str = "go") -> list[str]:
    first = await work("price")
    await wait_for_signal(go)
    return [first, await work("euros"), await wait_for_signal("end")]


@pytest.mark.parametrize(
    ("signals", "way", "records"),
    [
        ([], "cents", ["step work", "patch new", "signal go", "step work", "signal end"]),
        (["go"], "euros", ["step work", "signal go", "step work", "signal end"]),
    ],
)
async def test_a_parked_run_takes_the_new_way_unless_it_has_been_past_it(
    world: World, clock: VirtualClock, signals: list[str], way: str, records: list[str]
):
    async def new() -> list[str]:
        first = await work("price")
        way = "cents" if patched("new") else "euros"
        await wait_for_signal("go")
        return [first, await work(way), await wait_for_signal("end")]

    first = await world.open()
    handle = await first.start(deploy(old_order))
    for signal in signals:
        await handle.signal(signal)
    await wait_until_parked(first, clock, handle, 3 if signals else 1)
    await first.close()
    flow = deploy(new)
    for signal in ["go", "end"][len(signals) :]:
        # Another process each time, which must come to the same answer.
        runtime = await world.open()
        handle = flow.get_handle(runtime.store_provider, handle.run_id)
        await handle.signal(signal, "!")
        await wait_until_quiet(runtime)
        await runtime.close()
    runtime = await world.open()
    assert await flow.get_handle(runtime.store_provider, handle.run_id).result() == ["price", way, "!"]
    assert await describe_journal(runtime, handle) == records
    assert log == ["price", way]


async def test_the_answer_of_an_old_run_stays_when_it_comes_to_new_places(world: World, clock: VirtualClock):
    async def old() -> list[bool]:
        for n in range(3):
            await work(f"{n}")
            await wait_for_signal("go")
        return []

    async def new() -> list[bool]:
        answers: list[bool] = []
        for n in range(3):
            answers.append(patched("in the loop"))
            await work(f"{n}")
            await wait_for_signal("go")
        return [*answers, patched("in the loop"), patched("behind it")]

    first = await world.open()
    handle = await first.start(deploy(old))
    await wait_until_parked(first, clock, handle, 1)
    await first.close()
    flow = deploy(new)
    second = await world.open()
    for _ in range(3):
        await flow.get_handle(second.store_provider, handle.run_id).signal("go")
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == [False, False, False, False, True]
    assert [one for one in await describe_journal(second, handle) if one.startswith("patch")] == ["patch behind it"]


async def test_a_once_step_that_old_code_had_begun_counts_as_having_been_there(world: World):
    async def old() -> str:
        return await pay("euros")

    async def new() -> str:
        if patched("new"):
            return await work("cents")
        try:
            return await pay("euros")
        except StepOutcomeUnknown:
            return "in doubt"

    first = await world.open()
    handle = await first.start(deploy(old))
    await wait_until(lambda: log)
    await world.crash(first)
    flow = deploy(new)
    second = await world.open()
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == "in doubt"
    assert log == ["euros"]


async def test_a_child_that_old_code_had_started_counts_as_having_been_there(world: World, clock: VirtualClock):
    child = define_waiting("child")

    async def old() -> str:
        return await child.options(id="the child")()

    async def new() -> str:
        return await work("cents") if patched("new") else await child.options(id="the child")()

    first = await world.open()
    handle = await first.start(deploy(old))
    await wait_until_parked(first, clock, handle)
    await first.close()
    flow = deploy(new)
    second = await world.open()
    await child.get_handle(second.store_provider, "the child").signal("go", "child")
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == "child"


async def test_a_patch_whose_call_is_gone_is_passed_over(world: World, clock: VirtualClock):
    async def new() -> list[str]:
        if patched("new"):
            await work("cents")
        else:
            await work("euros")
        return [await wait_for_signal("go"), await work("end")]

    async def newest() -> list[str]:
        await work("cents")
        return [await wait_for_signal("go"), await work("end")]

    first = await world.open()
    handle = await first.start(deploy(new))
    await wait_until_parked(first, clock, handle, 2)
    await first.close()
    flow = deploy(newest)
    second = await world.open()
    await flow.get_handle(second.store_provider, handle.run_id).signal("go", "!")
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == ["!", "end"]
    assert log == ["cents", "end"]


# Retries and forks


async def test_a_retry_keeps_the_way_that_a_run_has_taken(world: World):
    @deploy
    async def flow() -> Any:
        if patched("first"):
            await work("a")
        try:
            return await work("b")
        finally:
            if patched("clean"):
                await work("clean up")

    broken.add("b")
    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_ended(runtime, handle)
    assert await describe_journal(runtime, handle) == [
        "patch first", "step work", "step work failed", "patch clean", "step work",
    ]  # fmt: skip
    broken.clear()
    await retry_run(runtime.store_provider, handle.run_id)
    assert await handle.result() == "b"
    assert await describe_journal(runtime, handle) == [
        "patch first",
        "step work",
        "patch clean",
        "step work",
        "step work",
    ]
    assert log == ["a", "b", "clean up", "b", "clean up"]


async def test_a_patch_that_was_recorded_after_a_failure_the_code_had_not_seen_is_kept(world: World):
    """The failure was on its way when the patch was decided: what came of the patch is kept, and so must it be."""
    store = FlakyStore(world.store())
    gate = asyncio.Event()
    release = asyncio.Event()

    async def hold(ops: Sequence[Op]) -> None:
        if any(isinstance(op, AppendRecord) and op.record.position == 0 for op in ops):
            gate.set()
            await release.wait()

    @step
    async def fails() -> None:
        await gate.wait()
        if broken:
            raise ConnectionError
        return

    @deploy
    async def flow() -> Any:
        async def branch() -> Any:
            await work("a")
            if patched("new"):
                await asyncio.sleep(0)
                return await work("b")
            return await work("old b")

        return await asyncio.gather(branch(), fails(), return_exceptions=not broken)

    broken.add("yes")
    store.before_commit = hold
    runtime = await world.open(store=store)
    handle = await runtime.start(flow)
    await gate.wait()
    await asyncio.sleep(0.01)
    release.set()
    await wait_until_ended(runtime, handle)
    failed, *rest = [
        one.seq for one in await read_journal(runtime, handle) if not one.ok or one.kind is RecordKind.PATCH
    ]
    assert rest == [failed + 1]
    broken.clear()
    await retry_run(runtime.store_provider, handle.run_id)
    assert await handle.result() == ["b", None]
    assert "old b" not in log


async def test_a_retry_that_goes_back_to_before_the_place_takes_the_new_way(world: World):
    async def old() -> str:
        return await work("euros")

    async def new() -> str:
        return await work("cents" if patched("new") else "euros")

    broken.add("euros")
    runtime = await world.open()
    handle = await runtime.start(deploy(old))
    await wait_until_ended(runtime, handle)
    await runtime.close()
    flow = deploy(new)
    second = await world.open()
    await retry_run(second.store_provider, handle.run_id)
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == "cents"


async def test_a_fork_has_the_patches_of_what_it_shares(world: World):
    @deploy
    async def flow() -> list[Any]:
        told = [patched("one"), await work("a")]
        told += [patched("two"), await work("b")]
        return told

    runtime = await world.open()
    await (await runtime.start(flow.options(id="original"))).result()
    assert await describe_journal(runtime, "original") == ["patch one", "step work", "patch two", "step work"]
    store = await world.open_store()
    for at in (1, 2):
        forked = await fork_run(store, "original", at=at, new_id=f"from {at}")
        assert await flow.get_handle(runtime.store_provider, forked.id).result() == [True, "a", True, "b"]
        assert await describe_journal(runtime, forked.id) == ["patch one", "step work", "patch two", "step work"]
    assert log == ["a", "b", "a", "b", "b"]


async def test_a_fork_of_an_old_run_takes_the_new_branch_after_the_shared_records(world: World):
    async def old() -> list[str]:
        return [await work("a"), await work("euros"), await work("c")]

    async def new() -> list[str]:
        return [await work("a"), await work("cents" if patched("new") else "euros"), await work("c")]

    runtime = await world.open()
    await (await runtime.start(deploy(old).options(id="original"))).result()
    flow = deploy(new)
    store = await world.open_store()
    for at, way in ((2, "cents"), (3, "euros")):
        forked = await fork_run(store, "original", at=at, new_id=f"from {at}")
        assert await flow.get_handle(runtime.store_provider, forked.id).result() == ["a", way, "c"]
    assert (await read_run(runtime, "original")).state.is_terminal
