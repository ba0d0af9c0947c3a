"""``holdfast signal``."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import click

from holdfast.cli.shared.formatting import print_warning
from holdfast.cli.shared.options import command, json_changes_option, url_option
from holdfast.cli.shared.outcomes import Outcome, outcome_from_error, print_outcomes
from holdfast.cli.shared.parsing import parse_json_or_text
from holdfast.cli.shared.store_access import run_client, try_get_run
from holdfast.client.client import Client
from holdfast.errors import HoldfastError
from holdfast.reports.run_info import RunInfo


@command("holdfast signal order-7 approved true", 'holdfast signal order-7 note "call first" --id note-from-ann')
@click.argument("run_id", metavar="ID")
@click.argument("name")
@click.argument("value", required=False)
@click.option("--id", "dedup", metavar="DEDUP", help="Sending again with the same DEDUP changes nothing.")
@json_changes_option
@url_option
def signal(run_id: str, name: str, value: str | None, dedup: str | None, as_json: bool, url: str | None) -> None:
    """Send a value to a run, to its `wait_for_signal(NAME)`.

    VALUE is parsed as JSON (`true`, `3`, `{"by": "ann"}`); text that is not JSON is sent as a string. Without a VALUE,
    None is sent.
    """
    sent = None if value is None else parse_json_or_text(value)
    outcome = run_client(url, lambda client: _send(client, run_id, name, sent, dedup))
    if outcome.stall_reason is not None and not as_json:
        message = f"{outcome.message}\nit is kept until the run continues; {outcome.stall_reason}"
        outcome = replace(outcome, message=message, stall_reason=None)
    if (warning := outcome.extra.get("warning")) and not as_json:
        print_warning(warning)
    sys.exit(print_outcomes(url, [outcome], as_json=as_json))


async def _send(client: Client, run_id: str, name: str, value: Any, dedup: str | None) -> Outcome:
    try:
        before = await try_get_run(client, run_id)
        changed = await client.signal(run_id, name, value, id=dedup)
        run = await try_get_run(client, run_id)
    except HoldfastError as error:
        return await outcome_from_error(client, run_id, error)
    message = (
        f"sent signal {name!r} to run {run_id!r}"
        if changed
        else f"a signal with id {dedup!r} was sent to run {run_id!r} before: nothing changed"
    )
    extra = {"signal": name, "warning": _build_warning(before, name) if changed else None}
    if run is None:
        return Outcome(run_id, None, changed, message, extra=extra)
    return Outcome.from_run(run, changed=changed, message=message, **extra)


def _build_warning(run: RunInfo | None, name: str) -> str | None:
    """A warning if the run waits for something else. While a run is executed, that is not known."""
    if run is None or not run.waits_for or f"signal {name!r}" in run.waits_for:
        return None
    return (
        f"run {run.id!r} does not wait for signal {name!r}: it waits for {run.waits_for}. The signal is kept, in case "
        f"the run asks for it later."
    )
