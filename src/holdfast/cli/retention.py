"""``holdfast prune`` and ``holdfast dead purge``: what would be deleted, the question, and what was."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import click

from holdfast.cli.event_loop import in_loop
from holdfast.cli.formatting import bytes_in_words, counted, printable
from holdfast.cli.store_access import get_run, reached
from holdfast.errors import UsageError
from holdfast.services.retention import PruneReport

_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be deleted, as it was asked for."""

    older_than: datetime | None
    states: Sequence[str] = ()
    workflow: str | None = None
    keep: int = 0
    unclaimed: bool = False
    run_ids: Sequence[str] | None = None
    dry_run: bool = False
    yes: bool = False

    async def carry_out(self, url: str | None, report: PruneReport, *, dry_run: bool) -> PruneReport:
        """Delete them, or only tell which."""
        async with reached(url) as client:
            for run_id in self.run_ids or ():
                await get_run(client, run_id)
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


def prune_runs(url: str | None, asked: Asked, *, as_json: bool) -> int:
    """Delete runs, and tell what was deleted; 1 if runs that were named are kept."""
    report = PruneReport()
    if not (asked.dry_run or asked.yes):
        if not sys.stdin.isatty():
            raise UsageError("nobody can be asked whether to delete runs: pass --yes, or --dry-run to see which.")
        would = PruneReport()
        in_loop(asked.carry_out(url, would, dry_run=True), progress=lambda: _progress(would, "found"))
        if would.runs and not click.confirm(f"delete {_sum(would)}?", err=True):
            click.echo("nothing was deleted", err=True)
            return 1
    try:
        verb = "found" if asked.dry_run else "deleted"
        in_loop(asked.carry_out(url, report, dry_run=asked.dry_run), progress=lambda: _progress(report, verb))
    except KeyboardInterrupt:
        _tell(report, "deleted, before it was interrupted: ", as_json=as_json)
        return 130
    _tell(report, "would delete " if asked.dry_run else "deleted ", as_json=as_json)
    return 1 if asked.run_ids is not None and report.kept else 0


def _progress(report: PruneReport, verb: str) -> str:
    return f"{verb} {counted(report.runs, 'run')} so far …"


def _sum(report: PruneReport) -> str:
    parts = [counted(report.runs, "run"), counted(report.records, "record")]
    if report.blobs:
        parts.append(counted(report.blobs, "large value"))
    return f"{', '.join(parts[:-1])} and {parts[-1]} ({bytes_in_words(report.size)} of recorded values)"


def _tell(report: PruneReport, words: str, *, as_json: bool) -> None:
    if as_json:
        told = {"dry_run": report.dry_run, "runs": report.runs, "records": report.records}
        print(json.dumps({**told, "large_values": report.blobs, "bytes": report.size, "kept": dict(report.kept)}))
        return
    print(words + _sum(report))
    for why, count in report.kept.most_common():
        print(f"kept {counted(count, 'run')}: {why}")
        some = [run_id for run_id, reason in report.kept_ids.items() if reason == why][:_SHOWN]
        print(printable(f"    {', '.join(some)}{', …' if count > len(some) else ''}"))
