"""Parts of agents under test, and of what happens to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from agents import function_tool

from holdfast import Client


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    """A tool call in a script."""
    return {"tool": tool, "arguments": arguments}


class Gate:
    """A tool waits here until the process has been replaced."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.is_open = False

    async def wait(self) -> None:
        self.reached.set()
        if not self.is_open:
            await asyncio.Event().wait()


def make_gate_tool(gate: Gate) -> Any:
    @function_tool
    async def pause() -> str:
        """Wait for the next process."""
        await gate.wait()
        return "continued"

    return pause


@asynccontextmanager
async def answering(url: str, answer: Callable[[Any, Any], Any]) -> AsyncIterator[None]:
    """Answers each approval as a person would: ``answer(client, approval)``."""

    async def watch() -> None:
        async with Client(url) as client:
            seen: set[str] = set()
            while True:
                for approval in await client.approvals():
                    if approval.id not in seen:
                        seen.add(approval.id)
                        await answer(client, approval)
                await asyncio.sleep(0.02)

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
