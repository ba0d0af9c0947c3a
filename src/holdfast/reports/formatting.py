"""How a run is told: spans of time, numbers, recorded text and values, commands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from holdfast.codec import shown_text
from holdfast.services.timestamps import moment
from holdfast.services.wire_values import to_wire


def jsonable(value: Any) -> Any:
    """A recorded value as JSON can say it: what JSON has no form for, in words."""
    return to_wire(value, tagged=False)


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


def iso(at: float | None) -> str | None:
    """A moment, for programs."""
    return None if at is None else moment(at).isoformat()


def printable(text: str) -> str:
    """Recorded text, with whatever could steer a terminal made visible, and what is sealed in it told."""
    text = shown_text(text).expandtabs(4)
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)


def one_line(text: str, limit: int | None = None) -> str:
    """Recorded text on one line, cut at ``limit`` characters."""
    line = printable(" ".join(text.split()))
    return line if limit is None or len(line) <= limit else line[: max(limit - 1, 0)] + "…"


def counted(number: int, noun: str) -> str:
    """``1 run``, ``2 runs``, ``1,000 runs``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(words: Sequence[str], most: int = 4) -> str:
    """``a, b and c``; of many, the first few, and how many more."""
    shown = list(words) if len(words) <= most else [*words[: most - 1], f"{len(words) - most + 1:,} more"]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def bytes_in_words(many: int) -> str:
    """A number of bytes."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if many >= unit:
            return f"{many / unit:.1f}".removesuffix(".0") + f" {name}"
    return counted(many, "byte")


def command(*words: str) -> str:
    """A command to be copied into a shell."""
    return shlex.join(["holdfast", *words])
