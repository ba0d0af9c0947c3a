"""``holdfast show``: a run's story, for people. What is in it is read elsewhere: see ``reports``."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from holdfast.admission.usage import Usage
from holdfast.cli.approvals import print_approval
from holdfast.cli.budget_table import print_budget_table
from holdfast.cli.event_loop import run_in_loop
from holdfast.cli.formatting import (
    STATE_STYLES,
    create_console,
    format_ago,
    format_bytes,
    format_count,
    format_duration,
    format_list,
    format_local_time,
    make_printable,
    print_json,
    to_one_line,
    wrap_text,
)
from holdfast.cli.plans import print_plan
from holdfast.cli.report_reader import fetch_report
from holdfast.cli.store_access import with_store_options
from holdfast.cli.timeline import print_journal, print_related_runs
from holdfast.cli.value_formatting import format_brief, format_inputs, format_pretty, list_user_frames
from holdfast.core.states import RunState
from holdfast.reports.model_replies import parse_refusal_reason
from holdfast.reports.recorded_values import MAX_PRINTED_BYTES
from holdfast.reports.run_usage import format_usage
from holdfast.reports.types import RecordedError, RunReport, RunWorker
from holdfast.services.json_form import to_json
from holdfast.stores.operations import CancelState

_MAX_RESULT_LINES = 12
_MAX_TRACEBACK_LINES = 14
_LABEL_WIDTH = 11
_MODEL_ERROR_PREFIX = "TransientModelError: "
"""So the errors of attempts begin that asked a model: see ``agents.models.errors``."""
_HEADER_ACTIONS = ("retry", "run_again", "fork", "settle")
"""What is advised beside how the run has ended; the rest stands at the end, where one looks last."""


def show_run(url: str | None, run_id: str, *, as_json: bool) -> None:
    """Print what is known of a run."""
    story = run_in_loop(fetch_report(url, run_id))
    if as_json:
        print_json(to_json(story))
    else:
        _print_report(create_console(), story, url)


# For people


def _print_report(out: Console, report: RunReport, url: str | None) -> None:
    _print_header(out, report, url)
    print_plan(out, report)
    print_journal(out, report)
    _print_in_flight(out, report)
    _print_open_approvals(out, report, url)
    print_related_runs(out, report, url)
    _print_usage(out, report)
    _print_signals(out, report)
    _print_workers(out, report)
    for advice in report.advice:
        if advice.action not in _HEADER_ACTIONS and advice.action != "approve" and report.retry is None:
            _print_advice(out, with_store_options(url, advice.text))


def _print_advice(out: Console, text: str) -> None:
    out.print()
    for line in wrap_text(out, text, 0):
        out.print(Text(line, "yellow"), soft_wrap=True)


def _print_header(out: Console, report: RunReport, url: str | None) -> None:
    now = report.reported_at.timestamp()
    _print_field(out, "run", make_printable(report.id), "bold")
    more = [f"version {report.version}"] * bool(report.version) + [f"queue {report.queue}"] * (
        report.queue != "default"
    )
    more += [f"key {report.queue_key}"] * bool(report.queue_key)
    _print_field(out, "workflow", make_printable(report.workflow + (f" ({', '.join(more)})" if more else "")))
    took = (
        ""
        if report.finished_at is None
        else f" in {format_duration((report.finished_at - report.created_at).total_seconds())}"
    )
    _print_field(out, "state", f"{report.state}{took}", STATE_STYLES[report.state])
    _print_wrapped_field(out, "in short", report.summary)
    created = report.created_at.timestamp()
    _print_field(
        out, "started", f"{format_ago(now - created)} ({format_local_time(created)}, Python {report.python_version})"
    )
    if inputs := format_inputs(report.inputs):
        _print_field(out, "inputs", to_one_line(inputs))
    if report.tags:
        _print_field(out, "tags", make_printable(", ".join(report.tags)))
    if report.deadline is not None and not report.state.is_terminal:
        deadline = report.deadline.timestamp()
        _print_field(out, "deadline", f"{format_ago(now - deadline)} ({format_local_time(deadline)})")
    if report.parent:
        _print_field(out, "parent", make_printable(report.parent))
    if report.forked_from:
        _print_field(out, "fork of", make_printable(report.forked_from))
    _print_status(out, report)
    _print_requests(out, report)
    _print_end(out, report, url)


def _print_end(out: Console, report: RunReport, url: str | None) -> None:
    """How the run has ended, and what can be done about it if it has no result."""
    size = report.output_size
    if size is not None and report.is_agent and size <= MAX_PRINTED_BYTES:
        answer = "\n".join(wrap_text(out, format_pretty(report.output, is_agent=True), _LABEL_WIDTH))
        _print_field(out, "answer", _truncate_lines(answer, _MAX_RESULT_LINES, "--conversation --full"))
    elif size is not None:
        _print_field(out, "result", _format_result(report, size))
    if report.error is not None:
        _print_field(out, "error", make_printable(report.error.summary), "red")
        for line in _list_error_frames(report, report.error)[-_MAX_TRACEBACK_LINES:]:
            out.print(Text(" " * _LABEL_WIDTH + make_printable(line), "dim"), soft_wrap=True)
    if report.retry is not None:
        _print_wrapped_field(out, "retry", with_store_options(url, report.retry.message))
    for advice in report.advice:
        if advice.action == "fork":
            _print_wrapped_field(out, "fork", with_store_options(url, advice.text))


def _format_result(report: RunReport, output_size: int) -> str:
    if output_size > MAX_PRINTED_BYTES:
        return f"{format_bytes(output_size)}, see it with --json: {to_one_line(format_brief(report.output))}"
    return _truncate_lines(format_pretty(report.output), _MAX_RESULT_LINES)


def _print_requests(out: Console, report: RunReport) -> None:
    """What somebody has asked for: a pause, a cancel."""
    if report.paused_at is not None:
        paused = report.paused_at.timestamp()
        since = f"{format_ago(report.reported_at.timestamp() - paused)} ({format_local_time(paused)})"
        rests = "; it rests once its steps in flight have ended" if report.is_claimed else ""
        _print_field(out, "paused", f"{since}{rests}", "yellow")
    if report.cancel_state is None or report.state is RunState.CANCELLED:
        return
    if report.state.is_terminal:
        _print_field(out, "cancel", f"was asked for; the run ended {report.state} all the same")
    elif report.cancel_state == CancelState.RECORDED:
        _print_field(out, "cancel", "is being carried out", "yellow")
    else:
        who = "its worker carries it out" if report.is_claimed else "not begun yet"
        _print_field(out, "cancel", f"asked for; {who}", "yellow")


def _list_error_frames(report: RunReport, error: RecordedError) -> list[str]:
    """Where it was raised: in the workflow's code, and below that in the step whose failure ended the run."""
    told = (error.type, error.message)
    failures = [entry.error for entry in reversed(report.journal) if entry.error is not None]
    step = next((failure for failure in failures if (failure.type, failure.message) == told), None)
    return [*list_user_frames(error.traceback), *(list_user_frames(step.traceback) if step is not None else [])]


