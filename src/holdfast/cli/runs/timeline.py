"""A run's journal as a table, for ``holdfast show``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from holdfast.admission.usage import BUDGET_SIGNAL
from holdfast.cli.runs.approvals import describe_answer
from holdfast.cli.shared.formatting import (
    format_bytes,
    format_count,
    format_duration,
    format_list,
    to_one_line,
    wrap_text,
)
from holdfast.cli.shared.store_access import format_store_command
from holdfast.cli.shared.tables import Cell, layout_rows, print_table
from holdfast.core.records import RecordKind
from holdfast.core.states import RunState
from holdfast.reports.model_replies import describe_compaction, describe_failed_model, extract_answer, is_final_reply
from holdfast.reports.recorded_reply import AGENT_STEPS, ANSWER_TOOL, ModelCallReport
from holdfast.reports.recorded_values import MAX_PRINTED_BYTES
from holdfast.reports.report_reader import MAX_LISTED_RUNS
from holdfast.reports.run_usage import format_brief_cost, format_tokens_and_cost
from holdfast.reports.types import JournalEntry, RecordedError, RelatedRun, RunReport
from holdfast.services.approvals import Answer

_MAX_TEXT_CHARS = 120
"""How much of a model's text is shown below its call; ``--conversation`` shows the rest."""

_STEP_LABEL = RecordKind.STEP.label
_KIND_STYLES = {_STEP_LABEL: "", RecordKind.COMPENSATION.label: "magenta", RecordKind.CANCEL.label: "magenta"}


class _Row(NamedTuple):
    entry: JournalEntry | None
    """``None`` for a skipped step."""
    number: str
    name: str
    time: str
    group: Sequence[JournalEntry] = ()
    """The entries of this line, if there are several."""


def print_journal(out: Console, report: RunReport) -> None:
    """Print a line for each record, with its arguments and its error below it.

    Lines are in the order of their numbers, which is the order of the calls in the code. A record without a number
    comes after what was recorded before it. Internal records are left out; ``--json`` has them.
    """
    if not report.journal:
        out.print(f"\nnothing {'was recorded' if report.state.is_terminal else 'is recorded yet'}", style="dim")
        return
    rows = _build_rows(report)
    if not rows:
        return
    # On a terminal, long names are cut to keep a line on one line.
    number_width, time_width = max(4, *(len(row.number) for row in rows)), max(8, *(len(row.time) for row in rows))
    name_width = max(12, min(40, out.width - 40 - number_width - time_width)) if out.is_terminal else None
    header = ("#", "step", "at", "took", "worker", "outcome")
    cells = [header, *(_build_cells(row, report, name_width) for row in rows)]
    titles, *lines = layout_rows(cells, right_columns=(0, 2, 3, 4), min_widths=(4, 0, 8, 8, 6, 0))
    titles.rstrip()
    out.print()
    out.print(titles, style="bold")
    for row, line in zip(rows, lines, strict=True):
        line.rstrip()
        out.print(line, style="dim" if row.entry is None else "")
        if row.entry is not None and not row.group:
            _print_details(out, report, row.entry, out.width - 6 if out.is_terminal else None)


def _build_cells(row: _Row, report: RunReport, max_name_width: int | None) -> tuple[Cell, ...]:
    entry, name = row.entry, to_one_line(row.name, max_name_width)
    if entry is None:
        return "–", name, "", "", "", "skipped"
    took = format_duration(entry.duration_s) if entry.duration_s is not None and entry.worker_id else ""
    outcome = _format_outcome(entry)
    if row.group:
        outcome = [("ok", "green"), (f", the last at {_format_offset(row.group[-1], report)}", "")]
    styled_name = Text(name, _KIND_STYLES.get(entry.kind, "blue"))
    return row.number, styled_name, row.time, took, str(entry.worker_id or "–"), Text.assemble(*outcome)


def _print_details(out: Console, report: RunReport, entry: JournalEntry, limit: int | None) -> None:
    reply = entry.model_call
    is_compaction = reply is not None and reply.compaction is not None
    is_turn = entry.kind == _STEP_LABEL and entry.name in AGENT_STEPS
    below = "" if is_turn or is_compaction else entry.arguments
    if entry.related_run_id is not None:
        below = _describe_run(entry, entry.related_run_id, report.related_runs_by_id.get(entry.related_run_id))
    if entry.kind == RecordKind.APPROVAL.label:
        _print_answer(out, report, entry)
    elif below:
        out.print(Text("      " + to_one_line(below, limit), "dim"))
    if reply is not None:
        _print_reply(out, reply, limit)
    elif entry.reason is not None:
        _print_wrapped(out, entry.reason, "yellow")
    elif entry.outcome in ("failed", "unknown") and entry.error is not None:
        out.print(Text("      " + to_one_line(_format_error(entry.error), limit), "red"))


