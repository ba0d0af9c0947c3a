"""Durations, numbers, recorded texts and values, and commands, as text."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from holdfast.codec import mask_encrypted_text
from holdfast.services.timestamps import to_datetime
from holdfast.services.wire_values import to_wire


def value_to_json(value: Any) -> Any:
    """A recorded value as JSON; values that JSON cannot express become text."""
    return to_wire(value, tagged=False)


def format_duration(duration_s: float) -> str:
    """A duration, with a precision that suits its length."""
    if duration_s < 0.00995:
        return f"{max(0.0, duration_s) * 1000:.1f} ms"
    if duration_s < 0.9995:
        return f"{duration_s * 1000:.0f} ms"
    if duration_s < 59.95:
        return f"{duration_s:.2f} s" if duration_s < 9.995 else f"{duration_s:.1f} s"
    whole = round(duration_s)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def format_iso(timestamp: float | None) -> str | None:
    """A time in ISO 8601."""
    return None if timestamp is None else to_datetime(timestamp).isoformat()


def make_printable(text: str) -> str:
    """Recorded text with control characters made visible and encrypted parts masked."""
    text = mask_encrypted_text(text).expandtabs(4)
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)


def to_one_line(text: str, max_chars: int | None = None) -> str:
    """Recorded text on one line, of at most ``max_chars`` characters."""
    line = make_printable(" ".join(text.split()))
    return line if max_chars is None or len(line) <= max_chars else line[: max(max_chars - 1, 0)] + "…"


def format_count(count: int, noun: str) -> str:
    """``1 run``, ``2 runs``, ``1,000 runs``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def format_list(words: Sequence[str], max_items: int = 4) -> str:
    """``a, b and c``; of many, the first few and the number of others."""
    shown = list(words)
    if len(words) > max_items:
        shown = [*words[: max_items - 1], f"{len(words) - max_items + 1:,} more"]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def format_bytes(count: int) -> str:
    """``1.5 MiB``, ``12 bytes``."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f}".removesuffix(".0") + f" {name}"
    return format_count(count, "byte")


def format_command(*words: str) -> str:
    """A ``holdfast`` command to copy into a shell."""
    return shlex.join(["holdfast", *words])
