"""Durations as users write them: seconds, a ``timedelta``, or text such as ``15 min``."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from decimal import Decimal

from holdfast.errors import DefinitionError, UsageError

Duration = float | timedelta | str
"""A duration as users write it: seconds, a ``timedelta``, or text such as ``15 min``."""

_UNIT_WORDS = {
    "week": ("w", "wk", "week", "weeks"),
    "day": ("d", "day", "days"),
    "hour": ("h", "hr", "hrs", "hour", "hours"),
    "min": ("m", "min", "mins", "minute", "minutes"),
    "s": ("s", "sec", "secs", "second", "seconds"),
}
_UNIT_SECONDS = {"week": 7 * 86400, "day": 86400, "hour": 3600, "min": 60, "s": 1}
_SECONDS_BY_WORD = {word: _UNIT_SECONDS[unit] for unit, words in _UNIT_WORDS.items() for word in words}
MAX_DURATION_S = 1000 * 366 * 86400
"""About a thousand years."""
_PART_PATTERN = re.compile(r"(\d+(?:\.\d+)?)?\s*([a-z]+)\s*")
_MONTHS_PATTERN = re.compile(r"\b\d*\s*(months?|mo|years?|yrs?|y)\b", re.IGNORECASE)


def duration_to_seconds(duration: Duration, subject: str, *, may_be_zero: bool = False) -> float:
    """The seconds of ``15 min``, ``1 h 30 min``, ``day``, 900, or a ``timedelta``.

    Raises ``UsageError``, which begins with ``subject``: the name of the argument, or ``""``.
    """
    if isinstance(duration, str):
        seconds = _parse_duration_text(duration)
    elif isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, bool) or not isinstance(duration, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
        seconds = math.nan
    else:
        seconds = float(duration)
    if 0 < seconds <= MAX_DURATION_S or (may_be_zero and seconds == 0):  # false for NaN
        return seconds
    lower_bound = "zero or longer" if may_be_zero else "longer than zero"
    hint = ""
    if isinstance(duration, str) and _MONTHS_PATTERN.search(duration):
        hint = ". Months differ in length: for those, use a cron expression such as '0 0 1 * *'"
    prefix = f"{subject} " if subject else ""
    raise UsageError(
        f"{prefix}{duration!r} is not a duration: use seconds, a timedelta, or text such as '15 min' or '1 h 30 min' "
        f"(units: s, min, hour, day, week), {lower_bound} and shorter than a thousand years{hint}"
    )


def timeout_to_seconds(timeout: Duration | None, subject: str = "timeout") -> float | None:
    """The seconds of a timeout, or ``None`` for no timeout. A negative number counts as 0. Raises ``UsageError``."""
    if timeout is None:
        return None
    if isinstance(timeout, int | float) and timeout < 0:
        return 0.0
    return duration_to_seconds(timeout, subject, may_be_zero=True)


def declared_seconds(duration: Duration | None, subject: str, *, may_be_zero: bool = False) -> float | None:
    """The seconds of an optional duration in a declaration. Raises ``DefinitionError``."""
    if duration is None:
        return None
    try:
        return duration_to_seconds(duration, subject, may_be_zero=may_be_zero)
    except UsageError as error:
        raise DefinitionError(str(error)) from None


def format_duration(seconds: float) -> str:
    """A duration in the largest unit of which it is a whole number: ``15 min``, ``day``, ``2 weeks``."""
    for unit, length in _UNIT_SECONDS.items():
        if seconds % length == 0:
            number = int(seconds // length)
            return unit if number == 1 else f"{number} {unit}{'' if unit in ('min', 's') else 's'}"
    return f"{Decimal(repr(seconds)):f} s"


def _parse_duration_text(text: str) -> float:
    """The seconds of text such as ``1 h 30 min``; NaN if it is not a duration."""
    spelled, total, at = text.strip().lower(), Decimal(0), 0
    while at < len(spelled):
        part = _PART_PATTERN.match(spelled, at)
        length = None if part is None else _SECONDS_BY_WORD.get(part[2])
        if part is None or length is None:
            return math.nan
        total += Decimal(part[1] or 1) * length
        at = part.end()
    return float(total) if spelled else math.nan
