"""The results of the tools: what an assistant needs to know of runs, in a bounded size.

Fields without a value are left out of the JSON, so every field that may be empty has a default.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import date, datetime
from typing import Any, cast

from pydantic import BaseModel, ConfigDict

from holdfast.admission.usage import Usage
from holdfast.cli.mcp.excerpts import excerpt_items, excerpt_text, excerpt_value, fit_page, format_value
from holdfast.codec import preview_arguments
from holdfast.core.states import RunState
from holdfast.reports.conversations import ConversationMessage
from holdfast.reports.run_info import RunInfo
from holdfast.reports.types import Advice, InFlightStep, JournalEntry, RunReport
from holdfast.reports.usage_report import DailyUsage, UsageReport
from holdfast.services.approvals import ApprovalInfo
from holdfast.stores.approvals import ApprovalState
from holdfast.stores.journal_pages import PLACEHOLDER_END

_LINE_CHARS = 200
"""Maximum length of a text in a list."""
_TEXT_CHARS = 2000
_MAX_ADVICE = 5
_VALUE_CHARS = 4000
_MAX_LISTED = 20
"""Maximum number of things next to the list that a result is about."""

_TOOLS_BY_ACTION = {
    "retry": "retry_run",
    "run_again": "retry_run",
    "resume": "resume_run",
    "approve": "answer_approval",
    "fork": "fork_run",
}
"""The tool that does what an advice recommends. Everything else is for a person."""


class _Result(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


def _pick(source: object, names: str) -> dict[str, Any]:
    """Fields that need no excerpt: ids, states, times, and flags."""
    return {name: getattr(source, name) for name in names.split()}


class UsageTotals(_Result):
    """What model calls used."""

    model_calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None = None
    """Left out if no price is known."""
    calls_of_unknown_price: int = 0

    @classmethod
    def from_usage(cls, usage: Usage) -> UsageTotals:
        """From the usage in a report."""
        cost = None if usage.cost is None else float(usage.cost)
        return cls(
            model_calls=usage.calls,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cost_usd=cost,
            calls_of_unknown_price=usage.unpriced,
        )


# Runs


class RunSummary(_Result):
    """A run in a few lines."""

    id: str
    workflow: str
    state: RunState
    created_at: datetime
    finished_at: datetime | None = None
    inputs: str = ""
    tags: list[str] = []
    error: str = ""
    waits_for: str = ""
    stalled: str = ""
    """Why it does not continue, and what to do about it."""
    is_paused: bool = False
    is_cancelling: bool = False
    parent: str | None = None
    """The run that started it."""
    forked_from: str | None = None
    cost_usd: float | None = None

    @classmethod
    def from_info(cls, run: RunInfo) -> RunSummary:
        """From the state of a run."""
        inputs: Any = run.inputs
        args, kwargs = ((), cast("dict[str, Any]", inputs)) if isinstance(inputs, dict) else ((inputs,), {})
        cost = None if run.usage is None else run.usage.cost
        return cls(
            **_pick(run, "id workflow state created_at finished_at is_paused is_cancelling parent forked_from"),
            inputs=excerpt_text(preview_arguments((), args, kwargs), _LINE_CHARS),
            tags=excerpt_items(run.tags, _MAX_LISTED, lambda tag: excerpt_text(tag, _LINE_CHARS), "tag"),
            error="" if run.error is None else excerpt_text(str(run.error), _LINE_CHARS),
            waits_for=excerpt_text(run.waits_for, _LINE_CHARS),
            stalled=excerpt_text(run.stall_advice or "", _LINE_CHARS),
            cost_usd=None if cost is None else float(cost),
        )


class RunPage(_Result):
    """Runs, newest first."""

    runs: list[RunSummary]
    next_before: str | None = None
    """Pass this as `before` for the next page; left out on the last one."""

    @classmethod
    def from_infos(cls, found: Sequence[RunInfo], limit: int) -> RunPage:
        """From ``limit`` runs, and one more if there are others."""
        runs = fit_page([RunSummary.from_info(run) for run in found[:limit]])
        return cls(runs=runs, next_before=runs[-1].id if len(found) > len(runs) else None)


class RunChange(_Result):
    """What a tool did to a run."""

    changed: bool
    """False: it was so already."""
    message: str
    run: RunSummary | None = None
    """The run afterwards; left out if the API key may not read it."""


# One run


class NextStep(_Result):
    """Something that can be done now."""

    text: str
    tool: str | None = None
    """The tool that does it; left out if a person has to, with the command in the text."""

    @classmethod
    def from_advice(cls, advice: Advice, tools: Collection[str]) -> NextStep:
        """From the advice in a report, and the names of the tools that there are."""
        tool = _TOOLS_BY_ACTION.get(advice.action or "")
        return cls(text=excerpt_text(advice.text, _TEXT_CHARS), tool=tool if tool in tools else None)


class StepSummary(_Result):
    """A record of a run: a step, a model call, a child run, a signal, a timer, or an approval."""

    record: int
    """Its position in the journal, for `after` and `get_value`."""
    number: int | None = None
    """The number of the step, for `fork_run`."""
    kind: str
    name: str
    outcome: str
    """`ok`, `failed`, `unknown` (a step that may or may not have happened), or why there was no call."""
    at: datetime
    duration_s: float | None = None
    attempts: int = 1
    arguments: str = ""
    output: Any = None
    error: str = ""
    model: str = ""
    text: str = ""
    """What the model answered."""
    tool_calls: list[str] = []
    """The tools that the model asked for."""
    run_id: str | None = None
    """The run that it started, or waited for."""

    @classmethod
    def from_entry(cls, entry: JournalEntry, run_id: str) -> StepSummary:
        """From a record of the journal."""
        rest = f'get_value(run_id="{run_id}", part="record", number={entry.seq})'
        reply = entry.model_call
        problem = entry.reason or ("" if entry.error is None else entry.error.summary)
        return cls(
            record=entry.seq,
            number=entry.number,
            kind=entry.kind,
            name=excerpt_text(entry.name, _LINE_CHARS),
            outcome=entry.outcome,
            at=entry.recorded_at,
            duration_s=entry.duration_s,
            attempts=entry.attempt_count,
            arguments=excerpt_text(entry.arguments, _LINE_CHARS),
            output=_excerpt_output(entry, rest),
            error=excerpt_text(problem, _LINE_CHARS, rest),
            model="" if reply is None else reply.model,
            text="" if reply is None else excerpt_text(reply.text, _LINE_CHARS, rest),
            tool_calls=[] if reply is None else excerpt_items(reply.tool_calls, _MAX_LISTED, lambda c: c.name, "call"),
            run_id=entry.related_run_id,
        )


def _excerpt_output(entry: JournalEntry, rest: str) -> Any:
    if entry.is_truncated and isinstance(entry.output, str):
        return f"{excerpt_text(entry.output, _LINE_CHARS)} [{entry.size:,} bytes; all of it: {rest}]"
    return None if entry.output is None else excerpt_value(entry.output, _LINE_CHARS, rest)


class RunDetails(_Result):
    """Everything that matters about a run."""

    id: str
    workflow: str
    version: str | None = None
    state: RunState
    summary: str
    """What it did, how long that took, and what it cost."""
    next_steps: list[NextStep] = []
    """What can be done now, the most urgent first; left out if the run needs nothing."""
    error: str = ""
    created_at: datetime
    finished_at: datetime | None = None
    inputs: Any = None
    output: Any = None
    tags: list[str] = []
    waits_for: str = ""
    wake_at: datetime | None = None
    is_paused: bool = False
    is_cancelling: bool = False
    is_agent: bool = False
    """It has a conversation: see `get_conversation`."""
    parent: str | None = None
    forked_from: str | None = None
    usage: UsageTotals | None = None
    budget: dict[str, float] | None = None
    budget_remaining: dict[str, float] | None = None
    plan: list[str] = []
    """The plan of an agent, with the status of each item."""
    open_approvals: list[str] = []
    """Ids and questions: see `list_approvals`."""
    in_flight: list[str] = []
    """Steps without an outcome yet."""
    children: list[str] = []
    """Runs that it started, with their states; all of them: `list_runs` with `parent`."""
    record_count: int
    steps: list[StepSummary] = []
    earlier_steps: bool = False
    """There are steps before these: `after=-1` reads from the first one."""
    next_after: int | None = None
    """Pass this as `after` for the steps that follow; left out on the last page."""

    @classmethod
    def from_report(
        cls,
        report: RunReport,
        entries: Sequence[JournalEntry],
        tools: Collection[str],
        *,
        after: int | None,
        limit: int,
    ) -> RunDetails:
        """From a report, and the records that follow ``after``; ``None``: the last ones."""
        is_tail = after is None
        shown = [entry for entry in entries if not entry.is_internal or not entry.ok]
        page = [StepSummary.from_entry(entry, report.id) for entry in (shown[-limit:] if is_tail else shown[:limit])]
        steps = fit_page(page, keep_last=is_tail)
        has_more = not is_tail and (report.has_more or len(shown) > len(steps))
        last_read = steps[-1].record if steps and len(shown) > len(steps) else entries[-1].seq if entries else None
        rest = f'get_value(run_id="{report.id}", part='
        return cls(
            **_pick(
                report, "id workflow version state created_at finished_at wake_at is_paused is_cancelling is_agent"
            ),
            **_pick(report, "parent forked_from budget budget_remaining record_count"),
            summary=excerpt_text(report.summary, _TEXT_CHARS),
            next_steps=[NextStep.from_advice(advice, tools) for advice in report.advice[:_MAX_ADVICE]],
            error="" if report.error is None else excerpt_text(report.error.summary, _TEXT_CHARS, f'{rest}"error")'),
            inputs=_excerpt_run_value(report.inputs, f'{rest}"inputs")'),
            output=_excerpt_run_value(report.output, f'{rest}"output")'),
            tags=excerpt_items(report.tags, _MAX_LISTED, lambda tag: excerpt_text(tag, _LINE_CHARS), "tag"),
            waits_for=excerpt_text(report.waits_for or "", _LINE_CHARS),
            usage=None if report.usage is None else UsageTotals.from_usage(report.usage),
            plan=excerpt_items(
                report.plan,
                2 * _MAX_LISTED,
                lambda item: f"{item.status}: {excerpt_text(item.task, _LINE_CHARS)}",
                "item",
            ),
            open_approvals=excerpt_items(
                report.open_approvals,
                _MAX_LISTED,
                lambda one: f"{one.id}: {excerpt_text(one.question, _LINE_CHARS)}",
                "approval",
            ),
            in_flight=excerpt_items(report.in_flight, _MAX_LISTED, _format_in_flight, "step"),
            children=excerpt_items(
                [run for run in report.related_runs if run.parent == report.id],
                _MAX_LISTED,
                lambda run: f"{run.id} ({run.workflow}): {run.state}",
                "run",
            ),
            steps=steps,
            earlier_steps=is_tail and (len(shown) > len(steps) or report.record_count > len(entries)),
            next_after=last_read if has_more else None,
        )


def _excerpt_run_value(value: Any, rest: str) -> Any:
    if isinstance(value, str) and value.endswith(PLACEHOLDER_END):  # the store has not read it
        return f"{value.removesuffix(PLACEHOLDER_END)}; all of it: {rest})"
    return None if value is None else excerpt_value(value, _VALUE_CHARS, rest)


def _format_in_flight(step: InFlightStep) -> str:
    error = f", failed before: {excerpt_text(step.error, _LINE_CHARS)}" if step.error else ""
    retry = "" if step.retry_at is None else f", next attempt at {step.retry_at:%Y-%m-%d %H:%M:%S} UTC"
    return f"{step.number} {excerpt_text(step.name, _LINE_CHARS)}: attempt {step.attempt}{retry}{error}"


# Conversations


class Message(_Result):
    """A message of a conversation."""

    index: int
    role: str
    """`system`, `user`, `model`, `tool` (the result of a call), `correction` (why an answer is invalid), `summary`, or
    `note`."""
    name: str = ""
    """The model, or the tool."""
    text: str = ""
    ok: bool = True
    tool_calls: list[str] = []
    """The tools that the model calls, with their arguments."""
    decision: str = ""
    """Who approved or denied the call."""
    run_id: str | None = None
    """The run that executed the call."""

    @classmethod
    def from_message(cls, index: int, message: ConversationMessage, run_id: str) -> Message:
        """From a message in a report."""
        rest = f'get_value(run_id="{run_id}", part="message", number={index})'
        calls = [f"{name} {excerpt_text(format_value(given), _LINE_CHARS, rest)}" for name, given in message.tool_calls]
        return cls(
            index=index,
            role=message.role,
            name=message.name,
            text=excerpt_text(message.text, _TEXT_CHARS, rest),
            ok=message.ok,
            tool_calls=excerpt_items(calls, _MAX_LISTED, str, "call"),
            decision="" if message.decision is None else excerpt_text(message.decision.summary, _LINE_CHARS),
            run_id=message.child_run_id or None,
        )


class ConversationPage(_Result):
    """Messages of the conversation of an agent's run, the oldest first."""

    run_id: str
    messages: list[Message]
    total: int
    """Number of messages in the whole conversation; 0 if the run is not that of an agent."""
    next_after: int | None = None
    """Pass this as `after` for the messages that follow; left out on the last page."""

    @classmethod
    def from_messages(
        cls, run_id: str, found: Sequence[ConversationMessage], *, after: int | None, limit: int
    ) -> ConversationPage:
        """The messages that follow ``after``; ``None``: the last ones."""
        start = max(0, len(found) - limit) if after is None else after
        chosen = list(enumerate(found, 1))[start : start + limit]
        page = [Message.from_message(index, message, run_id) for index, message in chosen]
        messages = fit_page(page, keep_last=after is None)
        last = messages[-1].index if messages else len(found)
        return cls(run_id=run_id, messages=messages, total=len(found), next_after=last if last < len(found) else None)


