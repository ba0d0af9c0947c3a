"""``holdfast show``: everything known about a run. ``reports`` reads it; the modules here print it."""

from __future__ import annotations

import json
import re
from typing import Any, cast

import click
from rich.console import Console
from rich.text import Text

from holdfast.admission.usage import Usage
from holdfast.cli.runs.approvals import print_approval
from holdfast.cli.runs.budget import print_budget_table
from holdfast.cli.runs.conversation import show_conversation
from holdfast.cli.runs.timeline import print_journal, print_related_runs
from holdfast.cli.shared.formatting import (
    LABEL_WIDTH,
    PLAN_MARKS,
    STATE_STYLES,
    create_console,
    format_ago,
    format_bytes,
    format_count,
    format_duration,
    format_list,
    format_local_time,
    format_time_and_age,
    make_printable,
    print_field,
    print_json,
    to_one_line,
    value_to_json,
    wrap_text,
)
from holdfast.cli.shared.options import command, json_option, url_option
from holdfast.cli.shared.store_access import run_client, with_store_options
from holdfast.codec import preview_arguments
from holdfast.core.states import RunState
from holdfast.reports.model_replies import parse_refusal_reason
from holdfast.reports.plans import Plan
from holdfast.reports.recorded_values import MAX_PRINTED_BYTES
from holdfast.reports.run_usage import format_usage
from holdfast.reports.types import RecordedError, RunReport, RunWorker
from holdfast.services.json_form import UnreadableValue, to_json
from holdfast.stores.operations import CancelState

_MAX_RESULT_LINES = 12
_MAX_TRACEBACK_LINES = 14
_MODEL_ERROR_PREFIX = "TransientModelError: "
"""The prefix of errors of model calls: see ``agents.models.errors``."""
_PLAN_STYLES = {"open": "", "working": "bold", "done": "green", "dropped": "dim"}
_INTERNAL_FRAME = re.compile(r"[/\\](holdfast[/\\](core|engine|authoring|agents|codec)|concurrent[/\\]futures)[/\\]")
"""Frames between those of the user's code: this package, and the pool that plain steps run in."""


@command("holdfast show etl-acme", "holdfast show research-7 --conversation --full", "holdfast show etl-acme --json")
@click.argument("run_id", metavar="ID")
@click.option("--conversation", is_flag=True, help="Of an agent's run: the conversation, instead of the journal.")
@click.option("--full", is_flag=True, help="With --conversation: long texts, too, in full.")
@json_option("A JSON object with everything.")
@url_option
def show(run_id: str, conversation: bool, full: bool, as_json: bool, url: str | None) -> None:
    """Show everything known about a run.

    Its journal, who executed what and when, what was replayed, what it waits for, which runs it started, how it ended,
    and what a retry would do. Of model calls: which model answered, tokens and cost, and what is left of a budget.
    """
    if conversation:
        show_conversation(url, run_id, full=full, as_json=as_json)
    elif full:
        raise click.UsageError("--full goes with --conversation; --json prints everything that is recorded of a run.")
    else:
        show_run(url, run_id, as_json=as_json)


def show_run(url: str | None, run_id: str, *, as_json: bool) -> None:
    """Print the report of a run."""
    report = run_client(url, lambda client: client.describe(run_id, limit=None, full=True))
    if as_json:
        print_json(to_json(report))
        return
    out = create_console()
    _print_header(out, report, url)
    _print_plan(out, report)
    print_journal(out, report)
    _print_in_flight(out, report)
    _print_open_approvals(out, report, url)
    print_related_runs(out, report, url)
    _print_usage(out, report)
    _print_signals(out, report)
    _print_workers(out, report)
    for advice in report.advice if report.retry is None else ():  # else the header has it
        if advice.action != "approve":
            _print_advice(out, with_store_options(url, advice.text))


def _print_advice(out: Console, text: str) -> None:
    out.print()
    for line in wrap_text(out, text, 0):
        out.print(Text(line, "yellow"))


