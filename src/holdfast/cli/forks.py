"""``holdfast fork``."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.event_loop import in_loop
from holdfast.cli.formatting import counted
from holdfast.cli.outcomes import Outcome, failure, report
from holdfast.cli.store_access import get_run, reached
from holdfast.cli.values import json_of, named_step
from holdfast.errors import HoldfastError
from holdfast.reports.retry_preview import in_words
from holdfast.services.forks import NOT_GIVEN, find_step


def fork(url: str | None, run_id: str, *, at: str | None, output: str | None, new_id: str | None, as_json: bool) -> int:
    """Make a new run that shares the beginning of another one, and say where it goes on."""
    value = NOT_GIVEN if output is None else json_of("--output", output)
    if output is not None and at is None:
        raise click.UsageError("--output is the output of a step: say which with --at STEP.")
    return report(
        url, [in_loop(_fork(url, run_id, None if at is None else named_step(at), value, new_id))], as_json=as_json
    )


async def _fork(url: str | None, run_id: str, at: int | str | None, output: Any, new_id: str | None) -> Outcome:
    async with reached(url) as client:
        try:
            await get_run(client, run_id)
            records = (await client.export(run_id)).records
            step = None if at is None else find_step(records, at, run_id)
            made = await client.fork(run_id, at=at, with_output=output, id=new_id)
            run = await client.get(made.run_id)
        except HoldfastError as error:
            return await failure(client, run_id, error)
        shared = sum(record.seq < step.seq for record in records) if step else len(records)
        if step is None:
            then = "goes on from there"
        elif output is NOT_GIVEN:
            then = f"{in_words(step)} runs again"
        else:
            then = f"{in_words(step)} is taken to have returned what you gave"
        return Outcome.of(
            run,
            changed=True,
            message=f"run {run.id!r} is a fork of {run_id!r}: it shares {counted(shared, 'record')}, and {then}",
            forked_from=run_id,
            shared=shared,
        )
