"""The plan of an agent's run, as ``holdfast show`` tells it: a checklist."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from holdfast.cli.formatting import to_one_line
from holdfast.reports.plans import Plan
from holdfast.reports.types import RunReport

STATUS_MARKS = {"open": "[ ]", "working": "[>]", "done": "[x]", "dropped": "[-]"}
_STATUS_STYLES = {"open": "", "working": "bold", "done": "green", "dropped": "dim"}


def print_plan(out: Console, report: RunReport) -> None:
    """The plan as it was written last, if there is one."""
    plan = Plan(report.plan)
    if not plan:
        return
    out.print(f"\nplan, {_format_progress(plan)}", style="bold")
    for item in plan:
        # Each is told in one line: a model may write whatever it likes.
        out.print(
            Text(f"  {STATUS_MARKS[item.status]} {to_one_line(item.task)}", _STATUS_STYLES[item.status]), soft_wrap=True
        )


def _format_progress(plan: Plan) -> str:
    dropped = len(plan) - plan.done_count - plan.open_count
    return f"{plan.done_count} of {len(plan)} done" + (f", {dropped} dropped" if dropped else "")
