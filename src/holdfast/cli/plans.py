"""The plan of an agent's run, as ``holdfast show`` tells it: a checklist."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from holdfast.cli.formatting import one_line
from holdfast.reports.plans import Plan
from holdfast.reports.types import Story

MARKS = {"open": "[ ]", "working": "[>]", "done": "[x]", "dropped": "[-]"}
_STYLES = {"open": "", "working": "bold", "done": "green", "dropped": "dim"}


def tell_plan(out: Console, story: Story) -> None:
    """The plan as it was written last, if there is one."""
    plan = Plan(story.plan)
    if not plan:
        return
    out.print(f"\nplan, {_how_far(plan)}", style="bold")
    for item in plan:
        # Each is told in one line: a model may write whatever it likes.
        out.print(Text(f"  {MARKS[item.status]} {one_line(item.task)}", _STYLES[item.status]), soft_wrap=True)


def _how_far(plan: Plan) -> str:
    dropped = len(plan) - plan.done - plan.open
    return f"{plan.done} of {len(plan)} done" + (f", {dropped} dropped" if dropped else "")
