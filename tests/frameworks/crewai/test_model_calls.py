"""Every way in which CrewAI calls a model is recorded, and returns the same when the program runs again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from crewai import LLM, Agent, BaseLLM, Crew, Process, Task
from crewai.events.event_bus import crewai_event_bus
from crewai.events.types.llm_events import LLMCallCompletedEvent, LLMCallStartedEvent, LLMStreamChunkEvent
from crewai.tools import tool
from pydantic import BaseModel

from holdfast import program, workflow
from holdfast.errors import RunFailed


@tool("search")
def search(query: str) -> str:
    """Search the web."""
    return f"found {query}"


CALL = {"tool": "search", "arguments": {"query": "Oslo"}}
SEARCHES = [{"calls": [CALL]}, {"text": "It is {results}."}]


def make_crew(
    llm: Any = "gpt-4o", *, agent: dict[str, Any] | None = None, task: dict[str, Any] | None = None, **crew: Any
):
    member = Agent(role="scout", goal="script:scout Find trips", backstory="", llm=llm, tools=[search], **(agent or {}))
    work = Task(description="Find a trip.", expected_output="A trip.", agent=member, **(task or {}))
    return Crew(agents=[member], tasks=[work], **crew)


class Trip(BaseModel):
    city: str
    days: int


def test_a_crew_with_tools(provider, replay):
    provider.scripts = {"scout": SEARCHES}
    found = replay(lambda: make_crew().kickoff())
    assert found.first.raw == found.second.raw == "It is found Oslo."
    assert found.first.token_usage == found.second.token_usage
    assert found.first.token_usage.prompt_tokens > 0
    assert found.requests == 2
    assert found.steps == ["model call", "search", "model call"]


def test_usage_and_cost_are_those_of_the_run(provider, replay):
    provider.scripts = {"scout": [{"text": "Oslo.", "usage": {"input": 1000, "output": 100, "cached": 400}}]}
    usage = replay(lambda: make_crew().kickoff()).report.usage
    assert (usage.calls, usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (1, 1000, 100, 400)
    assert usage.nano_usd > 0


def test_a_streamed_answer(provider, replay):
    provider.scripts = {"scout": SEARCHES}
    texts: list[str] = []
    with crewai_event_bus.scoped_handlers():

        @crewai_event_bus.on(LLMStreamChunkEvent)
        def note(source: Any, event: LLMStreamChunkEvent) -> None:
            if event.tool_call is None:
                texts.append(event.chunk)

        found = replay(lambda: make_crew(LLM(model="gpt-4o", stream=True)).kickoff())
    assert found.first.raw == found.second.raw == "It is found Oslo."
    assert "".join(texts) == "It is found Oslo." * 2, "a recorded answer is streamed again"
    assert found.first.token_usage == found.second.token_usage


def test_a_streaming_crew(provider, replay):
    provider.scripts = {"scout": SEARCHES}

    def kickoff() -> list[str]:
        stream = make_crew(stream=True).kickoff()
        return [*(chunk.content for chunk in stream if chunk.content), stream.result.raw]

    found = replay(kickoff)
    assert found.first == found.second
    assert len(found.first) > 2


def test_the_event_bus_hears_of_recorded_calls(provider, replay):
    provider.scripts = {"scout": SEARCHES}
    heard: list[Any] = []
    with crewai_event_bus.scoped_handlers():
        for kind in (LLMCallStartedEvent, LLMCallCompletedEvent):
            crewai_event_bus.on(kind)(lambda source, event: heard.append((event.type, event.agent_role)))
        replay(lambda: make_crew().kickoff())
        crewai_event_bus.flush()
    assert sorted(heard) == sorted([("llm_call_started", "scout"), ("llm_call_completed", "scout")] * 4)


@pytest.mark.parametrize("output", ["output_pydantic", "output_json", "response_model"])
def test_structured_output(output, provider, replay):
    provider.scripts = {"scout": [{"answer": {"city": "Oslo", "days": 3}}]}
    found = replay(lambda: make_crew(task={output: Trip}).kickoff())
    assert found.first == found.second
    assert json.loads(found.first.raw) == {"city": "Oslo", "days": 3}


def test_planning(provider, replay):
    plan = {"list_of_plans_per_task": [{"task_number": 1, "task": "Find", "plan": "Search first."}]}
    provider.scripts = {"scout": [{"text": "Oslo."}], "scout@gpt-4o-mini": [{"answer": plan}]}
    found = replay(lambda: make_crew(planning=True, planning_llm="gpt-4o-mini").kickoff())
    assert found.first.raw == found.second.raw == "Oslo."
    assert found.requests == 2


def test_reasoning(provider, replay):
    provider.scripts = {
        "scout": [
            {"calls": [{"tool": "create_reasoning_plan", "arguments": {"plan": "Think.", "steps": [], "ready": True}}]},
            {"text": "Oslo."},
        ],
        "gpt-4o": [
            {"calls": [{"tool": "create_reasoning_plan", "arguments": {"plan": "Think.", "steps": [], "ready": True}}]}
        ],
    }
    found = replay(lambda: make_crew(agent={"reasoning": True}).kickoff())
    assert found.first.raw == found.second.raw
    assert found.requests >= 2


def test_the_manager_of_a_hierarchical_crew(provider, replay):
    delegate = {
        "tool": "delegate_work_to_coworker",
        "arguments": {"task": "Find a trip", "context": "For two", "coworker": "scout"},
    }
    provider.scripts = {"gpt-4.1": [{"calls": [delegate]}, {"text": "The trip: {results}"}], "scout": SEARCHES}

    def kickoff() -> Any:
        member = Agent(role="scout", goal="script:scout Find trips", backstory="", llm="gpt-4o", tools=[search])
        work = Task(description="Plan a trip.", expected_output="A trip.")
        return Crew(agents=[member], tasks=[work], process=Process.hierarchical, manager_llm="gpt-4.1").kickoff()

    found = replay(kickoff)
    assert found.first.raw == found.second.raw == "The trip: It is found Oslo."
    assert found.requests == 4
    assert sorted(found.steps) == sorted(["model call"] * 4 + ["search", "delegate_work_to_coworker"])


def test_a_model_of_litellm(provider, replay):
    provider.scripts = {"scout": SEARCHES}
    found = replay(lambda: make_crew(LLM(model="openai/gpt-4o", is_litellm=True)).kickoff())
    assert found.first.raw == found.second.raw == "It is found Oslo."
    assert found.report.usage.nano_usd > 0


def test_a_model_of_your_own(replay):
    calls: list[Any] = []

    class Parrot(BaseLLM):
        def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
            calls.append(messages)
            return "Thought: I know it.\nFinal Answer: Oslo."

    found = replay(lambda: make_crew(Parrot(model="parrot", provider="zoo")).kickoff())
    assert found.first.raw == found.second.raw == "Oslo."
    assert len(calls) == 1
    assert found.report.usage.calls == 1


def test_a_guardrail_in_words_is_a_model_call(provider, replay):
    provider.scripts = {"scout": [{"text": "Oslo."}], "gpt-4o": [{"answer": {"valid": True, "feedback": None}}]}
    found = replay(lambda: make_crew(task={"guardrail": "It names a city."}).kickoff())
    assert found.first.raw == found.second.raw == "Oslo."
    assert found.requests == 2


def test_a_model_that_is_called_directly(provider, replay):
    provider.scripts = {"gpt-4o": [*SEARCHES[:1], {"text": "Hello."}]}
    schema = {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}}

    def call() -> Any:
        return LLM(model="gpt-4o").call("Hello?", tools=[schema], available_functions={"search": search.run})

    found = replay(call)
    assert found.first == found.second == "found Oslo"
    assert found.steps == ["model call", "search"], "the tool is a step of its own"


def test_async_calls(provider, replay):
    provider.scripts = {"scout": SEARCHES, "gpt-4o": [{"text": "Hello."}]}

    async def run() -> Any:
        return (await make_crew().akickoff()).raw, await LLM(model="gpt-4o").acall("Hello?")

    found = replay(run)
    assert found.first == found.second == ("It is found Oslo.", "Hello.")


def test_a_workflow_calls_no_model(provider):
    @workflow(name="asks-a-model")
    async def asks() -> Any:
        return LLM(model="gpt-4o").call("Hello?")

    with pytest.raises(RunFailed, match="a workflow cannot call 'openai:gpt-4o' directly"):
        asks.run_sync()


def test_outside_of_programs_nothing_changes(provider):
    provider.scripts = {"scout": SEARCHES}
    assert make_crew().kickoff().raw == "It is found Oslo."


def test_an_answer_that_cannot_be_recorded_is_refused_before_it_is_paid_for(provider):
    @program(name="parses-outputs")
    def parses() -> Any:
        return LLM(model="gpt-4o", api="responses", parse_tool_outputs=True).call("Hello?")

    with pytest.raises(RunFailed, match="parse_tool_outputs=True cannot be recorded"):
        parses.run_sync()
    assert provider.address.calls == []
