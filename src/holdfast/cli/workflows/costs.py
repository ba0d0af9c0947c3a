"""``holdfast costs``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

import click
from rich.text import Text

from holdfast.admission.usage import Usage
from holdfast.cli.shared.formatting import create_console, format_count, print_json, to_one_line
from holdfast.cli.shared.options import command, json_option, url_option
from holdfast.cli.shared.parsing import parse_day
from holdfast.cli.shared.store_access import run_client
from holdfast.cli.shared.tables import Cell, print_table
from holdfast.reports.run_usage import format_brief_cost, format_usage
from holdfast.reports.usage_report import DailyUsage, UsageReport
from holdfast.services.json_form import to_json

_HEADER = ("day", "agent", "runs", "model", "calls", "tokens in", "cached", "tokens out", "cost")
_NUMBER_COLUMNS = (2, 4, 5, 6, 7, 8)


@command("holdfast costs", "holdfast costs --since 2026-11-01 --workflow research --json")
@click.option(
    "--since", type=parse_day, metavar="DAY", help="The first day: 2026-11-01, or 7d ago. Default: 30 days ago."
)
@click.option("--until", type=parse_day, metavar="DAY", help="The last day, inclusive. Default: today.")
@click.option("--workflow", metavar="W", help="Only runs of this agent or workflow.")
@json_option("A JSON object, as from `GET /v1/usage`, and `total`.")
@url_option
def costs(since: date | None, until: date | None, workflow: str | None, as_json: bool, url: str | None) -> None:
    """Show what model calls used, by day, agent, and model.

    Days are in UTC. The usage of a sub-agent counts for the sub-agent. Deleting runs does not change the numbers.
    """
    report = run_client(url, lambda client: client.usage_report(since, until, workflow=workflow))
    if as_json:
        print_json({**to_json(report), "total": to_json(report.total)})
        return
    out = create_console()
    period = f"from {report.since} to {report.until}" if report.since != report.until else f"on {report.since}"
    whose = "" if workflow is None else f" of {to_one_line(workflow)!r}"
    if not report.daily_usage:
        made = sum(line.run_count for line in report.daily_runs)
        out.print(Text(f"no model calls{whose} {period} (UTC), in {format_count(made, 'run')}"))
        return
    total, *by_model = _build_total_rows(report)
    rows: list[Sequence[Cell]] = [*_build_rows(report), [Text(cell, "bold") for cell in total], *by_model]
    print_table(_HEADER, rows, right_columns=_NUMBER_COLUMNS)
    out.print(Text(f"{format_usage(report.total)}{whose} {period} (UTC)", "dim"))


def _build_rows(report: UsageReport) -> list[tuple[str, ...]]:
    """A row for each day, agent, and model. A day or an agent is not repeated in the rows below."""
    runs = {(line.day, line.workflow): line.run_count for line in report.daily_runs}
    lines: list[tuple[str, ...]] = []
    before: DailyUsage | None = None
    for line in report.daily_usage:
        same_day = before is not None and before.day == line.day
        same = same_day and before is not None and before.workflow == line.workflow
        lines.append(
            (
                "" if same_day else line.day.isoformat(),
                "" if same else to_one_line(line.workflow),
                "" if same else f"{runs.get((line.day, line.workflow), 0):,}",
                _format_model(line),
                *_format_numbers(line.usage),
            )
        )
        before = line
    return lines


def _build_total_rows(report: UsageReport) -> list[tuple[str, ...]]:
    """The total; and if there are several models, a row for each."""
    agents = {(line.day, line.workflow) for line in report.daily_usage}
    runs = sum(line.run_count for line in report.daily_runs if (line.day, line.workflow) in agents)
    usage_by_model: dict[str, Usage] = {}
    for line in report.daily_usage:
        usage_by_model[_format_model(line)] = usage_by_model.get(_format_model(line), Usage()) + line.usage
    by_model = sorted(usage_by_model.items())
    rest = [("", "", "", model, *_format_numbers(used)) for model, used in by_model] if len(by_model) > 1 else []
    model = "" if len(by_model) > 1 else by_model[0][0]
    return [("total", "", f"{runs:,}", model, *_format_numbers(report.total)), *rest]


def _format_model(spending: DailyUsage) -> str:
    return to_one_line(spending.model) or "(not known)"


def _format_numbers(usage: Usage) -> tuple[str, ...]:
    return (
        f"{usage.calls:,}",
        f"{usage.input_tokens:,}",
        f"{usage.cached_tokens:,}",
        f"{usage.output_tokens:,}",
        format_brief_cost(usage),
    )
