"""A program as a user writes it, to be started anew: ``python -m benchmarks.first_call URL MODEL``."""

from __future__ import annotations

import asyncio
import sys

from holdfast import Agent, Runtime, tool
from holdfast.errors import HoldfastError


@tool
async def look_up(number: int) -> str:
    """Look a number up."""
    return str(number)


async def main(url: str, model: str) -> None:
    clerk = Agent(model, name="clerk", tools=[look_up], instructions="You are a clerk.")
    async with Runtime(url):
        try:
            await clerk.run("Look up 7.")
        except HoldfastError:
            pass  # the model that it is measured with refuses


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
