"""Commands for what is left of runs: those that are dead, and those that are old."""

from __future__ import annotations

import sys
from datetime import datetime

import click

from holdfast.cli.datetimes import parse_past_datetime
from holdfast.cli.options import (
    TERMINAL_STATES,
    YES_HELP,
    CommandGroup,
    format_example,
    json_changes_option,
    json_option,
    limit_option,
    list_by_default,
    url_option,
)

_OLDER_THAN_HELP = (
    "Only runs that ended before then: a date such as 2026-11-15, or how long ago it was, such as 12h or 30d."
)


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    epilog=format_example(
        "holdfast dead", "holdfast dead retry etl-acme", "holdfast dead purge --all --older-than 30d"
    ),
)
@click.option("--workflow", metavar="W", help="Only runs of this workflow.")
@limit_option
@click.option("--before", metavar="ID", help="Go on behind this run: the last one of the page before.")
@json_option(
    "A JSON array of objects: id, workflow, since, death_count, worker, in_flight (name, number, attempt, since), "
    "record_count, last_step_name, parent, reason."
)
@url_option
@list_by_default
def dead(workflow: str | None, limit: int, before: str | None, as_json: bool, url: str | None) -> None:
    """List dead runs, and what they were doing.

    A run is dead when workers that held nothing else died several times (3, unless its workflow has another
    `max_deliveries`) without anything new recorded. No worker executes it until you retry it; fix the cause first.
    """
    from holdfast.cli.dead_runs import show_dead_runs

    show_dead_runs(url, workflow, limit, before, as_json=as_json)


@dead.command("show", epilog=format_example("holdfast dead show etl-acme"))
@click.argument("run_id", metavar="ID")
@json_option("A JSON object with everything, for programs.")
@url_option
def show_dead_run(run_id: str, as_json: bool, url: str | None) -> None:
    """Tell all that is known of a dead run: as `holdfast show`."""
    from holdfast.cli.show import show_run

    show_run(url, run_id, as_json=as_json)


@dead.command(
    "retry", epilog=format_example("holdfast dead retry etl-acme etl-bolt", "holdfast dead retry --workflow etl")
)
@click.argument("run_ids", metavar="[ID]...", nargs=-1)
@click.option("--workflow", metavar="W", help="All dead runs of this workflow.")
@click.option("--all", "everything", is_flag=True, help="All dead runs.")
@click.option("--run-again", is_flag=True, help="A `once` step of unknown outcome did not happen: run it again.")
@click.option("--yes", is_flag=True, help=YES_HELP)
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
    """Let dead runs go on: their count of deaths begins anew."""
    from holdfast.cli.dead_runs import retry_dead_runs

    if bool(run_ids) + bool(workflow) + everything != 1:
        raise click.UsageError("say which: some ids, --workflow W, or --all.")
    sys.exit(retry_dead_runs(url, run_ids, workflow, run_again=run_again, yes=yes, as_json=as_json))


@dead.command(
    "purge", epilog=format_example("holdfast dead purge etl-acme", "holdfast dead purge --all --older-than 30d --yes")
)
@click.argument("run_ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All dead runs; needs --older-than.")
@click.option("--older-than", type=parse_past_datetime, metavar="WHEN", help=_OLDER_THAN_HELP)
@click.option("--dry-run", is_flag=True, help="Delete nothing, only tell.")
@click.option("--yes", is_flag=True, help=YES_HELP)
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
    """Delete dead runs, with all that belongs to them.

    What `holdfast prune` keeps is kept here as well.
    """
    from holdfast.cli.retention import PruneRequest, prune_runs

    if bool(run_ids) == everything:
        raise click.UsageError("say which: some ids, or --all.")
    if everything and older_than is None:
        raise click.UsageError("--all needs --older-than, such as 30d.")
    asked = PruneRequest(older_than, ("dead",), run_ids=run_ids or None, dry_run=dry_run, yes=yes)
    sys.exit(prune_runs(url, asked, as_json=as_json))


@click.command(
    epilog=format_example(
        "holdfast prune --older-than 30d --dry-run",
        "holdfast prune --older-than 90d --state completed --state failed --keep 100 --yes",
    )
)
@click.option("--older-than", type=parse_past_datetime, metavar="WHEN", required=True, help=_OLDER_THAN_HELP)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(TERMINAL_STATES),
    help="Runs in this state; may be repeated. Completed and cancelled ones unless given.",
)
@click.option("--workflow", metavar="W", help="Only runs of this workflow.")
@click.option("--keep", type=click.IntRange(min=0), default=0, metavar="N", help="Not the newest N of each workflow.")
@click.option(
    "--unclaimed", is_flag=True, help="Also runs whose result nobody has had, because their script was killed."
)
@click.option("--dry-run", is_flag=True, help="Delete nothing, only tell.")
@click.option("--yes", is_flag=True, help=YES_HELP)
@json_option(
    "A JSON object: dry_run, run_count, record_count, blob_count (large values), size_bytes, "
    "kept_by_reason (a number for each reason)."
)
@url_option
def prune(
    older_than: datetime,
    states: tuple[str, ...],
    workflow: str | None,
    keep: int,
    unclaimed: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    url: str | None,
) -> None:
    """Delete runs that ended long ago, with all that belongs to them.

    Workers may go on meanwhile: it is done in short pieces, and may be stopped and begun again at any time. A run is
    kept as long as somebody needs it: with the runs that it has started and the one that started it, and with its
    conversation, until all of them have ended before then. Afterwards an id can be used anew.
    """
    from holdfast.cli.retention import PruneRequest, prune_runs

    asked = PruneRequest(older_than, states, workflow, keep, unclaimed, None, dry_run, yes)
    sys.exit(prune_runs(url, asked, as_json=as_json))
