"""Values that people type: dates and times (``2026-11-15``, ``2026-11-15T08:30``, ``2h``), durations, JSON, steps."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from typing import Any

import click

from holdfast.admission.durations import duration_to_seconds
from holdfast.errors import UsageError


class DurationType(click.ParamType):  # pyright: ignore[reportMissingTypeArgument] - click 8.1 takes none
    """A duration as Python code gives it, in seconds: a number of seconds, or text such as ``15 min`` or ``1h 30m``."""

    name = "duration"

    def __init__(self, *, min_s: float | None = None, max_s: float | None = None) -> None:
        self._min_s = min_s
        """The shortest one; ``None``: any that is longer than zero."""
        self._max_s = max_s

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse what was typed, or the default."""
        try:
            seconds = _parse_duration(value, may_be_zero=self._min_s == 0)
        except UsageError as error:
            self.fail(str(error), param, ctx)
        if self._min_s is not None and seconds < self._min_s:
            self.fail(f"{value!r} is too short: at least {self._min_s:g} s is needed.", param, ctx)
        if self._max_s is not None and seconds > self._max_s:
            self.fail(f"{value!r} is too long: at most {self._max_s:g} s is possible.", param, ctx)
        return seconds


def _parse_duration(text: str, *, may_be_zero: bool) -> float:
    try:
        duration: float | str = float(text)
    except ValueError:
        duration = text
    return duration_to_seconds(duration, "", may_be_zero=may_be_zero)


def parse_past_datetime(text: str) -> datetime:
    """A date (its beginning), a time, or how long ago. The default time zone is that of this machine."""
    return _parse_datetime(text, -1, "2026-11-15", "ago it was, such as 90m, 2h or 3d")


def parse_future_datetime(text: str) -> datetime:
    """A date (its beginning), a time, or how long from now."""
    return _parse_datetime(text, +1, "2027-01-31", "it is until then, such as 12h, 30d or 52w")


def _parse_datetime(text: str, direction: int, example: str, duration_hint: str) -> datetime:
    try:
        if (offset := _try_parse_offset(text)) is not None:
            return datetime.now().astimezone() + direction * offset
        return datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(
            f"{text!r} is not a date or time: give a date or time such as {example} or {example}T08:30, or how long "
            f"{duration_hint}."
        ) from None


def parse_day(text: str) -> date:
    """A date in UTC, or how many days or weeks ago."""
    try:
        if (offset := _try_parse_offset(text)) is None:
            return date.fromisoformat(text.strip())
        if offset % timedelta(days=1):
            raise ValueError(text)
        return datetime.now(UTC).date() - offset
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is not a day: give a date such as 2026-11-15, or how long ago it was, such as 7d or 4w."
        ) from None


def _try_parse_offset(text: str) -> timedelta | None:
    """A duration with a unit. A bare number is not one here: ``20261115`` is a date."""
    try:
        return timedelta(seconds=duration_to_seconds(text, "duration", may_be_zero=True))
    except UsageError:
        return None


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
