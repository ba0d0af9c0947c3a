"""Identity: ids from templates and options, joining, conflicts; and the other options of a start."""

from __future__ import annotations

import asyncio
import time

import pytest
from conformance_world import World, effect_counts, make_unique_id

from holdfast import (
    Client,
    RunConflict,
    RunFailed,
    RunState,
    current_run,
    step,
    wait_for_signal,
    workflow,
)
from waits import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@step
async def id_work(text: str) -> str:
    effect_counts[current_run().id, "worked"] += 1
    if text == "broken":
        raise ValueError("broken")
    return text.upper()


@workflow(id="id-{customer}/{year}")
async def id_yearly(customer: str, year: int, text: str = "plain") -> str:
    return await id_work(text)


async def test_an_id_from_a_template_makes_two_starts_the_same_run(world: World, client: Client) -> None:
    customer = make_unique_id("acme")
    first = await id_yearly.start(customer, 2026)
    assert first.run_id == f"id-{customer}/2026"
    assert await first.result() == "PLAIN"
    assert await id_yearly(customer, 2026) == "PLAIN"
    assert await client.run("id_yearly", customer, year=2026) == "PLAIN"
    assert effect_counts[first.run_id, "worked"] == 1


async def test_other_inputs_under_the_same_id_are_a_conflict(world: World, client: Client) -> None:
    customer = make_unique_id("acme")
    await id_yearly(customer, 2026)
    with pytest.raises(RunConflict, match=customer):
        await id_yearly(customer, 2026, "other")
    with pytest.raises(RunConflict, match=customer):
        await client.run("id_yearly", customer, 2026, "other")


async def test_starting_a_failed_run_again_names_the_way_on(world: World) -> None:
    customer = make_unique_id("acme")
    for _ in range(2):
        with pytest.raises(RunFailed, match="holdfast retry"):
            await id_yearly(customer, 2026, "broken")
    assert effect_counts[f"id-{customer}/2026", "worked"] == 1


@workflow
async def id_waiting() -> str:
    return await wait_for_signal("go")


async def test_an_unfinished_run_is_joined_under_the_id_of_an_option(world: World, client: Client) -> None:
    run = make_unique_id("joined")
    first = await id_waiting.options(id=run).start()
    second = await id_waiting.options(id=run).start()
    third = await client.options(id=run).start("id_waiting")
    assert {first.run_id, second.run_id, third.run_id} == {run}
    await second.signal("go", "all of you")
    assert await asyncio.gather(first.result(), second.result(), third.result()) == ["all of you"] * 3


async def test_runs_without_an_id_are_runs_of_their_own(world: World) -> None:
    first, second = [await id_waiting.options(new=True).start() for _ in range(2)]
    assert first.run_id != second.run_id
    assert first.run_id.startswith("id_waiting")
    for handle in (first, second):
        await handle.signal("go", handle.run_id)
        assert await handle.result() == handle.run_id


async def test_an_id_of_another_workflow_is_a_conflict(world: World) -> None:
    run = make_unique_id("taken")
    handle = await id_waiting.options(id=run).start()
    with pytest.raises(RunConflict, match="id_waiting"):
        await id_plain.options(id=run)()
    await handle.signal("go", "on")
    assert await handle.result() == "on"


@workflow
async def id_plain() -> float:
    return await id_now()


@step
async def id_now() -> float:
    effect_counts[current_run().id, "began"] += 1
    return time.time()


async def test_a_delay_keeps_a_run_waiting(world: World, client: Client) -> None:
    run, began = make_unique_id("delayed"), time.time()
    handle = await id_plain.options(id=run, delay=0.5).start()
    assert (await client.get(run)).state is RunState.PENDING
    assert effect_counts[run, "began"] == 0
    assert await handle.result() - began >= 0.45


async def test_a_delayed_run_can_be_cancelled_before_it_begins(world: World, client: Client) -> None:
    run = make_unique_id("delayed")
    handle = await id_plain.options(id=run, delay=60).start()
    await handle.cancel()
    assert await wait_until(lambda: _is_in_state(client, run, RunState.CANCELLED))
    assert effect_counts[run, "began"] == 0


async def _is_in_state(client: Client, run: str, state: RunState) -> bool:
    return (await client.get(run)).state is state


@workflow(tags=["own"])
async def id_tagged() -> str:
    return "done"


async def test_tags_of_a_workflow_and_of_a_start_find_a_run(world: World, client: Client) -> None:
    run, tag = make_unique_id("tagged"), make_unique_id("tag")
    assert await id_tagged.options(id=run, tags=[tag, "more"])() == "done"
    info = await client.get(run)
    assert set(info.tags) == {"own", "more", tag}

    async def found() -> list[str]:
        return [one.id for one in await client.list(tag=tag)]

    assert await wait_until(found) == [run]


async def test_a_run_in_another_queue_is_served_by_who_serves_all(world: World, client: Client) -> None:
    run = make_unique_id("queued")
    await id_plain.options(id=run, queue=make_unique_id("queue"))()
    assert (await client.get(run)).queue.startswith("queue-")


order: list[str] = []


@workflow
async def id_ranked(name: str) -> None:
    await id_rank(name)


@step
async def id_rank(name: str) -> None:
    order.append(name)


async def test_a_priority_is_taken_with_a_start(world: World) -> None:
    order.clear()
    handles = [
        await id_ranked.options(id=make_unique_id("ranked"), priority=priority).start(str(priority))
        for priority in (0, 5, 9)
    ]
    for handle in handles:
        await handle.result()
    assert sorted(order) == ["0", "5", "9"]