def _print_header(out: Console, report: RunReport, url: str | None) -> None:
    now = report.reported_at.timestamp()
    print_field(out, "run", make_printable(report.id), "bold")
    queue = "" if report.queue == "default" else report.queue
    details = (("version", report.version), ("queue", queue), ("key", report.queue_key))
    more = [f"{name} {value}" for name, value in details if value]
    print_field(out, "workflow", make_printable(report.workflow + (f" ({', '.join(more)})" if more else "")))
    duration = None if report.finished_at is None else report.finished_at - report.created_at
    took = "" if duration is None else f" in {format_duration(duration.total_seconds())}"
    print_field(out, "state", f"{report.state}{took}", STATE_STYLES[report.state])
    print_field(out, "in short", report.summary, wrap=True)
    created = report.created_at.timestamp()
    started = f"{format_ago(now - created)} ({format_local_time(created)}, Python {report.python_version})"
    print_field(out, "started", started)
    if inputs := _format_inputs(report.inputs):
        print_field(out, "inputs", to_one_line(inputs))
    if report.tags:
        print_field(out, "tags", make_printable(", ".join(report.tags)))
    if report.deadline is not None and not report.state.is_terminal:
        print_field(out, "deadline", format_time_and_age(report.deadline.timestamp(), now))
    if report.parent:
        print_field(out, "parent", make_printable(report.parent))
    if report.forked_from:
        print_field(out, "fork of", make_printable(report.forked_from))
    if report.restored_from:
        unknown = f"{report.restored_from}; a `once` step that is not in the journal counts as unknown"
        print_field(out, "restored", unknown, wrap=True)
    _print_status(out, report)
    _print_requests(out, report)
    _print_end(out, report, url)


def _print_end(out: Console, report: RunReport, url: str | None) -> None:
    """Print how the run ended, and what to do if it has no result."""
    size = report.output_size
    if size is not None and report.is_agent and size <= MAX_PRINTED_BYTES:
        answer = "\n".join(wrap_text(out, _format_pretty(report.output, is_agent=True), LABEL_WIDTH))
        print_field(out, "answer", _truncate_lines(answer, _MAX_RESULT_LINES, "--conversation --full"))
    elif size is not None:
        print_field(out, "result", _format_result(report, size))
    if report.error is not None:
        print_field(out, "error", make_printable(report.error.summary), "red")
        for line in _list_error_frames(report, report.error)[-_MAX_TRACEBACK_LINES:]:
            out.print(Text(" " * LABEL_WIDTH + make_printable(line), "dim"))
    if report.retry is not None:
        print_field(out, "retry", with_store_options(url, report.retry.message), wrap=True)
    for advice in report.advice:
        if advice.action == "fork":
            print_field(out, "fork", with_store_options(url, advice.text), wrap=True)


def _format_result(report: RunReport, output_size: int) -> str:
    if output_size > MAX_PRINTED_BYTES:
        return f"{format_bytes(output_size)}, see it with --json: {to_one_line(_format_brief(report.output))}"
    return _truncate_lines(_format_pretty(report.output), _MAX_RESULT_LINES)


def _print_requests(out: Console, report: RunReport) -> None:
    """Print that a pause or a cancel was requested."""
    if report.paused_at is not None:
        since = format_time_and_age(report.paused_at.timestamp(), report.reported_at.timestamp())
        rests = "; it rests once its steps in flight have ended" if report.is_claimed else ""
        print_field(out, "paused", f"{since}{rests}", "yellow")
    if report.cancel_state is None or report.state is RunState.CANCELLED:
        return
    if report.state.is_terminal:
        print_field(out, "cancel", f"was asked for; the run ended {report.state} all the same")
    elif report.cancel_state == CancelState.RECORDED:
        print_field(out, "cancel", "is being carried out", "yellow")
    else:
        progress = "its worker carries it out" if report.is_claimed else "not begun yet"
        print_field(out, "cancel", f"asked for; {progress}", "yellow")


def _list_error_frames(report: RunReport, error: RecordedError) -> list[str]:
    """Where it was raised: in the workflow's code, and below that in the step whose failure ended the run."""
    wanted = (error.type, error.message)
    failures = [entry.error for entry in reversed(report.journal) if entry.error is not None]
    step = next((failure for failure in failures if (failure.type, failure.message) == wanted), None)
    return [*_list_user_frames(error.traceback), *(_list_user_frames(step.traceback) if step is not None else [])]