def _print_status(out: Console, report: RunReport) -> None:
    now = report.reported_at.timestamp()
    wake_at = None if report.wake_at is None else report.wake_at.timestamp()
    if report.claimed_by is not None and report.state is RunState.RUNNING:
        hand = report.find_worker(report.claimed_by)
        kind = "worker" if hand is None else hand.kind
        who = f"{kind} {report.claimed_by}" + (
            f" ({hand.location})" if hand is not None and hand.state != "unknown" else ""
        )
        if report.is_claimed:
            _print_field(out, "held by", f"{who}, alive")
        else:
            _print_field(out, "held by", f"{who}, which is dead: the next {kind} takes it over", "yellow")
    if report.budget_refusal is not None:
        _print_wrapped_field(
            out, "waits for", f"a higher budget: {parse_refusal_reason(report.budget_refusal.message)}", "yellow"
        )
    elif report.budget_changed_at is not None:
        changed = format_ago(now - report.budget_changed_at.timestamp())
        _print_wrapped_field(out, "waits for", f"a worker: its budget was changed {changed}, and it asks again")
    elif report.state is RunState.WAITING:
        due = "" if wake_at is None else f" (due {format_ago(now - wake_at)})"
        _print_field(out, "waits for", make_printable(report.waits_for or "") + due)
    elif report.state is RunState.PENDING and wake_at is not None and wake_at > now:
        _print_field(out, "starts", f"{format_ago(now - wake_at)} ({format_local_time(wake_at)})")
    if report.delivery_count:
        label = "deliveries" if report.is_delivery_run else "deaths"
        _print_field(out, label, f"{report.delivery_count} of {report.max_deliveries} without a new record")


