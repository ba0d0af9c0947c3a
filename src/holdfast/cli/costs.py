"""``holdfast costs``: what model calls have used, by day, agent and model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date

from rich.text import Text

from holdfast.admission.usage import Usage
from holdfast.cli.event_loop import in_loop
from holdfast.cli.formatting import console, counted, echo_json, one_line
from holdfast.cli.store_access import reached
from holdfast.cli.tables import print_table
from holdfast.reports.run_usage import brief_cost, in_words
from holdfast.reports.usage_report import DaySpending, UsageReport

_HEAD = ("day", "agent", "runs", "model", "calls", "tokens in", "cached", "tokens out", "cost")
_NUMBERS = (2, 4, 5, 6, 7, 8)


def show_costs(url: str | None, since: date | None, until: date | None, workflow: str | None, *, as_json: bool) -> None:
    """Print what was used on these days."""
    report = in_loop(_read(url, since, until, workflow))
    if as_json:
        echo_json(report.as_json())
        return
    out = console()
    span = f"from {report.since} to {report.until}" if report.since != report.until else f"on {report.since}"
    whose = "" if workflow is None else f" of {one_line(workflow)!r}"
    if not report.spending:
        made = sum(line.runs for line in report.runs)
        out.print(Text(f"no model calls{whose} {span} (UTC), in {counted(made, 'run')}"), soft_wrap=True)
        return
    print_table(_HEAD, [*_lines(report), *_sums(report)], numbers=_NUMBERS, bold=("total",))
    out.print(Text(f"{in_words(report.total)}{whose} {span} (UTC)", "dim"), soft_wrap=True)


async def _read(url: str | None, since: date | None, until: date | None, workflow: str | None) -> UsageReport:
    async with reached(url) as client:
        return await client.usage_report(since, until, workflow=workflow)


def _lines(report: UsageReport) -> list[tuple[str, ...]]:
    """One line for each; what stands above it is not said again."""
    runs = {(line.day, line.workflow): line.runs for line in report.runs}
    lines: list[tuple[str, ...]] = []
    before: DaySpending | None = None
    for line in report.spending:
        same_day = before is not None and before.day == line.day
        same = same_day and before is not None and before.workflow == line.workflow
        lines.append(
            (
                "" if same_day else line.day.isoformat(),
                "" if same else one_line(line.workflow),
                "" if same else f"{runs.get((line.day, line.workflow), 0):,}",
                _model(line),
                *_numbers(line.usage),
            )
        )
        before = line
    return lines


def _sums(report: UsageReport) -> list[tuple[str, ...]]:
    """All together; and if there are several models, of each."""
    agents = {(line.day, line.workflow) for line in report.spending}
    runs = sum(line.runs for line in report.runs if (line.day, line.workflow) in agents)
    by_model = _by(report.spending, _model)
    rest = [("", "", "", model, *_numbers(used)) for model, used in by_model] if len(by_model) > 1 else []
    model = "" if len(by_model) > 1 else by_model[0][0]
    return [("total", "", f"{runs:,}", model, *_numbers(report.total)), *rest]


def _by(lines: Sequence[DaySpending], key: Callable[[DaySpending], str]) -> list[tuple[str, Usage]]:
    found: dict[str, Usage] = {}
    for line in lines:
        found[key(line)] = found.get(key(line), Usage()) + line.usage
    return sorted(found.items())


def _model(line: DaySpending) -> str:
    return one_line(line.model) or "(not known)"


def _numbers(used: Usage) -> tuple[str, ...]:
    return (
        f"{used.calls:,}",
        f"{used.input_tokens:,}",
        f"{used.cached_tokens:,}",
        f"{used.output_tokens:,}",
        brief_cost(used),
    )
