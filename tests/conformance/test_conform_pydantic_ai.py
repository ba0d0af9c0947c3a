"""Agents of Pydantic AI are run, streamed and iterated by a caller, on every backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from conformance_world import World, effect_counts, make_unique_id
from pydantic_ai import Agent
from pydantic_ai.agent import CallToolsNode, ModelRequestNode, UserPromptNode
from pydantic_ai.messages import ModelMessage, ModelRequest
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_graph import End

from holdfast import current_run
from holdfast.integrations.pydantic_ai import Durable

pytestmark = pytest.mark.asyncio(loop_scope="module")

words = asyncio.Semaphore(0)


async def speak(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    if sum(isinstance(one, ModelRequest) for one in messages) == 1:
        yield {0: DeltaToolCall("pa_look", '{"place": "east"}')}
        return
    for word in ("East ", "is ", "seen."):
        await words.acquire()
        yield word


scout = Agent(FunctionModel(stream_function=speak), name="pa-scout", capabilities=[Durable()])
durable = Durable.from_agent(scout)
assert durable is not None
scouting = durable.workflow  # what the world serves


@scout.tool_plain
async def pa_look(place: str) -> str:
    """Look at a place."""
    effect_counts[current_run().id, f"looked {place}"] += 1
    return f"{place} seen"


async def test_a_streamed_run_shows_words_while_the_model_speaks(world: World) -> None:
    run_id, heard = make_unique_id("pa-stream"), list[str]()
    words.release()
    async with asyncio.timeout(30), scout.run_stream("Go.", run_id=run_id) as stream:
        async for text in stream.stream_text(delta=True, debounce_by=None):
            heard.append(text)
            words.release()  # the model says the next word only now
    await words.acquire()
    assert heard == ["East ", "is ", "seen."]
    assert stream.result.output == "East is seen."
    assert effect_counts[run_id, "looked east"] == 1


async def test_an_iterated_run_shows_its_nodes(world: World) -> None:
    run_id = make_unique_id("pa-iter")
    for _ in range(3):
        words.release()
    async with asyncio.timeout(30), scout.iter("Go.", run_id=run_id) as run:
        nodes = [node async for node in run]
    kinds = [UserPromptNode, ModelRequestNode, CallToolsNode, ModelRequestNode, CallToolsNode, End]
    assert [kind for kind, node in zip(kinds, nodes, strict=True) if isinstance(node, kind)] == kinds
    assert effect_counts[run_id, "looked east"] == 1
