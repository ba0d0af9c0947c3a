"""A run's journal as a table, for ``holdfast show``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from holdfast.agents.calling import is_cleared, required_by
from holdfast.agents.output import ANSWER
from holdfast.cli.approvals import answer_in_words
from holdfast.cli.liveness import is_short
from holdfast.cli.recorded import RecordedError, failure_of, is_large
from holdfast.cli.replies import (
    answer_in,
    compacted_in_words,
    failed_in_words,
    fullness_of,
    is_final,
    is_turn,
    reason_of,
    refusal_of,
    reply_of,
)
from holdfast.cli.spending import brief_cost, tokens_and_cost
from holdfast.cli.story import MANY, MOST, TIMED, Story
from holdfast.cli.wording import command, counted, duration, listed, one_line, size, wrapped
from holdfast.client.approvals import Answer
from holdfast.client.recorded_reply import PlainReply
from holdfast.core.records import Kind, Record
from holdfast.core.states import RunState
from holdfast.core.usage import BUDGET_SIGNAL
from holdfast.stores.operations import Run

_SAID = 120
"""So many characters of what a model said are told below its call; ``--conversation`` tells the rest."""


class _Line(NamedTuple):
    record: Record
    number: str
    name: str
    time: str
    alike: Sequence[Record] = ()
    """All that this line stands for, if it stands for several."""


def tell_journal(out: Console, story: Story) -> None:
    """Print what is recorded, a line for each record, with what it was given and how it failed below it."""
    if not story.history.records:
        out.print("\nnothing is recorded yet", style="dim")
        return
    lines = _lines(story)
    narrow = out.is_terminal
    limit = out.width - 6 if narrow else None
    numbered = max(4, *(len(line.number) for line in lines))
    broad = max(8, *(len(line.time) for line in lines))
    room = max(12, min(40, out.width - 40 - numbered - broad)) if narrow else 200
    width = min(room, max(len("step"), *(len(line.name) for line in lines)))
    head = f"{'#':>{numbered}}  {'step'.ljust(width)}  {'at':>{broad}}  {'took':>8}  {'worker':>6}  outcome"
    out.print(f"\n{head}", style="bold", soft_wrap=True)
    for line in lines:
        record = line.record
        took = duration(record.at - record.started_at) if record.kind in TIMED and record.worker else ""
        told = Text.assemble(
            f"{line.number:>{numbered}}  ",
            (one_line(line.name, width if narrow else None).ljust(width), _style(record.kind)),
            f"  {line.time:>{broad}}  {took:>8}  {record.worker or '–':>6}  ",
            *(_outcomes(line.alike, story.run) if line.alike else _outcome(record, story)),
        )
        out.print(told, soft_wrap=True)
        if not line.alike:
            _tell_below(out, story, record, limit)


def _tell_below(out: Console, story: Story, record: Record, limit: int | None) -> None:
    reply = reply_of(record)
    is_compaction = reply is not None and reply.compaction is not None
    below = "" if is_turn(record) or is_compaction else record.preview
    if below and record.kind in (Kind.CHILD, Kind.START):
        below = _run_in_words(record, story.family.get(below))
    if record.kind is Kind.APPROVAL:
        _tell_answer(out, story, record)
    elif below:
        out.print(Text("      " + one_line(below, limit), "dim"), soft_wrap=True)
    if reply is not None:
        _tell_reply(out, reply, limit)
    elif refusal := refusal_of(record):
        _tell_in_lines(out, reason_of(refusal), "yellow")
    elif full := fullness_of(record):
        _tell_in_lines(out, str(full), "yellow")
    elif required := required_by(record):
        _tell_in_lines(out, required.reason, "yellow")
    elif not is_cleared(record) and (error := failure_of(record)):
        out.print(Text("      " + one_line(_failed_with(error), limit), "red"), soft_wrap=True)


def _tell_answer(out: Console, story: Story, record: Record) -> None:
    """What people were asked, and who answered what."""
    if (asked := story.asked(record)) is not None:
        _tell_in_lines(out, f"“{asked.question}”", "dim")
        if asked.arguments is not None:
            _tell_in_lines(out, f"{asked.tool}({json.dumps(asked.arguments, ensure_ascii=False)})", "dim")
    if record.ok and record.payload is not None:
        answer = Answer.of(record.payload)
        _tell_in_lines(out, answer_in_words(answer, story.now), "green" if answer.approved else "yellow")


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
    if reply.complaint is not None:
        told = one_line(f"it cannot be used: {reply.complaint}", limit)
        out.print(Text(f"      {told}", "yellow"), soft_wrap=True)


def _failed_with(error: RecordedError) -> str:
    """An error in short; of refused arguments, what was wrong with which, without what else the model is told."""
    faults = [line.removeprefix("- ") for line in error.message.splitlines() if line.startswith("- ")]
    if error.type == "holdfast.errors.ArgumentsRefused" and faults:
        return f"arguments refused: {'; '.join(faults)}"
    return error.in_short


def _tell_in_lines(out: Console, text: str, style: str) -> None:
    """Words that are not cut: on a terminal, they go on in the next line."""
    for line in wrapped(out, text, 6):
        out.print(Text(f"      {line}", style), soft_wrap=True)


def _run_in_words(record: Record, run: Run | None) -> str:
    """Which run it is, and its state, unless the line above tells how it has ended."""
    ended = record.kind is Kind.CHILD and run is not None and run.state.is_terminal
    as_told = ended and run is not None and (run.state is RunState.COMPLETED) == record.ok
    return f"run {record.preview!r}" if run is None or as_told else f"run {record.preview!r}, now {run.state}"


def _lines(story: Story) -> list[_Line]:
    """What to print, where many runs of one workflow that are well are one line."""
    groups: dict[tuple[Kind, str], list[Record]] = {}
    for record in story.history.records:
        if record.ok and record.kind in (Kind.CHILD, Kind.START):
            groups.setdefault((record.kind, record.name), []).append(record)
    many = {key: group for key, group in groups.items() if len(group) > MANY}
    lines: list[_Line] = []
    for record in story.history.records:
        group = many.get((record.kind, record.name)) if record.ok else None
        if group is None:
            lines.append(_Line(record, _number(record), _what(record), _offset(record, story.run)))
        elif group[0] is record:
            what = f"{_what(record)} ×{len(group):,}"
            number = f"{min(group, key=_position).position + 1}…{max(group, key=_position).position + 1}"
            lines.append(_Line(record, number, what, _offset(record, story.run), group))
    return lines


def _position(record: Record) -> int:
    return record.position


def _number(record: Record) -> str:
    """All that has a position is counted together, timers on their own; nobody asked for the rest."""
    if record.kind is Kind.TIMER:
        return f"t{record.position + 1}"
    return str(record.position + 1) if record.kind.has_position else "–"


def _offset(record: Record, run: Run) -> str:
    """How long after the run's start it began; for what only happens, when it did. A fork shares the older clock."""
    at = record.started_at if record.kind in TIMED else record.at
    return f"+{duration(at - run.began_at)}"


