"""``holdfast dead``: runs whose workers died too often."""

from __future__ import annotations

import sys
import time
from datetime import datetime

import click
from rich.text import Text

from holdfast.cli.runs.prune import OLDER_THAN_HELP, prune_runs
from holdfast.cli.runs.retry import RunSelection, retry_runs, retry_selected, run_again_option
from holdfast.cli.runs.show import show_run
from holdfast.cli.shared.formatting import (
    create_console,
    format_count,
    format_time_and_age,
    make_printable,
    print_field,
    print_json,
    to_one_line,
)
from holdfast.cli.shared.options import (
    DEFAULT_LIMIT,
    before_option,
    dry_run_option,
    format_example,
    json_changes_option,
    json_option,
    limit_option,
    listing_group,
    url_option,
    workflow_option,
    yes_option,
)
from holdfast.cli.shared.parsing import parse_past_datetime
from holdfast.cli.shared.store_access import format_store_command, run_client
from holdfast.core.states import RunState
from holdfast.reports.dead_runs import DeadRun
from holdfast.services.json_form import to_json


@listing_group("holdfast dead", "holdfast dead retry etl-acme", "holdfast dead purge --all --older-than 30d")
@workflow_option
@limit_option
@before_option
@json_option("A JSON array of runs, each as in `GET /v1/dead-runs`.")
@url_option
def dead(workflow: str | None, limit: int, before: str | None, as_json: bool, url: str | None) -> None:
    """List dead runs, and what they were doing.

    A run is dead when workers that held nothing else died several times (default: 3, or the `max_deliveries` of its
    workflow) without recording anything new. No worker executes it until you retry it; fix the cause first.
    """
    found = run_client(url, lambda client: client.dead(workflow=workflow, limit=limit + 1, before=before))
    runs, now = found[:limit], time.time()
    if as_json:
        print_json(to_json(runs))
        return
    out = create_console()
    if not runs:
        out.print("no run is dead" if workflow is None else make_printable(f"no run of workflow {workflow!r} is dead"))
        return
    for run in runs:
        out.print(Text.assemble((to_one_line(run.id), "bold red"), f"  {to_one_line(run.workflow)}"))
        last_worker = f", the last one {to_one_line(run.worker)}" if run.worker else ""
        last_step = f", the last one of {to_one_line(run.last_step_name)}" if run.last_step_name else ""
        for label, text in (
            ("dead since", format_time_and_age(run.since.timestamp(), now)),
            ("deaths", f"{format_count(run.death_count, 'worker')} that held no other run{last_worker}"),
            ("in flight", _format_in_flight(run)),
            ("recorded", f"{format_count(run.record_count, 'record')}{last_step}"),
        ):
            print_field(out, label, text, indent=4, label_width=12)
    if len(found) > limit:
        filters = [*(("--workflow", workflow) if workflow else ())]
        filters += [] if limit == DEFAULT_LIMIT else ["--limit", str(limit)]
        next_page = format_store_command(url, "dead", *filters, "--before", runs[-1].id)
        out.print(Text(f"more: {next_page}", "dim"))
    out.print(Text(f"fix the cause, then: {format_store_command(url, 'dead', 'retry', runs[0].id)}", "dim"))


def _format_in_flight(run: DeadRun) -> str:
    if not run.in_flight:
        return "unknown: it comes after the last record"
    return ", ".join(f"step {step.number} ({to_one_line(step.name)}), attempt {step.attempt}" for step in run.in_flight)


@dead.command("show", epilog=format_example("holdfast dead show etl-acme"))
@click.argument("run_id", metavar="ID")
@json_option("A JSON object with everything.")
@url_option
def show_dead_run(run_id: str, as_json: bool, url: str | None) -> None:
    """Show everything known about a dead run, as `holdfast show` does."""
    show_run(url, run_id, as_json=as_json)


@dead.command(
    "retry", epilog=format_example("holdfast dead retry etl-acme etl-bolt", "holdfast dead retry --workflow etl")
)
@click.argument("run_ids", metavar="[ID]...", nargs=-1)
@click.option("--workflow", metavar="W", help="All dead runs of this workflow.")
@click.option("--all", "everything", is_flag=True, help="All dead runs.")
@run_again_option
@yes_option
@json_changes_option
@url_option
def retry_dead(
    run_ids: tuple[str, ...],
    workflow: str | None,
    everything: bool,
    run_again: bool,
    yes: bool,
    as_json: bool,
    url: str | None,
) -> None:
    """Retry dead runs, with their count of deaths set back to zero."""
    if bool(run_ids) + bool(workflow) + everything != 1:
        raise click.UsageError("say which: some ids, --workflow W, or --all.")
    if run_ids:
        sys.exit(retry_runs(url, run_ids, run_again=run_again, as_json=as_json))
    selection, confirmed = RunSelection((RunState.DEAD,), workflow), yes or workflow is not None
    sys.exit(retry_selected(url, selection, run_again=run_again, yes=confirmed, as_json=as_json))


@dead.command(
    "purge", epilog=format_example("holdfast dead purge etl-acme", "holdfast dead purge --all --older-than 30d --yes")
)
@click.argument("run_ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All dead runs; requires --older-than.")
@click.option("--older-than", type=parse_past_datetime, metavar="WHEN", help=OLDER_THAN_HELP)
@dry_run_option
@yes_option
@json_option("A JSON object: see `holdfast prune`.")
@url_option
def purge(
    run_ids: tuple[str, ...],
    everything: bool,
    older_than: datetime | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    url: str | None,
) -> None:
    """Delete dead runs, with everything that belongs to them.

    Runs that `holdfast prune` keeps are kept here as well.
    """
    if bool(run_ids) == everything:
        raise click.UsageError("say which: some ids, or --all.")
    if everything and older_than is None:
        raise click.UsageError("--all needs --older-than, such as 30d.")
    ids = run_ids or None
    sys.exit(
        prune_runs(url, older_than=older_than, run_ids=ids, dry_run=dry_run, yes=yes, as_json=as_json, state=("dead",))
    )
