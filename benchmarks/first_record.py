"""A new process whose first model call is timed: ``python -m benchmarks.first_record URL MODEL stream|whole [lazy]``.

It prints, for each model call, the timestamp at which its record was durable. With ``lazy``, the modules that decode an
answer are not loaded before the request, as in earlier versions.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from holdfast import Agent, ModelOptions, Runtime, tool
from holdfast.agents.models import model_call
from holdfast.engine.driver import Driver

_original_recorded = Driver.on_recorded


def print_when_recorded(self: Driver, record: Any, value: Any) -> None:
    """Print the time when a model's answer is durable, and continue."""
    if record.name == "model call":
        print(time.time(), flush=True)
    _original_recorded(self, record, value)


async def skip_loading(*_: Any, **__: Any) -> None:
    """In place of loading."""


@tool
async def look_up(number: int) -> str:
    """Look a number up."""
    return str(number)


async def main(url: str, model: str, stream: bool) -> None:
    Driver.on_recorded = print_when_recorded
    options = ModelOptions(stream=stream)
    clerk = Agent(model, name="clerk", tools=[look_up], instructions="You are script:clerk.", model_options=options)
    async with Runtime(url):
        await clerk.run("Look up 7.")


if __name__ == "__main__":
    if sys.argv[4:] == ["lazy"]:
        model_call.warm_up_decoder = skip_loading
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3] == "stream"))
