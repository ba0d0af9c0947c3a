"""What not every backend can do. Where one cannot, the same scenario ends with an error that says so: ``EXCLUDED``."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from conformance_world import (
    BACKENDS,
    DIFFERENT,
    EXCLUDED,
    World,
    effect_counts,
    make_unique_id,
    only_workflows,
    raising_run_error,
)

from holdfast import (
    Agent,
    Budget,
    Client,
    Queue,
    RunState,
    Runtime,
    Schedule,
    current_run,
    current_step,
    memory,
    step,
    tool,
    wait_for_signal,
    workflow,
)
from holdfast.authoring.registry import definitions
from holdfast.errors import UsageError
from holdfast.testing import ScriptedModel, call
from waits import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@step
async def lim_mark(text: str) -> str:
    effect_counts[current_run().id, text] += 1
    return text


@workflow
async def lim_plain(text: str = "plain") -> str:
    return await lim_mark(text)


@workflow
async def lim_waiting() -> Any:
    return await wait_for_signal("go")


# Steps that share a transaction with their record


@step(transaction=True)
def lim_book(cents: int) -> int:
    db = current_step().connection
    db.execute("CREATE TABLE IF NOT EXISTS lim_bookings (cents INT)")
    db.execute(f"INSERT INTO lim_bookings VALUES ({cents:d})")
    return db.execute("SELECT count(*) FROM lim_bookings").fetchone()[0]


@workflow
async def lim_booking() -> int:
    return await lim_book(500)


async def test_a_step_in_a_transaction(world: World) -> None:
    with raising_run_error():
        assert await lim_booking.options(id=make_unique_id("booking"))() == 1


# Queues with limits, and starts that join by something else than an id


async def test_a_queue_with_limits(world: World) -> None:
    name, order = make_unique_id("lim_queued"), list[str]()

    @workflow(name=name, queue=Queue(make_unique_id("lim-queue"), concurrency=1))
    async def queued(text: str) -> None:
        order.append(f"in {text}")
        await lim_mark(text)
        order.append(f"out {text}")

    async with Runtime(world.url, workflows=[name]) as runtime:
        for handle in [await runtime.start(queued.options(id=make_unique_id("queued")), text) for text in "ab"]:
            await handle.result()
    assert order == ["in a", "out a", "in b", "out b"]


async def test_the_queues_of_a_client(world: World, client: Client) -> None:
    name = make_unique_id("lim-set")
    assert await client.queues.set(name, concurrency=2) is True
    assert name in [one.name for one in await client.queues.list()]
    await client.queues.reset(name)


async def test_starts_that_are_joined_by_what_they_are_about(world: World, client: Client) -> None:
    about = make_unique_id("about")
    first = await client.options(dedup=about).start("lim_waiting")
    second = await client.options(dedup=about).start("lim_waiting")
    assert first.run_id == second.run_id
    await first.signal("go", 1)
    assert await second.result() == 1


# Schedules


async def test_a_schedule_of_the_code(world: World) -> None:
    name = make_unique_id("lim_scheduled")

    @workflow(name=name, schedule=Schedule(every=1))
    async def scheduled() -> str:
        effect_counts[name, "ticked"] += 1
        return "ticked"

    try:
        async with Runtime(world.url, workflows=[name]):
            await wait_until(lambda: effect_counts[name, "ticked"])
    finally:
        del definitions[name]  # else every runtime that serves all would go on with the schedule


async def test_a_schedule_of_a_client(world: World, client: Client) -> None:
    name = make_unique_id("nightly")
    await client.schedules.create(name, "lim_plain", cron="0 2 * * *")
    assert name in [one.name for one in await client.schedules.list()]
    await client.schedules.delete(name)


# Budgets


@workflow
async def lim_counting() -> str:
    return "counted"


@tool
async def lim_dig() -> str:
    """Dig deeper."""
    return "nothing yet"


spender = Agent(ScriptedModel([call("lim_dig"), call("lim_dig"), "Done."]), name="lim-spender", tools=[lim_dig])


async def test_a_budget_holds_a_run_until_it_is_raised(world: World) -> None:
    handle = await spender.options(id=make_unique_id("spender"), budget=Budget(turns=2)).start("Spend.")

    async def waits() -> bool:
        return (await handle.info()).state == "waiting" and (await handle.usage()).calls == 2

    await wait_until(waits)
    await handle.set_budget(Budget(turns=5))
    assert (await handle.result()).output == "Done."


async def test_an_agent_that_has_a_budget(world: World) -> None:
    name = make_unique_id("lim-careful")
    careful = Agent(ScriptedModel(["Hello."]), name=name, budget=Budget(turns=2))
    with only_workflows(careful):
        async with Runtime(world.url, workflows=[name]) as runtime:
            assert (
                await (await runtime.start(careful.options(id=make_unique_id("careful")), "Hi")).result()
            ).output == "Hello."


@workflow
async def lim_generous(run: str) -> str:
    return (await spender.options(id=run, budget=Budget(turns=5)).run("Spend.")).output


async def test_a_budget_for_a_child(world: World) -> None:
    with raising_run_error():
        assert await lim_generous.options(id=make_unique_id("generous"))(make_unique_id("child")) == "Done."


async def test_a_run_without_a_budget_cannot_be_given_another(world: World, client: Client) -> None:
    run = make_unique_id("waiting")
    handle = await lim_waiting.options(id=run).start()
    try:
        with pytest.raises(UsageError, match="budget"):
            await client.set_budget(run, Budget(turns=2))
    finally:
        await handle.signal("go")


# What outlives runs


@workflow
async def lim_remembering(who: str) -> list[Any]:
    await memory.put(who, "drink", "tea with milk")
    found = await memory.search(who, "milk")
    return [await memory.get(who, "drink"), [one.key for one in found]]


async def test_memories(world: World) -> None:
    with raising_run_error():
        assert await lim_remembering.options(id=make_unique_id("memory"))(make_unique_id("user")) == [
            "tea with milk",
            ["drink"],
        ]


async def test_memories_of_a_client(world: World, client: Client) -> None:
    who = make_unique_id("user")
    await client.memory.put(who, "drink", "tea")
    assert await client.memory.get(who, "drink") == "tea"


# Runs of others, and all of them together


async def test_a_workflow_that_is_switched_off(world: World, client: Client) -> None:
    assert await client.disable("lim_counting") is True
    run = make_unique_id("counting")
    with pytest.raises(Exception, match="lim_counting"):
        await lim_counting.options(id=run)()
    assert await client.enable("lim_counting") is True
    assert await lim_counting.options(id=run)() == "counted"


async def test_what_was_used_by_day(world: World, client: Client) -> None:
    await spender.options(id=make_unique_id("spender")).run("Spend.")
    report = await client.usage_report()
    assert report.total.calls >= 3


async def test_old_runs_are_deleted(world: World, client: Client) -> None:
    run = make_unique_id("old")
    await lim_plain.options(id=run)()
    report = await client.prune(0.0, run_ids=[run])
    assert report.run_count == 1


async def test_work_is_sent_to_an_address(world: World, client: Client) -> None:
    handle = await client.send(make_unique_id("address"), {"rows": 3})
    assert (await client.get(handle.run_id)).state is RunState.PENDING


async def test_dead_runs_are_listed(world: World, client: Client) -> None:
    assert await client.dead() == []


# The tables themselves


def _scenarios() -> dict[str, set[str]]:
    """All scenarios, each with the names that it has in it."""
    found: dict[str, set[str]] = {}
    for file in Path(__file__).parent.glob("test_conform_*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found[node.name] = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return found


async def test_the_tables_name_what_there_is(world: World) -> None:
    scenarios = _scenarios()
    assert len(scenarios) > 100
    for table in (EXCLUDED, DIFFERENT):
        for scenario, backends in table.items():
            assert scenario in scenarios, f"{scenario} is excluded, and there is no such scenario"
            assert set(backends) < set(BACKENDS), scenario
            assert all(backends.values()), f"{scenario}: say why"
    own = "test_the_tables_name_what_there_is"
    assert {name for name, names in scenarios.items() if "DIFFERENT" in names and name != own} == set(DIFFERENT)
