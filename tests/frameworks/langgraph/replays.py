"""Runs that are executed twice: the second time, everything recorded is replayed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from typing import Any

from holdfast import Client, program
from holdfast.errors import RunFailed, StoreNotFound

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


@contextlib.asynccontextmanager
async def open_client() -> AsyncGenerator[Client]:
    """A client, as soon as the first run has created the store."""
    while True:
        with contextlib.suppress(StoreNotFound):
            async with Client() as client:
                await client.approvals()
                break
        await asyncio.sleep(0.01)
    async with Client() as client:
        yield client


async def wait_for_approval(client: Client, seen: Collection[str] = ()) -> Any:
    """The first open approval that is not one of these."""
    while True:
        for approval in await client.approvals():
            if approval.id not in seen:
                return approval
        await asyncio.sleep(0.01)


async def answer_approvals(*answers: Any) -> list[Any]:
    """Answer that many approvals, and return them. An answer may be a function of the approval.

    A ``dict`` edits the arguments of a tool call; an exception's text is the reason of a denial.
    """
    seen: dict[str, Any] = {}
    async with open_client() as client:
        for answer in answers:
            approval = await wait_for_approval(client, seen)
            seen[approval.id] = approval
            given = answer(approval) if callable(answer) else answer
            if isinstance(given, Exception):
                await client.deny(approval.id, reason=str(given))
            elif isinstance(given, dict) and approval.tool:
                await client.approve(approval.id, arguments=given)
            else:
                await client.approve(approval.id, given)
    return list(seen.values())
