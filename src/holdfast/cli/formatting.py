"""How the command line words things: consoles, durations, values, times."""

from __future__ import annotations

import json
import os
from datetime import datetime
from textwrap import wrap
from typing import Any

import click
from rich.console import Console

from holdfast.core.states import RunState
from holdfast.reports.formatting import (
    format_bytes,
    format_command,
    format_count,
    format_duration,
    format_iso,
    format_list,
    make_printable,
    to_one_line,
    value_to_json,
)
from holdfast.reports.run_info import RunErrorInfo

__all__ = [
    "STATE_STYLES",
    "UNLIMITED_WIDTH",
    "create_console",
    "format_ago",
    "format_bytes",
    "format_command",
    "format_count",
    "format_duration",
    "format_error",
    "format_iso",
    "format_list",
    "format_local_time",
    "make_printable",
    "print_error",
    "print_json",
    "to_one_line",
    "value_to_json",
    "wrap_text",
]

UNLIMITED_WIDTH = 10_000
"""The width of a line that goes to a file or a pipe, where nothing is to be cut or wrapped."""

STATE_STYLES = {
    RunState.PENDING: "yellow",
    RunState.RUNNING: "cyan",
    RunState.WAITING: "blue",
    RunState.COMPLETED: "green",
    RunState.FAILED: "red",
    RunState.CANCELLED: "magenta",
    RunState.DEAD: "bold red",
}


def create_console() -> Console:
    """Where results go. Recorded text is shown as it is: neither markup nor emoji are looked for in it."""
    out = Console(highlight=False, markup=False, emoji=False)
    return out if out.is_terminal else Console(highlight=False, markup=False, emoji=False, width=UNLIMITED_WIDTH)


def print_error(text: str) -> None:
    """An error of Holdfast, in red on stderr."""
    _print_colored(f"error: {make_printable(text)}", "red")


def print_warning(text: str) -> None:
    """Something that was done, and perhaps not meant, in yellow on stderr."""
    _print_colored(f"warning: {make_printable(text)}", "yellow")


def _print_colored(text: str, color: str) -> None:
    click.secho(text, fg=color, err=True, color=False if os.environ.get("NO_COLOR") else None)


def print_json(value: Any) -> None:
    """A value as JSON, on stdout."""
    print(json.dumps(value, indent=2))


def format_ago(age_s: float) -> str:
    """How long ago something was (or how soon it will be), roughly."""
    span = abs(age_s)
    if span < 1:
        return "now"
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    for (size, unit), (smaller, part) in zip(units, (*units[1:], units[-1]), strict=True):
        if span >= size:
            rough, rest = f"{int(span // size)} {unit}", int(span % size // smaller)
            if age_s > 0:
                return f"{rough} ago"
            # A deadline in three days is not `in 2 d` a second after it was set.
            return f"in {rough} {rest} {part}" if rest and size > 60 else f"in {rough}"
    return "now"


def format_local_time(timestamp: float) -> str:
    """A moment, for people: in their own time zone."""
    return datetime.fromtimestamp(timestamp).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def wrap_text(out: Console, text: str, indent: int, max_width: int = UNLIMITED_WIDTH) -> list[str]:
    """Recorded text in lines that fit behind an indent on a terminal; in a file, as it is."""
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
