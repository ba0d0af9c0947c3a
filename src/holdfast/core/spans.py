"""Lengths of time as users give them: seconds, a ``timedelta``, or words such as ``15 min``."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

from holdfast.errors import UsageError

Span = float | timedelta | str
"""A length of time as users give it."""

_UNITS = {
    "week": ("w", "wk", "week", "weeks"),
    "day": ("d", "day", "days"),
    "hour": ("h", "hr", "hrs", "hour", "hours"),
    "min": ("m", "min", "mins", "minute", "minutes"),
    "s": ("s", "sec", "secs", "second", "seconds"),
}
_LENGTHS = {"week": 7 * 86400, "day": 86400, "hour": 3600, "min": 60, "s": 1}
_LENGTH_OF = {word: _LENGTHS[unit] for unit, words in _UNITS.items() for word in words}
LONGEST = 1000 * 366 * 86400
"""Seconds: about a thousand years."""
_PART = re.compile(r"(\d+(?:\.\d+)?)?\s*([a-z]+)\s*")


def span_seconds(span: Span, what: str) -> float:
    """The seconds of a length of time, as in ``15 min``, ``1 h 30 min``, ``day``, 900, or a ``timedelta``."""
    if isinstance(span, str):
        seconds = _spelled_seconds(span, what)
    elif isinstance(span, timedelta):
        seconds = span.total_seconds()
    elif isinstance(span, bool) or not isinstance(span, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{what} {span!r}: give seconds, a timedelta, or words such as '15 min'")
    else:
        seconds = float(span)
    if not 0 < seconds <= LONGEST:  # also false for NaN
        raise UsageError(f"{what} {span}: it must be longer than no time, and shorter than a thousand years")
    return seconds


def span_words(seconds: float) -> str:
    """A length of time in the largest unit of which it is a whole number: ``15 min``, ``day``, ``2 weeks``."""
    for unit, length in _LENGTHS.items():
        if seconds % length == 0:
            number = int(seconds // length)
            return unit if number == 1 else f"{number} {unit}{'' if unit in ('min', 's') else 's'}"
    return f"{Decimal(repr(seconds)):f} s"


def _spelled_seconds(text: str, what: str) -> float:
    spelled, total, at = text.strip().lower(), Decimal(0), 0
    while at < len(spelled):
        part = _PART.match(spelled, at)
        length = None if part is None else _LENGTH_OF.get(part[2])
        if part is None or length is None:
            wrong = f"{part[2]!r} is no unit" if part else f"{spelled[at:]!r} lacks a number and a unit"
            month = "; months differ in length: for those use a cron expression, as in '0 0 1 * *'"
            raise UsageError(
                f"{what} {text}: {wrong}. The units are s, min, hour, day and week, as in '15 min' or '1 h 30 min'"
                f"{month if part and part[2].startswith(('mo', 'y')) else ''}"
            )
        total += Decimal(part[1] or 1) * length
        at = part.end()
    if not spelled:
        raise UsageError(f"{what} how long? Say it, as in '15 min'")
    return float(total)
