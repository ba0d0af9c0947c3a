"""``holdfast check``: what in workflow code would not replay, told from its source."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

from holdfast.checking.checker import CheckReport, check_code
from holdfast.cli.formatting import format_count, make_printable, print_json
from holdfast.errors import UsageError


def check_targets(targets: Sequence[str], *, as_json: bool) -> int:
    """Check the targets, tell what was found, and return the exit code.

    Raises ``UsageError`` when all is told and something could not be read.
    """
    report = check_code(targets)
    if as_json:
        print_json([dataclasses.asdict(finding) for finding in report.findings])
    else:
        for finding in report.findings:
            print(make_printable(str(finding)))
        if report.file_count:
            print(_format_summary(report), file=sys.stderr)
    if report.read_errors:
        raise UsageError("\n".join(report.read_errors))
    return 1 if report.findings else 0


def _format_summary(report: CheckReport) -> str:
    looked = f"{format_count(report.workflow_count, 'workflow')} in {format_count(report.file_count, 'file')}"
    return (
        f"{format_count(len(report.findings), 'finding')}: {looked}" if report.findings else f"nothing found: {looked}"
    )
