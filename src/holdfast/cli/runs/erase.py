"""``holdfast erase``: erases one person's data, after a confirmation."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import click

from holdfast.cli.shared.formatting import format_count, make_printable
from holdfast.cli.shared.options import command, json_option, url_option, yes_option
from holdfast.cli.shared.store_access import run_client
from holdfast.errors import UsageError
from holdfast.services.erasure import EraseReport
from holdfast.services.json_form import to_json

_MAX_SHOWN_IDS = 10


@command(
    "holdfast erase --tag user:42 --memory user/42 --dry-run",
    "holdfast erase order-17 order-18 --yes",
)
@click.argument("run_ids", metavar="[ID]...", nargs=-1)
@click.option("--tag", metavar="T", default="", help="All runs with this tag. The tag is removed from them.")
@click.option(
    "--memory",
    "memories",
    metavar="NAMESPACE",
    multiple=True,
    help="Delete all memories of this namespace; may be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Erase nothing; only report what would be erased.")
@yes_option
@json_option(
    "A JSON object: dry_run, run_count, record_count, signal_count, approval_count, memory_count, refused (why runs "
    "were not erased, by id)."
)
@url_option
def erase(
    run_ids: tuple[str, ...],
    tag: str,
    memories: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    as_json: bool,
    url: str | None,
) -> None:
    """Erase one person's data: all values that ended runs have recorded.

    The same goes for the runs that they started, and for forks. The runs are still listed, with their steps, times, and
    usage. They cannot be retried or forked. A run that has not ended is not erased: cancel it before. Ids and names
    stay readable, and backups stay as they are.
    """

    def erase_data(*, dry_run: bool) -> EraseReport:
        return run_client(url, lambda client: client.erase(run_ids, tag=tag, memories=memories, dry_run=dry_run))

    if not (dry_run or yes):
        if not sys.stdin.isatty():
            raise UsageError("erasing data needs a confirmation: pass --yes, or --dry-run to see what.")
        preview = erase_data(dry_run=True)
        if not click.confirm(f"erase {_format_totals(preview)}, for good?", err=True):
            click.echo("nothing was erased", err=True)
            sys.exit(1)
    report = erase_data(dry_run=dry_run)
    if as_json:
        print(json.dumps(to_json(report)))
    else:
        _print_report(report, "would erase " if dry_run else "erased ")
    sys.exit(1 if report.refused else 0)


def _format_totals(report: EraseReport) -> str:
    parts = [
        f"{format_count(report.run_count, 'run')} ({format_count(report.record_count, 'record')})",
        *([format_count(report.signal_count, "signal")] if report.signal_count else []),
        *([format_count(report.approval_count, "approval")] if report.approval_count else []),
        *([f"{report.memory_count} memor{'y' if report.memory_count == 1 else 'ies'}"] if report.memory_count else []),
    ]
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]


def _print_report(report: EraseReport, verb: str) -> None:
    print(verb + _format_totals(report))
    by_reason: dict[str, list[str]] = {}
    for run_id, reason in report.refused.items():
        by_reason.setdefault(reason, []).append(run_id)
    for reason, ids in by_reason.items():
        print(f"not erased: {format_count(len(ids), 'run')}: {reason}")
        print(make_printable(f"    {_format_ids(ids)}"))


def _format_ids(ids: Sequence[str]) -> str:
    return ", ".join(ids[:_MAX_SHOWN_IDS]) + (", …" if len(ids) > _MAX_SHOWN_IDS else "")
