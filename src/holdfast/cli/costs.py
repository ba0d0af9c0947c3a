"""``holdfast costs``: what model calls have used, by day, agent and model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date

from rich.text import Text

from holdfast.admission.usage import Usage
from holdfast.cli.event_loop import run_in_loop
from holdfast.cli.formatting import create_console, format_count, print_json, to_one_line
from holdfast.cli.store_access import open_client
from holdfast.cli.tables import print_table
from holdfast.reports.run_usage import format_brief_cost, format_usage
from holdfast.reports.usage_report import DailyUsage, UsageReport

_HEADER = ("day", "agent", "runs", "model", "calls", "tokens in", "cached", "tokens out", "cost")
_NUMBER_COLUMNS = (2, 4, 5, 6, 7, 8)


def show_costs(url: str | None, since: date | None, until: date | None, workflow: str | None, *, as_json: bool) -> None:
    """Print what was used on these days."""
    report = run_in_loop(_fetch_report(url, since, until, workflow))
    if as_json:
        print_json(report.to_json())
        return
    out = create_console()
    span = f"from {report.since} to {report.until}" if report.since != report.until else f"on {report.since}"
    whose = "" if workflow is None else f" of {to_one_line(workflow)!r}"
    if not report.daily_usage:
        made = sum(line.run_count for line in report.daily_runs)
        out.print(Text(f"no model calls{whose} {span} (UTC), in {format_count(made, 'run')}"), soft_wrap=True)
        return
    print_table(
        _HEADER,
        [*_build_rows(report), *_build_total_rows(report)],
        number_columns=_NUMBER_COLUMNS,
        bold_rows=("total",),
    )
    out.print(Text(f"{format_usage(report.total)}{whose} {span} (UTC)", "dim"), soft_wrap=True)


async def _fetch_report(url: str | None, since: date | None, until: date | None, workflow: str | None) -> UsageReport:
    async with open_client(url) as client:
        return await client.usage_report(since, until, workflow=workflow)


def _build_rows(report: UsageReport) -> list[tuple[str, ...]]:
    """One line for each; what stands above it is not said again."""
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
    """All together; and if there are several models, of each."""
    agents = {(line.day, line.workflow) for line in report.daily_usage}
    runs = sum(line.run_count for line in report.daily_runs if (line.day, line.workflow) in agents)
    by_model = _group_usage(report.daily_usage, _format_model)
    rest = [("", "", "", model, *_format_numbers(used)) for model, used in by_model] if len(by_model) > 1 else []
    model = "" if len(by_model) > 1 else by_model[0][0]
    return [("total", "", f"{runs:,}", model, *_format_numbers(report.total)), *rest]


def _group_usage(lines: Sequence[DailyUsage], key: Callable[[DailyUsage], str]) -> list[tuple[str, Usage]]:
    found: dict[str, Usage] = {}
    for line in lines:
        found[key(line)] = found.get(key(line), Usage()) + line.usage
    return sorted(found.items())


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
