"""The message of a ``NonDeterminismError``: what the journal says beside what the code does now."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from holdfast.core.commands import Command
from holdfast.core.patches import Patches
from holdfast.core.records import Kind, Record
from holdfast.core.source_location import waiting_at


def describe_drift(
    *,
    run_id: str,
    record: Record,
    before: Sequence[Record],
    issued: Sequence[Command],
    command: Command | None,
    timer: str | None,
    ended: bool,
    patches: Patches,
    recorded_python: str,
) -> str:
    """A readable diff around the record that fits no command."""
    lines = [f"run {run_id!r} cannot go on: its code no longer does what its journal says it did.", ""]
    by_position = {(c.kind is Kind.TIMER, c.position): c for c in issued}
    rows = [("", "journal", "code now")]
    for old in before:
        now = by_position.get((old.kind is Kind.TIMER, old.position))
        rows.append((" ", _recorded(old), _issued(now) if now else _taken(old, patches)))
    rows.append(("≠", _recorded(record), _now(record, command, timer, issued, ended)))
    width = max(len(row[1]) for row in rows)
    lines += [f"  {mark:1} {left:<{width}}   {right}".rstrip() for mark, left, right in rows]
    lines.append("")
    lines.append(
        "The journal is untouched. Bring back code that issues the recorded commands in their order "
        "(new ones may come after them): as the other way of the change, "
        '`if patched("name of the change"): new code, else: old code`, it stays there for runs like this one alone. '
        f"Then continue with `holdfast retry {run_id}`."
    )
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    if recorded_python and recorded_python != python:
        lines.append(f"The run was started under Python {recorded_python}; this is {python}.")
    return "\n".join(lines)


def _taken(record: Record, patches: Patches) -> str:
    """A record that the code has taken, or passed over."""
    if record.kind is Kind.PATCH and not patches.was_asked(record.name):
        return "(not asked for)"
    return _recorded(record)


def _recorded(record: Record) -> str:
    if record.kind is Kind.PATCH:
        return _named(record.kind, record.name)
    return f"#{record.position + 1} {_named(record.kind, record.name)}".rstrip()


def _issued(command: Command) -> str:
    place = waiting_at(command.task.get_coro()) if command.task is not None and not command.task.done() else ""
    return f"#{command.position + 1} {_named(command.kind, command.name)}{f'   ({place})' if place else ''}"


def _named(kind: Kind, name: str) -> str:
    return name if kind is Kind.APPROVAL else f"{kind.label} {name}"


def _now(record: Record, command: Command | None, timer: str | None, issued: Sequence[Command], ended: bool) -> str:
    if command is not None:
        return _issued(command)
    if ended:
        return "(the workflow has ended)"
    if record.kind is Kind.TIMER:
        return "(no such timer)" if timer is None else f"#{record.position + 1} timer {timer}"
    at_position = [c for c in issued if c.position == record.position and c.kind is not Kind.TIMER]
    if at_position:
        return _issued(at_position[0])
    return (
        f"(nothing: the code has issued only {issued[-1].position + 1} commands)"
        if issued
        else "(nothing: no command yet)"
    )
