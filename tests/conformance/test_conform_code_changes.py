"""Runs that outlive their process and their code: another runtime goes on, patches, versions, and drift."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conformance_world import DIFFERENT, World, effect_counts, fails_with, make_unique_id, only_workflows

import holdfast
from holdfast import (
    Client,
    NonDeterminismError,
    RunState,
    Runtime,
    UnknownWorkflow,
    current_run,
    now,
    patched,
    step,
    wait_for_signal,
    workflow,
)
from waits import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@step
async def chg_note(text: str) -> str:
    effect_counts[current_run().id, text] += 1
    return text


@step
async def chg_other() -> str:
    return "other"


@workflow
async def chg_child(text: str) -> str:
    return await chg_note(text)


@workflow
async def chg_long() -> list[Any]:
    first = [str(holdfast.uuid4()), holdfast.random(), now().isoformat()]
    told: list[Any] = [await chg_note("one"), *await asyncio.gather(chg_note("two"), chg_child("three"))]
    await asyncio.sleep(0.01)
    told.append(await wait_for_signal("go"))
    return [first, *told, await chg_note("four"), str(holdfast.uuid4())]


OWN = (chg_child, chg_long)
"""Served by runtimes of the scenarios' own."""


async def test_another_runtime_goes_on_and_does_nothing_twice(world: World, client: Client) -> None:
    run = make_unique_id("long")
    async with Runtime(world.url, workflows=["chg_long", "chg_child"]) as first:
        handle = await first.start(chg_long.options(id=run))
        await wait_until(lambda: _have_children_ended(client, run))
        await asyncio.sleep(0.2)
    await client.signal(run, "go", "on")
    async with Runtime(world.url, workflows=["chg_long", "chg_child"]):
        told = await client.wait(run, timeout=30)
    assert told[1:6] == ["one", "two", "three", "on", "four"]
    assert [effect_counts[run, name] for name in ("one", "two", "four")] == [1, 1, 1]
    assert handle.run_id == run


async def _have_children_ended(client: Client, run: str) -> bool:
    found = await client.list(parent=run)
    return bool(found) and all(one.state is RunState.COMPLETED for one in found)


async def test_a_run_without_a_worker_waits_for_one(world: World, client: Client) -> None:
    run = make_unique_id("long")
    async with Runtime(world.url, workflows=["chg_long", "chg_child"]):
        pass  # so that clients know of it
    handle = await client.options(id=run).start("chg_long")
    await handle.signal("go", "early")
    assert (await client.get(run)).state is RunState.PENDING
    async with Runtime(world.url, workflows=["chg_long", "chg_child"]):
        assert (await handle.result(30))[4] == "early"


def _define(name: str, way: str) -> Any:
    """The same workflow, as it is in one deploy and in the next."""

    @workflow(name=name)
    async def changing() -> list[Any]:
        told: list[Any] = []
        if way == "patched":
            told.append(await chg_note("new" if patched("chg-cents") else "old"))
        elif way == "drifted":
            told.append(await chg_other())
        else:
            told.append(await chg_note(way))
        told.append(await wait_for_signal("go"))
        if way == "patched":
            told.append(await chg_note("new end" if patched("chg-end") else "old end"))
        return told

    return changing


async def _wait_for_effect(run: str, text: str) -> None:
    await wait_until(lambda: effect_counts[run, text])
    await asyncio.sleep(0.1)


async def test_a_run_that_has_been_past_a_change_keeps_the_old_way(world: World, client: Client) -> None:
    name, old, new = make_unique_id("chg_patched"), make_unique_id("old"), make_unique_id("new")
    async with Runtime(world.url, workflows=[_define(name, "old").name]) as runtime:
        await client.options(id=old).start(name)
        await _wait_for_effect(old, "old")
        assert runtime is not None
    async with Runtime(world.url, workflows=[_define(name, "patched").name]):
        await client.options(id=new).start(name)
        await _wait_for_effect(new, "new")
        for run in (old, new):
            await client.signal(run, "go")
        assert await client.wait(old, timeout=30) == ["old", None, "new end"]
        assert await client.wait(new, timeout=30) == ["new", None, "new end"]
    assert effect_counts[old, "new"] == 0


async def test_code_that_does_not_fit_the_journal_stops_the_run_and_other_code_goes_on(
    world: World, client: Client
) -> None:
    scenario = "test_code_that_does_not_fit_the_journal_stops_the_run_and_other_code_goes_on"
    stands_still = world.backend in DIFFERENT[scenario]
    name, run = make_unique_id("chg_drift"), make_unique_id("drift")
    async with Runtime(world.url, workflows=[_define(name, "first").name]):
        await client.options(id=run).start(name)
        await _wait_for_effect(run, "first")
    drifted = _define(name, "drifted")
    async with Runtime(world.url, workflows=[name]) as runtime:
        await client.signal(run, "go", "on")
        if stands_still:
            await wait_until(lambda: _is_waiting_for(client, run, "chg_other"))
        else:
            with fails_with(NonDeterminismError, "chg_other"):
                await drifted.get_handle(runtime.store_provider, run).result(30)
    async with Runtime(world.url, workflows=[_define(name, "first").name]):
        if not stands_still:
            await client.retry(run)
        assert await client.wait(run, timeout=30) == ["first", "on"]
    assert effect_counts[run, "first"] == 1


