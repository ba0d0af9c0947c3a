"""Agents on the SQLite store: results, sessions, budgets, workers and clients."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from holdfast import Agent, AgentResult, Budget, Client, RunFailed, Runtime, Usage, tool, workflow
from holdfast.errors import StoreNotFound, UsageError
from holdfast.testing import ScriptedModel, call
from waits import wait_until

pytestmark = pytest.mark.asyncio

PRICED: dict[str, Any] = {"name": "gpt-4o-mini", "provider": "openai", "usage": (1000, 100)}
"""Fifteen hundredths of a cent in, six hundredths of a thousandth out: 0.00021 dollars a call."""


@tool
async def look_up(word: str) -> str:
    """Looks a word up."""
    return f"{word}: a word"


async def test_a_result_has_the_answer_the_usage_the_cost_and_the_messages(runtime: Runtime) -> None:
    model = ScriptedModel([call("look_up", word="tide"), "A tide is a word."], **PRICED)
    agent = Agent(model, name="runtime-words", tools=[look_up], instructions="You know words.")
    result = await agent.run("What is a tide?")
    assert result.output == "A tide is a word."
    assert result.usage == Usage(calls=2, input_tokens=2000, output_tokens=200, nano_usd=420_000)
    assert result.cost == Decimal("0.00042")
    kinds = [[part.part_kind for part in message.parts] for message in result.messages]
    assert kinds == [["user-prompt"], ["tool-call"], ["tool-return"], ["text"]]
    assert result.messages[0].instructions == "You know words."
    assert result.new_messages == result.messages
    again = await agent.options(id=result.run_id).run("What is a tide?")
    assert again == result
    assert again.messages == result.messages
    assert len(model.calls) == 2


async def test_the_journal_has_the_conversation_that_the_model_saw(runtime: Runtime) -> None:
    seen: list[Any] = []

    def last(messages: list[Any]) -> str:
        seen.extend(messages)
        return "done"

    helper = Agent(ScriptedModel(["helped"]), name="runtime-same-helper")
    script = [
        [call("look_up", word="a"), call("runtime-same-helper", task="b"), call("nothing"), call("look_up", "{")],
        "",  # empty: it is asked again
        [call("look_up", word="c"), "and a text"],
        last,
    ]
    agent = Agent(ScriptedModel(script), name="runtime-same", tools=[look_up], subagents=[helper], instructions="Hm.")
    result = await agent.run("go")
    assert result.messages[:-1] == seen
    assert len(seen) == 7


async def test_an_unknown_price_is_reported(runtime: Runtime) -> None:
    agent = Agent(ScriptedModel(["hm"], usage=(10, 5)), name="runtime-unpriced")
    result = await agent.run("go")
    assert result.cost is None
    assert result.usage.tokens == 15
    assert "price not known" in str(result.usage)


async def test_a_session_continues_where_the_last_run_ended(runtime: Runtime) -> None:
    model = ScriptedModel(["Hello Ada.", "You are Ada.", "Yes."])
    agent = Agent(model, name="runtime-session")
    await agent.run("I am Ada.", session="s1")
    second = await agent.run("Who am I?", session="s1")
    assert second.output == "You are Ada."
    third = await agent.run("Really?", session="s1")
    assert third.output == "Yes."
    assert [asked.message_count for asked in model.calls] == [1, 3, 5]
    assert len(third.messages) == 6
    assert len(third.new_messages) == 2
    other = await agent.run("Who am I?", session="s2")
    assert other.output == "Hello Ada."  # the first turn of the script: nothing came before


async def test_a_session_takes_one_run_at_a_time_and_leaves_out_what_failed(runtime: Runtime) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def slowly(messages: Any) -> str:
        begun.set()
        await gate.wait()
        return "first"

    def second(messages: Any) -> str:
        return f"{len(messages)} messages"

    model = ScriptedModel([slowly, second, second])
    agent = Agent(model, name="runtime-session-queue")
    one = await agent.start("one", session="s")
    await begun.wait()
    two = await agent.start("two", session="s")
    await asyncio.sleep(0)
    gate.set()
    assert (await one.result()).output == "first"
    assert (await two.result()).output == "3 messages"

    failing = await agent.options(tags=["x"]).start("three", session="s")
    await failing.cancel()
    with pytest.raises(Exception, match="cancelled"):
        await failing.result()
    assert (await (await agent.start("four", session="s")).result()).output == "5 messages"


async def test_a_budget_parks_the_run_until_it_is_raised(runtime: Runtime, url: str) -> None:
    model = ScriptedModel([call("look_up", word="a"), call("look_up", word="b"), "done"], **PRICED)
    agent = Agent(model, name="runtime-budget", tools=[look_up], budget=Budget(turns=2))
    handle = await agent.start("go")
    async with Client(url) as client:
        for _ in range(500):
            info = await client.get(handle.run_id)
            if info.waits_for:
                break
            await asyncio.sleep(0.01)
        assert info.state == "waiting"
        assert "budget" in info.waits_for
        assert len(model.calls) == 2
        assert (await client.usage(handle.run_id)).calls == 2
        await client.set_budget(handle.run_id, Budget(turns=3))
    result = await handle.result(10)
    assert result.output == "done"
    assert len(model.calls) == 3


async def test_parallel_children_share_one_budget(runtime: Runtime) -> None:
    helper = Agent(ScriptedModel(["done"], **PRICED), name="runtime-budget-helper")
    calls = [call("runtime-budget-helper", task=str(number)) for number in range(6)]
    model = ScriptedModel([calls, "all"], **PRICED)
    agent = Agent(model, name="runtime-budget-boss", subagents=[helper])
    handle = await agent.options(budget=Budget(turns=4)).start("go")
    for _ in range(500):
        used = await handle.usage()
        if used.calls == 4:
            break
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)
    assert (await handle.usage()).calls == 4
    await handle.set_budget(Budget(turns=8))
    assert (await handle.result(20)).output == "all"
    assert (await handle.usage()).calls == 8


async def test_a_dollar_budget_needs_a_price(runtime: Runtime) -> None:
    agent = Agent(ScriptedModel(["x"]), name="runtime-budget-unpriced", budget=Budget(usd=1))
    with pytest.raises(RunFailed, match="price"):
        await agent.run("go")


async def is_announced(client: Client, workflow: str) -> bool:
    try:
        store = await client.connections.store()
    except StoreNotFound:
        return False  # the worker is about to create it
    return workflow in await store.get_workflow_specs()


async def test_clients_run_agents_by_name(url: str) -> None:
    helper = Agent(ScriptedModel(["sub"]), name="runtime-by-name-helper")
    agent = Agent(
        ScriptedModel([call("runtime-by-name-helper", task="t"), "hello"], usage=(3, 2)),
        name="runtime-by-name",
        subagents=[helper],
    )
    stop = asyncio.Event()
    worker = asyncio.create_task(agent.run_worker(url, stop=stop))
    async with Client(url) as client:
        await wait_until(lambda: is_announced(client, "runtime-by-name"))
        result = await client.run("runtime-by-name", "Hello?")
        assert isinstance(result, AgentResult)
        assert result.output == "hello"
        assert result.usage.calls == 3
        with pytest.raises(UsageError, match="messages"):
            _ = result.messages
        assert (await client.get(result.run_id)).output == "hello"
        with pytest.raises(Exception, match="no input"):
            await client.run("runtime-by-name", question="Hello?")
    stop.set()
    await worker


async def test_a_workflow_may_have_a_budget_for_the_agents_in_it(runtime: Runtime) -> None:
    agent = Agent(ScriptedModel(["one"]), name="runtime-in-workflow")

    @workflow
    async def asks_twice() -> list[str]:
        return [(await agent.run("a")).output, (await agent.run("b")).output]

    handle = await asks_twice.options(budget=Budget(turns=1)).start()
    for _ in range(500):
        if (await handle.usage()).calls:
            break
        await asyncio.sleep(0.01)
    await handle.set_budget(Budget(turns=2))
    assert await handle.result(10) == ["one", "one"]


async def test_run_sync_needs_no_event_loop_of_its_own(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{tmp_path}/sync.db")
    agent = Agent(ScriptedModel(["sync"]), name="runtime-sync")
    assert (await asyncio.to_thread(agent.run_sync, "go")).output == "sync"
