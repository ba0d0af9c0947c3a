"""One tool of an MCP server, as an agent's tool."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from holdfast.admission.retry_policy import RetryPolicy
from holdfast.agents.tool_approvals import ApprovalRule
from holdfast.agents.tools import Tool
from holdfast.agents.toolsets import ListedTool
from holdfast.codec import codec_for
from holdfast.core.states import Effect
from holdfast.engine.definitions import StepDefinition
from holdfast.errors import McpUnavailable, StepOutcomeUnknown, StepTimedOut
from holdfast.tools.mcp.schema_parameters import SchemaParameters

BACKOFF_S = 0.5
MAX_BACKOFF_S = 20.0

ToolCaller = Callable[[str, dict[str, Any], Callable[[Awaitable[Any]], Awaitable[Any]]], Awaitable[Any]]
"""Calls a tool by its name on the server. What it is handed bounds the time that the call itself takes."""


def make_retry_policy(retries: int) -> RetryPolicy:
    """When the server is asked again: if it could not be reached, and what was asked may be asked twice."""
    return RetryPolicy(
        retries=retries,
        backoff=BACKOFF_S,
        max_backoff=MAX_BACKOFF_S,
        give_up_after=None,
        retry_on=(McpUnavailable,),
        read_retry_after=lambda error: error.retry_after_s if isinstance(error, McpUnavailable) else None,
    )


@dataclass(frozen=True)
class ToolDeclaration:
    """What the code says of a tool, and not the server."""

    effect: Effect
    requires_approval: ApprovalRule
    timeout_s: float | None
    retries: int


def make_mcp_tool(server: str, listed: ListedTool, behavior: ToolDeclaration, call: ToolCaller) -> Tool:
    """The tool itself: a call of it is a step that asks the server."""
    name = str(listed.metadata["name"])
    is_once = behavior.effect is Effect.ONCE

    async def bounded(asking: Awaitable[Any]) -> Any:
        scope = asyncio.timeout(behavior.timeout_s)
        try:
            async with scope:
                return await asking
        except TimeoutError:
            if not scope.expired():
                raise
            raise StepTimedOut(
                f"the MCP server {server!r} took longer than its time-out of {behavior.timeout_s:g} s", listed.name
            ) from None

    async def ask(arguments: dict[str, Any]) -> Any:
        try:
            return await call(name, arguments, bounded)
        except McpUnavailable as error:
            if not is_once or not error.is_sent:
                raise
            raise StepOutcomeUnknown(
                f"{error}: the call of {name!r} may or may not have happened, and its effect is `once`, so it is not "
                f"made again. Check first, then act on what you find.",
                listed.name,
            ) from error

    definition = StepDefinition(
        name=listed.name,
        function=ask,
        is_async=True,
        output_codec=codec_for(Any),
        parameters=(),
        namespace={},
        retry=make_retry_policy(behavior.retries),
        effect=behavior.effect,
    )
    parameters = SchemaParameters(listed.name, listed.schema)
    return Tool(definition, listed.description, parameters, None, behavior.requires_approval)