def _print_status(out: Console, report: RunReport) -> None:
    now = report.reported_at.timestamp()
    wake_at = None if report.wake_at is None else report.wake_at.timestamp()
    if report.claimed_by is not None and report.state is RunState.RUNNING:
        worker = report.find_worker(report.claimed_by)
        kind = "worker" if worker is None else worker.kind
        holder = f"{kind} {report.claimed_by}" + (
            f" ({worker.location})" if worker is not None and worker.state != "unknown" else ""
        )
        if report.is_claimed:
            print_field(out, "held by", f"{holder}, alive")
        else:
            print_field(out, "held by", f"{holder}, which is dead: the next {kind} takes it over", "yellow")
    if report.budget_refusal is not None:
        reason = parse_refusal_reason(report.budget_refusal.message)
        print_field(out, "waits for", f"a higher budget: {reason}", "yellow", wrap=True)
    elif report.budget_changed_at is not None:
        changed = format_ago(now - report.budget_changed_at.timestamp())
        print_field(out, "waits for", f"a worker: its budget was changed {changed}, and it asks again", wrap=True)
    elif report.state is RunState.WAITING:
        due = "" if wake_at is None else f" (due {format_ago(now - wake_at)})"
        print_field(out, "waits for", make_printable(report.waits_for or "") + due)
    elif report.state is RunState.PENDING and wake_at is not None and wake_at > now:
        print_field(out, "starts", format_time_and_age(wake_at, now))
    if report.delivery_count:
        label = "deliveries" if report.is_delivery_run else "deaths"
        print_field(out, label, f"{report.delivery_count} of {report.max_deliveries} without a new record")


def _truncate_lines(text: str, max_lines: int, option: str = "--json") -> str:
    lines = make_printable(text).splitlines()
    if len(lines) > max_lines:
        lines = [*lines[: max_lines - 1], f"… {len(lines) - max_lines + 1} more lines: see all with {option}"]
    return "\n".join(lines)


def _print_in_flight(out: Console, report: RunReport) -> None:
    if not report.in_flight:
        return
    out.print("\nin flight", style="bold")
    for step in report.in_flight:
        since = format_ago((report.reported_at - step.updated_at).total_seconds())
        error = step.error or ""
        if step.is_once:
            note = f"`once` step, intent recorded {since}: if its worker dies, it is not run again"
        elif step.retry_at is not None:
            at = step.retry_at.timestamp()
            note = f"attempt {step.attempt} failed {since}; waiting for the next attempt at {format_local_time(at)}"
        elif error:
            note = f"attempt {step.attempt} failed {since}"
        else:
            note = f"last heard of {since}"
        out.print(Text(f"{step.number:>4}  {step.name}  {note}"))
        # The progress of a model call is internal; its error says who did not answer.
        is_model_error = error.startswith(_MODEL_ERROR_PREFIX)
        if error:
            out.print(Text(f"      {to_one_line(error.removeprefix(_MODEL_ERROR_PREFIX))}", "red"))
        if step.progress is not None and not is_model_error:
            out.print(Text(f"      progress {to_one_line(_format_brief(step.progress))}", "dim"))


def _print_open_approvals(out: Console, report: RunReport, url: str | None) -> None:
    """Print open approvals, with the commands that answer them."""
    if not report.open_approvals:
        return
    out.print("\nwaits for an answer", style="bold yellow")
    for approval in report.open_approvals:
        print_approval(out, approval, report.reported_at.timestamp(), url, indent=2)


def _print_usage(out: Console, report: RunReport) -> None:
    """Print what the model calls used, here and in the runs below, and what is left of the budgets for them."""
    if report.usage is None and not report.budgets:
        return
    below = ", with the runs below it" if report.related_runs else ""
    out.print(f"\nused so far{below}" if not report.state.is_terminal else f"\nused{below}", style="bold")
    out.print(Text(f"      {format_usage(Usage() if report.usage is None else report.usage)}"))
    for budget_usage in report.budgets:
        above = f"the budget of run {make_printable(budget_usage.run_id)!r}, which is above it"
        out.print(f"\n{'its budget' if budget_usage.run_id == report.id else above}", style="bold")
        print_budget_table(budget_usage.run_usage)