# Approvals


class ApprovalDetails(_Result):
    """A question that a run asks people."""

    id: str
    run_id: str
    workflow: str
    question: str
    state: ApprovalState
    tool: str = ""
    """The tool that the run wants to call. Approving makes the call."""
    arguments: Any = None
    """The arguments of that call."""
    reason: str = ""
    """Why the call needs an approval."""
    choices: list[str] = []
    """The possible values of a yes."""
    form: Any = None
    """The JSON schema of the value of a yes; for the call of a tool, that of its arguments."""
    assignee: str = ""
    requested_at: datetime
    expires_at: datetime | None = None
    answer: str = ""
    answered_by: str = ""

    @classmethod
    def from_info(cls, approval: ApprovalInfo) -> ApprovalDetails:
        """From the approval in a report."""
        rest = f'get_value(part="approval", approval_id="{approval.id}")'
        answer = "" if approval.answer is None else excerpt_text(approval.answer.describe(), _TEXT_CHARS, rest)
        choices = [excerpt_text(choice, _LINE_CHARS, rest) for choice in approval.choices]
        return cls(
            **_pick(approval, "id run_id workflow state tool assignee requested_at expires_at answered_by"),
            question=excerpt_text(approval.question, _TEXT_CHARS, rest),
            arguments=None if approval.arguments is None else excerpt_value(approval.arguments, _VALUE_CHARS, rest),
            reason=excerpt_text(approval.reason, _TEXT_CHARS, rest),
            choices=excerpt_items(choices, 2 * _MAX_LISTED, str, "choice"),
            form=None if approval.form is None else excerpt_value(approval.form, _VALUE_CHARS, rest),
            answer=answer,
        )


