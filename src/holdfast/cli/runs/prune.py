"""``holdfast prune``: deletes old runs, after a confirmation. ``holdfast dead purge`` uses it as well."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import click

from holdfast.cli.shared.event_loop import run_in_loop
from holdfast.cli.shared.formatting import format_bytes, format_count, make_printable
from holdfast.cli.shared.options import (
    TERMINAL_STATES,
    dry_run_option,
    format_example,
    json_option,
    url_option,
    workflow_option,
    yes_option,
)
from holdfast.cli.shared.parsing import parse_past_datetime
from holdfast.cli.shared.store_access import open_client
from holdfast.errors import UsageError
from holdfast.services.retention import PruneReport

_MAX_SHOWN_IDS = 10
OLDER_THAN_HELP = (
    "Only runs that ended before this time: a date such as 2026-11-15, or how long ago, such as 12h or 30d."
)


@dataclass(frozen=True, slots=True)
class PruneRequest:
    """Which runs to delete."""

    older_than: datetime | None
    states: Sequence[str] = ()
    workflow: str | None = None
    keep: int = 0
    unclaimed: bool = False
    run_ids: Sequence[str] | None = None
    dry_run: bool = False
    yes: bool = False

    async def execute(self, url: str | None, report: PruneReport, *, dry_run: bool) -> PruneReport:
        """Delete the runs, or only report which ones."""
        async with open_client(url) as client:
            for run_id in self.run_ids or ():
                await client.get(run_id)
            age = 0.0 if self.older_than is None else time.time() - self.older_than.timestamp()
            return await client.prune(
                max(0.0, age),
                state=self.states,
                workflow=self.workflow,
                keep=self.keep,
                unclaimed=self.unclaimed,
                run_ids=self.run_ids,
                dry_run=dry_run,
                report=report,
            )


@click.command(
    epilog=format_example(
        "holdfast prune --older-than 30d --dry-run",
        "holdfast prune --older-than 90d --state completed --state failed --keep 100 --yes",
    )
)
@click.option("--older-than", type=parse_past_datetime, metavar="WHEN", required=True, help=OLDER_THAN_HELP)
@click.option(
    "--state",
    "states",
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
    sys.exit(prune_runs(url, PruneRequest(**options), as_json=as_json))


def prune_runs(url: str | None, request: PruneRequest, *, as_json: bool) -> int:
    """Delete runs, print what was deleted, and return the exit code: 1 if named runs were kept."""
    report = PruneReport()
    if not (request.dry_run or request.yes):
        if not sys.stdin.isatty():
            raise UsageError("deleting runs needs a confirmation: pass --yes, or --dry-run to see which.")
        would = PruneReport()
        run_in_loop(request.execute(url, would, dry_run=True), format_progress=lambda: _format_progress(would, "found"))
        if would.run_count and not click.confirm(f"delete {_format_totals(would)}?", err=True):
            click.echo("nothing was deleted", err=True)
            return 1
    try:
        verb = "found" if request.dry_run else "deleted"
        run_in_loop(
            request.execute(url, report, dry_run=request.dry_run),
            format_progress=lambda: _format_progress(report, verb),
        )
    except KeyboardInterrupt:
        _print_report(report, "deleted, before it was interrupted: ", as_json=as_json)
        return 130
    _print_report(report, "would delete " if request.dry_run else "deleted ", as_json=as_json)
    return 1 if request.run_ids is not None and report.kept_by_reason else 0


def _format_progress(report: PruneReport, verb: str) -> str:
    return f"{verb} {format_count(report.run_count, 'run')} so far …"


def _format_totals(report: PruneReport) -> str:
    parts = [format_count(report.run_count, "run"), format_count(report.record_count, "record")]
    if report.blob_count:
        parts.append(format_count(report.blob_count, "large value"))
    return f"{', '.join(parts[:-1])} and {parts[-1]} ({format_bytes(report.size_bytes)} of recorded values)"


def _report_to_json(report: PruneReport) -> dict[str, Any]:
    return {
        "dry_run": report.dry_run,
        "run_count": report.run_count,
        "record_count": report.record_count,
        "blob_count": report.blob_count,
        "size_bytes": report.size_bytes,
        "kept_by_reason": dict(report.kept_by_reason),
    }


def _print_report(report: PruneReport, prefix: str, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_report_to_json(report)))
        return
    print(prefix + _format_totals(report))
    for why, count in report.kept_by_reason.most_common():
        print(f"kept {format_count(count, 'run')}: {why}")
        some = [run_id for run_id, reason in report.kept_examples.items() if reason == why][:_MAX_SHOWN_IDS]
        print(make_printable(f"    {', '.join(some)}{', …' if count > len(some) else ''}"))
