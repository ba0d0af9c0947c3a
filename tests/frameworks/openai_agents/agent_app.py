"""A travel agency of the OpenAI Agents SDK: parallel tools, a ``once`` tool, a handoff, an agent as a tool, streams.

Arguments: the API (``responses`` or ``chat``), and how the agent is run (``own``: a run of its own; ``program``: in a
program; ``stream`` and ``stream-program``: the same, streamed; ``sync``: a run of its own without an event loop).
"""

from __future__ import annotations

import asyncio
import sys

from agents import Agent, function_tool, set_default_openai_api, set_tracing_disabled
from effects import effect

from holdfast import program
from holdfast.integrations.openai_agents import Runner, durable

set_tracing_disabled(True)


@function_tool
async def search(query: str) -> str:
    """Search."""
    with effect("search"):
        await asyncio.sleep(0)
        return f"search({query})"


@function_tool
def charge(query: str) -> str:
    """Charge the card, in a thread."""
    with effect("charge"):
        return f"charge({query})"


@function_tool
def check_weather(query: str) -> str:
    """Check the weather."""
    with effect("check_weather"):
        return f"sunny in {query}"


meteorologist = Agent(name="Meteorologist", instructions="script:weather", model="gpt-4o", tools=[check_weather])
booking = Agent(
    name="Booking",
    instructions="script:booking",
    model="gpt-4o",
    tools=[search, charge, meteorologist.as_tool("ask_meteorologist", "Ask about the weather.")],
)
agent = durable(
    Agent(name="Triage", instructions="script:triage", model="gpt-4o", tools=[search], handoffs=[booking]),
    effects={"charge": "once"},
)


async def run_streamed(run_id: str | None = None) -> str:
    result = Runner.run_streamed(agent, "Plan a trip.", run_id=run_id)
    parts = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    return f"{''.join(parts)} -> {result.last_agent.name}: {result.final_output}"


async def run(run_id: str | None = None) -> str:
    result = await Runner.run(agent, "Plan a trip.", run_id=run_id)
    return f"{result.last_agent.name}: {result.final_output}"


@program(id="trip")
async def trip() -> str:
    return await run()


@program(id="trip")
async def streamed_trip() -> str:
    return await run_streamed()


if __name__ == "__main__":
    api, kind = sys.argv[1:]
    set_default_openai_api("responses" if api == "responses" else "chat_completions")
    if kind == "sync":
        output = Runner.run_sync(agent, "Plan a trip.", run_id="trip").final_output
    else:
        main = {
            "own": lambda: run("trip"),
            "program": trip,
            "stream": lambda: run_streamed("trip"),
            "stream-program": streamed_trip,
        }[kind]
        output = asyncio.run(main())
    print("RESULT:", output)
