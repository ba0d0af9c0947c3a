"""A run's journal as a table, for ``holdfast show``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from holdfast.admission.usage import BUDGET_SIGNAL
from holdfast.cli.approvals import describe_answer
from holdfast.cli.formatting import format_bytes, format_count, format_duration, format_list, to_one_line, wrap_text
from holdfast.cli.store_access import format_store_command
from holdfast.core.records import RecordKind
from holdfast.core.states import RunState
from holdfast.reports.model_replies import describe_compaction, describe_failed_model, extract_answer, is_final_reply
from holdfast.reports.recorded_reply import ANSWER_TOOL, MODEL_CALL_STEP, RecordedReply
from holdfast.reports.recorded_values import MAX_PRINTED_BYTES
from holdfast.reports.report_reader import MAX_LISTED_RUNS
from holdfast.reports.run_usage import format_brief_cost, format_tokens_and_cost
from holdfast.reports.types import JournalEntry, RecordedError, RelatedRun, RunReport
from holdfast.services.approvals import Answer

_MAX_TEXT_CHARS = 120
"""So many characters of what a model said are told below its call; ``--conversation`` tells the rest."""


_STEP_LABEL = RecordKind.STEP.label


class _Row(NamedTuple):
    entry: JournalEntry | None
    """``None`` for a skipped step."""
    number: str
    name: str
    time: str
    group: Sequence[JournalEntry] = ()
    """All that this line stands for, if it stands for several."""


def print_journal(out: Console, report: RunReport) -> None:
    """Print a line for each record, with its arguments and its error below it.

    Lines are in the order of their numbers, which is the order of the calls in the code. A record without a number
    comes after what was recorded before it. Internal records are left out; ``--json`` has them.
    """
    if not report.journal:
        out.print(f"\nnothing {'was recorded' if report.state.is_terminal else 'is recorded yet'}", style="dim")
        return
    lines = _build_rows(report)
    if not lines:
        return
    narrow = out.is_terminal
    limit = out.width - 6 if narrow else None
    numbered = max(4, *(len(line.number) for line in lines))
    broad = max(8, *(len(line.time) for line in lines))
    room = max(12, min(40, out.width - 40 - numbered - broad)) if narrow else 200
    width = min(room, max(len("step"), *(len(line.name) for line in lines)))
    head = f"{'#':>{numbered}}  {'step'.ljust(width)}  {'at':>{broad}}  {'took':>8}  {'worker':>6}  outcome"
    out.print(f"\n{head}", style="bold", soft_wrap=True)
    for line in lines:
        entry = line.entry
        if entry is None:
            name = to_one_line(line.name, width if narrow else None).ljust(width)
            skipped = (f"{'–':>{numbered}}  {name}  {'':>{broad}}  {'':>8}  {'':>6}  skipped", "dim")
            out.print(Text.assemble(skipped), soft_wrap=True)
            continue
        took = format_duration(entry.duration_s) if entry.duration_s is not None and entry.worker_id else ""
        told = Text.assemble(
            f"{line.number:>{numbered}}  ",
            (to_one_line(line.name, width if narrow else None).ljust(width), _get_style(entry.kind)),
            f"  {line.time:>{broad}}  {took:>8}  {entry.worker_id or '–':>6}  ",
            *(_format_group_outcome(line.group, report) if line.group else _format_outcome(entry)),
        )
        out.print(told, soft_wrap=True)
        if not line.group:
            _print_details(out, report, entry, limit)


def _print_details(out: Console, report: RunReport, entry: JournalEntry, limit: int | None) -> None:
    reply = None if entry.model_call is None else entry.model_call.reply
    is_compaction = reply is not None and reply.compaction is not None
    is_turn = entry.kind == _STEP_LABEL and entry.name == MODEL_CALL_STEP
    below = "" if is_turn or is_compaction else entry.arguments
    if entry.related_run_id is not None:
        below = _describe_run(entry, entry.related_run_id, report.related_runs_by_id.get(entry.related_run_id))
    if entry.kind == RecordKind.APPROVAL.label:
        _print_answer(out, report, entry)
    elif below:
        out.print(Text("      " + to_one_line(below, limit), "dim"), soft_wrap=True)
    if reply is not None:
        _print_reply(out, reply, limit)
    elif entry.reason is not None:
        _print_wrapped(out, entry.reason, "yellow")
    elif entry.outcome in ("failed", "unknown") and entry.error is not None:
        out.print(Text("      " + to_one_line(_format_error(entry.error), limit), "red"), soft_wrap=True)


def _print_answer(out: Console, report: RunReport, entry: JournalEntry) -> None:
    """What people were asked, and who answered what."""
    if (asked := report.find_approval(entry)) is not None:
        _print_wrapped(out, f"“{asked.question}”", "dim")
        if asked.arguments is not None:
            _print_wrapped(out, f"{asked.tool}({json.dumps(asked.arguments, ensure_ascii=False)})", "dim")
    if entry.ok and not isinstance(entry.output, str):  # which would say why it cannot be read
        answer = Answer.from_payload(json.dumps(entry.output).encode())
        _print_wrapped(
            out, describe_answer(answer, report.reported_at.timestamp()), "green" if answer.approved else "yellow"
        )


def _print_reply(out: Console, reply: RecordedReply, limit: int | None) -> None:
    """Who answered, what it took, who did not answer before, and what came of it."""
    if reply.model:
        _print_wrapped(out, f"{reply.model}: {format_tokens_and_cost(reply.usage)}", "dim")
    if reply.compaction is not None:
        _print_wrapped(out, describe_compaction(reply.compaction), "dim")
    for model in reply.failed_models:
        out.print(Text(f"      {to_one_line(describe_failed_model(model), limit)}", "yellow"), soft_wrap=True)
    if is_final_reply(reply):
        answer = extract_answer(reply)
        said = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    else:
        said = reply.text
    if said:
        out.print(
            Text(f"      “{to_one_line(said, min(limit or _MAX_TEXT_CHARS, _MAX_TEXT_CHARS) - 2)}”", "dim"),
            soft_wrap=True,
        )
    if asked := Counter(call.name for call in reply.tool_calls if call.name != ANSWER_TOOL):
        asks = format_list([f"{name} ×{many}" if many > 1 else name for name, many in asked.items()], 6)
        out.print(Text(f"      {to_one_line(f'asks for {asks}', limit)}", "dim"), soft_wrap=True)
    if cut_off := reply.cut_off_reason:
        out.print(Text(f"      {to_one_line(cut_off, limit)}", "yellow"), soft_wrap=True)
    if reply.feedback is not None and not reply.is_continued:
        told = to_one_line(f"it cannot be used: {reply.feedback}", limit)
        out.print(Text(f"      {told}", "yellow"), soft_wrap=True)


def _format_error(error: RecordedError) -> str:
    """An error in short; of refused arguments, what was wrong with which, without what else the model is told."""
    faults = [line.removeprefix("- ") for line in error.message.splitlines() if line.startswith("- ")]
    if error.type == "holdfast.errors.InvalidToolArguments" and faults:
        return f"arguments refused: {'; '.join(faults)}"
    return error.summary


def _print_wrapped(out: Console, text: str, style: str) -> None:
    """Words that are not cut: on a terminal, they go on in the next line."""
    for line in wrap_text(out, text, 6):
        out.print(Text(f"      {line}", style), soft_wrap=True)


def _describe_run(entry: JournalEntry, run_id: str, run: RelatedRun | None) -> str:
    """Which run it is, and its state, unless the line above tells how it has ended."""
    ended = entry.kind == RecordKind.CHILD.label and run is not None and run.state.is_terminal
    as_told = ended and run is not None and (run.state is RunState.COMPLETED) == entry.ok
    return f"run {run_id!r}" if run is None or as_told else f"run {run_id!r}, now {run.state}"


def _build_rows(report: RunReport) -> list[_Row]:
    """What to print, where many runs of one workflow that are well are one line."""
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
            what = f"{_format_name(entry)} ×{len(group):,}"
            numbers = [one.number or 0 for one in group]
            lines.append(_Row(entry, f"{min(numbers)}…{max(numbers)}", what, _format_offset(entry, report), group))
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
    """All that has a position is counted together, timers on their own; nobody asked for the rest."""
    if entry.kind == RecordKind.TIMER.label:
        return f"t{entry.number}"
    return str(entry.number) if _is_numbered(entry) else "–"


def _format_offset(entry: JournalEntry, report: RunReport) -> str:
    """How long after the run's start it began; for what only happens, when it did. A fork shares the older clock."""
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


