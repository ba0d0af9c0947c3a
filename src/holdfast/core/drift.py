"""Drift: the message of a ``NonDeterminismError`` compares the journal with what the code does now."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from holdfast.core.commands import Command
from holdfast.core.patches import Patches
from holdfast.core.records import Record, RecordKind
from holdfast.core.source_location import locate_await
from holdfast.errors import NonDeterminismError

CONTEXT_SIZE = 3
"""How many commands before a drift its message shows."""


class IssuedCommand(NamedTuple):
    """What a message says of a command, also when it has its outcome."""

    position: int
    kind: RecordKind
    name: str


class DriftContext:
    """The last records and commands of a run, for the message."""

    def __init__(self, run_id: str, recorded_python: str, patches: Patches) -> None:
        self.records: deque[Record] = deque(maxlen=CONTEXT_SIZE)
        self.commands: deque[tuple[int, RecordKind, str]] = deque(maxlen=2 * CONTEXT_SIZE + 2)
        """The fields of an ``IssuedCommand`` each: the commands themselves would keep arguments and outputs alive."""
        self._run_id = run_id
        self._recorded_python = recorded_python
        self._patches = patches

    def make_error(
        self,
        record: Record,
        open_commands: Mapping[int, Command],
        command: Command | None = None,
        timer: str | None = None,
        *,
        has_ended: bool,
    ) -> NonDeterminismError:
        """The error for a record that fits no command: a readable diff around it."""
        lines = [f"run {self._run_id!r} cannot go on: its code no longer does what its journal says it did.", ""]
        issued = {position: IssuedCommand(position, kind, name) for position, kind, name in self.commands}
        rows = [("", "journal", "code now")]
        for old in self.records:
            now = issued.get(old.position) if old.kind is not RecordKind.TIMER else None
            rows.append(
                (" ", _format_record(old), _format_command(now, open_commands) if now else self._format_consumed(old))
            )
        current = _format_current(record, command, timer, issued, open_commands, has_ended)
        rows.append(("≠", _format_record(record), current))
        width = max(len(row[1]) for row in rows)
        lines += [f"  {mark:1} {left:<{width}}   {right}".rstrip() for mark, left, right in rows]
        lines.append("")
        lines.append(
            "The journal is untouched. Bring back code that issues the recorded commands in their order "
            "(new ones may come after them): as the other way of the change, "
            '`if patched("name of the change"): new code, else: old code`, it stays there for runs like this one '
            f"alone. Then continue with `holdfast retry {self._run_id}`."
        )
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        if self._recorded_python and self._recorded_python != python:
            lines.append(f"The run was started under Python {self._recorded_python}; this is {python}.")
        return NonDeterminismError("\n".join(lines))

    def _format_consumed(self, record: Record) -> str:
        """A record that the code has consumed or skipped."""
        if record.kind is RecordKind.PATCH and not self._patches.is_decided(record.name):
            return "(not asked for)"
        return _format_record(record)


def _format_record(record: Record) -> str:
    if record.kind is RecordKind.PATCH:
        return _format_name(record.kind, record.name)
    return f"#{record.position + 1} {_format_name(record.kind, record.name)}".rstrip()


def _format_command(command: IssuedCommand | Command, open_commands: Mapping[int, Command]) -> str:
    waiting = open_commands.get(command.position)
    task = None if waiting is None else waiting.task
    location = locate_await(task.get_coro()) if task is not None and not task.done() else ""
    return f"#{command.position + 1} {_format_name(command.kind, command.name)}{f'   ({location})' if location else ''}"


def _format_name(kind: RecordKind, name: str) -> str:
    return name if kind is RecordKind.APPROVAL else f"{kind.label} {name}"


def _format_current(
    record: Record,
    command: Command | None,
    timer: str | None,
    issued: Mapping[int, IssuedCommand],
    open_commands: Mapping[int, Command],
    ended: bool,
) -> str:
    if command is not None:
        return _format_command(command, open_commands)
    if ended:
        return "(the workflow has ended)"
    if record.kind is RecordKind.TIMER:
        return "(no such timer)" if timer is None else f"#{record.position + 1} timer {timer}"
    if (at_position := issued.get(record.position)) is not None:
        return _format_command(at_position, open_commands)
    return f"(nothing: the code has issued only {max(issued) + 1} commands)" if issued else "(nothing: no command yet)"
