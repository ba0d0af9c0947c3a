"""Agents that plan: the model keeps a list of tasks, works through it, revises it, and answers when nothing is left.

The plan is written by a tool, ``write_plan``, always as a whole. The output of its newest record is the plan, so it is
a part of the run's state like everything else that is recorded: see ``reports.plans`` for how it is read.

A final answer while tasks are left is sent back to the model, with the names of the tasks. That is decided inside the
step that asked the model, and the complaint is recorded with the answer. So a replay decides nothing, and these rules
may change with a deploy. ``PlanTracker`` learns what it needs for its decision from recorded outcomes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from holdfast.agents.tools import Tool, tool
from holdfast.errors import ModelRetry
from holdfast.reports.plans import PLAN_TOOL, Plan, PlanItem, plan_from_record

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse

    from holdfast.agents.models.reply import Reply
    from holdfast.agents.output import OutputSpec
    from holdfast.reports.tool_calls import ToolCallStatus

MAX_ITEMS = 50
MAX_TASK_CHARS = 500
"""Characters."""

MAX_REJECTIONS = 2
"""So often in a row an answer is sent back because tasks are left; the next one is taken."""

_MAX_UNPLANNED_TURNS = 3
"""After so many turns with calls, an answer without a plan is sent back, once."""

_MAX_LISTED_TASKS = 10
"""So many of the tasks that are left are named in a complaint."""

_OPEN_TASKS_MESSAGE = "Your plan has tasks that are not done:"
_NO_PLAN_MESSAGE = "You have taken several steps without a plan."

PLANNING_GUIDANCE = f"""\
# Planning

You keep a plan: a list of tasks that others follow while you work.
- Before you begin with anything that takes several steps, write the plan with the tool `{PLAN_TOOL}`. A question that
  you \\ can answer at once needs none.
- `{PLAN_TOOL}` always takes the whole list, in order. A status is "open", "working" (one task at most), "done" or
  "dropped".
- Mark a task as working when you begin it, and as done as soon as it is done; one call can do both.
- Revise the plan whenever you learn something that changes it: add tasks, rewrite them, or mark as dropped what has \
become needless or impossible.
- When no task is open or working any more, give your answer. It draws together what you have found in all of the \
tasks, and says what was dropped and why. A new request gets a new plan."""


async def write_plan(
    items: Annotated[
        list[PlanItem],
        Field(min_length=1, max_length=MAX_ITEMS, description="The whole plan, in order; what you leave out is gone."),
    ],
) -> list[PlanItem]:
    """Write your plan, or revise it. Takes the whole list of tasks each time, and replaces the one before."""
    for number, item in enumerate(items, 1):
        if not item.task.strip():
            raise ModelRetry(f"Task {number} of the plan is empty: say what is to be done. The plan was not changed.")
        if len(item.task) > MAX_TASK_CHARS:
            raise ModelRetry(
                f"Task {number} of the plan has {len(item.task)} characters, and at most {MAX_TASK_CHARS} are allowed: "
                f"say it in a sentence, or split it. The plan was not changed."
            )
    working = [number for number, item in enumerate(items, 1) if item.status == "working"]
    if len(working) > 1:
        raise ModelRetry(
            f'Tasks {", ".join(map(str, working))} of the plan are all "working": work on one at a time, and leave the '
            f'others "open". The plan was not changed.'
        )
    return items


@cache
def get_plan_tool() -> Tool:
    """The tool. Made when the first agent wants it: its schema takes a while, and most agents do not plan."""
    return tool(name=PLAN_TOOL, effect="read")(write_plan)


class PlanTracker:
    """What one run of an agent that plans knows of its plan."""

    def __init__(self, output_spec: OutputSpec) -> None:
        self._output_spec = output_spec
        self.plan = Plan()
        self._rejection_count = 0
        """In a row, about tasks that are left, since the plan was changed."""
        self._turn_count = 0
        """Turns in which something was called."""
        self._has_asked_for_plan = False

    def get_feedback(self, response: ModelResponse) -> str | None:
        """What is wrong with an answer, in words for the model: of itself, or that it is final too early."""
        complaint = self._output_spec.get_feedback(response)
        if complaint is not None or not self._output_spec.is_final(response):
            return complaint
        return self._get_unfinished_feedback()

    def _get_unfinished_feedback(self) -> str | None:
        left = self.plan.remaining
        if left and self._rejection_count < MAX_REJECTIONS:
            more = [f"- and {len(left) - _MAX_LISTED_TASKS} more"] if len(left) > _MAX_LISTED_TASKS else []
            named = [f"- {item.task} ({item.status})" for item in left[:_MAX_LISTED_TASKS]]
            return "\n".join(
                [
                    _OPEN_TASKS_MESSAGE,
                    *named,
                    *more,
                    f"Finish them, or mark them as done or dropped with `{PLAN_TOOL}`, in a call of its own; then give "
                    "your "
                    f"whole answer again.",
                ]
            )
        if not self.plan and self._turn_count >= _MAX_UNPLANNED_TURNS and not self._has_asked_for_plan:
            return (
                f"{_NO_PLAN_MESSAGE} If anything is left to do, write a plan with `{PLAN_TOOL}` and work through it. "
                "If not, give your "
                f"whole answer again."
            )
        return None

    @staticmethod
    def is_about_plan(feedback: str) -> bool:
        """Whether an answer was sent back because of the plan, and not because it does not fit."""
        return feedback.startswith((_OPEN_TASKS_MESSAGE, _NO_PLAN_MESSAGE))

    def note_reply(self, reply: Reply) -> None:
        """A model has answered: an answer that was sent back says itself why."""
        complaint = reply.feedback or ""
        self._rejection_count += complaint.startswith(_OPEN_TASKS_MESSAGE)
        self._has_asked_for_plan |= complaint.startswith(_NO_PLAN_MESSAGE)

    def note_tool_results(self, outcomes: Sequence[ToolCallStatus]) -> None:
        """Calls have their outcomes; the plan may be among them."""
        self._turn_count += 1
        written = [outcome.record for outcome in outcomes if outcome.record.name == PLAN_TOOL]
        for record in sorted(written, key=lambda record: record.seq):
            plan = plan_from_record(record)
            if plan is not None and plan != self.plan:
                self.plan = plan
                self._rejection_count = 0
