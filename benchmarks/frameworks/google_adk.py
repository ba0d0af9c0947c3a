"""The CPU time that durability adds to a turn of a Google ADK agent, on SQLite, beside the bare runner.

    $(python tests/frameworks/environments.py google_adk) benchmarks/frameworks/google_adk.py

The model is in this process and answers at once. A turn is a model call and the tool call that it asks for. Bare and
durable invocations alternate, so that all of them see the same machine; the figures are medians.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from holdfast import Runtime, program
from holdfast.integrations.google_adk import durable

TURNS = 10
ROUNDS = 40


class ImmediateLlm(BaseLlm):
    """Calls a tool ``TURNS - 1`` times, and then answers."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        made = sum(content.role == "model" for content in llm_request.contents)
        part = types.Part(text="Done.")
        if made < TURNS - 1:
            part = types.Part(function_call=types.FunctionCall(name="look", args={"city": f"city {made}"}))
        usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=100, candidates_token_count=10)
        yield LlmResponse(content=types.Content(role="model", parts=[part]), usage_metadata=usage)


def look(city: str) -> str:
    """Look at the weather of a city."""
    return f"rain in {city}"


def make_runner() -> InMemoryRunner:
    agent = LlmAgent(name="looker", model=ImmediateLlm(model="gemini-2.5-flash"), instruction="Look.", tools=[look])
    return InMemoryRunner(app=App(name="looking", root_agent=agent))


async def invoke(runner: Any, session_id: str) -> None:
    message = types.Content(role="user", parts=[types.Part(text="Go.")])
    await runner.session_service.create_session(app_name="looking", user_id="u", session_id=session_id)
    async for _ in runner.run_async(user_id="u", session_id=session_id, new_message=message):
        pass


bare = make_runner()
recorded = durable(make_runner())


@program
async def invoke_in_program(session_id: str) -> None:
    await invoke(recorded, session_id)


@program
async def do_nothing(session_id: str) -> None:
    """What a run costs by itself."""


async def measure_cpu_ms(call: Any, *args: Any) -> float:
    before = time.process_time()
    await call(*args)
    return (time.process_time() - before) * 1000


async def measure() -> None:
    kinds: dict[str, Any] = {
        "bare": lambda number: invoke(bare, f"bare-{number}"),
        "own": lambda number: invoke(recorded, f"own-{number}"),
        "program": lambda number: invoke_in_program(f"program-{number}"),
        "empty program": lambda number: do_nothing(f"empty-{number}"),
    }
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    async with Runtime():
        for number in range(ROUNDS + 5):
            for kind, call in kinds.items():
                spent = await measure_cpu_ms(call, number)
                if number >= 5:  # the first ones import and compile
                    times[kind].append(spent)
    medians = {kind: statistics.median(values) for kind, values in times.items()}
    for kind, value in medians.items():
        print(f"{kind:14} {value:7.2f} ms CPU an invocation of {TURNS} turns")
    for kind in ("own", "program"):
        print(f"{kind:14} {(medians[kind] - medians['bare']) / TURNS:7.2f} ms CPU more a turn")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOLDFAST_URL"] = f"sqlite:///{folder}/runs.db"
        asyncio.run(measure())