class ApprovalPage(_Result):
    """Approvals, the longest open first."""

    approvals: list[ApprovalDetails]
    has_more: bool = False
    """There are others: narrow the list with `run_id`, `workflow`, or `assignee`."""

    @classmethod
    def from_infos(cls, found: Sequence[ApprovalInfo], limit: int) -> ApprovalPage:
        """From ``limit`` approvals, and one more if there are others."""
        approvals = fit_page([ApprovalDetails.from_info(one) for one in found[:limit]])
        return cls(approvals=approvals, has_more=len(found) > len(approvals))


class ApprovalAnswer(_Result):
    """What an answer did."""

    changed: bool
    """False: the same person gave the same answer before."""
    approval: ApprovalDetails
    run: RunSummary


# Values and usage


class ValuePage(_Result):
    """A part of a recorded value, as text."""

    text: str
    total_chars: int
    next_offset: int | None = None
    """Pass this as `offset` for the text that follows; left out at the end."""


class UsageLine(_Result):
    """What an agent or a workflow used of a model in a day."""

    day: date
    workflow: str
    model: str
    usage: UsageTotals


class UsageSummary(_Result):
    """What model calls used from one day to another, both included, in UTC."""

    since: date
    until: date
    total: UsageTotals
    lines: list[UsageLine] = []
    """The most recent days first."""
    has_more: bool = False
    """There are earlier lines that do not fit: choose a shorter period, or one workflow. The total includes them."""

    @classmethod
    def from_report(cls, report: UsageReport) -> UsageSummary:
        """From the report of a client."""
        found = [_make_usage_line(line) for line in reversed(report.daily_usage)]
        lines = fit_page(found)
        return cls(
            since=report.since,
            until=report.until,
            total=UsageTotals.from_usage(report.total),
            lines=lines,
            has_more=len(lines) < len(found),
        )


def _make_usage_line(line: DailyUsage) -> UsageLine:
    return UsageLine(day=line.day, workflow=line.workflow, model=line.model, usage=UsageTotals.from_usage(line.usage))
