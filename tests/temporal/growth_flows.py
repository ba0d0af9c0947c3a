"""An agent that talks for long, a word at a time; see ``test_temporal_history_growth``."""

from __future__ import annotations

import asyncio
import os
import random
import time

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import Agent, step, tool, workflow

TURNS = 100


def note(line: str) -> None:
    """Leave a line outside of all databases."""
    descriptor = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


@tool
async def look(turn: int) -> str:
    """Look at something: a kilobyte that does not become smaller."""
    note(f"tool {turn}")
    return random.Random(turn).randbytes(512).hex()


def _answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    turn = sum(isinstance(message, ModelResponse) for message in messages)
    note(f"model {turn}")
    if turn >= TURNS - 1:
        return ModelResponse([TextPart("That was all.")])
    thought = random.Random(-turn).randbytes(512).hex()
    return ModelResponse([TextPart(thought), ToolCallPart("look", {"turn": turn}, tool_call_id=f"call-{turn}")])


growing_agent = Agent(FunctionModel(_answer), name="growing_agent", tools=[look], max_turns=2 * TURNS)


@step(timeout=30)
async def long_step(seconds: float) -> str:
    note("long")
    await asyncio.sleep(seconds)
    return "done"


@workflow
async def growing_patient(seconds: float) -> str:
    return await long_step(seconds)


@workflow
async def growing_blocking(seconds: float) -> str:
    """Its code is slow, as that of a run is that has thousands of records to go through."""
    time.sleep(seconds)
    return "at last"
