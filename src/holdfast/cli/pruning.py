"""``holdfast prune`` and ``holdfast dead purge``: what would be deleted, the question, and what was."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import click

from holdfast.cli.opening import existing_store, find_run
from holdfast.cli.wording import bytes_in_words, counted, printable
from holdfast.client.pruning import PruneReport, pruning
from holdfast.client.pruning import prune_runs as carry_out
from holdfast.errors import UsageError
from holdfast.stores.pruning import Pruning

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

    @property
    def what(self) -> Pruning:
        """The same, for the store."""
        now = datetime.now().timestamp()
        before = now if self.older_than is None else self.older_than.timestamp()
        return pruning(
            now,
            max(0.0, now - before),
            self.states,
            workflow=self.workflow,
            keep=self.keep,
            unclaimed=self.unclaimed,
            run_ids=self.run_ids,
            dry_run=self.dry_run,
        )


def prune_runs(url: str | None, asked: Asked, *, as_json: bool) -> int:
    """Delete runs, and tell what was deleted; 1 if runs that were named are kept."""
    what, report = asked.what, PruneReport()
    if not (asked.dry_run or asked.yes):
        if not sys.stdin.isatty():
            raise UsageError("nobody can be asked whether to delete runs: pass --yes, or --dry-run to see which.")
        would = asyncio.run(_prune(url, replace(what, dry_run=True), PruneReport()))
        if would.runs and not click.confirm(f"delete {_sum(would)}?", err=True):
            print("nothing was deleted")
            return 1
    try:
        asyncio.run(_prune(url, what, report))
    except KeyboardInterrupt:
        _tell(report, "deleted, before it was interrupted: ", as_json=as_json)
        return 130
    _tell(report, "would delete " if asked.dry_run else "deleted ", as_json=as_json)
    return 1 if asked.run_ids is not None and report.kept else 0


async def _prune(url: str | None, what: Pruning, report: PruneReport) -> PruneReport:
    async with existing_store(url) as store:
        for run_id in what.run_ids or ():
            await find_run(store, run_id)
        return await carry_out(store, what, report)


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
