"""``holdfast fork``."""

from __future__ import annotations

import sys
from typing import Any

import click

from holdfast.cli.shared.formatting import format_count
from holdfast.cli.shared.options import command, json_changes_option, url_option
from holdfast.cli.shared.outcomes import Outcome, outcome_from_error, print_outcomes
from holdfast.cli.shared.parsing import parse_json_option, parse_step
from holdfast.cli.shared.store_access import run_client
from holdfast.client.client import Client
from holdfast.errors import HoldfastError
from holdfast.reports.retry_preview import describe_record
from holdfast.services.forks import NOT_GIVEN, find_step


@command("holdfast fork etl-acme --at load", "holdfast fork etl-acme --at 3 --output '[1, 2]' --id etl-acme-b")
@click.argument("run_id", metavar="ID")
@click.option("--at", metavar="STEP", help="Continue from this step: its number in `show`, or its name. It runs again.")
@click.option("--output", metavar="JSON", help="Use this as the output of that step instead of running it.")
@click.option("--id", "new_id", metavar="NEW", help="The id of the new run. Default: a generated id.")
@json_changes_option
@url_option
def fork(run_id: str, at: str | None, output: str | None, new_id: str | None, as_json: bool, url: str | None) -> None:
    """Start a new run that shares the records of another one.

    The new run shares everything that was recorded before STEP, without running it again; without STEP, everything. The
    other run does not change.
    """
    value = NOT_GIVEN if output is None else parse_json_option("--output", output)
    if output is not None and at is None:
        raise click.UsageError("--output is the output of a step: say which with --at STEP.")
    step = None if at is None else parse_step(at)
    outcome = run_client(url, lambda client: _fork(client, run_id, step, value, new_id))
    sys.exit(print_outcomes(url, [outcome], as_json=as_json))


async def _fork(client: Client, run_id: str, at: int | str | None, output: Any, new_id: str | None) -> Outcome:
    try:
        records = (await client.export(run_id)).records
        step = None if at is None else find_step(records, at, run_id)
        handle = await client.fork(run_id, at=at, with_output=output, id=new_id)
        run = await client.get(handle.run_id)
    except HoldfastError as error:
        return await outcome_from_error(client, run_id, error)
    shared = sum(record.seq < step.seq for record in records) if step else len(records)
    if step is None:
        then = "continues from there"
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
