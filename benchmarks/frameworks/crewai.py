"""The CPU time that a durable crew costs beside the bare framework, per turn, on SQLite.

A *turn* is a model call and the tool calls of its answer. The model runs in this process and answers at once, so almost
all of the time is CrewAI's own. Run it with the interpreter of CrewAI's test environment::

    PYTHONPATH=src:. python -m benchmarks.frameworks.crewai
"""

from __future__ import annotations

import os

os.environ.update(
    {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_DISABLE_VERSION_CHECK": "true", "CREWAI_TRACING_ENABLED": "false"}
)

import argparse
import asyncio
import gc
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from crewai import Agent, BaseLLM, Crew, Task
from crewai.tools import tool

from holdfast import Runtime, program
from holdfast.integrations.crewai import durable

TURNS = 20


class Model(BaseLLM):
    """Calls a tool in each turn but the last."""

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        number = sum(message["role"] == "assistant" for message in messages) + 1
        self._track_token_usage_internal({"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110})
        if number >= TURNS:
            return "Done."
        function = {"name": "look", "arguments": f'{{"place": "{number}"}}'}
        return [{"id": f"call-{number}", "type": "function", "function": function}]

    def supports_function_calling(self) -> bool:
        return True

    def get_context_window_size(self) -> int:
        return 1_000_000


@tool("look")
def look(place: str) -> str:
    """Look at a place."""
    return f"place {place}"


def make_crew() -> Crew:
    scout = Agent(role="scout", goal="Look", backstory="", llm=Model(model="model"), tools=[look], max_iter=100)
    task = Task(description="Look at {city}.", expected_output="A report.", agent=scout)
    return Crew(name="scouts", agents=[scout], tasks=[task])


def measure(kickoff: Callable[[], Any]) -> float:
    """Milliseconds of CPU time per turn, of all threads."""
    gc.collect()
    began = time.process_time()
    assert kickoff().raw == "Done."
    return (time.process_time() - began) * 1000 / TURNS


async def main(rounds: int) -> None:
    logging.disable(logging.WARNING)
    bare, crew = make_crew(), durable(make_crew())

    @program(name="measured")
    def measured(number: int) -> list[float]:
        return [measure(lambda: crew.kickoff(inputs={"city": str(number)}))]

    results: dict[str, list[float]] = {"bare": [], "durable": []}
    with tempfile.TemporaryDirectory() as folder:
        async with Runtime(f"sqlite:///{folder}/runs.db"):
            for number in range(rounds + 1):
                one = await asyncio.to_thread(measure, partial(bare.kickoff, inputs={"city": str(number)}))
                other = (await measured(number))[0]
                if number:  # the first round warms up
                    results["bare"].append(one)
                    results["durable"].append(other)
    medians = {name: statistics.median(values) for name, values in results.items()}
    for name, value in medians.items():
        print(f"{name:8} {value:6.2f} ms of CPU per turn")
    extra = statistics.median(b - a for a, b in zip(results["bare"], results["durable"], strict=True))
    print(f"{'extra':8} {extra:6.2f} ms of CPU per turn ({rounds} rounds of {TURNS} turns)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    asyncio.run(main(parser.parse_args().rounds))
