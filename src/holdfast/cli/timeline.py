"""A run's journal as a table, for ``holdfast show``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from holdfast.admission.usage import BUDGET_SIGNAL
from holdfast.cli.approvals import answer_in_words
from holdfast.cli.formatting import bytes_in_words, counted, duration, listed, one_line, wrapped
from holdfast.cli.store_access import command_at
from holdfast.core.records import Kind
from holdfast.core.states import RunState
from holdfast.reports.model_replies import answer_in, compacted_in_words, failed_in_words, is_final
from holdfast.reports.recorded_reply import ANSWER, MODEL_CALL, PlainReply
from holdfast.reports.recorded_values import LARGE
from holdfast.reports.report_reader import MANY
from holdfast.reports.run_usage import brief_cost, tokens_and_cost
from holdfast.reports.types import Entry, Fault, Relative, Story
from holdfast.services.approvals import Answer

_SAID = 120
"""So many characters of what a model said are told below its call; ``--conversation`` tells the rest."""


_STEP = Kind.STEP.label


class _Line(NamedTuple):
    entry: Entry | None
    """``None`` for a skipped step."""
    number: str
    name: str
    time: str
    alike: Sequence[Entry] = ()
    """All that this line stands for, if it stands for several."""


def tell_journal(out: Console, story: Story) -> None:
    """Print a line for each record, with its arguments and its error below it.

    Lines are in the order of their numbers, which is the order of the calls in the code. A record without a number
    comes after what was recorded before it. Internal records are left out; ``--json`` has them.
    """
    if not story.journal:
        out.print(f"\nnothing {'was recorded' if story.state.is_terminal else 'is recorded yet'}", style="dim")
        return
    lines = _lines(story)
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
            name = one_line(line.name, width if narrow else None).ljust(width)
            skipped = (f"{'–':>{numbered}}  {name}  {'':>{broad}}  {'':>8}  {'':>6}  skipped", "dim")
            out.print(Text.assemble(skipped), soft_wrap=True)
            continue
        took = duration(entry.seconds) if entry.seconds is not None and entry.worker else ""
        told = Text.assemble(
            f"{line.number:>{numbered}}  ",
            (one_line(line.name, width if narrow else None).ljust(width), _style(entry.kind)),
            f"  {line.time:>{broad}}  {took:>8}  {entry.worker or '–':>6}  ",
            *(_outcomes(line.alike, story) if line.alike else _outcome(entry)),
        )
        out.print(told, soft_wrap=True)
        if not line.alike:
            _tell_below(out, story, entry, limit)


def _tell_below(out: Console, story: Story, entry: Entry, limit: int | None) -> None:
    reply = None if entry.model_call is None else entry.model_call.reply
    is_compaction = reply is not None and reply.compaction is not None
    is_turn = entry.kind == _STEP and entry.name == MODEL_CALL
    below = "" if is_turn or is_compaction else entry.arguments
    if entry.run is not None:
        below = _run_in_words(entry, entry.run, story.kin.get(entry.run))
    if entry.kind == Kind.APPROVAL.label:
        _tell_answer(out, story, entry)
    elif below:
        out.print(Text("      " + one_line(below, limit), "dim"), soft_wrap=True)
    if reply is not None:
        _tell_reply(out, reply, limit)
    elif entry.reason is not None:
        _tell_in_lines(out, entry.reason, "yellow")
    elif entry.outcome in ("failed", "unknown") and entry.error is not None:
        out.print(Text("      " + one_line(_failed_with(entry.error), limit), "red"), soft_wrap=True)


def _tell_answer(out: Console, story: Story, entry: Entry) -> None:
    """What people were asked, and who answered what."""
    if (asked := story.asked(entry)) is not None:
        _tell_in_lines(out, f"“{asked.question}”", "dim")
        if asked.arguments is not None:
            _tell_in_lines(out, f"{asked.tool}({json.dumps(asked.arguments, ensure_ascii=False)})", "dim")
    if entry.ok and not isinstance(entry.output, str):  # which would say why it cannot be read
        answer = Answer.of(json.dumps(entry.output).encode())
        _tell_in_lines(out, answer_in_words(answer, story.at.timestamp()), "green" if answer.approved else "yellow")


def _tell_reply(out: Console, reply: PlainReply, limit: int | None) -> None:
    """Who answered, what it took, who did not answer before, and what came of it."""
    if reply.model:
        _tell_in_lines(out, f"{reply.model}: {tokens_and_cost(reply.usage)}", "dim")
    if reply.compaction is not None:
        _tell_in_lines(out, compacted_in_words(reply.compaction), "dim")
    for model in reply.failed:
        out.print(Text(f"      {one_line(failed_in_words(model), limit)}", "yellow"), soft_wrap=True)
    if is_final(reply):
        answer = answer_in(reply)
        said = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    else:
        said = reply.text
    if said:
        out.print(Text(f"      “{one_line(said, min(limit or _SAID, _SAID) - 2)}”", "dim"), soft_wrap=True)
    if asked := Counter(call.name for call in reply.calls if call.name != ANSWER):
        asks = listed([f"{name} ×{many}" if many > 1 else name for name, many in asked.items()], 6)
        out.print(Text(f"      {one_line(f'asks for {asks}', limit)}", "dim"), soft_wrap=True)
    if cut_off := reply.cut_off:
        out.print(Text(f"      {one_line(cut_off, limit)}", "yellow"), soft_wrap=True)
    if reply.complaint is not None and not reply.continues:
        told = one_line(f"it cannot be used: {reply.complaint}", limit)
        out.print(Text(f"      {told}", "yellow"), soft_wrap=True)


def _failed_with(error: Fault) -> str:
    """An error in short; of refused arguments, what was wrong with which, without what else the model is told."""
    faults = [line.removeprefix("- ") for line in error.message.splitlines() if line.startswith("- ")]
    if error.type == "holdfast.errors.ArgumentsRefused" and faults:
        return f"arguments refused: {'; '.join(faults)}"
    return error.in_short


def _tell_in_lines(out: Console, text: str, style: str) -> None:
    """Words that are not cut: on a terminal, they go on in the next line."""
    for line in wrapped(out, text, 6):
        out.print(Text(f"      {line}", style), soft_wrap=True)


def _run_in_words(entry: Entry, run_id: str, run: Relative | None) -> str:
    """Which run it is, and its state, unless the line above tells how it has ended."""
    ended = entry.kind == Kind.CHILD.label and run is not None and run.state.is_terminal
    as_told = ended and run is not None and (run.state is RunState.COMPLETED) == entry.ok
    return f"run {run_id!r}" if run is None or as_told else f"run {run_id!r}, now {run.state}"


def _lines(story: Story) -> list[_Line]:
    """What to print, where many runs of one workflow that are well are one line."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    journal = _in_order([entry for entry in story.journal if not entry.internal])
    for entry in journal:
        if entry.ok and entry.kind in (Kind.CHILD.label, Kind.START.label):
            groups.setdefault((entry.kind, entry.name), []).append(entry)
    many = {key: group for key, group in groups.items() if len(group) > MANY}
    lines: list[_Line] = []
    skipped = list(story.skipped)
    for entry in journal:
        while skipped and entry.number is not None and skipped[0].before <= entry.number and _is_numbered(entry):
            lines.append(_Line(None, "–", skipped.pop(0).name, ""))
        group = many.get((entry.kind, entry.name)) if entry.ok else None
        if group is None:
            lines.append(_Line(entry, _number(entry), _what(entry), _offset(entry, story)))
        elif group[0] is entry:
            what = f"{_what(entry)} ×{len(group):,}"
            numbers = [one.number or 0 for one in group]
            lines.append(_Line(entry, f"{min(numbers)}…{max(numbers)}", what, _offset(entry, story), group))
    return [*lines, *(_Line(None, "–", one.name, "") for one in skipped)]


