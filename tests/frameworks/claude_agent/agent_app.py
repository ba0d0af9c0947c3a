"""An agent of the Claude Agent SDK in a program: two turns, with in-process tools. Its executable is the real one."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, create_sdk_mcp_server, tool
from effects import effect

from holdfast import program
from holdfast.integrations.claude_agent import query


@tool("search", "Search for a place", {"query": str})
async def search(arguments: dict[str, Any]) -> dict[str, Any]:
    with effect("search"):
        return {"content": [{"type": "text", "text": f"found {arguments['query']}"}]}


@tool("charge", "Charge a card", {"query": str})
async def charge(arguments: dict[str, Any]) -> dict[str, Any]:
    with effect("charge"):
        return {"content": [{"type": "text", "text": f"charged {arguments['query']}"}]}


def make_options(**more: Any) -> ClaudeAgentOptions:
    provider = {name: os.environ[name] for name in ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY")}
    quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "CLAUDE_CONFIG_DIR": str(Path("claude").resolve())}
    return ClaudeAgentOptions(
        model="claude-sonnet-4-5",
        system_prompt="script:trip",
        mcp_servers={"shop": create_sdk_mcp_server("shop", tools=[search, charge])},
        allowed_tools=["mcp__shop__search", "mcp__shop__charge"],
        tools=[],
        setting_sources=[],
        env={**provider, **quiet},
        **more,
    )


async def ask(prompt: str, **more: Any) -> ResultMessage:
    async for message in query(prompt=prompt, options=make_options(**more), effects={"charge": "once"}):
        if isinstance(message, ResultMessage):
            result = message
    return result


@program(id="trip")
async def plan_trip() -> str:
    first = await ask("Plan a trip.")
    second = await ask("Say it again.", resume=first.session_id)
    return f"{first.result} / {second.result}"


if __name__ == "__main__":
    print("RESULT:", asyncio.run(plan_trip()))
