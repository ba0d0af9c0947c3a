"""``holdfast check``: problems of workflow code, found in its source."""

from __future__ import annotations

import dataclasses
import sys

import click

from holdfast.checking.checker import CheckReport, check_code
from holdfast.cli.shared.formatting import format_count, make_printable, print_json
from holdfast.cli.shared.group import report_error
from holdfast.cli.shared.options import command, json_option
from holdfast.errors import HoldfastError, UsageError


@command("holdfast check app.py", "holdfast check jobs/ pkg.flows --json")
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@json_option("A JSON array of objects: file, line, column, kind, code_text, reason, remedy, workflow.")
def check(targets: tuple[str, ...], as_json: bool) -> None:
    """Find workflow code that does not replay.

    TARGET is a file, a folder, or a module. Only its source is read: nothing is imported, and nothing runs. Each
    finding is a line with its location, what is wrong, and how to fix it. `# holdfast: ignore` on the line silences it,
    and `# holdfast: ignore[clock]` only that kind. Exits with 0 if nothing is found, with 1 if something is, and with 2
    if something cannot be read.
    """
    try:
        report = check_code(targets)
    except HoldfastError as error:
        report_error(error)
        sys.exit(2)
    if as_json:
        print_json([dataclasses.asdict(finding) for finding in report.findings])
    else:
        for finding in report.findings:
            print(make_printable(str(finding)))
        if report.file_count:
            print(_format_summary(report), file=sys.stderr)
    if report.read_errors:
        report_error(UsageError("\n".join(report.read_errors)))
        sys.exit(2)
    sys.exit(1 if report.findings else 0)


def _format_summary(report: CheckReport) -> str:
    looked = f"{format_count(report.workflow_count, 'workflow')} in {format_count(report.file_count, 'file')}"
    return (
        f"{format_count(len(report.findings), 'finding')}: {looked}" if report.findings else f"nothing found: {looked}"
    )
