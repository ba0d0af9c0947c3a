"""``holdfast settle``."""

from __future__ import annotations

import sys

import click

from holdfast.cli.shared.options import command, json_changes_option, url_option
from holdfast.cli.shared.outcomes import Outcome, change_each, print_outcomes
from holdfast.cli.shared.parsing import parse_json_option, parse_step
from holdfast.cli.shared.store_access import run_client
from holdfast.client.client import Client
from holdfast.reports.run_info import RunInfo
from holdfast.services.forks import NOT_GIVEN


@command('holdfast settle pay-17 charge --output \'{"receipt": "r-42"}\'', "holdfast settle pay-17 2 --did-not-happen")
@click.argument("run_id", metavar="ID")
@click.argument("step")
@click.option("--output", metavar="JSON", help="It happened, and returned this (null, if nothing).")
@click.option("--did-not-happen", is_flag=True, help="It did not happen: run it again.")
@json_changes_option
@url_option
def settle(run_id: str, step: str, output: str | None, did_not_happen: bool, as_json: bool, url: str | None) -> None:
    """Decide the outcome of a `once` step whose worker died while executing it.

    Only you can find out whether it happened. The run, which failed because of that, then continues: with
    the output that you give, or by running STEP (its number in `show`, or its name) again. No other `once` step is run
    again. If another run started it and failed, `holdfast retry` the other run afterwards.
    """
    if (output is None) is not did_not_happen:
        raise click.UsageError("say one of the two: --output JSON, what the step returned, or --did-not-happen.")
    value = NOT_GIVEN if output is None else parse_json_option("--output", output)
    wanted = parse_step(step)

    async def settle_step(client: Client) -> list[Outcome]:
        async def settle_one(run_id: str) -> bool:
            await client.settle(run_id, wanted, value, happened=not did_not_happen)
            return True

        return await change_each(client, [run_id], settle_one, describe)

    def describe(before: RunInfo, run: RunInfo, changed: bool) -> str:
        then = "runs again" if did_not_happen else "has returned what you gave"
        return f"run {run_id!r} continues (it was {before.state}): step {wanted!r} {then}"

    sys.exit(print_outcomes(url, run_client(url, settle_step), as_json=as_json))
