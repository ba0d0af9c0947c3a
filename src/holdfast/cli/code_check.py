"""``holdfast check``: what in workflow code would not replay, told from its source."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

from holdfast.checking.checker import Report, check
from holdfast.cli.formatting import counted, echo_json, printable
from holdfast.errors import UsageError


def check_targets(targets: Sequence[str], *, as_json: bool) -> int:
    """Check the targets, tell what was found, and return the exit code.

    Raises ``UsageError`` when all is told and something could not be read.
    """
    report = check(targets)
    if as_json:
        echo_json([dataclasses.asdict(finding) for finding in report.findings])
    else:
        for finding in report.findings:
            print(printable(str(finding)))
        if report.files:
            print(_summary(report), file=sys.stderr)
    if report.unreadable:
        raise UsageError("\n".join(report.unreadable))
    return 1 if report.findings else 0


def _summary(report: Report) -> str:
    looked = f"{counted(report.workflows, 'workflow')} in {counted(report.files, 'file')}"
    return f"{counted(len(report.findings), 'finding')}: {looked}" if report.findings else f"nothing found: {looked}"
