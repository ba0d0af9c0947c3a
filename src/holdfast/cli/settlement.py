"""``holdfast settle``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from holdfast.cli.event_loop import run_in_loop
from holdfast.cli.outcomes import Outcome, change_each, print_outcomes
from holdfast.cli.store_access import open_client
from holdfast.cli.values import parse_json_option, parse_step
from holdfast.reports.run_info import RunInfo
from holdfast.services.forks import NOT_GIVEN


def settle_step(
    url: str | None, run_id: str, step: str, *, output: str | None, did_not_happen: bool, as_json: bool
) -> int:
    """Say what came of a step of unknown outcome, and how its run goes on."""
    if (output is None) is not did_not_happen:
        raise click.UsageError("say one of the two: --output JSON, what the step returned, or --did-not-happen.")
    value = NOT_GIVEN if output is None else parse_json_option("--output", output)
    return print_outcomes(url, run_in_loop(_settle(url, run_id, parse_step(step), value)), as_json=as_json)


async def _settle(url: str | None, run_id: str, step: int | str, output: Any) -> list[Outcome]:
    async with open_client(url) as client:

        async def settle(run: RunInfo) -> tuple[bool, Callable[[RunInfo], str]]:
            await client.settle(run_id, step, output, happened=output is not NOT_GIVEN)
            then = "runs again" if output is NOT_GIVEN else "has returned what you gave"
            message = f"run {run_id!r} goes on (it was {run.state}): step {step!r} {then}"
            return True, lambda run: message

        return await change_each(client, [run_id], settle)
