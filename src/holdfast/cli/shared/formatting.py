"""Consoles, colors, times, and text for the command line."""

from __future__ import annotations

import json
import os
from datetime import datetime
from textwrap import wrap
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from holdfast.core.states import RunState
from holdfast.reports.formatting import (
    format_bytes as format_bytes,
)
from holdfast.reports.formatting import (
    format_command as format_command,
)
from holdfast.reports.formatting import (
    format_count as format_count,
)
from holdfast.reports.formatting import (
    format_duration as format_duration,
)
from holdfast.reports.formatting import (
    format_iso as format_iso,
)
from holdfast.reports.formatting import (
    format_list as format_list,
)
from holdfast.reports.formatting import (
    make_printable as make_printable,
)
from holdfast.reports.formatting import (
    to_one_line as to_one_line,
)
from holdfast.reports.formatting import (
    value_to_json as value_to_json,
)
from holdfast.reports.run_info import RunErrorInfo

UNLIMITED_WIDTH = 10_000
"""The width of a line in a file or a pipe: nothing is cut or wrapped there."""

LABEL_WIDTH = 11
"""The usual width of a label before a value."""

STATE_STYLES = {
    RunState.PENDING: "yellow",
    RunState.RUNNING: "cyan",
    RunState.WAITING: "blue",
    RunState.COMPLETED: "green",
    RunState.FAILED: "red",
    RunState.CANCELLED: "magenta",
    RunState.DEAD: "bold red",
}

PLAN_MARKS = {"open": "[ ]", "working": "[>]", "done": "[x]", "dropped": "[-]"}
"""How the status of an item of an agent's plan is shown."""


def create_console() -> Console:
    """The console for results. Recorded text is printed as it is: whole lines, no markup, no emoji codes."""
    out = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    if not out.is_terminal:
        out.width = UNLIMITED_WIDTH
    return out


def print_error(text: str) -> None:
    """Print an error in red on stderr."""
    _print_colored(f"error: {make_printable(text)}", "red")


def print_warning(text: str) -> None:
    """Print a warning in yellow on stderr."""
    _print_colored(f"warning: {make_printable(text)}", "yellow")


def _print_colored(text: str, color: str) -> None:
    click.secho(text, fg=color, err=True, color=False if os.environ.get("NO_COLOR") else None)


def print_json(value: Any) -> None:
    """Print a value as indented JSON on stdout."""
    print(json.dumps(value, indent=2))


def format_ago(age_s: float) -> str:
    """How long ago something was, or how soon it will be: ``2 d ago``, ``in 1 h 30 min``."""
    duration_s = abs(age_s)
    if duration_s < 1:
        return "now"
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    for (size, unit), (smaller, part) in zip(units, (*units[1:], units[-1]), strict=True):
        if duration_s >= size:
            rough, rest = f"{int(duration_s // size)} {unit}", int(duration_s % size // smaller)
            if age_s > 0:
                return f"{rough} ago"
            # A deadline in three days is not `in 2 d` a second after it was set.
            return f"in {rough} {rest} {part}" if rest and size > 60 else f"in {rough}"
    return "now"


def format_local_time(timestamp: float) -> str:
    """A time in the local time zone."""
    return datetime.fromtimestamp(timestamp).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def format_time_and_age(timestamp: float, now: float) -> str:
    """A local time, with how long ago it was: ``2 d ago (2026-11-15 08:30:00 UTC)``."""
    return f"{format_ago(now - timestamp)} ({format_local_time(timestamp)})"


def print_field(
    out: Console,
    label: str | Text,
    text: str,
    style: str = "",
    *,
    indent: int = 0,
    label_width: int = LABEL_WIDTH,
    wrap: bool = False,
) -> None:
    """Print text after a label, and its further lines below each other; with ``wrap``, lines that fit a terminal."""
    lines = wrap_text(out, text, indent + label_width) if wrap else text.splitlines()
    for index, line in enumerate(lines or [""]):
        field = Text(" " * indent).append(label if index == 0 else "", None if isinstance(label, Text) else "dim")
        field.append(" " * (indent + label_width - len(field))).append(line, style)
        field.rstrip()
        out.print(field)


def wrap_text(out: Console, text: str, indent: int, max_width: int = UNLIMITED_WIDTH) -> list[str]:
    """Recorded text in lines that fit after an indent on a terminal. In a file, lines are not wrapped."""
    lines = make_printable(text).splitlines()
    if not out.is_terminal:
        return lines
    room = max(20, min(out.width, max_width) - indent)
    return [
        part
        for line in lines
        for part in wrap(line, room, break_on_hyphens=False, drop_whitespace=True, replace_whitespace=False) or [""]
    ]


def format_error(error: RunErrorInfo) -> str:
    """``ValueError: no``, without the class's module."""
    name = error.type.rpartition(".")[2]
    return f"{name}: {error.message}" if error.message else name
