"""Moments as people type them: ``2026-11-15``, ``2026-11-15T08:30``, ``2h`` (ago, or from now on); and days, which
are those of UTC.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

import click

_DURATION_PATTERN = re.compile(r"(\d+(?:\.\d+)?) *(s|m|min|h|d|w)", re.IGNORECASE)
_DAYS_AGO_PATTERN = re.compile(r"(\d+) *(d|w)", re.IGNORECASE)
_UNIT_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_past_datetime(text: str) -> datetime:
    """A date (its beginning), a time, or how long ago. What has no time zone is in that of this machine."""
    return _parse_datetime(text, -1, "2026-11-15", "ago it was, such as 90m, 2h or 3d")


def parse_future_datetime(text: str) -> datetime:
    """The same for what is to come: a date (its beginning), a time, or how long from now."""
    return _parse_datetime(text, +1, "2027-01-31", "it is until then, such as 12h, 30d or 52w")


def _parse_datetime(text: str, direction: int, example: str, duration_hint: str) -> datetime:
    try:
        if found := _DURATION_PATTERN.fullmatch(text.strip()):
            return datetime.now().astimezone() + direction * timedelta(seconds=_match_to_seconds(found))
        return datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(
            f"{text!r} is no moment: give a date or time such as {example} or {example}T08:30, or how long "
            f"{duration_hint}."
        ) from None


def parse_day(text: str) -> date:
    """A date, or how many days or weeks ago it was. Days are those of UTC."""
    try:
        if ago := _DAYS_AGO_PATTERN.fullmatch(text.strip()):
            return datetime.now(UTC).date() - timedelta(seconds=_match_to_seconds(ago))
        return date.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is no day: give a date such as 2026-11-15, or how long ago it was, such as 7d or 4w."
        ) from None


def parse_duration(text: str) -> float:
    """A length of time, in seconds."""
    found = _DURATION_PATTERN.fullmatch(text.strip())
    if found is None:
        raise click.BadParameter(f"{text!r} is no length of time: give one such as 90m, 12h or 30d.")
    return _match_to_seconds(found)


def _match_to_seconds(match: re.Match[str]) -> float:
    return float(match[1]) * _UNIT_SECONDS[match[2].lower()]
