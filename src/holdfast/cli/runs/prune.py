"""``holdfast prune``: deletes old runs, after a confirmation. ``holdfast dead purge`` uses it as well."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from holdfast.cli.shared.formatting import format_bytes, format_count, make_printable
from holdfast.cli.shared.options import (
    TERMINAL_STATES,
    command,
    dry_run_option,
    json_option,
    url_option,
    workflow_option,
    yes_option,
)
from holdfast.cli.shared.parsing import parse_past_datetime
from holdfast.cli.shared.store_access import run_client
from holdfast.client.client import Client
from holdfast.errors import UsageError
from holdfast.services.json_form import to_json
from holdfast.services.retention import PruneReport

_MAX_SHOWN_IDS = 10
OLDER_THAN_HELP = (
    "Only runs that ended before this time: a date such as 2026-11-15, or how long ago, such as 12h or 30d."
)


@command(
    "holdfast prune --older-than 30d --dry-run",
    "holdfast prune --older-than 90d --state completed --state failed --keep 100 --yes",
)
@click.option("--older-than", type=parse_past_datetime, metavar="WHEN", required=True, help=OLDER_THAN_HELP)
@click.option(
    "--state",
    multiple=True,
    type=click.Choice(TERMINAL_STATES),
    help="Runs in this state; may be repeated. Default: completed and cancelled.",
)
@workflow_option
@click.option("--keep", type=click.IntRange(min=0), default=0, metavar="N", help="Keep the newest N of each workflow.")
@click.option(
    "--unclaimed", is_flag=True, help="Also runs whose result was never received, because their script was killed."
)
@dry_run_option
@yes_option
@json_option(
    "A JSON object: dry_run, run_count, record_count, blob_count (large values), size_bytes, "
    "kept_by_reason (a number for each reason)."
)
@url_option
def prune(as_json: bool, url: str | None, **options: Any) -> None:
    """Delete runs that ended long ago, with everything that belongs to them.

    Workers may keep running: runs are deleted in small batches, and you can interrupt the command and start it again. A
    run is kept as long as another one needs it: with its children, its parent, and its conversation, until all of them
    ended before that time. Afterwards its id can be used again.
    """
    sys.exit(prune_runs(url, as_json=as_json, **options))


def prune_runs(
    url: str | None,
    *,
    older_than: datetime | None,
    run_ids: Sequence[str] | None = None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **filters: Any,
) -> int:
    """Delete runs, print what was deleted, and return the exit code: 1 if named runs were kept."""
    age_s = 0.0 if older_than is None else max(0.0, time.time() - older_than.timestamp())

    def prune(report: PruneReport, *, dry_run: bool) -> None:
        async def execute(client: Client) -> None:
            for run_id in run_ids or ():
                await client.get(run_id)
            await client.prune(age_s, run_ids=run_ids, dry_run=dry_run, report=report, **filters)

        verb = "found" if dry_run else "deleted"
        run_client(url, execute, format_progress=lambda: f"{verb} {format_count(report.run_count, 'run')} so far …")

    if not (dry_run or yes):
        if not sys.stdin.isatty():
            raise UsageError("deleting runs needs a confirmation: pass --yes, or --dry-run to see which.")
        prune(preview := PruneReport(), dry_run=True)
        if preview.run_count and not click.confirm(f"delete {_format_totals(preview)}?", err=True):
            click.echo("nothing was deleted", err=True)
            return 1
    report = PruneReport()
    try:
        prune(report, dry_run=dry_run)
    except KeyboardInterrupt:
        _print_report(report, "deleted, before it was interrupted: ", as_json=as_json)
        return 130
    _print_report(report, "would delete " if dry_run else "deleted ", as_json=as_json)
    return 1 if run_ids is not None and report.kept_by_reason else 0


def _format_totals(report: PruneReport) -> str:
    parts = [format_count(report.run_count, "run"), format_count(report.record_count, "record")]
    if report.blob_count:
        parts.append(format_count(report.blob_count, "large value"))
    return f"{', '.join(parts[:-1])} and {parts[-1]} ({format_bytes(report.size_bytes)} of recorded values)"


def _print_report(report: PruneReport, prefix: str, *, as_json: bool) -> None:
    if as_json:
        fields = to_json(report)
        del fields["kept_examples"]
        print(json.dumps(fields))
        return
    print(prefix + _format_totals(report))
    for why, count in report.kept_by_reason.most_common():
        print(f"kept {format_count(count, 'run')}: {why}")
        some = [run_id for run_id, reason in report.kept_examples.items() if reason == why][:_MAX_SHOWN_IDS]
        print(make_printable(f"    {', '.join(some)}{', …' if count > len(some) else ''}"))
