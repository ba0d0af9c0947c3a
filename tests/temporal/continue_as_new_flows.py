"""Workflows that take so many steps that they go on in new executions; see ``test_temporal_continue_as_new``."""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import holdfast
from holdfast import Agent, parallel, patched, step, tool, wait_for_signal, workflow


@step
async def echo(number: int) -> int:
    return number


@step
async def rest(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@workflow
async def continuing_steps(upto: int) -> list[int]:
    return [await echo(number) for number in range(upto)]


@workflow
async def continuing_signals(count: int) -> list[tuple[str, int]]:
    """Takes two kinds of signals as they come, with steps in between."""
    heard: list[tuple[str, int]] = []

    async def listen(name: str) -> None:
        for _ in range(count // 2):
            number = await wait_for_signal(name, type=int)
            heard.append((name, number))
            await echo(number)

    await asyncio.gather(listen("a"), listen("b"))
    return heard


@workflow
async def continuing_unheard(upto: int) -> list[str]:
    for number in range(upto):
        await echo(number)
    return [await wait_for_signal("later", type=str) for _ in range(5)]


@workflow
async def continuing_timers(upto: int) -> tuple[float, list[str]]:
    began, order = holdfast.now(), []

    async def ring(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        order.append(name)

    alarms = asyncio.gather(ring("long", 1.2), ring("short", 0.4))
    for number in range(upto):
        await echo(number)
    await alarms
    return (holdfast.now() - began).total_seconds(), order


@step
async def keep(values: list[Any]) -> list[Any]:
    return values


@workflow
async def continuing_chance(upto: int) -> tuple[list[Any], list[Any]]:
    """What the code draws at first is recorded by a step, and drawn again on every replay."""
    drawn = [str(holdfast.uuid4()), holdfast.random(), holdfast.now().isoformat(), patched("early")]
    kept = await keep(drawn)
    for number in range(upto):
        await echo(number)
    drawn.append(patched("early"))
    return [*kept, True], drawn


@workflow(name="continuing_class")
class Continuing:
    @step(1)
    async def rows(self, count: int) -> list[int]:
        return list(range(count))

    @parallel(max_concurrency=1)
    @step(2, depends_on=1)
    async def weigh(self, row: int) -> int:
        return row

    @step(3, depends_on=2)
    async def total(self, weigh: list[int]) -> int:
        return sum(weigh)


continuing_class: Any = Continuing


@workflow
async def continuing_child(number: int) -> int:
    return await echo(number + 1)


@workflow
async def continuing_busy(rounds: int) -> int:
    """Steps and children overlap; now and then there is nothing in flight."""
    total = 0
    for number in range(rounds):
        child = asyncio.create_task(continuing_child(number))
        await rest(0.02)
        resting = asyncio.create_task(rest(0.01))
        total += await child
        await resting
        total += await echo(1)
    return total


@workflow
async def continuing_paused(upto: int) -> int:
    for number in range(upto):
        await rest(0.01)
        await echo(number)
    return upto


@step
async def words(size: int, number: int) -> str:
    """Text that does not become smaller."""
    return random.Random(number).randbytes(size // 2).hex()


@workflow
async def continuing_heavy(upto: int, size: int) -> int:
    total = 0
    for number in range(upto):
        total += len(await words(size, number))
    return total


@step
def count(number: int) -> int:
    """Leave a line outside of all databases."""
    descriptor = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{number}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return number


@workflow
async def continuing_counted(upto: int) -> int:
    for number in range(upto):
        await count(number)
    return upto


@tool
async def look(number: int) -> str:
    """Look at a number."""
    return f"{number}: {random.Random(number).randbytes(40).hex()}"


def _answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    turn = sum(isinstance(message, ModelResponse) for message in messages)
    if turn < 15:
        return ModelResponse([ToolCallPart("look", {"number": turn}, tool_call_id=f"call-{turn}")])
    return ModelResponse([TextPart(f"Counted to {turn}.")])


continuing_agent = Agent(FunctionModel(_answer), name="continuing_agent", tools=[look])
