"""What a durable agent of the OpenAI Agents SDK costs: the CPU time of a turn, beside the SDK alone.

The model is in this process and answers at once. A turn is a model call and a call of a function tool. The durable
agent's runs are recorded in a new SQLite file. The third figure is that of the same records without the SDK: a program
with a model call and a tool call per turn, through the seam for adapters. Run it in the environment of the tests::

    $(python tests/frameworks/environments.py openai_agents) -m benchmarks.frameworks.openai_agents
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool, set_tracing_disabled
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from holdfast import Runtime, program
from holdfast.integrations import AnswerCodec, ModelAnswer, ModelInput, TokenCounts, record_model_call, record_tool_call
from holdfast.integrations.openai_agents import durable

WARM_UP_RUNS = 3


class InstantModel(Model):
    """Calls the tool in each turn but the last one."""

    def __init__(self, turns: int) -> None:
        self._turns = turns

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:
        turn = 1 if isinstance(input, str) else 1 + sum(item.get("type") == "function_call" for item in input)
        if turn < self._turns:
            output: Any = ResponseFunctionToolCall(
                id=f"fc_{turn}", call_id=f"call_{turn}", name="search", arguments='{"query":"Oslo"}',
                type="function_call", status="completed",
            )  # fmt: skip
        else:
            text = ResponseOutputText(text="Go to Oslo.", type="output_text", annotations=[])
            output = ResponseOutputMessage(
                id="msg", type="message", role="assistant", status="completed", content=[text]
            )
        usage = Usage(requests=1, input_tokens=100, output_tokens=10, total_tokens=110)
        return ModelResponse([output], usage, f"resp_{turn}")

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


@function_tool
async def search(query: str) -> str:
    """Search the web for a query, and return the titles of the first results."""
    return f"found {query}"


def make_agent(name: str, turns: int) -> Agent[Any]:
    return Agent(name=name, instructions="You plan trips.", model=InstantModel(turns), tools=[search])


class PlainCodec(AnswerCodec[str]):
    def dump(self, answer: str) -> Any:
        return answer

    def load(self, data: Any) -> str:
        return data

    def describe(self, answer: str) -> ModelAnswer:
        return ModelAnswer(answer, tokens=TokenCounts(100, 10))


@program
async def make_steps(turns: int, number: int) -> None:
    """The records of a durable agent's run."""

    async def answer() -> str:
        return "found Oslo"

    messages: list[dict[str, Any]] = [{"role": "user", "content": "Plan a trip."}]
    for turn in range(turns):
        await record_model_call(ModelInput("model", messages), PlainCodec(), answer)
        if turn < turns - 1:
            await record_tool_call("search", {"query": "Oslo"}, answer)
        messages = [*messages, {"role": "tool", "content": "found Oslo"}]


async def run_agent(agent: Agent[Any], turns: int) -> None:
    result = await Runner.run(agent, "Plan a trip.", max_turns=turns)
    assert result.final_output == "Go to Oslo."


async def measure(run: Awaitable[None], turns: int) -> float:
    """Milliseconds of CPU time per turn."""
    started = time.process_time()
    await run
    return (time.process_time() - started) / turns * 1000


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=10, help="turns of a run")
    parser.add_argument("--runs", type=int, default=40, help="runs of each kind")
    chosen = parser.parse_args()
    set_tracing_disabled(True)
    bare, recorded = make_agent("bare", chosen.turns), durable(make_agent("durable", chosen.turns))
    figures: dict[str, list[float]] = {"bare": [], "durable": [], "steps": []}
    turns = chosen.turns
    with tempfile.TemporaryDirectory() as folder:
        async with Runtime(f"sqlite:///{Path(folder) / 'runs.db'}"):
            for number in range(chosen.runs + WARM_UP_RUNS):
                runs = run_agent(bare, turns), run_agent(recorded, turns), make_steps(turns, number)
                for name, run in zip(figures, runs, strict=True):
                    figures[name].append(await measure(run, turns))
    medians = {name: statistics.median(values[WARM_UP_RUNS:]) for name, values in figures.items()}
    print(f"CPU per turn, median of {chosen.runs} runs with {turns} turns:")
    for name, median in medians.items():
        print(f"  {name:8} {median:6.2f} ms")
    print(f"  extra    {medians['durable'] - medians['bare']:6.2f} ms")


if __name__ == "__main__":
    asyncio.run(main())
