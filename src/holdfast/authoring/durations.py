"""Durations as users write them: a number of seconds, or a ``timedelta``."""

from __future__ import annotations

from datetime import timedelta

from holdfast.errors import DefinitionError

Duration = float | timedelta


def seconds(duration: Duration | None, what: str) -> float | None:
    """A duration in seconds; it must be above zero."""
    if duration is None:
        return None
    value = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(f"{what} must be a number of seconds above 0, or a timedelta, not {duration!r}")
    return float(value)
