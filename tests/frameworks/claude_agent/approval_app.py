"""A program whose tool asks a person."""

from __future__ import annotations

import asyncio
from typing import Any

import agent_app
from claude_agent_sdk import ResultMessage, create_sdk_mcp_server, tool
from effects import effect

from holdfast import ask, program
from holdfast.integrations.claude_agent import query


@tool("pay", "Pay somebody", {"dollars": int})
async def pay(arguments: dict[str, Any]) -> dict[str, Any]:
    agreed = await ask(f"Pay {arguments['dollars']} dollars?")
    with effect("pay"):
        return {"content": [{"type": "text", "text": "paid" if agreed else "refused"}]}


@program(id="payment")
async def make_payment() -> str | None:
    options = agent_app.make_options()
    options.mcp_servers = {"bank": create_sdk_mcp_server("bank", tools=[pay])}
    options.allowed_tools = ["mcp__bank__pay"]
    messages = [message async for message in query(prompt="Pay Ada.", options=options)]
    return next(message.result for message in messages if isinstance(message, ResultMessage))


if __name__ == "__main__":
    print("RESULT:", asyncio.run(make_payment()))
