"""``holdfast settle``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast.cli.forks import given_output, named_step
from holdfast.cli.opening import reached
from holdfast.cli.outcomes import Outcome, change_each, report
from holdfast.client.forking import NOT_GIVEN
from holdfast.client.run_info import RunInfo
from holdfast.errors import UsageError


def settle_step(
    url: str | None, run_id: str, step: str, *, output: str | None, did_not_happen: bool, as_json: bool
) -> int:
    """Say what came of a step of unknown outcome, and how its run goes on."""
    if (output is None) is not did_not_happen:
        raise UsageError("say one of the two: --output JSON, what the step returned, or --did-not-happen")
    value = NOT_GIVEN if output is None else given_output(output)
    return report(asyncio.run(_settle(url, run_id, named_step(step), value)), as_json=as_json)


async def _settle(url: str | None, run_id: str, step: int | str, output: Any) -> list[Outcome]:
    async with reached(url) as client:

        async def settle(run: RunInfo) -> tuple[bool, Callable[[RunInfo], str]]:
            await client.settle(run_id, step, output, happened=output is not NOT_GIVEN)
            then = "runs again" if output is NOT_GIVEN else "has returned what you gave"
            message = f"run {run_id!r} goes on (it was {run.state}): step {step!r} {then}"
            return True, lambda run: message

        return await change_each(client, [run_id], settle)
