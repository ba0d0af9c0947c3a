"""Values that people type: dates and times (``2026-11-15``, ``2026-11-15T08:30``, ``2h``), durations, JSON, steps."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

import click

_DURATION_PATTERN = re.compile(r"(\d+(?:\.\d+)?) *(s|m|min|h|d|w)", re.IGNORECASE)
_DAYS_AGO_PATTERN = re.compile(r"(\d+) *(d|w)", re.IGNORECASE)
_UNIT_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_past_datetime(text: str) -> datetime:
    """A date (its beginning), a time, or how long ago. The default time zone is that of this machine."""
    return _parse_datetime(text, -1, "2026-11-15", "ago it was, such as 90m, 2h or 3d")


def parse_future_datetime(text: str) -> datetime:
    """A date (its beginning), a time, or how long from now."""
    return _parse_datetime(text, +1, "2027-01-31", "it is until then, such as 12h, 30d or 52w")


def _parse_datetime(text: str, direction: int, example: str, duration_hint: str) -> datetime:
    try:
        if found := _DURATION_PATTERN.fullmatch(text.strip()):
            return datetime.now().astimezone() + direction * timedelta(seconds=_match_to_seconds(found))
        return datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(
            f"{text!r} is not a date or time: give a date or time such as {example} or {example}T08:30, or how long "
            f"{duration_hint}."
        ) from None


def parse_day(text: str) -> date:
    """A date in UTC, or how many days or weeks ago."""
    try:
        if ago := _DAYS_AGO_PATTERN.fullmatch(text.strip()):
            return datetime.now(UTC).date() - timedelta(seconds=_match_to_seconds(ago))
        return date.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is not a day: give a date such as 2026-11-15, or how long ago it was, such as 7d or 4w."
        ) from None


def parse_duration(text: str) -> float:
    """A duration, in seconds."""
    found = _DURATION_PATTERN.fullmatch(text.strip())
    if found is None:
        raise click.BadParameter(f"{text!r} is not a duration: give one such as 90m, 12h or 30d.")
    return _match_to_seconds(found)


def _match_to_seconds(match: re.Match[str]) -> float:
    return float(match[1]) * _UNIT_SECONDS[match[2].lower()]


def parse_json_or_text(text: str) -> Any:
    """The value of JSON; text that is not JSON is a string."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def parse_json_option(option: str, text: str) -> Any:
    """The value of JSON. For answers and outputs of steps: a mistyped object must not become a string there."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.UsageError(
            f"{option} is not JSON ({error}): {text}\nA string needs its quotation marks, as in {option} '\"yes\"'."
        ) from None


def parse_step(text: str) -> int | str:
    """A step: its number in ``holdfast show``, or its name."""
    return int(text) if text.isdecimal() else text
