"""A crew of three agents, as people write it, with OpenAI's client of CrewAI."""

from __future__ import annotations

import sys

from crewai import LLM, Agent, Crew, Process, Task
from crewai.tools import BaseTool, tool
from effects import effect

from holdfast import program
from holdfast.integrations.crewai import durable


@tool("search")
def search(query: str) -> str:
    """Search the web."""
    with effect("search"):
        return f"search({query})"


class Charge(BaseTool):
    name: str = "charge"
    description: str = "Charge a credit card."

    def _run(self, query: str) -> str:
        with effect("charge"):
            return f"charge({query})"


def make_agent(role: str, *tools: BaseTool) -> Agent:
    return Agent(
        role=role,
        goal=f"script:{role} Do the work of a {role}",
        backstory="You are thorough.",
        llm=LLM(model="gpt-4o"),
        tools=list(tools),
    )


def make_crew() -> Crew:
    researcher, booker, writer = (
        make_agent("researcher", search),
        make_agent("booker", search, Charge()),
        make_agent("writer"),
    )
    find = Task(description="Find a trip to {city}.", expected_output="A trip.", agent=researcher)
    book = Task(description="Book it.", expected_output="A booking.", agent=booker, context=[find])
    write = Task(description="Write it up.", expected_output="A letter.", agent=writer)
    return Crew(
        name="travel", agents=[researcher, booker, writer], tasks=[find, book, write], process=Process.sequential
    )


crew = durable(make_crew(), effects={"charge": "once"}, id="crew-{city}")


@program(id="trip-{city}")
def plan(city: str) -> str:
    return str(crew.kickoff(inputs={"city": city}))


@program(id="trip-{city}")
async def plan_async(city: str) -> str:
    return str(await crew.akickoff(inputs={"city": city}))


if __name__ == "__main__":
    kind = sys.argv[1]
    if kind == "program":
        print("RESULT:", plan.run_sync("Oslo"))
    elif kind == "async-program":
        print("RESULT:", plan_async.run_sync("Oslo"))
    else:
        print("RESULT:", crew.kickoff(inputs={"city": "Oslo"}))