def _what(record: Record) -> str:
    if record.kind in (Kind.DEADLINE, Kind.CANCEL):
        return record.kind.label
    if record.kind is Kind.APPROVAL:
        return one_line(record.name)
    if record.kind is Kind.SIGNAL and record.name == BUDGET_SIGNAL:
        return "another budget"
    if record.kind is Kind.COMPENSATION:
        return one_line(f"undoing: {record.name}")
    if record.kind is Kind.STEP or record.name.startswith(f"{record.kind.label} "):  # "approval of #3"
        return one_line(record.name)
    return one_line(f"{record.kind.label} {record.name}")


def _style(kind: Kind) -> str:
    return {Kind.STEP: "", Kind.COMPENSATION: "magenta", Kind.CANCEL: "magenta"}.get(kind, "blue")


def _failure(record: Record) -> tuple[str, str]:
    if refusal_of(record) is not None:
        return "refused", "yellow"
    if required_by(record) is not None:
        return "needs an approval", "yellow"
    if is_cleared(record):
        return "needs no approval", "green"
    return ("context full", "yellow") if fullness_of(record) is not None else ("failed", "red")


def _outcome(record: Record, story: Story) -> list[tuple[str, str]]:
    parts = [("ok", "green") if record.ok else _failure(record)]
    if not record.worker and not record.epoch:  # Temporal does not tell who has recorded what
        parts.append((", given to the fork", ""))
    if record.attempts > 1:
        parts.append((f" after {record.attempts} attempts", ""))
    if record.ok and record.payload is not None and is_large(record.payload) and reply_of(record) is None:
        parts.append((f", {size(record.payload)}", ""))
    if (replays := story.replays(record)) > 0:
        parts.append((f", replayed ×{replays}", "dim"))
    return parts


def _outcomes(records: Sequence[Record], run: Run) -> list[tuple[str, str]]:
    return [("ok", "green"), (f", the last at {_offset(records[-1], run)}", "")]


# The family


def tell_family(out: Console, story: Story) -> None:
    """Print the runs that the run has started or waited for, or how many of them are in which state."""
    family = list(story.family.values())
    if not family:
        return
    out.print("\nruns it started or waited for", style="bold")
    if len(family) > MANY:
        least = "at least " if len(family) >= MOST else ""
        out.print(Text(f"      {least}{summed_up(story.family_states)}"), soft_wrap=True)
        see = f"see those it started with `{command('runs', '--parent', story.run.id)}`"
        out.print(Text(f"      {see}", "dim"), soft_wrap=True)
        return
    ids = max(len(one_line(run.id)) for run in family)
    names = max(len(one_line(run.workflow)) for run in family)
    for run in family:
        line = f"      {one_line(run.id).ljust(ids)}  {one_line(run.workflow).ljust(names)}  {run.state}"
        line += " for a higher budget" if is_short(run) else ""
        own = "" if run.parent == story.run.id else "  (not started by it)"
        paid = brief_cost(story.usages[run.id].used)
        out.print(Text(line + (f"  {paid}" if paid else "") + own), soft_wrap=True)


def summed_up(states: Counter[RunState]) -> str:
    """``1,000 runs: 990 completed, 10 running``."""
    told = ", ".join(f"{count:,} {state}" for state, count in states.most_common())
    return f"{counted(sum(states.values()), 'run')}: {told}"
