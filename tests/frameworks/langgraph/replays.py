"""Runs that are executed twice: the second time, everything recorded is replayed."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import Client, program
from holdfast.errors import RunFailed

_numbers = itertools.count(1)


class InterruptedOnce(Exception):
    """Ends the first execution of a program."""


async def run_and_replay(call: Callable[[], Awaitable[Any]]) -> tuple[Any, Any, str]:
    """What ``call`` returns in a program, and what it returns when the program runs again; and the run's id."""
    outcomes: list[Any] = []
    run_id = f"replay-{next(_numbers)}"

    @program(id=run_id, name=run_id)
    async def main() -> None:
        outcomes.append(await call())
        if len(outcomes) == 1:
            raise InterruptedOnce

    try:
        await main()
    except RunFailed as failed:
        if not isinstance(failed.__cause__, InterruptedOnce):
            raise
    async with Client() as client:
        await client.retry(run_id)
        await client.handle(run_id).result()
    first, second = outcomes
    return first, second, run_id


async def count_steps(run_id: str) -> Counter[str]:
    """The recorded steps of a run, by name."""
    async with Client() as client:
        report = await client.handle(run_id).describe(limit=None)
    return Counter(entry.name for entry in report.journal if entry.kind == "step")


async def answer_next(*answers: Any) -> list[Any]:
    """Answer the next approvals in this order, and return them. An exception's text is the reason of a denial."""
    seen: list[Any] = []
    async with Client() as client:
        for answer in answers:
            while not (waiting := await client.approvals()):
                await asyncio.sleep(0.01)
            seen.append(waiting[0])
            if isinstance(answer, Exception):
                await client.deny(waiting[0].id, reason=str(answer))
            elif isinstance(answer, dict) and waiting[0].tool:
                await client.approve(waiting[0].id, arguments=answer)
            else:
                await client.approve(waiting[0].id, answer)
    return seen