def _get_style(kind: str) -> str:
    return {_STEP_LABEL: "", RecordKind.COMPENSATION.label: "magenta", RecordKind.CANCEL.label: "magenta"}.get(
        kind, "blue"
    )


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
    elif not entry.worker_id and not entry.epoch:  # Temporal does not tell who has recorded what
        parts.append((", given to the fork", ""))
    if entry.attempt_count > 1:
        parts.append((f" after {entry.attempt_count} attempts", ""))
    if entry.ok and entry.size > MAX_PRINTED_BYTES and entry.model_call is None:
        parts.append((f", {format_bytes(entry.size)}", ""))
    if entry.replay_count > 0:
        parts.append((f", replayed ×{entry.replay_count}", "dim"))
    return parts


def _format_group_outcome(entries: Sequence[JournalEntry], report: RunReport) -> list[tuple[str, str]]:
    return [("ok", "green"), (f", the last at {_format_offset(entries[-1], report)}", "")]


# The family


def print_related_runs(out: Console, report: RunReport, url: str | None) -> None:
    """Print the runs that the run has started or waited for, or how many of them are in which state."""
    family = report.related_runs
    if not family:
        return
    out.print("\nruns it started or waited for", style="bold")
    if len(family) > MAX_LISTED_RUNS:
        least = "at least " if report.has_more_related_runs else ""
        out.print(Text(f"      {least}{format_state_counts(Counter(run.state for run in family))}"), soft_wrap=True)
        see = f"see those it started with `{format_store_command(url, 'runs', '--parent', report.id)}`"
        out.print(Text(f"      {see}", "dim"), soft_wrap=True)
        return
    ids = max(len(to_one_line(run.id)) for run in family)
    names = max(len(to_one_line(run.workflow)) for run in family)
    for run in family:
        line = f"      {to_one_line(run.id).ljust(ids)}  {to_one_line(run.workflow).ljust(names)}  {run.state}"
        line += " for a higher budget" if run.is_waiting_for_budget else ""
        own = "" if run.parent == report.id else "  (not started by it)"
        paid = "" if run.usage is None else format_brief_cost(run.usage)
        out.print(Text(line + (f"  {paid}" if paid else "") + own), soft_wrap=True)


def format_state_counts(states: Counter[RunState]) -> str:
    """``1,000 runs: 990 completed, 10 running``."""
    told = ", ".join(f"{count:,} {state}" for state, count in states.most_common())
    return f"{format_count(sum(states.values()), 'run')}: {told}"
