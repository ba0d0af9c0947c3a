"""Versions of workflows in the engine: old and new code side by side, and runs that nobody serves."""

from __future__ import annotations

from typing import Any

import pytest
from engine_world import VirtualClock, World, read_run, select_definitions, wait_until_ended, wait_until_parked

from holdfast import Agent, DefinitionError, Workflow, WorkflowOptions, patched, step, wait_for_signal, workflow
from holdfast.authoring.registry import definitions
from holdfast.authoring.runtime import Runtime
from holdfast.client.client import Client
from holdfast.errors import UnknownWorkflow, UsageError
from holdfast.services.forks import fork_run
from holdfast.services.journal_files import Journal, export_run
from holdfast.services.run_control import retry_run
from holdfast.testing.journal_replay import replay
from waits import wait_until

pytestmark = pytest.mark.asyncio

log: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_done_yet() -> None:
    log.clear()


@step
async def work(name: str) -> str:
    log.append(name)
    return name


def old_code(**options: Any) -> Workflow[..., Any]:
    @workflow(name="etl", **options)
    async def old(customer: str = "acme") -> str:
        first = await work("euros")
        await wait_for_signal("go")
        return f"{first} {customer}"

    return old


def new_code(**options: Any) -> Workflow[..., Any]:
    @workflow(name="etl", **{"version": "2", **options})
    async def new(customer: str = "acme") -> str:
        first = await work("cents") if patched("cents") else await work("euros")
        await wait_for_signal("go")
        return f"{first} {customer}, and more"

    return new


async def test_old_and_new_code_side_by_side_each_take_their_own_runs(world: World, clock: VirtualClock):
    old, new = old_code(version="1"), new_code()
    first = await world.open(definitions=select_definitions("etl@1"))
    begun = await first.start(old)
    await wait_until_parked(first, clock, begun)
    await first.close()
    second = await world.open(definitions=select_definitions("etl@2"))
    begun = old.get_handle(second.store_provider, begun.run_id)
    later = await second.start(new)
    elsewhere = await second.start(old, "umbra")  # of a version that this worker does not have
    for handle in (begun, later, elsewhere):
        await handle.signal("go")
    assert await later.result() == "cents acme, and more"
    assert [(await read_run(second, one)).state for one in (begun, elsewhere)] == ["waiting", "pending"]
    told = (await elsewhere.info()).stall_advice
    assert told == (await begun.info()).stall_advice
    assert told is not None
    assert told.startswith("no live worker serves version '1' of workflow 'etl' (served: '2'): start a worker")
    assert ((await elsewhere.info()).version, (await later.info()).stall_advice) == ("1", None)

    third = await world.open(definitions=select_definitions("etl@1"))
    assert (await elsewhere.info()).stall_advice is None
    assert await begun.result() == "euros acme"
    assert await old.get_handle(third.store_provider, elsewhere.run_id).result() == "euros umbra"
    assert log == ["euros", "cents", "euros"]


async def test_new_code_that_serves_the_old_version_continues_its_runs(world: World, clock: VirtualClock):
    first = await world.open()
    begun = await first.start(old_code())  # a workflow that has no version yet
    await wait_until_parked(first, clock, begun)
    await first.close()
    definitions.clear()
    new = new_code(serves=["", "1"])
    second = await world.open()
    begun, later = new.get_handle(second.store_provider, begun.run_id), await second.start(new)
    await begun.signal("go")
    await later.signal("go")
    assert await begun.result() == "euros acme, and more"
    assert await later.result() == "cents acme, and more"
    assert [(await read_run(second, one)).version for one in (begun, later)] == ["", "2"]
    [worker] = [one for one in await second._engine.store.list_workers() if one.state == "live"]
    assert sorted(worker.workflows) == ["etl", "etl@1", "etl@2"]
    assert list(await second._engine.store.get_workflow_specs()) == ["etl", "etl@2"]


async def test_a_worker_serves_all_versions_that_it_has_each_with_its_own_code(world: World):
    old, new = old_code(version="1"), new_code()
    runtime = await world.open()
    handles = [await runtime.start(one) for one in (old, new)]
    for handle in handles:
        await handle.signal("go")
    assert [await handle.result() for handle in handles] == ["euros acme", "cents acme, and more"]


async def test_children_forks_and_retries_have_their_version(world: World, clock: VirtualClock):
    old, new = old_code(version="1"), new_code()

    @workflow
    async def parent() -> list[str]:
        return [
            (await old.start()).run_id,
            (await new.options(id="by-id").start()).run_id,
            await old.options(id="by-id")(),
        ]

    runtime = await world.open()
    handle = await runtime.start(parent)
    await wait_until(lambda: runtime._engine.store.get_run("by-id"))
    await new.get_handle(runtime.store_provider, "by-id").signal("go")
    first, second, joined = await handle.result()
    assert joined == "cents acme, and more"  # it is there already, and keeps its version
    assert [(await read_run(runtime, one)).version for one in (first, second)] == ["1", "2"]
    fork = await fork_run(runtime._engine.store, first, at=None)
    assert fork.version == "1"
    assert (await old.get_handle(runtime.store_provider, fork.id).info()).version == "1"