def _print_signals(out: Console, report: RunReport) -> None:
    if report.unrecorded_ends:
        waits = format_list([f"#{end.number} ({end.state})" for end in report.unrecorded_ends])
        out.print(Text(f"\nends of runs that are there, and not recorded yet: {waits}"))
    if report.unrecorded_answers:
        waits = format_list([f"#{answer.number}" for answer in report.unrecorded_answers])
        out.print(Text(f"\nanswers that are there, and not recorded yet: {waits}"))
    if not report.pending_signals:
        return
    out.print(f"\nsignals that nothing {'took' if report.state.is_terminal else 'has taken yet'}", style="bold")
    for signal in report.pending_signals:
        sent = format_ago((report.reported_at - signal.sent_at).total_seconds())
        out.print(Text(f"      {to_one_line(signal.name)} = {to_one_line(_format_brief(signal.value))}, sent {sent}"))


def _print_workers(out: Console, report: RunReport) -> None:
    concerned = [worker for worker in report.workers if worker.record_count or worker.id == report.claimed_by]
    if not concerned:
        return
    out.print("\nworkers", style="bold")
    for worker in sorted(concerned, key=lambda worker: worker.id):
        alive = ("alive", "green") if worker.is_alive else (_DEAD_STATE_NAMES[worker.state], "dim")
        out.print(
            Text.assemble(
                f"{worker.id:>4}  {_format_worker_prefix(worker)}",
                alive,
                f", {format_count(worker.record_count, 'record')}",
            )
        )


_DEAD_STATE_NAMES = {"live": "dead", "dead": "dead", "retired": "retired", "unknown": "not known any more"}
"""By the recorded state of a worker that is not alive: a dead one may still be recorded as live."""


def _format_worker_prefix(worker: RunWorker) -> str:
    if worker.state == "unknown":
        return ""
    return f"{'listener ' if worker.is_listener else ''}{worker.location}, "


def _print_plan(out: Console, report: RunReport) -> None:
    """Print the current plan of an agent, if it has one, one line for each item: a model may write anything."""
    plan = Plan(report.plan)
    if not plan:
        return
    dropped = len(plan) - plan.done_count - plan.open_count
    progress = f"{plan.done_count} of {len(plan)} done" + (f", {dropped} dropped" if dropped else "")
    out.print(f"\nplan, {progress}", style="bold")
    for item in plan:
        out.print(Text(f"  {PLAN_MARKS[item.status]} {to_one_line(item.task)}", _PLAN_STYLES[item.status]))


# Recorded values and tracebacks


def _list_user_frames(traceback: str) -> list[str]:
    """The frames of a recorded traceback, with their lines of code, without those in Holdfast itself."""
    lines: list[str] = []
    keeping = False
    for line in traceback.splitlines():
        if line.startswith('  File "'):
            keeping = _INTERNAL_FRAME.search(line) is None
        elif not line.startswith("    ") or not line.strip(" ^~"):
            continue
        if keeping:
            lines.append(line[2:])
    return lines


def _format_brief(value: Any) -> str:
    """A recorded value, shortened."""
    return value if isinstance(value, UnreadableValue) else preview_arguments((), (value,), {})


def _format_inputs(inputs: Any) -> str:
    """A run's inputs as ``customer='acme', n=3``, without what looks like a credential."""
    return (
        preview_arguments((), (), cast("dict[str, Any]", inputs)) if isinstance(inputs, dict) else _format_brief(inputs)
    )


def _format_pretty(value: Any, *, is_agent: bool = False) -> str:
    """A recorded value as indented JSON; an agent's answer that is text, as it is."""
    if isinstance(value, str) and is_agent:
        return value
    return json.dumps(value_to_json(value), indent=2, ensure_ascii=False)
