"""The agents of the benchmarks, and a model that costs nothing.

Run as a program, it is one of several processes: ``python -m benchmarks.agent_workloads URL AGENTS TURNS`` prints
``ready``, waits for a line, executes the agents, and prints the seconds that took.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from holdfast import Agent, Budget, ModelOptions, Runtime, tool

RESULT_CHARS = 200
"""Characters of a tool's result."""


class InstantModel(Model):
    """Calls ``look_up`` in each turn but the last, and answers at once. It looks at nothing but how long a list is."""

    def __init__(self, turns: int, text_chars: int = 0) -> None:
        super().__init__()
        self.turns = turns
        self.text_chars = text_chars
        """Characters of text before each call."""
        self.on_turn: Callable[[int], Any] | None = None
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
        if self.on_turn is not None:
            waiting = self.on_turn(turn)
            if waiting is not None:
                await waiting
        usage = RequestUsage(input_tokens=100 * turn, output_tokens=20)
        said = [TextPart("x" * self.text_chars)] if self.text_chars else []
        if turn >= self.turns:
            return ModelResponse([TextPart("done")], usage=usage, model_name="instant")
        call = ToolCallPart("look_up", {"number": turn}, f"call-{turn}")
        return ModelResponse([*said, call], usage=usage, model_name="instant")


PIECE_COUNT = 20
"""Number of parts of a streamed answer."""


class StreamingModel(InstantModel):
    """The same, with a text of many parts, which can be streamed."""

    def __init__(self, turns: int, *, is_assembled: bool = False) -> None:
        super().__init__(turns, text_chars=5 * PIECE_COUNT)
        self.is_assembled = is_assembled
        """The library puts the pieces together, as it does for providers; else they cost nothing to make."""

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: Any = None,
    ) -> AsyncGenerator[StreamedResponse]:
        response = await self.request(messages, model_settings, model_request_parameters)
        yield (AssembledResponse if self.is_assembled else PreparedResponse)(model_request_parameters, response)


@dataclass
class AssembledResponse(StreamedResponse):
    """An answer in pieces, from which the library makes its events, and the answer."""

    response: ModelResponse

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        self._usage = self.response.usage
        for index, part in enumerate(self.response.parts):
            if isinstance(part, TextPart):
                for at in range(0, len(part.content), 5):
                    piece = part.content[at : at + 5]
                    for event in self._parts_manager.handle_text_delta(vendor_part_id=index, content=piece):
                        yield event
            else:
                yield self._parts_manager.handle_part(vendor_part_id=index, part=part)

    @property
    def model_name(self) -> str:
        return "instant"

    @property
    def provider_name(self) -> str:
        return "benchmarks"

    @property
    def provider_url(self) -> None:
        return None

    @property
    def timestamp(self) -> datetime:
        return self.response.timestamp


PREPARED_EVENTS = [
    PartStartEvent(index=0, part=TextPart("xxxxx")),
    *[PartDeltaEvent(index=0, delta=TextPartDelta("xxxxx")) for _ in range(PIECE_COUNT - 1)],
]


class PreparedResponse(AssembledResponse):
    """The same, with events that were prepared before."""

    async def __aiter__(self) -> AsyncIterator[ModelResponseStreamEvent]:
        for event in PREPARED_EVENTS if self.response.text != "done" else ():
            yield event

    def get(self) -> ModelResponse:
        return self.response


@tool
async def look_up(number: int) -> str:
    """Look a number up."""
    return f"{number:0{RESULT_CHARS}d}"


@tool(name="look_up")
async def look_up_large(number: int) -> str:
    """Look a number up: 2 KB."""
    return f"{number:02000d}"


def make_agent(turns: int, name: str = "measured", *, has_budget: bool = False) -> Agent[str]:
    """An agent that makes this many turns; optionally with a budget that it will not reach."""
    most = Budget(turns=10 * turns, tokens=10**12) if has_budget else None
    return Agent(InstantModel(turns), name=f"{name}-{turns}", tools=[look_up], max_turns=turns, budget=most)


def make_streaming_agent(turns: int, *, stream: bool, is_assembled: bool = False) -> Agent[str]:
    """An agent whose model returns text in each turn."""
    name = f"{'assembled' if is_assembled else 'streamed' if stream else 'whole'}-{turns}"
    model = StreamingModel(turns, is_assembled=is_assembled)
    return Agent(model, name=name, tools=[look_up], max_turns=turns, model_options=ModelOptions(stream=stream))


async def time_concurrent_runs(agent: Agent[str], run_count: int) -> float:
    """The seconds for this many concurrent runs."""
    run = agent.options(new=True)
    started = time.perf_counter()
    await asyncio.gather(*[run.run(f"Number {number}") for number in range(run_count)])
    return time.perf_counter() - started


async def _main(url: str, run_count: int, turns: int) -> None:
    short, measured = make_agent(2, "warm"), make_agent(turns)
    async with Runtime(url):
        await time_concurrent_runs(short, 2)
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        print(await time_concurrent_runs(measured, run_count), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
