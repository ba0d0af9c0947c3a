"""The CPU time that durability adds to a turn of an agent of ``create_agent``, on SQLite.

A turn is an answer of the model with one tool call, and the tool. The model answers at once, so all that is measured is
the framework and the library. Run it in an environment with ``holdfast-agents[langgraph]``::

    python benchmarks/frameworks/langgraph_agents.py [TURNS] [RUNS]
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from holdfast import program
from holdfast.integrations.langgraph import durable


class InstantModel(BaseChatModel):
    """A model that calls the tool ``turns`` times, and then answers."""

    turns: int
    model: str = "instant"

    @property
    def _llm_type(self) -> str:
        return "instant"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self.bind(tools=[{"name": tool.name, "description": tool.description} for tool in tools])

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, messages: Any, *_: Any, **__: Any) -> ChatResult:
        number = sum(isinstance(message, AIMessage) for message in messages)
        calls = [{"name": "look", "args": {"city": f"city {number}"}, "id": f"call-{number}"}]
        used = {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}
        message = AIMessage(
            "I look." if number < self.turns else "Done.",
            tool_calls=calls if number < self.turns else [],
            usage_metadata=used,
        )
        return ChatResult(generations=[ChatGeneration(message=message)])


async def look(city: str) -> str:
    """Look at a city."""
    return f"{city} is sunny"


async def measure(call: Callable[[], Awaitable[Any]], runs: int) -> float:
    """Seconds of CPU time of a call: the median of several."""
    times: list[float] = []
    for _ in range(runs):
        before = time.process_time()
        await call()
        times.append(time.process_time() - before)
    return statistics.median(times)


async def main(turns: int, runs: int) -> None:
    bare = create_agent(InstantModel(turns=turns), tools=[look], name="instant")
    recorded = durable(bare)
    task = {"messages": [{"role": "user", "content": "Look at cities."}]}
    config: Any = {"recursion_limit": 10_000}

    @program
    async def agent(number: int) -> int:
        return len((await recorded.ainvoke(task, config))["messages"])

    numbers = iter(range(10_000))
    await bare.ainvoke(task, config)  # warm up
    await agent(next(numbers))
    plain = await measure(lambda: bare.ainvoke(task, config), runs)
    durable_time = await measure(lambda: agent(next(numbers)), runs)
    print(f"{turns} turns, median of {runs} runs, CPU time per turn:")
    print(f"  bare framework  {plain / turns * 1000:6.2f} ms")
    print(f"  durable         {durable_time / turns * 1000:6.2f} ms")
    print(f"  added           {(durable_time - plain) / turns * 1000:6.2f} ms")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOLDFAST_URL"] = f"sqlite:///{Path(folder) / 'runs.db'}"
        asyncio.run(main(*(int(argument) for argument in (*sys.argv[1:], "20", "5")[:2])))
