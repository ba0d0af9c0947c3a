"""Tools are steps, people answer approvals, and what CrewAI makes up does not change what is asked of a model."""

from __future__ import annotations

import asyncio
import itertools
import threading
from datetime import datetime
from typing import Any

import pytest
from crewai import Agent, Crew, Task
from crewai.tools import BaseTool, tool
from crewai.tools.structured_tool import CrewStructuredTool
from pydantic import BaseModel

from holdfast import Client, program
from holdfast.errors import DefinitionError, RunFailed
from holdfast.integrations.crewai import durable


class Ledger:
    """What tools have done."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    def note(self, entry: str) -> str:
        self.entries.append(entry)
        return entry


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def make_crew(
    tools: list[Any], *, agent: dict[str, Any] | None = None, task: dict[str, Any] | None = None, **crew: Any
):
    member = Agent(role="scout", goal="script:scout Find", backstory="", llm="gpt-4o", tools=tools, **(agent or {}))
    work = Task(description="Find a trip.", expected_output="A trip.", agent=member, **(task or {}))
    return Crew(agents=[member], tasks=[work], **crew)


def call(tool_name: str, /, **arguments: Any) -> dict[str, Any]:
    return {"tool": tool_name, "arguments": arguments}


def test_every_kind_of_tool_is_a_step(provider, ledger, replay):
    class City(BaseModel):
        name: str

    class Map(BaseTool):
        name: str = "Show the map"
        description: str = "Shows a map."
        result_schema: type[BaseModel] = City

        def _run(self, city: str) -> City:
            return City(name=ledger.note(f"map {city}"))

    @tool("search")
    async def search(query: str) -> str:
        """Search the web."""
        return ledger.note(f"search {query}")

    def rate(city: str) -> str:
        """Rate a city."""
        return ledger.note(f"rate {city}")

    provider.scripts = {
        "scout": [
            {"calls": [call("show_the_map", city="Oslo"), call("search", query="Oslo")]},
            {"text": "{results}"},
        ]
    }
    found = replay(
        lambda: [
            make_crew([Map(), search]).kickoff().raw,
            CrewStructuredTool.from_function(rate).invoke({"city": "Rome"}),
        ]
    )
    assert found.first == found.second
    assert found.first[1] == "rate Rome"
    assert sorted(ledger.entries) == ["map Oslo", "rate Rome", "search Oslo"]
    assert sorted(found.steps) == ["model call", "model call", "rate", "search", "show_the_map"]


def test_a_failing_tool_fails_in_the_same_way_again(provider, ledger, replay):
    @tool("search")
    def search(query: str) -> str:
        """Search the web."""
        ledger.note(query)
        raise ConnectionError("no network")

    provider.scripts = {"scout": [{"calls": [call("search", query="Oslo")]}, {"text": "It said {results}"}]}
    found = replay(lambda: make_crew([search]).kickoff().raw)
    assert found.first == found.second
    assert "no network" in found.first
    assert ledger.entries == ["Oslo"]


def test_a_cached_result_is_no_second_step(provider, ledger, replay):
    @tool("search")
    def search(query: str) -> str:
        """Search the web."""
        return ledger.note(query)

    oslo = {"calls": [call("search", query="Oslo")]}
    provider.scripts = {"scout": [oslo, oslo, {"text": "Done."}]}
    found = replay(lambda: make_crew([search], agent={"cache": True}, cache=True).kickoff().raw)
    assert found.steps.count("search") == 1
    assert ledger.entries == ["Oslo"]


def test_a_failed_once_tool_is_not_called_again_without_the_model(provider, ledger, replay):
    @tool("charge")
    def charge(card: str) -> str:
        """Charge a card."""
        ledger.note(card)
        raise ConnectionError("connection lost")

    # In a conversation in text, CrewAI calls a failing tool again by itself.
    text = 'Thought: pay\nAction: charge\nAction Input: {"card": "visa"}'
    provider.scripts = {"scout": [{"text": text}, {"text": "Thought: done\nFinal Answer: not paid"}]}

    def kickoff() -> str:
        crew = durable(make_crew([charge]), effects={"charge": "once"}, name="payer")
        crew.agents[0].llm.supports_function_calling = lambda: False
        return crew.kickoff().raw

    found = replay(kickoff)
    assert found.first == found.second == "not paid"
    assert ledger.entries == ["visa"]


def test_an_effect_must_be_known_and_name_a_tool():
    @tool("charge")
    def charge(card: str) -> str:
        """Charge a card."""
        return card

    with pytest.raises(DefinitionError, match="'twice', which is not one of 'read', 'idempotent', 'once'"):
        durable(make_crew([charge]), effects={"charge": "twice"})
    with pytest.raises(
        DefinitionError, match=r"crew 'crew' has no tool 'chrage', which effects= names. It has: .*charge"
    ):
        durable(make_crew([charge]), effects={"chrage": "once"})


def test_async_tasks_run_in_parallel(provider, replay):
    both = threading.Barrier(2, timeout=20)
    is_first = True

    @tool("meet")
    def meet(name: str) -> str:
        """Meet someone."""
        if is_first:
            both.wait()  # passes only if both tasks run at the same time
        return name

    provider.scripts = {
        name: [{"calls": [call("meet", name=name)]}, {"text": f"{name} was here"}] for name in ("ann", "bob")
    } | {"end": [{"text": "Both were here."}]}

    def kickoff() -> str:
        nonlocal is_first
        agents = {
            name: Agent(role=name, goal=f"script:{name} Meet", backstory="", llm="gpt-4o", tools=[meet])
            for name in ("ann", "bob", "end")
        }
        tasks = [
            Task(description=f"Meet, {name}.", expected_output="A meeting.", agent=agents[name], async_execution=True)
            for name in ("ann", "bob")
        ]
        end = Task(description="Sum up.", expected_output="A summary.", agent=agents["end"], context=tasks)
        result = Crew(agents=list(agents.values()), tasks=[*tasks, end]).kickoff().raw
        is_first = False
        return result

    found = replay(kickoff)
    assert found.first == found.second == "Both were here."
    assert found.requests == 5


# People


def test_human_input_is_an_approval(provider, replay):
    provider.scripts = {"scout": [{"text": "Oslo."}]}
    questions: list[str] = []

    async def answer(client: Client, run_id: str) -> None:
        answered: set[str] = set()
        while len(answered) < 2:
            for one in await client.approvals():
                if one.id in answered:
                    continue
                questions.append(one.question)
                if not answered:
                    await client.deny(one.id, reason="Say when.")
                else:
                    await client.approve(one.id)
                answered.add(one.id)
            await asyncio.sleep(0.02)

    found = replay(lambda: make_crew([], task={"human_input": True}).kickoff().raw, answer)
    assert found.first == found.second == "Oslo."
    assert found.requests == 2
    assert "Say when." in str(provider.bodies[-1])
    assert [question.partition("\n\n")[0] for question in questions] == ["Find a trip."] * 2
    assert [question.rpartition("\n\n")[2] for question in questions] == ["Oslo."] * 2


# What CrewAI makes up


def test_the_date_in_a_prompt_stays_the_same(provider, replay, monkeypatch):
    provider.scripts = {"scout": [{"text": "Oslo."}]}
    days = itertools.count(1)

    class Clock:
        @staticmethod
        def now() -> datetime:
            return datetime(2030, 1, next(days))

    monkeypatch.setattr("crewai.utilities.prompts.datetime", Clock)
    found = replay(lambda: make_crew([], agent={"inject_date": True}).kickoff().raw)
    assert found.second == "Oslo."
    assert "Current Date: 2030-01-0" in str(provider.bodies[-1])
    assert "current_date" in found.steps


def test_the_file_of_a_large_result_keeps_its_name(provider, replay):
    @tool("search")
    def search(query: str) -> str:
        """Search the web."""
        return "\n".join(f"line {number} about {query}" for number in range(20_000))

    provider.scripts = {"scout": [{"calls": [call("search", query="Oslo")]}, {"text": "Much."}]}
    found = replay(lambda: make_crew([search]).kickoff().raw)
    assert found.second == "Much."
    assert "tool-result-" in str(provider.bodies[-1])


def test_a_result_that_cannot_be_recorded_fails_the_tool(provider, replay):
    @tool("search")
    def search(query: str) -> object:
        """Search the web."""
        return object()

    provider.scripts = {"scout": [{"calls": [call("search", query="Oslo")]}, {"text": "It said {results}"}]}
    found = replay(lambda: make_crew([search]).kickoff().raw)
    assert found.first == found.second
    assert "cannot be recorded" in found.first or "object" in found.first


def test_a_blocking_kickoff_in_an_async_program_is_refused(provider):
    @program(name="blocks")
    async def blocks() -> Any:
        return make_crew([]).kickoff()

    with pytest.raises(RunFailed, match=r"Crew.kickoff\(\) would block the event loop .* `await crew.akickoff"):
        blocks.run_sync()