def _define_renamed(name: str, signal: str) -> Any:
    """A workflow that waits for a signal of this name."""

    @workflow(name=name)
    async def renamed() -> list[Any]:
        before = await chg_note("before")
        return [before, await wait_for_signal(signal), await chg_note(f"after {signal}")]

    return renamed


async def test_a_rolled_back_deploy_finds_the_signal_that_it_did_not_wait_for(world: World, client: Client) -> None:
    scenario = "test_a_rolled_back_deploy_finds_the_signal_that_it_did_not_wait_for"
    name, run = make_unique_id("chg_renamed"), make_unique_id("renamed")
    async with Runtime(world.url, workflows=[_define_renamed(name, "paid").name]):
        await client.options(id=run).start(name)
        await _wait_for_effect(run, "before")
    async with Runtime(world.url, workflows=[_define_renamed(name, "payment").name]):
        await client.signal(run, "paid", "7 euros")
        await wait_until(lambda: _stays_waiting(client, run))
    async with Runtime(world.url, workflows=[_define_renamed(name, "paid").name]):
        if world.backend in DIFFERENT[scenario]:
            await asyncio.sleep(1)
            assert (await client.get(run)).state is RunState.WAITING
            await client.signal(run, "look", None)  # of a name that nobody waits for
        assert await client.wait(run, timeout=30) == ["before", "7 euros", "after paid"]
    assert (effect_counts[run, "before"], effect_counts[run, "after paid"], effect_counts[run, "after payment"]) == (
        1,
        1,
        0,
    )


async def _stays_waiting(client: Client, run: str) -> bool:
    """Whether the run waits, and goes on doing so for a while."""
    for _ in range(10):
        if (await client.get(run)).state is not RunState.WAITING:
            return False
        await asyncio.sleep(0.15)
    return True


async def _is_waiting_for(client: Client, run: str, words: str) -> bool:
    info = await client.get(run)
    return info.state is RunState.WAITING and words in info.waits_for


def _version(name: str, version: str, serves: tuple[str, ...] = ()) -> Any:
    @workflow(name=name, version=version, serves=serves)
    async def versioned() -> list[Any]:
        return [version, await chg_note(f"by {version}"), await wait_for_signal("go")]

    return versioned


async def test_old_and_new_code_side_by_side_each_take_their_own_runs(world: World, client: Client) -> None:
    name = make_unique_id("chg_versions")
    one, two = _version(name, "1"), _version(name, "2")
    async with Runtime(world.url, workflows=[f"{name}@1"]) as old, Runtime(world.url, workflows=[f"{name}@2"]) as new:
        first = await old.start(one.options(id=make_unique_id("version")))
        second = await new.start(two.options(id=make_unique_id("version")))
        chosen = await client.options(version="1", id=make_unique_id("version")).start(name)
        newest = await client.options(id=make_unique_id("version")).start(name)
        for handle in (first, second, chosen, newest):
            await handle.signal("go")
        told = [(await handle.result(30))[:2] for handle in (first, second, chosen, newest)]
        assert told == [["1", "by 1"], ["2", "by 2"], ["1", "by 1"], ["2", "by 2"]]
        assert (await client.get(chosen.run_id)).version == "1"
        with pytest.raises(UnknownWorkflow, match="'3'"):
            await client.options(version="3").start(name)


async def test_new_code_that_serves_the_old_version_goes_on_with_its_runs(world: World, client: Client) -> None:
    name, run = make_unique_id("chg_serving"), make_unique_id("serving")
    _version(name, "1")
    async with Runtime(world.url, workflows=[f"{name}@1"]):
        await client.options(id=run).start(name)
        await _wait_for_effect(run, "by 1")
    with only_workflows():  # a process with the new code only

        @workflow(name=name, version="2", serves=["1"])
        async def newer() -> list[Any]:
            return ["taken over", await chg_note("by 1"), await wait_for_signal("go")]

        async with Runtime(world.url, workflows=[name]):
            await client.signal(run, "go", 7)
            assert await client.wait(run, timeout=30) == ["taken over", "by 1", 7]
    assert effect_counts[run, "by 1"] == 1


async def test_a_run_that_failed_with_old_code_can_be_moved_to_new_code(world: World, client: Client) -> None:
    name, run = make_unique_id("chg_moving"), make_unique_id("moving")

    @workflow(name=name, version="1")
    async def broken() -> str:
        raise ValueError(await chg_note("done before"))

    @workflow(name=name, version="2")
    async def mended() -> str:
        return await chg_note("done before") + ", and mended"

    async with Runtime(world.url, workflows=[name]):
        handle = await client.options(id=run, version="1").start(name)
        with pytest.raises(holdfast.RunFailed):
            await handle.result(30)
        await client.retry(run, version="2")
        assert await client.wait(run, timeout=30) == "done before, and mended"
    assert effect_counts[run, "done before"] == 1
