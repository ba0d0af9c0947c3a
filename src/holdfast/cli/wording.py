"""How the command line words things: consoles, durations, values, times."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from textwrap import wrap
from typing import Any

import click
from pydantic_core import to_jsonable_python
from rich.console import Console

from holdfast.codec import shown_text
from holdfast.core.states import RunState

WIDE = 10_000
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


def console() -> Console:
    """Where results go. Recorded text is shown as it is: neither markup nor emoji are looked for in it."""
    out = Console(highlight=False, markup=False, emoji=False)
    return out if out.is_terminal else Console(highlight=False, markup=False, emoji=False, width=WIDE)


def tell_error(error: Exception) -> None:
    """An error of Holdfast, in red on stderr."""
    colour = False if os.environ.get("NO_COLOR") else None
    click.secho(f"error: {printable(str(error))}", fg="red", err=True, color=colour)


def echo_json(value: Any) -> None:
    """A value as JSON, on stdout."""
    print(json.dumps(value, indent=2))


def jsonable(value: Any) -> Any:
    """A recorded value as JSON can say it."""
    return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="strings", fallback=repr)


def duration(seconds: float) -> str:
    """A span of time, as exact as one wants to know it."""
    if seconds < 0.00995:
        return f"{max(0.0, seconds) * 1000:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def ago(seconds: float) -> str:
    """How long ago something was (or how soon it will be), roughly."""
    span = abs(seconds)
    if span < 1:
        return "now"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if span >= size:
            rough = f"{int(span // size)} {unit}"
            return f"{rough} ago" if seconds > 0 else f"in {rough}"
    return "now"


def iso(at: float | None) -> str | None:
    """A moment, for programs."""
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat()


def clock_time(at: float) -> str:
    """A moment, for people: in their own time zone."""
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def printable(text: str) -> str:
    """Recorded text, with whatever could steer a terminal made visible, and what is sealed in it told."""
    text = shown_text(text).expandtabs(4)
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)


def one_line(text: str, limit: int | None = None) -> str:
    """Recorded text on one line, cut at ``limit`` characters."""
    line = printable(" ".join(text.split()))
    return line if limit is None or len(line) <= limit else line[: max(limit - 1, 0)] + "…"


def wrapped(out: Console, text: str, indent: int, widest: int = WIDE) -> list[str]:
    """Recorded text in lines that fit behind an indent on a terminal; in a file, as it is."""
    lines = printable(text).splitlines()
    if not out.is_terminal:
        return lines
    room = max(20, min(out.width, widest) - indent)
    return [
        part
        for line in lines
        for part in wrap(line, room, break_on_hyphens=False, drop_whitespace=True, replace_whitespace=False) or [""]
    ]


def counted(number: int, noun: str) -> str:
    """``1 run``, ``2 runs``, ``1,000 runs``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(words: Sequence[str], most: int = 4) -> str:
    """``a, b and c``; of many, the first few, and how many more."""
    shown = list(words) if len(words) <= most else [*words[: most - 1], f"{len(words) - most + 1:,} more"]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def size(data: bytes) -> str:
    """How much there is of something large."""
    return bytes_in_words(len(data))


def bytes_in_words(many: int) -> str:
    """A number of bytes."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if many >= unit:
            return f"{many / unit:.1f}".removesuffix(".0") + f" {name}"
    return counted(many, "byte")


def command(*words: str) -> str:
    """A command to be copied into a shell."""
    return shlex.join(["holdfast", *words])