def _print_answer(out: Console, report: RunReport, entry: JournalEntry) -> None:
    """Print the question of an approval, and who answered what."""
    if (approval := report.find_approval(entry)) is not None:
        _print_wrapped(out, f"“{approval.question}”", "dim")
        if approval.arguments is not None:
            _print_wrapped(out, f"{approval.tool}({json.dumps(approval.arguments, ensure_ascii=False)})", "dim")
    if entry.ok and not isinstance(entry.output, str):  # text says why it cannot be decoded
        answer = Answer.from_payload(json.dumps(entry.output).encode())
        _print_wrapped(
            out, describe_answer(answer, report.reported_at.timestamp()), "green" if answer.approved else "yellow"
        )


def _print_reply(out: Console, reply: ModelCallReport, limit: int | None) -> None:
    """Print which model answered, what it used, which models failed before, and what it said."""
    if reply.model:
        _print_wrapped(out, f"{reply.model}: {format_tokens_and_cost(reply.usage)}", "dim")
    if reply.compaction is not None:
        _print_wrapped(out, describe_compaction(reply.compaction), "dim")
    for model in reply.failed_models:
        out.print(Text(f"      {to_one_line(describe_failed_model(model), limit)}", "yellow"))
    if is_final_reply(reply):
        answer = extract_answer(reply)
        text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    else:
        text = reply.text
    if text:
        out.print(Text(f"      “{to_one_line(text, min(limit or _MAX_TEXT_CHARS, _MAX_TEXT_CHARS) - 2)}”", "dim"))
    if call_counts := Counter(call.name for call in reply.tool_calls if call.name != ANSWER_TOOL):
        asks = format_list([f"{name} ×{many}" if many > 1 else name for name, many in call_counts.items()], 6)
        out.print(Text(f"      {to_one_line(f'asks for {asks}', limit)}", "dim"))
    if cut_off := reply.cut_off_reason:
        out.print(Text(f"      {to_one_line(cut_off, limit)}", "yellow"))
    if reply.feedback is not None and not reply.is_continued:
        feedback = to_one_line(f"it cannot be used: {reply.feedback}", limit)
        out.print(Text(f"      {feedback}", "yellow"))


def _format_error(error: RecordedError) -> str:
    """An error, shortened; for refused arguments, only what was wrong with which."""
    faults = [line.removeprefix("- ") for line in error.message.splitlines() if line.startswith("- ")]
    if error.type == "holdfast.errors.InvalidToolArguments" and faults:
        return f"arguments refused: {'; '.join(faults)}"
    return error.summary


def _print_wrapped(out: Console, text: str, style: str) -> None:
    """Print text that is not cut. On a terminal it is wrapped."""
    for line in wrap_text(out, text, 6):
        out.print(Text(f"      {line}", style))


def _describe_run(entry: JournalEntry, run_id: str, run: RelatedRun | None) -> str:
    """The id of a run, and its state unless the line above says how it ended."""
    ended = entry.kind == RecordKind.CHILD.label and run is not None and run.state.is_terminal
    as_told = ended and run is not None and (run.state is RunState.COMPLETED) == entry.ok
    return f"run {run_id!r}" if run is None or as_told else f"run {run_id!r}, now {run.state}"


def _build_rows(report: RunReport) -> list[_Row]:
    """The lines to print. Many runs of one workflow without errors are one line."""
    groups: dict[tuple[str, str], list[JournalEntry]] = {}
    journal = _sort_entries([entry for entry in report.journal if not entry.is_internal])
    for entry in journal:
        if entry.ok and entry.kind in (RecordKind.CHILD.label, RecordKind.START.label):
            groups.setdefault((entry.kind, entry.name), []).append(entry)
    many = {key: group for key, group in groups.items() if len(group) > MAX_LISTED_RUNS}
    lines: list[_Row] = []
    skipped = list(report.skipped_steps)
    for entry in journal:
        while skipped and entry.number is not None and skipped[0].next_number <= entry.number and _is_numbered(entry):
            lines.append(_Row(None, "–", skipped.pop(0).name, ""))
        group = many.get((entry.kind, entry.name)) if entry.ok else None
        if group is None:
            lines.append(_Row(entry, _format_number(entry), _format_name(entry), _format_offset(entry, report)))
        elif group[0] is entry:
            label = f"{_format_name(entry)} ×{len(group):,}"
            numbers = [one.number or 0 for one in group]
            lines.append(_Row(entry, f"{min(numbers)}…{max(numbers)}", label, _format_offset(entry, report), group))
    return [*lines, *(_Row(None, "–", one.name, "") for one in skipped)]


