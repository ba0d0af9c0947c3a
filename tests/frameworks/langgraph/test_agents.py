"""Agents of LangChain and deepagents that are durable."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, ModelCallLimitMiddleware, wrap_tool_call
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain.tools import tool
from langchain_core.messages import ToolMessage
from langchain_core.tools import ToolException
from langgraph.types import Command, interrupt
from pydantic import BaseModel
from replays import answer_approvals, count_steps, run_and_replay

from holdfast import Client, DefinitionError, workflow
from holdfast.integrations.langgraph import durable

pytestmark = pytest.mark.asyncio


class City(BaseModel):
    """A city."""

    name: str
    size: int


calls: list[str] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


@tool
def look(city: str) -> str:
    """Look at a city."""
    calls.append(f"look {city}")
    return f"{city} is sunny"


@tool(response_format="content_and_artifact")
def measure(city: str) -> tuple[str, City]:
    """Measure a city."""
    calls.append(f"measure {city}")
    return f"{city} is large", City(name=city, size=7)


@tool
def note(city: str, runtime: Any = None) -> Command[Any]:
    """Note a city."""
    calls.append(f"note {city}")
    return Command(update={"messages": [ToolMessage(f"{city} noted", tool_call_id="call-of-note")]})


@tool
def fail(city: str) -> str:
    """Fail."""
    calls.append(f"fail {city}")
    raise ToolException(f"no {city}")


fail.handle_tool_error = True


@tool
async def book(city: str) -> str:
    """Book a hotel, after a person was asked."""
    calls.append(f"asking about {city}")
    room = interrupt({"question": f"Which room in {city}?"})
    calls.append(f"book {city}")
    return f"room {room} in {city}"


def turn(*tool_calls: tuple[str, str], text: str = "") -> dict[str, Any]:
    return {"text": text, "calls": [{"tool": name, "arguments": {"city": city}} for name, city in tool_calls]}


def ask(text: str = "script:trip Plan a trip.") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def get_contents(state: dict[str, Any]) -> list[tuple[str, str]]:
    return [(message.type, message.text) for message in state["messages"]]


async def test_a_replayed_agent_makes_no_call_and_ends_with_the_same_messages(provider):
    provider.scripts = {
        "trip": [
            turn(("look", "Oslo"), ("measure", "Oslo"), ("fail", "Rome"), text="I look."),
            {"text": "It is sunny."},
        ]
    }
    agent = durable(create_agent("openai:gpt-4o", tools=[look, measure, fail]))
    first, second, run_id = await run_and_replay(lambda: agent.ainvoke(ask()))
    assert first == second
    assert [message.id for message in first["messages"]] == [message.id for message in second["messages"]]
    assert get_contents(first)[2:5] == [("tool", "Oslo is sunny"), ("tool", "Oslo is large"), ("tool", "no Rome")]
    assert second["messages"][3].artifact == City(name="Oslo", size=7)
    assert second["messages"][4].status == "error"
    assert second["messages"][1].usage_metadata == first["messages"][1].usage_metadata
    assert sorted(calls) == ["fail Rome", "look Oslo", "measure Oslo"]
    assert len(provider.address.calls) == 2
    assert await count_steps(run_id) == {"model call": 2, "look": 1, "measure": 1, "fail": 1}


async def test_the_run_shows_the_conversation_and_what_it_cost(provider):
    provider.scripts = {"trip": [turn(("look", "Oslo"), text="I look."), {"text": "Sunny."}]}
    agent = durable(create_agent("openai:gpt-4o", tools=[look], system_prompt="Be brief.", name="shown"))
    await agent.ainvoke(ask(), {"configurable": {"run_id": "shown-1"}})
    async with Client() as client:
        handle = client.handle("shown-1")
        messages = await handle.conversation()
        run = await client.get("shown-1")
        report = await handle.describe(limit=None)
    assert [(one.role, one.text) for one in messages] == [
        ("system", "Be brief."),
        ("user", "script:trip Plan a trip."),
        ("model", "I look."),
        ("tool", "Oslo is sunny"),
        ("model", "Sunny."),
    ]
    assert run.workflow == "shown"
    assert report.usage.calls == 2
    assert report.usage.input_tokens > 0
    assert report.usage.cost > 0


@pytest.mark.parametrize("strategy", [ToolStrategy, ProviderStrategy])
async def test_structured_output_is_the_same_in_a_replay(provider, strategy):
    answer = {"name": "Oslo", "size": 7}
    provider.scripts = {
        "trip": [
            {"calls": [{"tool": "City", "arguments": answer}]}
            if strategy is ToolStrategy
            else {"text": '{"name": "Oslo", "size": 7}'}
        ]
    }
    agent = durable(create_agent("openai:gpt-4o", tools=[look], response_format=strategy(City)))
    first, second, _ = await run_and_replay(lambda: agent.ainvoke(ask()))
    assert first["structured_response"] == second["structured_response"] == City(**answer)
    assert len(provider.address.calls) == 1


async def test_a_person_approves_edits_and_rejects_tool_calls(provider):
    provider.scripts = {
        "trip": [turn(("look", "Oslo"), ("look", "Rome"), ("look", "Bern"), ("measure", "Oslo")), {"text": "Done."}]
    }
    agent = durable(
        create_agent(
            "openai:gpt-4o", tools=[look, measure], middleware=[HumanInTheLoopMiddleware(interrupt_on={"look": True})]
        )
    )
    answers = {"Oslo": None, "Rome": {"city": "Paris"}, "Bern": ValueError("too cold")}
    person = asyncio.create_task(answer_approvals(*[lambda approval: answers[approval.arguments["city"]]] * 3))
    first, second, _run_id = await run_and_replay(lambda: agent.ainvoke(ask()))
    approvals = await person
    assert {one.tool for one in approvals} == {"look"}
    assert first == second
    texts = [text for kind, text in get_contents(first) if kind == "tool"]
    assert any("too cold" in text for text in texts)
    assert all(any(seen in text for text in texts) for seen in ("Oslo is sunny", "Paris is sunny", "Oslo is large"))
    assert sorted(calls) == ["look Oslo", "look Paris", "measure Oslo"]


async def test_a_tool_that_interrupts_waits_while_others_continue(provider):
    provider.scripts = {"trip": [turn(("book", "Oslo"), ("look", "Rome")), {"text": "Done: {results}"}]}
    agent = durable(create_agent("openai:gpt-4o", tools=[look, book]))
    person = asyncio.create_task(answer_approvals(12))
    first, second, _run_id = await run_and_replay(lambda: agent.ainvoke(ask()))
    (approval,) = await person
    assert approval.question == "Which room in Oslo?"
    assert first == second
    assert ("tool", "room 12 in Oslo") in get_contents(first)
    assert sorted(calls) == ["asking about Oslo", "asking about Oslo", "book Oslo", "look Rome"]
    assert len(provider.address.calls) == 2


async def test_middleware_may_change_and_repeat_calls(provider):
    provider.scripts = {"trip": [turn(("look", "Oslo")), {"text": "Done."}]}

    @wrap_tool_call
    async def call_twice(request, handler):
        await handler(request.override(tool_call={**request.tool_call, "args": {"city": "Bern"}}))
        return await handler(request)

    agent = durable(
        create_agent("openai:gpt-4o", tools=[look], middleware=[call_twice, ModelCallLimitMiddleware(run_limit=5)])
    )
    first, second, _ = await run_and_replay(lambda: agent.ainvoke(ask()))
    assert first == second
    assert calls == ["look Bern", "look Oslo"]


async def test_a_deep_agent_with_sub_agents_and_files(provider):
    provider.scripts = {
        "deep": [
            {"calls": [{"tool": "write_file", "arguments": {"file_path": "/plan.md", "content": "Go to Oslo."}}]},
            {"calls": [
                {"tool": "task", "arguments": {"description": f"script:sub Look at {city}.", "subagent_type": "scout"}}
                for city in ("Oslo", "Rome")
            ]},
            {"calls": [{"tool": "read_file", "arguments": {"file_path": "/plan.md"}}]},
            {"text": "Done: {results}"},
        ],
        "sub": [turn(("look", "Oslo")), {"text": "Seen."}],
    }  # fmt: skip
    scout = {
        "name": "scout", "description": "Looks at cities.", "system_prompt": "script:sub", "tools": [look],
    }  # fmt: skip
    agent = durable(
        create_deep_agent("openai:gpt-4o", system_prompt="script:deep", subagents=[scout], name="deep"),
    )
    first, second, run_id = await run_and_replay(lambda: agent.ainvoke(ask("Plan.")))
    assert first == second
    assert "Go to Oslo." in first["messages"][-1].text
    assert "/plan.md" in first["files"]
    assert calls == ["look Oslo", "look Oslo"]
    steps = await count_steps(run_id)
    assert steps == {"model call": 8, "write_file": 1, "task": 2, "read_file": 1, "look": 2}
    assert len(provider.address.calls) == 8


async def test_an_effect_names_a_tool_of_the_agent_or_of_one_below_it(provider):
    def charge(euros: int) -> str:
        """Charge the customer's card."""
        return f"charged {euros}"

    def make_agent(*tools: Any) -> Any:
        return create_agent("openai:gpt-4o", tools=tools, name="effects-agent")

    with pytest.raises(
        DefinitionError,
        match=r"graph 'misspelt' has no tool, node, or task 'chrage', which effects= names. It has: charge, look$",
    ):
        durable(make_agent(look, charge), name="misspelt", effects={"chrage": "once"})
    cashier = make_agent(charge)

    @tool
    def ask_cashier(request: str) -> str:
        """Ask the cashier."""
        return str(cashier.invoke({"messages": [("user", request)]})["messages"][-1].text)

    durable(make_agent(ask_cashier), name="outer-agent", effects={"charge": "once"})
    scout = {"name": "scout", "description": "Charges.", "system_prompt": "script:sub", "tools": [charge]}
    deep = create_deep_agent("openai:gpt-4o", subagents=[scout], name="deep-effects")
    with warnings.catch_warnings(action="error", category=UserWarning):
        durable(deep, name="deep-effects-1", effects={"charge": "once"})
    with pytest.warns(UserWarning, match="has no tool, node, or task 'chrage' so far.*Did you mean 'charge'"):
        durable(deep, name="deep-effects-2", effects={"chrage": "once"})


async def test_a_workflow_calls_an_agent_as_a_child(provider):
    provider.scripts = {"trip": [turn(("look", "Oslo")), {"text": "Done."}]}
    agent = durable(create_agent("openai:gpt-4o", tools=[look], name="child-agent"))

    @workflow(id="parent-of-agent")
    async def parent() -> str:
        return str((await agent.ainvoke(ask()))["messages"][-1].text)

    assert await parent() == "Done."
    async with Client() as client:
        runs = {run.workflow: run for run in await client.list()}
    assert set(runs) == {"parent", "child-agent"}
    assert runs["child-agent"].parent == "parent-of-agent"


async def test_the_same_call_with_a_run_id_joins_the_run(provider):
    provider.scripts = {"trip": [turn(("look", "Oslo")), {"text": "Done."}]}
    agent = durable(create_agent("openai:gpt-4o", tools=[look], name="joined"))
    config = {"configurable": {"run_id": "joined-1"}}
    first = await agent.ainvoke(ask(), config)
    assert await agent.ainvoke(ask(), config) == first
    assert len(provider.address.calls) == 2