def _print_field(out: Console, label: str, value: str, style: str = "") -> None:
    first, *rest = value.splitlines() or [""]
    out.print(Text.assemble((label.ljust(_LABEL_WIDTH), "dim"), (first, style)), soft_wrap=True)
    for line in rest:
        out.print(Text((" " * _LABEL_WIDTH + line).rstrip(), style), soft_wrap=True)


def _print_wrapped_field(out: Console, label: str, text: str, style: str = "") -> None:
    """A field whose words wrap where the terminal ends; in a file they are one line."""
    _print_field(out, label, "\n".join(wrap_text(out, text, _LABEL_WIDTH)), style)


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
            what = f"`once` step, intent recorded {since}: if its worker dies, nobody runs it again"
        elif step.retry_at is not None:
            at = step.retry_at.timestamp()
            what = f"attempt {step.attempt} failed {since}; waiting for the next attempt at {format_local_time(at)}"
        elif error:
            what = f"attempt {step.attempt} failed {since}"
        else:
            what = f"last heard of {since}"
        out.print(Text(f"{step.number:>4}  {step.name}  {what}"), soft_wrap=True)
        # What a model call keeps for its next attempt is its own affair; the error tells who did not answer.
        asked = error.startswith(_MODEL_ERROR_PREFIX)
        if error:
            out.print(Text(f"      {to_one_line(error.removeprefix(_MODEL_ERROR_PREFIX))}", "red"), soft_wrap=True)
        if step.progress is not None and not asked:
            out.print(Text(f"      progress {to_one_line(format_brief(step.progress))}", "dim"), soft_wrap=True)


def _print_open_approvals(out: Console, report: RunReport, url: str | None) -> None:
    """What people are asked, with the command that answers it."""
    if not report.open_approvals:
        return
    out.print("\nwaits for an answer", style="bold yellow")
    for asked in report.open_approvals:
        print_approval(out, asked, report.reported_at.timestamp(), url, indent=2)


def _print_usage(out: Console, report: RunReport) -> None:
    """What the model calls took, here and in the runs below, and what is left of the budgets for them."""
    if report.usage is None and not report.budgets:
        return
    below = ", with the runs below it" if report.related_runs else ""
    out.print(f"\nused so far{below}" if not report.state.is_terminal else f"\nused{below}", style="bold")
    out.print(Text(f"      {format_usage(Usage() if report.usage is None else report.usage)}"), soft_wrap=True)
    for account in report.budgets:
        above = f"the budget of run {make_printable(account.run_id)!r}, which is above it"
        out.print(f"\n{'its budget' if account.run_id == report.id else above}", style="bold")
        print_budget_table(out, account.run_usage)


def _print_signals(out: Console, report: RunReport) -> None:
    if report.unrecorded_ends:
        waits = format_list([f"#{end.number} ({end.state})" for end in report.unrecorded_ends])
        out.print(Text(f"\nends of runs that are there, and not recorded yet: {waits}"), soft_wrap=True)
    if report.unrecorded_answers:
        waits = format_list([f"#{answer.number}" for answer in report.unrecorded_answers])
        out.print(Text(f"\nanswers that are there, and not recorded yet: {waits}"), soft_wrap=True)
    if not report.pending_signals:
        return
    out.print(f"\nsignals that nothing {'took' if report.state.is_terminal else 'has taken yet'}", style="bold")
    for signal in report.pending_signals:
        sent = format_ago((report.reported_at - signal.sent_at).total_seconds())
        out.print(
            Text(f"      {to_one_line(signal.name)} = {to_one_line(format_brief(signal.value))}, sent {sent}"),
            soft_wrap=True,
        )


def _print_workers(out: Console, report: RunReport) -> None:
    concerned = [hand for hand in report.workers if hand.record_count or hand.id == report.claimed_by]
    if not concerned:
        return
    out.print("\nworkers", style="bold")
    for hand in sorted(concerned, key=lambda hand: hand.id):
        alive = ("alive", "green") if hand.is_alive else (_DEAD_STATE_NAMES[hand.state], "dim")
        out.print(
            Text.assemble(
                f"{hand.id:>4}  {_format_location(hand)}", alive, f", {format_count(hand.record_count, 'record')}"
            ),
            soft_wrap=True,
        )


_DEAD_STATE_NAMES = {"live": "dead", "dead": "dead", "retired": "retired", "unknown": "not known any more"}
"""How one is told that is not alive: nobody may have noticed yet that it is dead."""


def _format_location(worker: RunWorker) -> str:
    if worker.state == "unknown":
        return ""
    return f"{'listener ' if worker.is_listener else ''}{worker.location}, "
