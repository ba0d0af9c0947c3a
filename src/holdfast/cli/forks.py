"""``holdfast fork``."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.event_loop import run_in_loop
from holdfast.cli.formatting import format_count
from holdfast.cli.outcomes import Outcome, outcome_from_error, print_outcomes
from holdfast.cli.store_access import get_run, open_client
from holdfast.cli.values import parse_json_option, parse_step
from holdfast.errors import HoldfastError
from holdfast.reports.retry_preview import describe_record
from holdfast.services.forks import NOT_GIVEN, find_step


def fork_run(
    url: str | None, run_id: str, *, at: str | None, output: str | None, new_id: str | None, as_json: bool
) -> int:
    """Make a new run that shares the beginning of another one, and say where it goes on."""
    value = NOT_GIVEN if output is None else parse_json_option("--output", output)
    if output is not None and at is None:
        raise click.UsageError("--output is the output of a step: say which with --at STEP.")
    return print_outcomes(
        url, [run_in_loop(_fork(url, run_id, None if at is None else parse_step(at), value, new_id))], as_json=as_json
    )


async def _fork(url: str | None, run_id: str, at: int | str | None, output: Any, new_id: str | None) -> Outcome:
    async with open_client(url) as client:
        try:
            await get_run(client, run_id)
            records = (await client.export(run_id)).records
            step = None if at is None else find_step(records, at, run_id)
            made = await client.fork(run_id, at=at, with_output=output, id=new_id)
            run = await client.get(made.run_id)
        except HoldfastError as error:
            return await outcome_from_error(client, run_id, error)
        shared = sum(record.seq < step.seq for record in records) if step else len(records)
        if step is None:
            then = "goes on from there"
        elif output is NOT_GIVEN:
            then = f"{describe_record(step)} runs again"
        else:
            then = f"{describe_record(step)} is taken to have returned what you gave"
        return Outcome.from_run(
            run,
            changed=True,
            message=f"run {run.id!r} is a fork of {run_id!r}: it shares {format_count(shared, 'record')}, and {then}",
            forked_from=run_id,
            shared_count=shared,
        )
