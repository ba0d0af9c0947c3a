"""Sessions on Temporal: a conversation goes on from run to run, whoever carries them out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import Client as TemporalClient

from holdfast import Agent, Client, Runtime, workflow
from holdfast.agents.sessions import read_messages
from holdfast.stores.contract import History
from holdfast.stores.operations import Run
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.entity_workflows import EntityWorkflow, signal_entity
from holdfast.stores.temporal.sessions import MAX_REMEMBERED_RUNS, SessionOrder
from holdfast.temporal import entity_workflows
from holdfast.testing import ScriptedModel

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_other_workflows")]


def count(messages: list[Any]) -> str:
    return f"{len(messages)} messages"


@pytest_asyncio.fixture
async def runtime(temporal_url: str) -> AsyncIterator[Runtime]:
    async with Runtime(temporal_url) as runtime:
        yield runtime


@pytest_asyncio.fixture
async def temporal(temporal_url: str) -> TemporalClient:
    address, _, namespace = temporal_url.removeprefix("temporal://").partition("/")
    return await TemporalClient.connect(address, namespace=namespace)


async def test_joining_again_returns_the_same_order() -> None:
    order = SessionOrder()
    assert [order.join(run) for run in ("a", "b", "a", "c", "b")] == ["", "a", "", "b", "a"]
    again = SessionOrder.from_json(order.to_json())
    assert (again.join("c"), again.join("d")) == ("b", "c")
    for number in range(MAX_REMEMBERED_RUNS):
        again.join(str(number))
    assert len(again.previous_runs) == MAX_REMEMBERED_RUNS


async def test_a_session_goes_on_where_the_last_run_ended_on_temporal(runtime: Runtime, temporal_url: str) -> None:
    model = ScriptedModel(["Hello Ada.", "You are Ada.", "Yes."])
    agent = Agent(model, name="temporal-session")
    first = await agent.run("I am Ada.", session="s1")
    second = await agent.run("Who am I?", session="s1")
    third = await agent.run("Really?", session="s1")
    assert (second.output, third.output) == ("You are Ada.", "Yes.")
    assert [asked.message_count for asked in model.calls] == [1, 3, 5]
    assert len(third.messages) == 6
    assert len(third.new_messages) == 2
    assert (await agent.run("Who am I?", session="s2")).output == "Hello Ada."  # nothing came before
    async with Client(temporal_url) as client:
        rows = [await client.connections.read(one.run_id) for one in (first, second, third)]
    assert [row.previous_run for row in rows] == ["", first.run_id, second.run_id]


async def test_runs_of_a_session_that_are_started_at_once_come_one_after_the_other(runtime: Runtime) -> None:
    at_once = most = 0

    async def slowly(messages: list[Any]) -> str:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.1)
        at_once -= 1
        return count(messages)

    agent = Agent(ScriptedModel([slowly, slowly, slowly, slowly]), name="temporal-session-at-once")
    handles = [await agent.start("one", session="s"), await agent.start("two", session="s")]
    handles += await asyncio.gather(*(agent.start(text, session="s") for text in ("three", "four")))
    said = [(await handle.result(20)).output for handle in handles]
    assert said[:2] == ["1 messages", "3 messages"]  # in the order in which they were started
    assert sorted(said[2:]) == ["5 messages", "7 messages"]
    assert most == 1


async def test_what_was_cancelled_is_no_part_of_a_session_on_temporal(runtime: Runtime) -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    async def hangs(messages: list[Any]) -> str:
        begun.set()
        await never.wait()
        return "never"

    agent = Agent(ScriptedModel([lambda _: "first", hangs]), name="temporal-session-cancelled")
    await agent.run("one", session="s")
    cancelled = await agent.start("two", session="s")
    await begun.wait()
    waits = await agent.start("three", session="s")
    begun.clear()
    await cancelled.cancel()
    await asyncio.wait_for(begun.wait(), 20)  # the third run asks what the second one asked
    await waits.cancel()


async def test_runs_that_a_workflow_starts_are_in_the_session_as_well(runtime: Runtime) -> None:
    agent = Agent(ScriptedModel([count, count]), name="temporal-session-below")

    @workflow
    async def temporal_session_above() -> list[str]:
        return [(await agent.run(text, session="s")).output for text in ("a", "b")]

    assert await temporal_session_above() == ["1 messages", "3 messages"]


async def test_a_session_goes_on_after_a_restart(
    temporal_url: str, temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entity_workflows, "FIRST_CHECK_S", 0.1)
    model = ScriptedModel([count, count])
    agent = Agent(model, name="temporal-session-restart")
    async with Runtime(temporal_url):
        await agent.run("one", session="s")
        # Nobody needs to keep the order now. What is left of it is enough for the next run.
        order = temporal.get_workflow_handle(identifiers.format_session_id("temporal-session-restart", "s"))
        await asyncio.wait_for(order.result(), 10)
    async with Runtime(temporal_url):
        assert (await agent.run("two", session="s")).output == "3 messages"


async def test_a_session_begins_anew_where_older_runs_are_gone(
    runtime: Runtime, temporal: TemporalClient, caplog: pytest.LogCaptureFixture
) -> None:
    order = EntityWorkflow(
        identifiers.SESSION_TYPE,
        identifiers.format_session_id("temporal-session-gone", "s"),
        SessionOrder("deleted").to_json(),
    )
    await signal_entity(temporal, order, identifiers.JOINED_SIGNAL, "deleted, too")
    agent = Agent(ScriptedModel([count, count]), name="temporal-session-gone")
    with caplog.at_level(logging.INFO, "holdfast"):
        assert (await agent.run("one", session="s")).output == "1 messages"
    assert "'deleted, too'" in caplog.text
    assert (await agent.run("two", session="s")).output == "3 messages"


async def test_a_conversation_begins_with_its_oldest_stored_run(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent(ScriptedModel([count, count, count]), name="temporal-session-partly-gone")
    first, second, third = [await agent.run(text, session="s") for text in ("one", "two", "three")]

    async def read(run_id: str) -> tuple[Run, History] | None:
        return None if run_id == first.run_id else await runtime._engine.read_run(run_id)

    with caplog.at_level(logging.INFO, "holdfast"):
        said = await read_messages(third.run_id, read)
    assert len(said) == 4
    assert first.run_id in caplog.text
    assert second.run_id != first.run_id