def _in_order(journal: Sequence[Entry]) -> list[Entry]:
    """Sort by number; put a record without one after everything that was recorded before it."""
    places: list[tuple[int, int, int]] = []
    highest = 0
    for entry in journal:
        is_numbered = _is_numbered(entry)
        highest = max(highest, entry.number or 0) if is_numbered else highest
        places.append(((entry.number or 0) if is_numbered else highest, not is_numbered, entry.seq))
    return [entry for _, entry in sorted(zip(places, journal, strict=True), key=lambda pair: pair[0])]


def _is_numbered(entry: Entry) -> bool:
    """Whether it is numbered with the steps; timers have numbers of their own."""
    return Kind[entry.kind.upper()].has_position


def _number(entry: Entry) -> str:
    """All that has a position is counted together, timers on their own; nobody asked for the rest."""
    if entry.kind == Kind.TIMER.label:
        return f"t{entry.number}"
    return str(entry.number) if _is_numbered(entry) else "–"


def _offset(entry: Entry, story: Story) -> str:
    """How long after the run's start it began; for what only happens, when it did. A fork shares the older clock."""
    at = entry.at if entry.seconds is None else entry.started_at
    return f"+{duration((at - story.began_at).total_seconds())}"


def _what(entry: Entry) -> str:
    if entry.kind in (Kind.DEADLINE.label, Kind.CANCEL.label):
        return entry.kind
    if entry.kind == Kind.APPROVAL.label:
        return one_line(entry.name)
    if entry.kind == Kind.SIGNAL.label and entry.name == BUDGET_SIGNAL:
        return "another budget"
    if entry.kind == Kind.COMPENSATION.label:
        return one_line(f"undoing: {entry.name}")
    if entry.kind == _STEP or entry.name.startswith(f"{entry.kind} "):  # "approval of #3"
        return one_line(entry.name)
    return one_line(f"{entry.kind} {entry.name}")