async def test_a_run_that_failed_with_old_code_can_be_moved_to_new_code(world: World, clock: VirtualClock):
    @workflow(name="etl", version="1")
    async def broken() -> str:
        await work("euros")
        raise ValueError("a bug")

    fixed = new_code()
    runtime = await world.open()
    handle = await runtime.start(broken)
    await wait_until_ended(runtime, handle)
    with pytest.raises(UsageError, match="no '@'"):
        await retry_run(runtime.store_provider, handle.run_id, version="a@b")
    await retry_run(runtime.store_provider, handle.run_id, version="2")
    handle = fixed.get_handle(runtime.store_provider, handle.run_id)
    await handle.signal("go")
    assert await handle.result() == "euros acme, and more"
    assert (await read_run(runtime, handle)).version == "2"
    assert log == ["euros"]


async def test_a_client_starts_the_newest_served_version_or_the_given_one(tmp_path: Any):
    world = World("sqlite", tmp_path)
    old_code(version="1")
    new_code()
    first = await world.open(definitions=select_definitions("etl@1"))
    async with Client(world.url) as client:
        assert (await (await client.start("etl")).info()).version == "1"
        world.clock.advance(1)
        second = await world.open(definitions=select_definitions("etl@2"), lease_s=1e9)
        started = await client.start("etl")
        assert (await started.info()).version == "2"
        chosen = await client.options(version="1").start("etl")
        assert (await chosen.info()).version == "1"
        assert await client.options(version="1").start_many("etl", [("a",), ("b",)])
        with pytest.raises(UnknownWorkflow, match=r"version '3' of workflow 'etl' to .* \(known: '2', '1'\)"):
            await client.options(version="3").start("etl")
        [health] = await client.health()
        assert (health.name, health.worker_count, health.versions) == ("etl", 2, ("1", "2"))
        await second.close()
        assert (await (await client.start("etl")).info()).version == "1"
        told = [(one.version, one.stall_advice) for one in await client.list(workflow="etl")]
        assert {version for version, stalled in told if stalled} == {"2"}
    await first.close()
    await world.close()


async def test_a_runtime_can_serve_selected_versions(in_memory: World):
    old_code(version="1")
    new_code(serves=["1b"])
    assert sorted(Runtime("memory://", workflows=["etl"])._engine.definitions) == ["etl@1", "etl@1b", "etl@2"]
    assert sorted(Runtime("memory://", workflows=["etl@2", "etl@1b"])._engine.definitions) == ["etl@1b", "etl@2"]
    with pytest.raises(UsageError, match="no workflow 'etl@3'"):
        Runtime("memory://", workflows=["etl@3"])


async def test_a_journal_has_the_version_of_its_run_and_is_replayed_with_that_code(in_memory: World):
    old = old_code(version="1")
    new = new_code()
    runtime = await in_memory.open()
    handle = await runtime.start(old)
    await handle.signal("go")
    await handle.result()
    journal = Journal.loads((await export_run(runtime._engine.store, handle.run_id)).dumps(), "it")
    assert journal.run.version == "1"
    assert replay(journal).output == "euros acme"
    assert replay(journal, new).difference  # as it is told to
    del definitions["etl@1"]
    with pytest.raises(UnknownWorkflow, match=r"version '1' of workflow 'etl', .* \(known: etl@2\)"):
        replay(journal)


# Defining


async def test_class_workflows_and_agents_have_versions(in_memory: World):
    @workflow(name="Etl", version="2", serves=["1"])
    class Etl:
        @step(1)
        async def load(self, customer: str) -> str:
            return customer

    runtime = await in_memory.open()
    handle = await runtime.start(Etl, customer="acme")
    assert await handle.result() == "acme"
    assert (await handle.info()).version == "2"
    agent = Agent("openai:some-model", name="helper", workflow_options=WorkflowOptions(version="2", serves=["1"]))
    assert agent.definition.served_names == ("helper@2", "helper@1")
    assert (agent.definition.to_spec().version, agent.options(id="x").definition.version) == ("2", "2")
    assert sorted(definitions) == ["Etl@1", "Etl@2", "helper@1", "helper@2"]
    with pytest.raises(DefinitionError, match="WorkflowOptions: a version is a text"):
        WorkflowOptions(version=3)  # type: ignore[arg-type]


async def test_two_definitions_of_one_version_are_refused(in_memory: World):
    old_code(version="1")
    for options in ({"version": "1"}, {"version": "2", "serves": ["1"]}):
        with pytest.raises(DefinitionError, match="two definitions of workflow 'etl' are for its runs of version '1'"):
            new_code(**options)
    assert list(definitions) == ["etl@1"]
    new_code(serves=[""])
    with pytest.raises(DefinitionError, match="for its runs without a version"):
        old_code()
    assert sorted(definitions) == ["etl", "etl@1", "etl@2"]


async def test_defining_a_version_again_replaces_it_with_all_that_it_served(in_memory: World):
    new_code(serves=["1", ""])
    again = new_code(serves=["0"])
    assert {name: definition is again.definition for name, definition in definitions.items()} == {
        "etl@2": True,
        "etl@0": True,
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"version": 2}, "a version is a text, not 2: version='2'"),
        ({"version": "a@b"}, "no '@'"),
        ({"version": "2", "serves": "1"}, r"serves is a collection of versions, not one string: serves=\['1'\]"),
        ({"version": "2", "serves": [1]}, "a version is a text, not 1"),
    ],
)
async def test_what_is_no_version_is_refused(in_memory: World, options: dict[str, Any], message: str):
    with pytest.raises(DefinitionError, match=message):
        new_code(**options)
