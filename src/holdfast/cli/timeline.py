"""A run's journal as a table, for ``holdfast show``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from holdfast.cli.recorded import failure_of, is_large
from holdfast.cli.story import MOST, TIMED, Story
from holdfast.cli.wording import command, counted, duration, one_line, size
from holdfast.core.records import Kind, Record
from holdfast.core.states import RunState
from holdfast.stores.operations import Run

_MANY = 12
"""So many runs of one workflow, started or awaited, are told in a line each; more are told in one."""


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
    below = record.preview
    if below and record.kind in (Kind.CHILD, Kind.START):
        below = _run_in_words(record, story.family.get(below))
    if below:
        out.print(Text("      " + one_line(below, limit), "dim"), soft_wrap=True)
    if error := failure_of(record):
        out.print(Text("      " + one_line(error.in_short, limit), "red"), soft_wrap=True)


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
    many = {key: group for key, group in groups.items() if len(group) > _MANY}
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
    if record.kind is Kind.COMPENSATION:
        return one_line(f"undoing: {record.name}")
    return one_line(record.name if record.kind is Kind.STEP else f"{record.kind.label} {record.name}")


def _style(kind: Kind) -> str:
    return {Kind.STEP: "", Kind.COMPENSATION: "magenta", Kind.CANCEL: "magenta"}.get(kind, "blue")


def _outcome(record: Record, story: Story) -> list[tuple[str, str]]:
    parts = [("ok", "green") if record.ok else ("failed", "red")]
    if not record.worker:
        parts.append((", given to the fork", ""))
    if record.attempts > 1:
        parts.append((f" after {record.attempts} attempts", ""))
    if record.ok and record.payload is not None and is_large(record.payload):
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
    if len(family) > _MANY:
        least = "at least " if len(family) >= MOST else ""
        out.print(Text(f"      {least}{summed_up(story.family_states)}"), soft_wrap=True)
        see = f"see those it started with `{command('runs', '--parent', story.run.id)}`"
        out.print(Text(f"      {see}", "dim"), soft_wrap=True)
        return
    ids = max(len(one_line(run.id)) for run in family)
    names = max(len(one_line(run.workflow)) for run in family)
    for run in family:
        line = f"      {one_line(run.id).ljust(ids)}  {one_line(run.workflow).ljust(names)}  {run.state}"
        own = "" if run.parent == story.run.id else "  (not started by it)"
        out.print(Text(line + own), soft_wrap=True)


def summed_up(states: Counter[RunState]) -> str:
    """``1,000 runs: 990 completed, 10 running``."""
    told = ", ".join(f"{count:,} {state}" for state, count in states.most_common())
    return f"{counted(sum(states.values()), 'run')}: {told}"
