"""Agents that make the calls that a test asks for, with the tools of an MCP server."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from pydantic_ai.messages import ToolReturnPart

from holdfast import Agent
from holdfast.agents.agent_handle import AgentHandle
from holdfast.testing import ScriptedModel
from holdfast.testing.scripted_model import ToolCall
from holdfast.tools import McpServer

_numbers = itertools.count()


class ToolFeedback(NamedTuple):
    """The result of a call for the model."""

    outcome: str
    content: Any


async def start(server: McpServer, *calls: ToolCall) -> tuple[AgentHandle[str], list[ToolFeedback]]:
    """A run that makes these calls at once. When it has ended, the list has their results for the model."""
    told: list[ToolFeedback] = []

    def last(messages: list[Any]) -> str:
        parts = messages[-1].parts
        told.extend(ToolFeedback(part.outcome, part.content) for part in parts if isinstance(part, ToolReturnPart))
        return "done"

    script: list[Any] = [list(calls), last] if calls else ["done"]
    agent = Agent(ScriptedModel(script), name=f"mcp-{server.name}-{next(_numbers)}", tools=[server])
    return await agent.start("go"), told


async def call_tools(server: McpServer, *calls: ToolCall) -> list[ToolFeedback]:
    """The results of these calls for the model. The calls are made at once."""
    handle, told = await start(server, *calls)
    assert (await handle.result()).output == "done"
    return told