def _style(kind: str) -> str:
    return {_STEP: "", Kind.COMPENSATION.label: "magenta", Kind.CANCEL.label: "magenta"}.get(kind, "blue")


_OUTCOMES = {
    "ok": ("ok", "green"),
    "failed": ("failed", "red"),
    "unknown": ("failed: outcome unknown", "red"),
    "refused": ("refused", "yellow"),
    "needs_approval": ("needs an approval", "yellow"),
    "cleared": ("needs no approval", "green"),
    "context_full": ("context full", "yellow"),
}


def _outcome(entry: Entry) -> list[tuple[str, str]]:
    parts = [_OUTCOMES.get(entry.outcome, _OUTCOMES["ok" if entry.ok else "failed"])]
    if entry.is_settled:
        parts.append((", settled by a person", ""))
    elif not entry.worker and not entry.epoch:  # Temporal does not tell who has recorded what
        parts.append((", given to the fork", ""))
    if entry.attempts > 1:
        parts.append((f" after {entry.attempts} attempts", ""))
    if entry.ok and entry.size > LARGE and entry.model_call is None:
        parts.append((f", {bytes_in_words(entry.size)}", ""))
    if entry.replays > 0:
        parts.append((f", replayed ×{entry.replays}", "dim"))
    return parts


def _outcomes(entries: Sequence[Entry], story: Story) -> list[tuple[str, str]]:
    return [("ok", "green"), (f", the last at {_offset(entries[-1], story)}", "")]


# The family


def tell_family(out: Console, story: Story, url: str | None) -> None:
    """Print the runs that the run has started or waited for, or how many of them are in which state."""
    family = story.children
    if not family:
        return
    out.print("\nruns it started or waited for", style="bold")
    if len(family) > MANY:
        least = "at least " if story.more_children else ""
        out.print(Text(f"      {least}{summed_up(Counter(run.state for run in family))}"), soft_wrap=True)
        see = f"see those it started with `{command_at(url, 'runs', '--parent', story.id)}`"
        out.print(Text(f"      {see}", "dim"), soft_wrap=True)
        return
    ids = max(len(one_line(run.id)) for run in family)
    names = max(len(one_line(run.workflow)) for run in family)
    for run in family:
        line = f"      {one_line(run.id).ljust(ids)}  {one_line(run.workflow).ljust(names)}  {run.state}"
        line += " for a higher budget" if run.short else ""
        own = "" if run.parent == story.id else "  (not started by it)"
        paid = "" if run.usage is None else brief_cost(run.usage.usage)
        out.print(Text(line + (f"  {paid}" if paid else "") + own), soft_wrap=True)


def summed_up(states: Counter[RunState]) -> str:
    """``1,000 runs: 990 completed, 10 running``."""
    told = ", ".join(f"{count:,} {state}" for state, count in states.most_common())
    return f"{counted(sum(states.values()), 'run')}: {told}"