def _sort_entries(journal: Sequence[JournalEntry]) -> list[JournalEntry]:
    """Sort by number; put a record without one after everything that was recorded before it."""
    places: list[tuple[int, int, int]] = []
    highest = 0
    for entry in journal:
        is_numbered = _is_numbered(entry)
        highest = max(highest, entry.number or 0) if is_numbered else highest
        places.append(((entry.number or 0) if is_numbered else highest, not is_numbered, entry.seq))
    return [entry for _, entry in sorted(zip(places, journal, strict=True), key=lambda pair: pair[0])]


def _is_numbered(entry: JournalEntry) -> bool:
    """Whether it is numbered with the steps; timers have numbers of their own."""
    return RecordKind[entry.kind.upper()].has_position


def _format_number(entry: JournalEntry) -> str:
    """Records with a position are counted together, timers on their own. Other records have no number."""
    if entry.kind == RecordKind.TIMER.label:
        return f"t{entry.number}"
    return str(entry.number) if _is_numbered(entry) else "–"


def _format_offset(entry: JournalEntry, report: RunReport) -> str:
    """How long after the run's start it started, or was recorded if it has no duration. A fork shares the clock."""
    at = entry.recorded_at if entry.duration_s is None else entry.started_at
    return f"+{format_duration((at - report.clock_started_at).total_seconds())}"


def _format_name(entry: JournalEntry) -> str:
    if entry.kind in (RecordKind.DEADLINE.label, RecordKind.CANCEL.label):
        return entry.kind
    if entry.kind == RecordKind.APPROVAL.label:
        return to_one_line(entry.name)
    if entry.kind == RecordKind.SIGNAL.label and entry.name == BUDGET_SIGNAL:
        return "another budget"
    if entry.kind == RecordKind.COMPENSATION.label:
        return to_one_line(f"undoing: {entry.name}")
    if entry.kind == _STEP_LABEL or entry.name.startswith(f"{entry.kind} "):  # "approval of #3"
        return to_one_line(entry.name)
    return to_one_line(f"{entry.kind} {entry.name}")


_OUTCOME_STYLES = {
    "ok": ("ok", "green"),
    "failed": ("failed", "red"),
    "unknown": ("failed: outcome unknown", "red"),
    "refused": ("refused", "yellow"),
    "needs_approval": ("needs an approval", "yellow"),
    "cleared": ("needs no approval", "green"),
    "context_full": ("context full", "yellow"),
}


def _format_outcome(entry: JournalEntry) -> list[tuple[str, str]]:
    parts = [_OUTCOME_STYLES.get(entry.outcome, _OUTCOME_STYLES["ok" if entry.ok else "failed"])]
    if entry.is_settled:
        parts.append((", settled by a person", ""))
    elif not entry.worker_id and not entry.epoch:  # Temporal does not say who recorded what
        parts.append((", given to the fork", ""))
    if entry.attempt_count > 1:
        parts.append((f" after {entry.attempt_count} attempts", ""))
    if entry.ok and entry.size > MAX_PRINTED_BYTES and entry.model_call is None:
        parts.append((f", {format_bytes(entry.size)}", ""))
    if entry.replay_count > 0:
        parts.append((f", replayed ×{entry.replay_count}", "dim"))
    return parts


# Related runs


def print_related_runs(out: Console, report: RunReport, url: str | None) -> None:
    """Print the runs that the run started or waited for, or how many of them are in which state."""
    family = report.related_runs
    if not family:
        return
    out.print("\nruns it started or waited for", style="bold")
    if len(family) > MAX_LISTED_RUNS:
        least = "at least " if report.has_more_related_runs else ""
        out.print(Text(f"      {least}{format_state_counts(Counter(run.state for run in family))}"))
        see = f"see those it started with `{format_store_command(url, 'runs', '--parent', report.id)}`"
        out.print(Text(f"      {see}", "dim"))
        return
    rows: list[tuple[str, ...]] = []
    for run in family:
        paid = "" if run.usage is None else format_brief_cost(run.usage)
        notes = [f"{run.state}{' for a higher budget' if run.is_waiting_for_budget else ''}", *([paid] if paid else [])]
        notes += [] if run.parent == report.id else ["(not started by it)"]
        rows.append((to_one_line(run.id), to_one_line(run.workflow), "  ".join(notes)))
    print_table((), rows, indent=6)


def format_state_counts(states: Counter[RunState]) -> str:
    """``1,000 runs: 990 completed, 10 running``."""
    counts = ", ".join(f"{count:,} {state}" for state, count in states.most_common())
    return f"{format_count(sum(states.values()), 'run')}: {counts}"
