"""An agent whose tool leaks until its process is killed, and runs that share its workers."""

from __future__ import annotations

import asyncio
import os

from ledger import effect

from holdfast import Agent, WorkflowOptions, step, tool, workflow
from holdfast.testing import ScriptedModel, call

CHUNK_BYTES = 10_000_000
STEP_S = 0.2
leaked: list[bytearray] = []


@tool
async def convert(file: str) -> str:
    """Convert a file. It leaks, and never returns."""
    with effect(file):
        while True:
            leaked.append(bytearray(b"x") * CHUNK_BYTES)
            await asyncio.sleep(0.02)


leaky = Agent(
    ScriptedModel([call("convert", file="report.pdf"), "It is converted."]),
    name="leaky",
    tools=[convert],
    workflow_options=WorkflowOptions(max_deliveries=int(os.environ["MAX_DELIVERIES"])),
)


@step
async def nap(label: str) -> str:
    with effect(label):
        await asyncio.sleep(STEP_S)
        return label


@workflow(id="neighbor-{number}")
async def neighbor(number: int, step_count: int) -> int:
    for each in range(step_count):
        await nap(f"{number} {each}")
    return step_count
