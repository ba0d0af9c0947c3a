"""What is watched on a run's page while its workers are killed: an agent that speaks, and a payment that must happen
only once. ``python takeover_app.py worker`` is such a worker, on the store at ``HOLDFAST_URL``.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from holdfast import Agent, Runtime, step, tool, workflow
from holdfast.testing import ScriptedModel, call

SPEECH = "The tide comes in twice a day, because the Earth turns below two bulges of water, and the Moon holds them."
PAUSE = float(os.environ.get("PAUSE", "0"))
"""Seconds before a word: with it, there is time to be killed in the middle of an answer."""


@tool
async def read_gauge(harbour: str) -> dict[str, object]:
    """Reads a gauge."""
    await asyncio.sleep(0.1 + len(harbour) / 40)
    return {"harbour": harbour, "metres": 3.2, "rising": True}


@tool
async def read_almanac(day: str) -> str:
    """Looks a day up."""
    await asyncio.sleep(0.3)
    return f"{day}: high water at 06:12 and 18:37"


tide_reporter = Agent(
    name="tide_reporter",
    model=ScriptedModel(
        [
            ["First the gauges.", *(call("read_gauge", harbour=name) for name in ("Brest", "Le Havre", "Saint-Malo"))],
            ["Then the almanac.", call("read_almanac", day="16 November")],
            SPEECH,
        ],
        name="gpt-4o",
        provider="openai",
        word_delay=PAUSE,
    ),
    instructions="You report on the tides.",
    tools=[read_gauge, read_almanac],
)


async def gate(name: str) -> None:
    """Until the test opens it."""
    while not Path(os.environ["GATES"], name).exists():  # noqa: ASYNC110 - the event is in another process
        await asyncio.sleep(0.01)


@step
async def place_order(item: str) -> str:
    return f"order of {item}"


@step(effect="once")
async def pay_order(cents: int) -> str:
    Path(os.environ["GATES"], "paying").touch()
    await gate("paid")
    return "receipt"


@workflow
async def lamp_purchase(item: str) -> list[str]:
    return [await place_order(item), await pay_order(250)]


@step
async def keep_watch(name: str) -> str:
    Path(os.environ["GATES"], f"{name}-begun").touch()
    await gate(name)
    return f"{name} is over"


@workflow
async def night_watch(name: str) -> list[str]:
    return [await place_order("lamp"), await keep_watch(name), await place_order("oil")]


async def work() -> None:
    if later := os.environ.get("LATER"):  # it has imported all that it needs by then
        await gate(later)
    runtime = Runtime()
    await runtime.open()
    print("ready", flush=True)
    await runtime.run_worker()


if __name__ == "__main__" and sys.argv[1:] == ["worker"]:
    asyncio.run(work())
