"""The agents that are measured, and a model that costs nothing.

Run as a program, it is one of several processes: ``python -m benchmarks.agent_jobs URL AGENTS TURNS`` prints ``ready``,
waits for a line, carries the agents out and prints how many seconds that took.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from holdfast import Agent, Budget, Runtime, tool

WIDTH = 200
"""Characters of a tool's result."""


class Instant(Model):
    """Calls ``look_up`` in each turn but the last, and answers at once. It looks at nothing but how long a list is."""

    def __init__(self, turns: int, words: int = 0) -> None:
        super().__init__()
        self.turns = turns
        self.words = words
        """Characters that it says before each call."""
        self.asked: Callable[[int], Any] | None = None
        """Called with the number of each turn."""

    @property
    def model_name(self) -> str:
        return "instant"

    @property
    def system(self) -> str:
        return "benchmarks"

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        turn = len(messages) // 2 + 1
        if self.asked is not None:
            waiting = self.asked(turn)
            if waiting is not None:
                await waiting
        usage = RequestUsage(input_tokens=100 * turn, output_tokens=20)
        said = [TextPart("x" * self.words)] if self.words else []
        if turn >= self.turns:
            return ModelResponse([TextPart("done")], usage=usage, model_name="instant")
        call = ToolCallPart("look_up", {"number": turn}, f"call-{turn}")
        return ModelResponse([*said, call], usage=usage, model_name="instant")


@tool
async def look_up(number: int) -> str:
    """Look a number up."""
    return f"{number:0{WIDTH}d}"


@tool(name="look_up")
async def look_up_much(number: int) -> str:
    """Look a number up: 2 KB."""
    return f"{number:02000d}"


def agent(turns: int, name: str = "measured", *, budget: bool = False) -> Agent[str]:
    """An agent that makes so many turns; with a budget that it will not reach, if it is to have one."""
    most = Budget(turns=10 * turns, tokens=10**12) if budget else None
    return Agent(Instant(turns), name=f"{name}-{turns}", tools=[look_up], max_turns=turns, budget=most)


async def together(of: Agent[str], agents: int) -> float:
    """The seconds that so many runs take which begin at once."""
    run = of.options(new=True)
    started = time.perf_counter()
    await asyncio.gather(*[run.run(f"Number {number}") for number in range(agents)])
    return time.perf_counter() - started


async def _together(url: str, agents: int, turns: int) -> None:
    short, measured = agent(2, "warm"), agent(turns)
    async with Runtime(url):
        await together(short, 2)
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        print(await together(measured, agents), flush=True)


if __name__ == "__main__":
    asyncio.run(_together(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
