"""Flows in a program: their calls are recorded, their state begins in the same way, and people answer approvals."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from crewai import LLM, Agent, Crew, Task
from crewai.flow import Flow, human_feedback, listen, persist, router, start
from crewai.tools import tool
from pydantic import BaseModel

from holdfast import Client, program
from holdfast.errors import RunFailed
from holdfast.integrations.crewai import HoldfastFlowPersistence


class State(BaseModel):
    id: str = ""
    city: str = ""
    trip: str = ""


charged: list[str] = []


@tool("charge")
def charge(card: str) -> str:
    """Charge a card."""
    charged.append(card)
    return f"charged {card}"


class Travel(Flow[State]):
    @start()
    def choose(self) -> str:
        self.state.city = LLM(model="gpt-4o").call(f"Which city? {self.state.id}")
        return self.state.city

    @router(choose)
    async def route(self) -> str:
        return "far" if self.state.city == "Oslo" else "near"

    @listen("far")
    async def plan(self) -> str:
        scout = Agent(role="scout", goal="script:scout Find", backstory="", llm="gpt-4o", tools=[charge])
        find = Task(description="Find a trip to {city}.", expected_output="A trip.", agent=scout)
        crew = Crew(agents=[scout], tasks=[find])
        self.state.trip = (await crew.akickoff(inputs={"city": self.state.city})).raw
        return self.state.trip


SCRIPTS = {
    "gpt-4o": [{"text": "Oslo"}],
    "scout": [{"calls": [{"tool": "charge", "arguments": {"card": "visa"}}]}, {"text": "By train: {results}"}],
}


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_calls_of_a_flow_are_recorded(kind, provider, replay):
    provider.scripts = SCRIPTS
    charged.clear()

    def run() -> list[Any]:
        flow = Travel()
        return [flow.kickoff(), flow.state.id]

    async def run_async() -> list[Any]:
        flow = Travel()
        return [await flow.kickoff_async(), flow.state.id]

    found = replay(run if kind == "sync" else run_async)
    assert found.first == found.second
    assert found.first[0] == "By train: charged visa"
    assert found.first[1], "the flow's state has an id"
    assert charged == ["visa"]
    assert found.steps == ["model call", "model call", "charge", "model call"]


def test_a_flow_asks_people_in_approvals(provider, replay):
    class Review(Flow[dict]):
        @start()
        def ask_for_city(self) -> Any:
            return self.ask("Which city?")

        @listen(ask_for_city)
        @human_feedback(message="Is it good?", emit=["accepted", "rejected"], llm="gpt-4o-mini")
        def write(self, city: str) -> str:
            return f"A letter about {city}."

        @listen("rejected")
        def end(self, result: Any) -> str:
            return f"rejected: {result.feedback}"

    provider.scripts = {"gpt-4o-mini": [{"answer": {"outcome": "rejected"}}]}

    async def answer(client: Client, run_id: str) -> None:
        questions: list[str] = []
        while len(questions) < 2:
            for one in await client.approvals():
                if one.question in questions:
                    continue
                questions.append(one.question)
                if one.question == "Which city?":
                    await client.approve(one.id, "Oslo")
                else:
                    assert one.question == "Is it good?\n\nA letter about Oslo."
                    await client.deny(one.id, reason="Too short.")
            await asyncio.sleep(0.02)

    found = replay(lambda: Review().kickoff(), answer)
    assert found.first == found.second == "rejected: Too short."
    assert found.requests == 1, "a model sorts the feedback into one of the outcomes"


def test_the_state_of_a_flow_outlives_the_process(store_url):
    @persist(HoldfastFlowPersistence())
    class Counting(Flow[State]):
        @start()
        def count(self) -> str:
            self.state.trip += "x"
            return self.state.trip

    first = Counting()
    assert first.kickoff() == "x"
    other = HoldfastFlowPersistence(url=store_url)
    assert other.load_state(first.state.id)["trip"] == "x"
    assert other.load_state("unknown") is None
    assert Counting().kickoff(inputs={"id": first.state.id}) == "xx"
    assert other.load_state(first.state.id)["trip"] == "xx"


def test_a_program_that_runs_again_loads_the_state_that_it_loaded(replay):
    @persist(HoldfastFlowPersistence())
    class Counting(Flow[State]):
        @start()
        def count(self) -> str:
            self.state.trip += "x"
            return self.state.trip

    first = Counting()
    first.kickoff()
    found = replay(lambda: Counting().kickoff(inputs={"id": first.state.id}))
    assert found.first == found.second == "xx"
    assert HoldfastFlowPersistence().load_state(first.state.id)["trip"] == "xx"


def test_pending_feedback_is_kept_with_the_state():
    from crewai.flow.async_feedback.types import PendingFeedbackContext

    persistence = HoldfastFlowPersistence(namespace="elsewhere")
    context = PendingFeedbackContext("flow-1", "app.Review", "write", {"text": "A letter."}, "Is it good?")
    persistence.save_pending_feedback("flow-1", context, {"id": "flow-1"})
    state, found = persistence.load_pending_feedback("flow-1")
    assert state == {"id": "flow-1"}
    assert (found.method_name, found.method_output, found.message) == ("write", {"text": "A letter."}, "Is it good?")
    persistence.clear_pending_feedback("flow-1")
    assert persistence.load_pending_feedback("flow-1") is None
    assert persistence.load_state("flow-1") == {"id": "flow-1"}
    assert HoldfastFlowPersistence().load_state("flow-1") is None, "namespaces are separate"


def test_a_blocking_flow_in_an_async_program_is_refused():
    @program(name="blocking-flow")
    async def blocks() -> Any:
        return Travel().kickoff()

    with pytest.raises(RunFailed, match=r"Flow.kickoff\(\) would block the event loop"):
        blocks.run_sync()
