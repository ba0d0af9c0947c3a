"""Agents of LangChain and deepagents, as they are killed by the tests."""

from __future__ import annotations

import asyncio
import sys

from effects import effect
from langchain.agents import create_agent

from holdfast import program
from holdfast.integrations.langgraph import durable


def search(query: str) -> str:
    """Search for a place."""
    with effect("search"):
        return f"search({query})"


def charge(query: str) -> str:
    """Charge a card."""
    with effect("charge"):
        return f"charge({query})"


agent = durable(create_agent("openai:gpt-4o", tools=[search, charge], name="trips"), effects={"charge": "once"})
CONFIG = {"configurable": {"run_id": "trip-1"}}
ASK = {"messages": [{"role": "user", "content": "script:trip Plan a trip."}]}


@program(id="trip")
async def trip() -> str:
    state = await agent.ainvoke(ASK)
    texts = []
    async for mode, chunk in agent.astream(
        {"messages": [*state["messages"], {"role": "user", "content": "Say it again."}]},
        stream_mode=["messages", "values"],
    ):
        if mode == "messages":
            texts.append(chunk[0].text)
        else:
            state = chunk
    assert "".join(texts) == state["messages"][-1].text
    return f"{len(state['messages'])} {state['messages'][-1].text}"


def invoke() -> str:
    return agent.invoke(ASK, CONFIG)["messages"][-1].text


def stream() -> str:
    *_, last = agent.stream(ASK, CONFIG, stream_mode="values")
    return last["messages"][-1].text


async def ainvoke() -> str:
    return (await agent.ainvoke(ASK, CONFIG))["messages"][-1].text


RUNS = {"program": lambda: asyncio.run(trip()), "own": lambda: asyncio.run(ainvoke()), "sync": invoke, "stream": stream}

if __name__ == "__main__":
    print("RESULT:", RUNS[sys.argv[1]]())
