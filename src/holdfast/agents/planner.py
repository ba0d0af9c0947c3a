"""Agents that plan: the model keeps a list of tasks, works through it, revises it, and answers when nothing is left.

The model writes the plan with a tool, ``write_plan``, always as a whole. The plan is the output of the newest record of
that tool, so it is part of the run's state like every record: see ``reports.plans``.

A final answer while tasks are left is sent back to the model, with the names of the tasks. The step of the model call
decides that, and records the feedback with the answer. So a replay decides nothing, and a deploy may change these
rules. ``PlanTracker`` bases its decision on recorded outcomes alone.
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

MAX_REJECTIONS = 2
"""Consecutive answers that are sent back because tasks are left. The next one is accepted."""

_MAX_UNPLANNED_TURNS = 3
"""After this many turns with calls, an answer without a plan is sent back, once."""

_MAX_LISTED_TASKS = 10
"""Maximum number of remaining tasks that the feedback names."""

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
    """The tool, made on first use: building its schema takes a while, and most agents do not plan."""
    return tool(name=PLAN_TOOL, effect="read")(write_plan)


class PlanTracker:
    """The plan of one run."""

    def __init__(self, output_spec: OutputSpec) -> None:
        self._output_spec = output_spec
        self.plan = Plan()
        self._rejection_count = 0
        """Consecutive rejections because of remaining tasks, since the plan last changed."""
        self._turn_count = 0
        """Turns with calls."""
        self._has_asked_for_plan = False

    def get_feedback(self, response: ModelResponse) -> str | None:
        """Feedback for an answer that does not fit, or that is final too early."""
        feedback = self._output_spec.get_feedback(response)
        if feedback is not None or not self._output_spec.is_final(response):
            return feedback
        return self._get_unfinished_feedback()

    def _get_unfinished_feedback(self) -> str | None:
        left = self.plan.remaining
        if left and self._rejection_count < MAX_REJECTIONS:
            lines = [f"- {item.task} ({item.status})" for item in left[:_MAX_LISTED_TASKS]]
            if len(left) > _MAX_LISTED_TASKS:
                lines.append(f"- and {len(left) - _MAX_LISTED_TASKS} more")
            advice = (
                f"Finish them, or mark them as done or dropped with `{PLAN_TOOL}`, in a call of its own; then give "
                f"your whole answer again."
            )
            return "\n".join([_OPEN_TASKS_MESSAGE, *lines, advice])
        if not self.plan and self._turn_count >= _MAX_UNPLANNED_TURNS and not self._has_asked_for_plan:
            return (
                f"{_NO_PLAN_MESSAGE} If anything is left to do, write a plan with `{PLAN_TOOL}` and work through it. "
                f"If not, give your whole answer again."
            )
        return None

    @staticmethod
    def is_about_plan(feedback: str) -> bool:
        """Whether an answer was sent back because of the plan, not because it does not fit."""
        return feedback.startswith((_OPEN_TASKS_MESSAGE, _NO_PLAN_MESSAGE))

    def note_reply(self, reply: Reply) -> None:
        """Count an answer that was sent back because of the plan. Its feedback says why."""
        feedback = reply.feedback or ""
        self._rejection_count += feedback.startswith(_OPEN_TASKS_MESSAGE)
        self._has_asked_for_plan |= feedback.startswith(_NO_PLAN_MESSAGE)

    def note_tool_results(self, outcomes: Sequence[ToolCallStatus]) -> None:
        """Note the outcomes of a turn's calls; one may be a new plan."""
        self._turn_count += 1
        written = [outcome.record for outcome in outcomes if outcome.record.name == PLAN_TOOL]
        for record in sorted(written, key=lambda record: record.seq):
            plan = plan_from_record(record)
            if plan is not None and plan != self.plan:
                self.plan = plan
                self._rejection_count = 0
